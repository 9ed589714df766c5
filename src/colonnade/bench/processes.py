"""Participants of an alignment in processes of their own, joined by pipes.

So that what each of them needs can be measured: memory most of all. What crosses a pipe is the
closed set of values that may cross a link, as JSON and bytes.
"""

from __future__ import annotations

import json
import multiprocessing
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.align.ids import prepare_pieces
from colonnade.align.lists import PointLists
from colonnade.align.matching import match
from colonnade.align.participant import AlignParty
from colonnade.align.places import DirectoryPlace
from colonnade.align.record import save_record
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import RunError
from colonnade.core.fabric import Clock, Fabric, RealClock
from colonnade.core.messages import Call, Failure, Reply
from colonnade.core.parties import Parties
from colonnade.data.id_columns import read_id_columns

__all__ = ["Spent", "align_in_processes"]

_TYPES = {"uint8": np.uint8, "int32": np.int32, "int64": np.int64}


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What one participant's process took: the whole of it at its peak, and its CPU's time."""

    peak_bytes: int
    cpu_seconds: float
    seconds: float


def align_in_processes(tables: Mapping[str, Path], spec: AlignSpec, root: Path) -> dict[str, Spent]:
    """Align tables, one process per participant; the first named is the label holder.

    Each reads its own table and keeps its own files, as it would on a machine of its own.
    """
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(theirs, dict(tables), spec, root))
    process.start()
    theirs.close()
    try:
        content = json.loads(mine.recv_bytes())
    except EOFError as error:
        raise RunError("the label holder's process ended before it was done") from error
    finally:
        process.join()
    return {name: Spent(**item) for name, item in content.items()}


def _hold(report: Connection, tables: dict[str, Path], spec: AlignSpec, root: Path) -> None:
    """The label holder's process."""
    holder, *others = tables
    context = multiprocessing.get_context("spawn")
    links, processes = {}, []
    for name in others:
        links[name], far = context.Pipe()
        processes.append(
            context.Process(target=_answer, args=(far, name, tables[name], spec, root))
        )
        processes[-1].start()
        far.close()
    own = _participant(holder, tables[holder], spec, root)
    for link in links.values():
        link.recv_bytes()
    fabric = _Piped(links)
    began, cpu_began = time.perf_counter(), time.process_time()
    lists = PointLists(root / "lists")
    overlap = fabric.run(match(Parties(fabric), spec=spec, own=own, lists=lists))
    save_record(overlap.record, root / "record.npz")
    lists.clear()
    spent = {holder: _spent(began, cpu_began)}
    for name, link in links.items():
        link.send_bytes(b"")
        spent[name] = json.loads(link.recv_bytes())
    for process in processes:
        process.join()
    report.send_bytes(json.dumps(spent).encode())


def _answer(link: Connection, name: str, table: Path, spec: AlignSpec, root: Path) -> None:
    """A party's process."""
    party = _participant(name, table, spec, root)
    link.send_bytes(b"ready")
    began, cpu_began = time.perf_counter(), time.process_time()
    while content := link.recv_bytes():
        head, values = _decoded(content)
        number, to, verb, exchange, wants_reply = head
        call = Call(number, to, verb, tuple(values), exchange, wants_reply)
        link.send_bytes(_encoded_reply(party.execute(call)))
    link.send_bytes(json.dumps(_spent(began, cpu_began)).encode())


def _participant(name: str, table: Path, spec: AlignSpec, root: Path) -> AlignParty:
    pieces = read_id_columns(table, ["id"], where=name)
    ids = prepare_pieces(pieces, spec.key, where=name)
    return AlignParty(name=name, ids=ids, spec=spec, place=DirectoryPlace(root / name))


def _spent(began: float, cpu_began: float) -> dict[str, float]:
    return {
        "peak_bytes": peak_bytes(),
        "cpu_seconds": time.process_time() - cpu_began,
        "seconds": time.perf_counter() - began,
    }


def peak_bytes() -> int:
    """Most that this process ever had in memory, libraries included.

    Not from ``getrusage``, whose peak begins with that of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RunError("no VmHWM in /proc/self/status; memory is measured on Linux only")


class _Piped(Fabric):
    """Parties at the far ends of pipes."""

    def __init__(self, links: Mapping[str, Connection]) -> None:
        super().__init__(tuple(links))
        self._links = dict(links)
        self._clock = RealClock()

    @property
    def clock(self) -> Clock:
        return self._clock

    def send(self, call: Call) -> None:
        head = [call.id, call.party, call.verb, call.exchange, call.wants_reply]
        self._links[call.party].send_bytes(_encoded(head, call.arguments))

    async def receive(self, deadline: int | None) -> Reply | None:
        (link, *_) = wait(list(self._links.values()))
        assert isinstance(link, Connection)
        (number, party, exchange, failure), (value,) = _decoded(link.recv_bytes())
        told = None if failure is None else Failure(*failure)
        return Reply(number, party, exchange, value, told, self.now())

    async def settle(self) -> list[Reply]:
        return []

    def elapsed_seconds(self) -> float:
        return 0.0

    def aside(self) -> Fabric:
        return self

    async def keep(self, tag: str) -> None:
        """Nothing to keep: an alignment has no checkpoints."""

    async def retain(self, newest: str, best: str) -> None:
        """Nothing is kept."""

    async def fetch(self, tag: str) -> None:
        """Nothing is kept."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing is in flight between alignments."""


def _encoded_reply(reply: Reply) -> bytes:
    failure = None if reply.failure is None else [reply.failure.kind, reply.failure.message]
    return _encoded([reply.id, reply.party, reply.exchange, failure], [reply.value])


def _encoded(head: list[Any], values: Any) -> bytes:
    """A message: what it says in JSON, its tensors' bytes after that."""
    contents: list[bytes] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            array = value.numpy()
            contents.append(array.tobytes())
            return {"tensor": [str(array.dtype), array.shape]}
        if isinstance(value, dict):
            return {"table": {key: plain(item) for key, item in value.items()}}
        return value

    text = json.dumps([head, [plain(value) for value in values]]).encode()
    return b"".join([struct.pack("<I", len(text)), text, *contents])


def _decoded(content: bytes) -> tuple[list[Any], list[Any]]:
    (length,) = struct.unpack_from("<I", content)
    head, values = json.loads(content[4 : 4 + length])
    at = 4 + length

    def whole(value: Any) -> Any:
        nonlocal at
        if not isinstance(value, dict):
            return value
        if "table" in value:
            return {key: whole(item) for key, item in value["table"].items()}
        kind, shape = value["tensor"]
        array = np.frombuffer(content, _TYPES[kind], int(np.prod(shape)), at).reshape(shape)
        at += array.nbytes
        return torch.from_numpy(array.copy())

    return head, [whole(value) for value in values]
