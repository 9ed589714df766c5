"""Participants of an alignment in processes of their own, joined by pipes.

Each process measures its own memory and time. Pipes carry the frames of the network fabric,
without its links and its TLS.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from colonnade.align.ids import prepare_pieces
from colonnade.align.matching import match
from colonnade.align.participant import AlignParty
from colonnade.align.participant_files import DirectoryStore
from colonnade.align.point_lists import PointLists
from colonnade.align.record import save_record
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import RunError
from colonnade.core.fabric import Clock, Fabric, RealClock
from colonnade.core.messages import Call, Reply
from colonnade.core.parties import Parties
from colonnade.data.id_columns import read_id_columns
from colonnade.fabrics.grpc.frames import (
    CallBody,
    FrameKind,
    ReplyBody,
    decode_frames,
    encode_frame,
)

__all__ = ["Spent", "align_in_processes", "process_bytes"]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The peak memory, CPU time and time on the clock of one participant's process."""

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
        (frame,) = decode_frames(content)
        body = frame.body
        assert isinstance(body, CallBody)
        reply = party.execute(
            Call(frame.id, name, body.verb, body.arguments, body.exchange, body.wants_reply)
        )
        answer = ReplyBody(reply.value, reply.failure, 0.0)
        link.send_bytes(encode_frame(FrameKind.REPLY, answer, id=reply.id))
    link.send_bytes(json.dumps(_spent(began, cpu_began)).encode())


def _participant(name: str, table: Path, spec: AlignSpec, root: Path) -> AlignParty:
    pieces = read_id_columns(table, ["id"], where=name)
    ids = prepare_pieces(pieces, spec.key, where=name)
    return AlignParty(name=name, ids=ids, spec=spec, store=DirectoryStore(root / name))


def _spent(began: float, cpu_began: float) -> dict[str, float]:
    return {
        # Not from getrusage, whose peak begins with that of the process that started this one.
        "peak_bytes": process_bytes("VmHWM"),
        "cpu_seconds": time.process_time() - cpu_began,
        "seconds": time.perf_counter() - began,
    }


def process_bytes(field: Literal["VmRSS", "VmHWM"]) -> int:
    """Memory of this process, libraries included: resident now (RSS), or at its peak (HWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RunError(f"no {field} in /proc/self/status; memory is measured on Linux only")


class _Piped(Fabric):
    """Parties at the far ends of pipes."""

    def __init__(self, links: Mapping[str, Connection]) -> None:
        super().__init__(tuple(links))
        self._links = dict(links)
        self._clock = RealClock()
        self._calls: dict[int, Call] = {}

    @property
    def clock(self) -> Clock:
        return self._clock

    def send(self, call: Call) -> None:
        self._calls[call.id] = call
        body = CallBody(call.verb, call.arguments, call.exchange, call.wants_reply)
        self._links[call.party].send_bytes(encode_frame(FrameKind.CALL, body, id=call.id))

    async def receive(self, deadline: int | None) -> Reply | None:
        (link, *_) = wait(list(self._links.values()))
        assert isinstance(link, Connection)
        (frame,) = decode_frames(link.recv_bytes())
        call, body = self._calls.pop(frame.id), frame.body
        assert isinstance(body, ReplyBody)
        return Reply(call.id, call.party, call.exchange, body.value, body.failure, self.now())

    def aside(self, parts: Any = None) -> Fabric:
        return self
