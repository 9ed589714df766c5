"""A disk that loses a bit, or somebody who changes one: no checkpoint loads silently changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade.core.errors import StorageError
from colonnade.run.storage import read_state, write_state

STATE = {
    "weights": torch.randn(9, 7, generator=torch.Generator().manual_seed(0)),
    "counts": torch.arange(6),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "plain": {"step": 3, "name": "telco", "rate": 0.1, "none": None},
}


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    write_state(tmp_path / "a.safetensors", STATE)
    found = read_state(tmp_path / "a.safetensors")
    assert found["plain"] == STATE["plain"]
    for key in ("weights", "counts", "flags", "empty", "scalar"):
        assert torch.equal(found[key], STATE[key])
        assert found[key].dtype == STATE[key].dtype


@pytest.mark.attack(
    what="A flipped bit in a checkpoint",
    has="write access to one file, or a bad disk",
    before="199 of 200 flips in tensors loaded silently",
    now="every flip is found and the file named",
)
def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_state(path, STATE)
    content = path.read_bytes()
    places = np.random.default_rng(1).choice(8 * len(content), 600, replace=False)
    for place in places.tolist():
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(StorageError, match="damaged"):
            read_state(path)


def test_tensors_that_changed_places_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_state(path, {"a": torch.zeros(4), "b": torch.ones(4)})
    content = path.read_bytes()
    assert content.count(b"0 a") == 2
    path.write_bytes(content.replace(b"0 a", b"0 b"))
    with pytest.raises(StorageError, match="damaged"):
        read_state(path)
