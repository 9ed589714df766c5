"""Lists of blinded points during an alignment: counted in whole chunks, and resumed from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colonnade.align.group import CHUNK, POINT_BYTES
from colonnade.align.point_lists import PointLists
from colonnade.core.errors import StorageError

SIZES = {"bank": 1, "a/b": CHUNK + 3}


def points(count: int) -> np.ndarray:
    return np.arange(count * POINT_BYTES).astype(np.uint8).reshape(-1, POINT_BYTES)


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_points_come_back_in_their_order(tmp_path: Path, is_on_disk: bool) -> None:
    lists = PointLists(tmp_path / "lists" if is_on_disk else None)
    assert lists.unfinished() is None
    lists.begin("run", 0, SIZES, resume=False)
    for owner, size in SIZES.items():
        whole = points(size)
        # A list of one point is not finished before it has come.
        assert lists.num_done(owner, 0) == 0
        for begin in range(0, size, CHUNK):
            lists.append(owner, 0, whole[begin : begin + CHUNK])
        assert lists.num_done(owner, 0) == size
        assert lists.num_done(owner, 1) == 0
        assert np.array_equal(lists.read(owner, 0, 0, size), whole)
        assert np.array_equal(lists.read(owner, 0, size - 1, 1), whole[-1:])
    lists.clear()
    assert not (tmp_path / "lists").exists()


def test_a_chunk_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    lists, whole = PointLists(tmp_path), points(CHUNK + 3)
    lists.begin("run", 2, SIZES, resume=False)
    lists.append("a/b", 1, whole[:CHUNK])
    lists.append("a/b", 1, whole[CHUNK : CHUNK + 2])
    resumed = PointLists(tmp_path)
    assert resumed.unfinished() == {"run": "run", "round": 2, "sizes": SIZES}
    resumed.begin("run", 2, SIZES, resume=True)
    assert resumed.num_done("a/b", 1) == CHUNK
    resumed.append("a/b", 1, whole[CHUNK:])
    assert resumed.num_done("a/b", 1) == CHUNK + 3
    assert np.array_equal(resumed.read("a/b", 1, 0, CHUNK + 3), whole)
    with pytest.raises(StorageError, match="lengths"):
        PointLists(tmp_path).begin("run", 2, {**SIZES, "bank": 2}, resume=True)
    # A new beginning has nothing of before.
    resumed.begin("other", 0, SIZES, resume=False)
    assert resumed.num_done("a/b", 1) == 0
