"""The ledger: any changed byte is found, a missing end too, and a killed process loses nothing."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from colonnade.core.errors import StorageError
from colonnade.protect.ledger import Ledger, read_ledger, verify_ledger
from fault.disks import full_disk
from messages import says


def written(directory: Path, count: int = 6) -> Ledger:
    ledger = Ledger(directory, run="credit")
    for number in range(count):
        ledger.append({"event": "left", "exchange": number, "verb": "embed", "bytes": 128})
    return ledger


def test_entries_are_what_was_written(tmp_path: Path) -> None:
    written(tmp_path).close()
    entries = list(read_ledger(tmp_path))
    assert [entry["exchange"] for entry in entries] == list(range(6))
    assert [entry["entry"] for entry in entries] == list(range(6))
    assert {entry["run"] for entry in entries} == {"credit"}
    assert verify_ledger(tmp_path) == (6, None)


def test_any_flipped_byte_is_found(tmp_path: Path) -> None:
    ledger = written(tmp_path, 4)
    ledger.seal()
    ledger.close()
    file = tmp_path / "ledger.jsonl"
    content = file.read_bytes()
    flips = np.random.default_rng(0).integers(1, 256, len(content))
    for at, flip in enumerate(flips):
        changed = bytearray(content)
        changed[at] ^= int(flip)
        file.write_bytes(changed)
        _, fault = verify_ledger(tmp_path)
        assert fault is not None, f"byte {at}"
        for bit in (1, 32):  # the case of a letter, a digit by one
            changed = bytearray(content)
            changed[at] ^= bit
            file.write_bytes(changed)
            assert verify_ledger(tmp_path)[1] is not None
    file.write_bytes(content)
    assert verify_ledger(tmp_path) == (4, None)


def test_removed_added_and_swapped_lines_are_found(tmp_path: Path) -> None:
    ledger = written(tmp_path)
    ledger.seal()
    ledger.close()
    file = tmp_path / "ledger.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for changed, entry in (
        (lines[:2] + lines[3:], 2),
        ([*lines[:2], lines[3], lines[2], *lines[4:]], 2),
        ([*lines[:3], lines[2], *lines[3:]], 3),
        (lines[1:], 0),
        (lines[:-1], 5),
        ([], 0),
    ):
        file.write_bytes(b"".join(changed))
        _, fault = verify_ledger(tmp_path)
        assert fault is not None
        assert fault.entry == entry


def test_a_rewritten_chain_is_found_by_what_others_know(tmp_path: Path) -> None:
    ledger = written(tmp_path / "a")
    anchor = ledger.seal()
    ledger.close()
    rewritten = Ledger(tmp_path / "b", run="credit")
    for number in range(6):
        rewritten.append({"event": "left", "exchange": number, "verb": "embed", "bytes": 1})
    rewritten.seal()  # its own seal fits
    rewritten.close()
    assert verify_ledger(tmp_path / "b")[1] is None
    count, fault = verify_ledger(tmp_path / "b", {"checkpoint.json": anchor})
    assert (count, fault and fault.entry) == (0, 5)
    assert fault is not None
    assert "checkpoint.json" in fault.what


def test_what_others_know_may_be_of_any_moment(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, run="credit")
    known = [dict(ledger.seal())]
    for number in range(3):
        ledger.append({"event": "left", "exchange": number})
        known.append(dict(ledger.seal()))
    ledger.close()
    assert [anchor["entries"] for anchor in known] == [0, 1, 2, 3]
    for anchor in known:
        assert verify_ledger(tmp_path, {"elsewhere": anchor}) == (3, None)
    for count in (4, -1, "3", None):
        _, fault = verify_ledger(tmp_path, {"elsewhere": {**known[-1], "entries": count}})
        assert fault is not None
        assert (fault.entry, f"elsewhere knows of {count} entries, 3" in fault.what) == (3, True)
    count, fault = verify_ledger(tmp_path, {"elsewhere": {**known[-1], "head": known[1]["head"]}})
    assert (count, fault and fault.entry) == (0, 2)


def test_what_was_cut_off_after_the_last_seal_can_t_be_known(tmp_path: Path) -> None:
    ledger = written(tmp_path, 3)
    ledger.seal()
    ledger.append({"event": "left"})
    ledger.close()
    file = tmp_path / "ledger.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]))
    assert verify_ledger(tmp_path) == (3, None)


def test_an_unfinished_line_is_dropped_and_told(tmp_path: Path) -> None:
    written(tmp_path, 2).close()
    file = tmp_path / "ledger.jsonl"
    with file.open("ab") as torn:
        torn.write(b'{"entry":2,"ti')
    assert verify_ledger(tmp_path)[1] is not None
    ledger = Ledger(tmp_path, run="credit")
    ledger.append({"event": "left"})
    ledger.close()
    entries = list(read_ledger(tmp_path))
    assert [entry["event"] for entry in entries] == ["left", "left", "recovered", "left"]
    assert entries[2]["dropped_bytes"] == 14
    assert verify_ledger(tmp_path) == (4, None)


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    written(tmp_path, 2).close()
    written(tmp_path, 3).close()
    assert verify_ledger(tmp_path) == (5, None)
    assert [entry["entry"] for entry in read_ledger(tmp_path)] == list(range(5))


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=says("ledger.jsonl", "no such")):
        verify_ledger(tmp_path)
    with pytest.raises(StorageError, match=says("ledger.jsonl", "no such")):
        list(read_ledger(tmp_path))
    (tmp_path / "ledger.jsonl").write_bytes(b"nonsense\n")
    with pytest.raises(StorageError, match=says("ledger.jsonl", "damaged")):
        Ledger(tmp_path, run="credit")
    with pytest.raises(StorageError, match=says("ledger.jsonl", "line 1", "damaged")):
        list(read_ledger(tmp_path))
    assert json.dumps(verify_ledger(tmp_path)[1])


def test_a_full_disk_leaves_the_chain_whole(tmp_path: Path) -> None:
    """An entry that finds no room is not there, and the one after it fits those before."""
    ledger = written(tmp_path, 3)
    size = (tmp_path / "ledger.jsonl").stat().st_size
    with (
        full_disk(size + 40),
        pytest.raises(
            StorageError, match=says("ledger.jsonl", os.strerror(errno.EFBIG), "make room")
        ),
    ):
        ledger.append({"event": "left", "exchange": 3})
    ledger.append({"event": "left", "exchange": 4})
    ledger.seal()
    ledger.close()
    assert [entry["exchange"] for entry in read_ledger(tmp_path)] == [0, 1, 2, 4]
    assert verify_ledger(tmp_path) == (4, None)


def test_two_threads_and_another_process_write_one_ledger(tmp_path: Path) -> None:
    """A session for training and one for predictions may be open at once."""
    child = os.fork()
    if not child:
        code = 1
        try:
            written(tmp_path, 100).seal()
            code = 0
        finally:
            os._exit(code)
    ledgers = [Ledger(tmp_path, run="credit") for _ in range(2)]

    def write(ledger: Ledger) -> None:
        for number in range(100):
            ledger.append({"event": "left", "exchange": number})
            if number % 30 == 0:
                ledger.seal()

    threads = [threading.Thread(target=write, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ledgers[0].seal() == ledgers[1].seal()
    assert verify_ledger(tmp_path) == (300, None)
    assert [entry["entry"] for entry in read_ledger(tmp_path)] == list(range(300))


def test_a_line_that_another_process_did_not_finish_is_dropped_while_open(tmp_path: Path) -> None:
    ledger = written(tmp_path, 3)
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"entry":3,"tim')
    ledger.append({"event": "left"})
    assert [entry["event"] for entry in read_ledger(tmp_path)][3:] == ["recovered", "left"]
    assert verify_ledger(tmp_path) == (5, None)
