"""The label holder's ledger: what leaves for several parties alike is one entry that names all."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from colonnade.core.doors import Door
from colonnade.core.messages import Batch, Call
from colonnade.core.parties import Parties, each
from colonnade.core.releases import Kind
from colonnade.core.verbs import VerbSet, verb
from colonnade.fabrics.in_process import InProcess
from colonnade.protect.ledger import Ledger, read_ledger, verify_ledger


class Descending(VerbSet):
    @verb
    def descend(self, batch: Batch, gradient: torch.Tensor) -> None:
        """Take a gradient."""


KNOWN = Descending.verbs["descend"]


def calls(**widths: int) -> list[Call]:
    return [
        Call(number, party, "descend", (Batch("train", 0), torch.zeros(4, width)), 0, False)
        for number, (party, width) in enumerate(widths.items())
    ]


def left(place: Path) -> list[dict[str, Any]]:
    return [entry for entry in read_ledger(place) if entry["event"] == "left"]


@pytest.fixture
def door(tmp_path: Path) -> Door:
    found = Door(owner="bank")
    found.write_to(Ledger(tmp_path, run="credit"))
    return found


def test_the_same_shapes_for_several_parties_are_one_entry(door: Door, tmp_path: Path) -> None:
    sent = calls(shop=3, telco=3, club=5)
    assert list(door.arguments(sent, KNOWN)) == sent
    first, second = left(tmp_path)
    assert (first["to"], first["shape"]) == (["shop", "telco"], [[4, 3]])
    assert (second["to"], second["shape"]) == ("club", [[4, 5]])
    # The bytes of one call: what each of them got.
    assert first["bytes"] == 8 + 4 * 3 * 4
    assert verify_ledger(tmp_path) == (3, None)


def test_calls_without_tensors_are_no_entries(door: Door, tmp_path: Path) -> None:
    door.arguments([Call(0, "shop", "descend", (Batch("train", 0), None), 0, False)], KNOWN)
    door.arguments([], KNOWN)
    assert left(tmp_path) == []


def test_a_protected_door_writes_one_by_one(tmp_path: Path) -> None:
    class Halving:
        kind, adds_up, acts_when_made, acts_on_steps = "halving", False, False, False
        covers = frozenset(Kind)
        verbs: ClassVar[dict[str, Any]] = {}

        def recall(self, entries: Any) -> None:
            """Nothing is remembered."""

        def spent(self) -> dict[str, float]:
            return {}

        def leaving(self, item: Any) -> torch.Tensor:
            return item.value / 2

    protection: Any = Halving()
    door = Door(owner="bank", protections=[protection])
    door.write_to(Ledger(tmp_path, run="credit"))
    asked = [
        Call(number, party, "descend", (Batch("train", 0), torch.ones(4, 3)), 0, False)
        for number, party in enumerate(("shop", "telco"))
    ]
    declared: Any = type(KNOWN)(**{**vars_of(KNOWN), "takes": (None, Kind.DERIVATIVE)})
    sent = door.arguments(asked, declared)
    assert [entry["to"] for entry in left(tmp_path)] == ["shop", "telco"]
    assert all(torch.equal(call.arguments[1], torch.full((4, 3), 0.5)) for call in sent)  # type: ignore[arg-type]


def vars_of(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def test_nothing_leaves_for_anybody_if_one_has_no_value(door: Door, tmp_path: Path) -> None:
    class Recording(InProcess):
        def send(self, call: Call) -> None:
            raise AssertionError("it was sent")

    parties = Parties(Recording({}), door=door, verbs=Descending.verbs)
    parties.names = ("shop", "telco")
    telling = parties.tell("descend", Batch("train", 0), each({"shop": torch.zeros(4, 3)}))
    with pytest.raises(Exception, match="telco"):
        telling.send(None)
    assert left(tmp_path) == []
