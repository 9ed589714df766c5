"""States and run directories: whole or not there, readable again, and nobody's data in the log."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade import fit
from colonnade.core.errors import ConfigError, StorageError
from colonnade.files import append_wholly, write_atomically
from colonnade.run.result import Result
from colonnade.run.storage import (
    DirectoryVault,
    MemoryVault,
    party_directory,
    read_json,
    read_state,
    write_json,
    write_state,
)
from fault.disks import full_disk
from federations import assert_bitwise_equal, weights
from messages import says

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


def make_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Any bits at all, so that NaNs of every kind are among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape, size), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


keys = st.text('abcé "$.0', min_size=1, max_size=6)
tensors = st.builds(
    make_tensor,
    st.sampled_from(DTYPES),
    st.sampled_from([(), (0,), (3,), (2, 0, 3), (2, 3), (1, 2, 1)]),
    st.integers(0, 2**31),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=10)
)
states = st.dictionaries(
    keys,
    st.recursive(
        st.one_of(tensors, scalars),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(left: Any, right: Any) -> bool:
    """Equal in structure, type and every bit."""
    if isinstance(left, Tensor):
        return (
            isinstance(right, Tensor)
            and (left.dtype, left.shape) == (right.dtype, right.shape)
            and left.contiguous().view(-1).view(torch.uint8).tolist()
            == right.contiguous().view(-1).view(torch.uint8).tolist()
        )
    if isinstance(left, Mapping):
        return (
            isinstance(right, Mapping)
            and left.keys() == right.keys()
            and all(same(left[key], right[key]) for key in left)
        )
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@given(state=states)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_state_comes_back_bit_by_bit(tmp_path: Path, state: dict[str, Any]) -> None:
    path = tmp_path / "state.safetensors"
    write_state(path, state)
    assert same(state, read_state(path))


@pytest.mark.parametrize(
    "state",
    [
        {"a/b": torch.ones(1), "a": {"b": torch.zeros(2)}},
        {"": {"x": torch.ones(1)}, "x": torch.zeros(2)},
        {"__metadata__": torch.ones(1)},
        {"x": {"$tensor": "y"}, "y": torch.ones(1)},
    ],
    ids=["slash", "no key", "safetensors' own key", "our own key"],
)
def test_keys_may_be_anything(tmp_path: Path, state: dict[str, Any]) -> None:
    """Methods keep tables by party, and a party may have any name."""
    write_state(tmp_path / "state", state)
    assert same(state, read_state(tmp_path / "state"))


@given(state=states)
def test_a_state_comes_back_from_memory(state: dict[str, Any]) -> None:
    vault = MemoryVault()
    vault.keep("one", state)
    assert same(state, vault.fetch("one"))


def test_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    write_state(tmp_path / "s", {"best": -float("inf"), "loss": float("nan")})
    back = read_state(tmp_path / "s")
    assert back["best"] == -float("inf")
    assert back["loss"] != back["loss"]


def test_what_is_kept_shares_no_memory(tmp_path: Path) -> None:
    weight = torch.zeros(2, 3, requires_grad=True)
    vault = MemoryVault()
    vault.keep("one", {"w": weight, "t": weight.detach().t()})
    write_state(tmp_path / "s", {"w": weight, "t": weight.detach().t()})
    with torch.no_grad():
        weight += 1
    vault.fetch("one")["w"].add_(5)
    for back in (vault.fetch("one"), read_state(tmp_path / "s")):
        assert torch.equal(back["w"], torch.zeros(2, 3))
        assert not back["w"].requires_grad
        assert back["t"].shape == (3, 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:5],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"\xff" * len(content),
        lambda content: content.replace(b"state", b"stete"),
        lambda content: content.replace(b"$tensor", b"$tensro"[:7]).replace(b"\\", b"!"),
        lambda content: content + b"more",
    ],
    ids=["empty", "5 bytes", "half", "one byte short", "noise", "no state", "bad state", "longer"],
)
def test_a_damaged_state_is_named(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "exchange-000000003.safetensors"
    write_state(path, {"model": {"w": torch.ones(5)}, "count": 3})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StorageError) as caught:
        read_state(path)
    assert str(path) in str(caught.value)


def test_a_missing_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=says("gone.safetensors", "no such")):
        read_state(tmp_path / "gone.safetensors")
    with pytest.raises(StorageError, match=says("'x'", "memory")):
        MemoryVault().fetch("x")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[1,"])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_bytes(content)
    with pytest.raises(StorageError) as caught:
        read_json(path)
    assert str(path) in str(caught.value)
    with pytest.raises(StorageError, match=says("none.json", "no such file", "run directory")):
        read_json(tmp_path / "none.json")


def files_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_state(path, {"count": 1})
    with pytest.raises(StorageError, match=says("'a/b/1'", "complex")):
        write_state(path, {"count": 2, "a": {"b": [1, 1j]}})
    assert read_state(path) == {"count": 1}
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert read_json(tmp_path / "x.json") == {"a": 1}
    assert files_in(tmp_path) == {"state.safetensors", "x.json"}


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files fails in the middle of a write, as a full disk does."""
    path = tmp_path / "weights"
    write_atomically(path, b"old")
    with (
        full_disk(100),
        pytest.raises(
            StorageError, match=says(path, os.strerror(errno.EFBIG), "make room")
        ) as caught,
    ):
        write_atomically(path, b"new" * 100)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"old"
    assert files_in(tmp_path) == {"weights"}


def test_a_full_disk_takes_a_line_wholly_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with path.open("ab", buffering=0) as file:
        append_wholly(file.fileno(), b"first\n", path)
        with (
            full_disk(10),
            pytest.raises(StorageError, match=says(path, os.strerror(errno.EFBIG), "make room")),
        ):
            append_wholly(file.fileno(), b"second line\n", path)
        assert path.read_bytes() == b"first\n"
        append_wholly(file.fileno(), b"third\n", path)
    assert path.read_bytes() == b"first\nthird\n"


def test_a_place_that_can_not_be_written_to(tmp_path: Path) -> None:
    """Root may write anywhere, so the place is one where nobody can."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "weights", Path("/proc/none/weights")):
        with pytest.raises(StorageError, match=says(path, "written")) as caught:
            write_atomically(path, b"new")
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_a_vault_retains_what_it_is_told_and_nothing_else(kind: str, tmp_path: Path) -> None:
    vault = DirectoryVault(tmp_path) if kind == "directory" else MemoryVault()
    for number in range(1, 5):
        vault.keep(f"exchange-{number}", {"number": number})
    vault.keep("exchange-4", {"number": 40})
    vault.retain(("exchange-4", "exchange-2"))
    assert vault.fetch("exchange-4") == {"number": 40}
    assert vault.fetch("exchange-2") == {"number": 2}
    for gone in ("exchange-1", "exchange-3"):
        with pytest.raises(StorageError):
            vault.fetch(gone)


NAMES = ["../evil", "a/b", ".", "..", "/etc", "a\\b", "Müller & Co", "銀行", "%2E", "a b", "~"]


@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_no_party_leaves_the_run_directory(name: str) -> None:
    root = Path("/runs/one")
    place = party_directory(root, name)
    assert place.parent == root / "parties"
    assert place.name not in ("", ".", "..")
    assert not place.name.startswith(".")


@given(one=st.text(max_size=5), other=st.text(max_size=5))
def test_no_two_parties_share_a_place(one: str, other: str) -> None:
    root = Path("/runs/one")
    assert (party_directory(root, one) == party_directory(root, other)) == (one == other)


def table(columns: list[str], seed: int = 0, rows: int = 30) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    ids = [f"person-{number:04d}" for number in range(rows)]
    return pd.DataFrame(draw.normal(size=(rows, len(columns))), index=ids, columns=columns)


def test_parties_of_any_name_save_and_load(tmp_path: Path) -> None:
    blocks = {name: table(["x"], seed) for seed, name in enumerate(NAMES)}
    labels = pd.Series(np.arange(30) % 2, index=blocks["."].index)
    small = {"defaults": {"encoder": {"kind": "linear", "embedding": 2}}}
    result = fit(blocks, labels, epochs=1, out=tmp_path / "run", settings=small)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert len(list((tmp_path / "run" / "parties").iterdir())) == len(NAMES)
    loaded = Result.load(tmp_path / "run")
    assert loaded.parties == tuple(sorted(NAMES))
    assert_bitwise_equal(weights(loaded._federation), weights(result._federation))


@pytest.mark.parametrize("name", ["", "long" * 100])
def test_names_that_no_directory_can_have(tmp_path: Path, name: str) -> None:
    labels = pd.Series(np.arange(30) % 2, index=table(["x"]).index)
    with pytest.raises((ConfigError, StorageError), match="name"):
        fit({name: table(["x"]), "other": table(["x"], 1)}, labels, epochs=1, out=tmp_path / "run")


def planted_run(directory: Path) -> Result:
    """A run on values that are easy to find again."""
    bank, telco = table(["age", "income"]), table(["calls"], 1)
    bank.iloc[:, 0] = 7654.321 + np.arange(30) / 8
    telco["plan"] = ["plan-zebra", "plan-yak", "plan-xerus"] * 10
    # Two change places: in the order of the ages it would be the label in another coding.
    debts = 912345.678 + np.array([1, 0, *range(2, 30)]) ** 2
    labels = pd.Series(debts, index=bank.index, name="debt")
    with_patience = {"stop": {"patience": 1}, "record": {"log_every": 1, "checkpoint_every": 2}}
    return fit(
        {"bank": bank, "telco": telco},
        labels,
        label_holder="bank",
        epochs=3,
        batch_size=8,
        settings=with_patience,
        out=directory,
    )


def test_the_directory_is_as_its_description_says(tmp_path: Path) -> None:
    result = planted_run(tmp_path / "run")
    found = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*")}
    tag = read_json(tmp_path / "run" / "checkpoint.json")["tag"]
    described = {"format.json", "config.json", "metrics.jsonl", "summary.json"}
    described |= {"checkpoint.json", "run.log", "timeline.jsonl", "judgement.json"}
    described |= {"label_holder", "label_holder/task.json", f"label_holder/{tag}.safetensors"}
    described |= {"label_holder/ledger.jsonl", "label_holder/ledger.seal.json"}
    described |= {"parties"}
    for name in ("bank", "telco"):
        described |= {f"parties/{name}", f"parties/{name}/preparation.json"}
        described |= {f"parties/{name}/{tag}.safetensors"}
        described |= {f"parties/{name}/ledger.jsonl", f"parties/{name}/ledger.seal.json"}
    assert described <= found
    rest = {Path(path).name for path in found - described}
    assert all(name == "lock" or name.startswith("exchange-") for name in rest)
    assert read_json(tmp_path / "run" / "summary.json") == json.loads(json.dumps(result.summary))


def test_a_party_s_files_hold_nothing_of_another(tmp_path: Path) -> None:
    planted_run(tmp_path / "run")
    places = {name: tmp_path / "run" / "parties" / name for name in ("bank", "telco")}
    telco = b"".join(path.read_bytes() for path in places["telco"].iterdir())
    bank = b"".join(path.read_bytes() for path in places["bank"].iterdir())
    assert b"plan-zebra" in telco
    assert b"plan-zebra" not in bank
    assert b"income" in bank
    assert b"income" not in telco


def test_a_summary_has_every_field(tmp_path: Path) -> None:
    planted_run(tmp_path / "run")
    summary = read_json(tmp_path / "run" / "summary.json")
    parties = {"bank", "telco"}
    for key in ("local_steps", "bytes_up", "bytes_down", "privacy", "seconds_computing"):
        assert summary[key].keys() == parties
    assert summary["exchanges"] == summary["local_steps"]["telco"]
    assert summary["bytes_up"]["telco"] > summary["bytes_up"]["bank"] == 0
    assert summary["quality"].keys() == {"validation", "test"}
    assert {"loss", "r2", "rmse", "mae"} == summary["quality"]["test"].keys()
    assert summary["seconds"] > 0
    assert summary["seed"] == 0
    assert summary["revision"]
    assert summary["stopped_by"] in ("patience", "length")


def test_no_data_in_what_is_passed_around(tmp_path: Path) -> None:
    planted_run(tmp_path / "run")
    for name in ("metrics.jsonl", "run.log", "summary.json", "config.json", "checkpoint.json"):
        text = (tmp_path / "run" / name).read_text()
        for planted in ("7654.", "7655.", "912345.", "912346.", "person-", "plan-", "zebra"):
            assert planted not in text
