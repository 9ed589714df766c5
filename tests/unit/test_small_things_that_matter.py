"""Small things that no other test looked at: each was changed once without a test noticing."""

from __future__ import annotations

import asyncio
import gc
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from colonnade.align.numbering import _grouped
from colonnade.core.config import parse
from colonnade.core.doors import Door
from colonnade.core.errors import ConfigError
from colonnade.core.optimizers import OptimizerSpec
from colonnade.fabrics.grpc.stream_operations import StreamOperations
from colonnade.federate.invitations import revoke
from colonnade.federate.training import run_name
from colonnade.protect.accounting import Account
from colonnade.protect.ledger import Ledger, read_ledger, verify_ledger
from colonnade.protect.perturb import Perturb
from colonnade.protect.protection_spec import Place
from membership import SetClock, make_federation, make_member
from messages import says


def test_nothing_is_no_value_of_a_setting_that_needs_one() -> None:
    with pytest.raises(ConfigError, match=says("optimizer.lr")):
        parse(OptimizerSpec, {"name": "sgd", "lr": None}, path="optimizer")


def test_tags_are_equal_only_if_both_halves_are() -> None:
    tags = np.array([[1, 7], [2, 7], [1, 8], [1, 7]], dtype="<u8").view(np.uint8)
    record = SimpleNamespace(names=("a",), tags={"a": tags})
    order, is_first = _grouped(record, [np.arange(4)])  # type: ignore[arg-type]
    assert is_first.sum() == 3
    groups = np.cumsum(is_first)[np.argsort(order)]
    assert groups[0] == groups[3]
    assert len(set(groups.tolist())) == 3


def test_a_new_account_is_empty() -> None:
    account = Account(party="telco", noise=2.0, delta=1e-5, budget=None)
    assert account.num_releases == 0
    assert account.spent() == {"releases": 0.0, "mu": 0.0, "epsilon": 0.0, "delta": 1e-5}


def test_a_ledger_begins_with_what_stands_at_the_door(tmp_path: Path) -> None:
    protection = Perturb(noise=1.0).stand_at(Place(owner="telco"))
    door = Door(owner="telco", protections=[protection], opening={"budget": None})
    door.write_to(Ledger(tmp_path, run="run"))
    (entry,) = read_ledger(tmp_path)
    assert entry["event"] == "opened"
    assert (entry["party"], entry["protection"], entry["budget"]) == ("telco", "perturb", None)


def test_a_changed_line_is_told_by_its_hash(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, run="run")
    for number in range(3):
        ledger.append({"event": "left", "exchange": number})
    ledger.close()
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"exchange":1', b'"exchange":7'))
    count, fault = verify_ledger(tmp_path)
    assert fault is not None
    assert (count, fault.entry) == (1, 1)
    assert "hash" in fault.what


def test_who_is_revoked_must_be_known_and_the_members_are_named(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "bank", SetClock())
    with pytest.raises(ConfigError, match=says("'shop'", "nobody")):
        revoke(federation, "shop")
    make_member(federation, "telco")
    with pytest.raises(ConfigError, match=says("'shop'", "telco")):
        revoke(federation, "shop")


def test_a_run_s_name_is_drawn_once_and_is_as_parties_expect_it(tmp_path: Path) -> None:
    name = run_name(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{32}", name)
    assert run_name(tmp_path) == name


def test_an_operation_that_fails_when_nobody_waits_for_it_is_no_unseen_error() -> None:
    class Stream:
        def __init__(self) -> None:
            self.is_cut = asyncio.Event()

        async def read(self) -> bytes:
            await self.is_cut.wait()
            raise RuntimeError("the stream is cut")

    async def given_up() -> list[str]:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.append(context["message"])
        )
        stream = Stream()
        wire = StreamOperations(stream)
        reading = asyncio.ensure_future(wire.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        stream.is_cut.set()
        await wire.settle(10)
        gc.collect()
        return told

    assert asyncio.run(given_up()) == []
