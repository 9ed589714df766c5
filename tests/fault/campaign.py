"""The long fault campaign: kills and cuts in a row, cuts of minutes, and 100,000 frames of noise.

Kills hit training, and also enrolment, alignment, prediction and renewal (``fault.kills``).
``make faults`` runs it. Every fault is asserted to have fired, nothing that was reported as done
may be lost, and a synchronous method must end with bitwise the weights of an undisturbed run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from authority import admit, authority, hub_identity
from colonnade.core.errors import ProtocolError
from colonnade.core.parties import Parties
from colonnade.fabrics.grpc.event_loop import run_there
from colonnade.fabrics.grpc.frames import FrameKind, Hello, Opening, decode_frames, encode_frame
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.identity import HUB_NAME
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.link_settings import METHOD
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.run.storage import read_json, write_json
from colonnade.run.summary import revision
from e2e.organisations import PARTIES, Nursery, Organisations, Process
from fault.absences import run_absences
from fault.fuzzing import corrupted, sample_messages
from fault.kills import run_kills
from fault.real_cuts import run_cuts
from federations import assert_bitwise_equal
from networks import QUICK, AgentThread
from probes import ProbeParty

PATIENCE = 300.0
NUM_EXCHANGES = 300


class Campaign:
    """One long run; whoever is alive is about to die, every link about to be cut."""

    def __init__(self, root: Path, nursery: Nursery, *, seed: int, num_faults: int) -> None:
        self._draw = random.Random(seed)
        self._num_faults = num_faults
        self._world = Organisations(root, nursery, exchanges=NUM_EXCHANGES, proxied=True)
        self._processes: dict[str, Process] = {}
        self._newest = -1
        self.fired: Counter[str] = Counter()

    def run(self) -> dict[str, Any]:
        began = time.monotonic()
        for name in (*PARTIES, "hub"):
            self._start(name)
        for name in PARTIES:
            self._arm(name)
        until = time.monotonic() + PATIENCE
        while not self._is_over():
            assert time.monotonic() < until, self._world.logs()
            if self._look():
                until = time.monotonic() + PATIENCE
        assert self.fired.total() >= self._num_faults, f"ended after {self.fired.total()} faults"
        self._check()
        self._world.close()
        return {
            "faults": dict(sorted(self.fired.items())),
            "num_faults": self.fired.total(),
            "exchanges": NUM_EXCHANGES,
            "bitwise_equal": True,
            "seconds": round(time.monotonic() - began, 1),
        }

    @property
    def _goes_on(self) -> bool:
        return self.fired.total() < self._num_faults

    def _start(self, name: str) -> None:
        # Long enough to get past a checkpoint now and then, short enough to die many times.
        die = self._draw.randint(20, 260 if name == "hub" else 120) if self._goes_on else None
        if name == "hub":
            self._processes[name] = self._world.start_hub(die=die)
        else:
            self._processes[name] = self._world.start_party(name, die=die)

    def _arm(self, name: str) -> None:
        if self._goes_on:
            refusals = self._draw.randint(1, 3)
            self._world.proxies[name].cut_after(self._draw.randint(1, 100_000), refusals=refusals)

    def _look(self) -> bool:
        """See who died and what was cut since; whether anything was."""
        before = self.fired.total()
        for name, process in list(self._processes.items()):
            code = process.wait(0.02)
            if code is None or (name == "hub" and code == 0):
                continue
            assert code == -signal.SIGKILL, f"{name} ended with {code}\n{self._world.logs()}"
            self.fired[f"kill {name}"] += 1
            self._note(f"killed {name}")
            self._start(name)
        for name, proxy in self._world.proxies.items():
            if proxy.was_cut.is_set():
                proxy.was_cut.clear()
                self.fired[f"cut {name}"] += 1
                self._note(f"cut {name}")
                self._arm(name)
        return self.fired.total() > before

    def _note(self, what: str) -> None:
        """A checkpoint that counted once is never taken back."""
        path = self._world.run / "checkpoint.json"
        tag = int(read_json(path)["tag"].split("-")[1]) if path.exists() else -1
        assert tag >= self._newest, f"{what}: checkpoint {tag} after {self._newest}"
        self._newest = tag
        sys.stderr.write(f"{self.fired.total():4d} {what}; checkpoint {tag}\n")

    def _is_over(self) -> bool:
        return self._processes["hub"].wait(0) == 0

    def _check(self) -> None:
        lines = (self._world.run / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        done = [line["exchange"] for line in records if line["kind"] == "exchange"]
        assert done == list(range(1, NUM_EXCHANGES + 1))
        local, summary = self._world.in_process()
        assert_bitwise_equal(self._world.weights(), local)
        assert read_json(self._world.run / "summary.json")["quality"] == summary["quality"]


def fuzz_frames(num_frames: int, seed: int) -> dict[str, Any]:
    """Corrupted frames, straight into the decoder: each is refused by name, or valid."""
    samples = sample_messages()
    num_refused = 0
    for number in range(num_frames):
        try:
            list(decode_frames(corrupted(samples[number % len(samples)], seed + number)))
        except ProtocolError:
            num_refused += 1
    return {"frames": num_frames, "refused": num_refused}


def fuzz_hub(num_frames: int, seed: int) -> dict[str, Any]:
    """Corrupted frames on real streams, and bytes that are not even TLS, at a hub that is in use.

    A healthy party is asked in between, and at the end.
    """
    logging.getLogger("colonnade").setLevel(logging.ERROR)
    hub = Hub(identity=hub_identity(), admit=admit, links=QUICK)
    healthy = ProbeParty(name="healthy")
    agent = AgentThread(healthy, f"127.0.0.1:{hub.port}")
    names = [f"fuzz{number}" for number in range(8)]
    fabric = GrpcFabric(Session(hub, ["healthy", *names], purpose="test"))
    parties = Parties(fabric)
    session = fabric._session._queues["healthy"].session
    num_refused = 0
    chunk = 4000
    for begin in range(0, num_frames, chunk):
        shares = [range(begin + at, min(begin + chunk, num_frames), 8) for at in range(8)]
        num_refused += run_there(_fuzz(hub.port, names, shares, session, seed))
        for number in range(20):
            with socket.create_connection(("127.0.0.1", hub.port)) as raw:
                raw.sendall(random.Random(begin + number).randbytes(60))
        assert fabric.run(parties.ask("total", among=["healthy"])) == {"healthy": 0.0}
        sys.stderr.write(f"{begin + chunk:7d} frames, {num_refused} refused\n")
    fabric.close()
    agent.stop()
    hub.close()
    return {"frames": num_frames, "streams_refused": num_refused}


async def _fuzz(port: int, names: list[str], shares: list[range], session: int, seed: int) -> int:
    refused = await asyncio.gather(
        *(
            _fuzz_as(port, name, share, session, seed)
            for name, share in zip(names, shares, strict=True)
        )
    )
    return sum(refused)


async def _fuzz_as(port: int, name: str, numbers: range, session: int, seed: int) -> int:
    identity = authority().identity(name)
    credentials = grpc.ssl_channel_credentials(
        identity.authority, identity.key, identity.certificate
    )
    samples = sample_messages()
    hello = encode_frame(FrameKind.HELLO, Hello(name, 77, 0))
    opened = encode_frame(FrameKind.OPEN, Opening(session, "test"))
    num_refused = 0
    options = [("grpc.ssl_target_name_override", HUB_NAME)]
    async with grpc.aio.secure_channel(
        f"127.0.0.1:{port}", credentials, options=options
    ) as channel:
        method = channel.stream_stream(METHOD)
        for number in numbers:
            noise = corrupted(samples[number % len(samples)], seed + number)
            stream = method()
            try:
                await stream.write(hello)
                await stream.write(opened + noise if number % 2 else noise)
                await stream.done_writing()
                while (message := await stream.read()) is not grpc.aio.EOF:
                    kinds = {frame.kind for frame in decode_frames(message)}
                    num_refused += FrameKind.REFUSE in kinds
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            finally:
                stream.cancel()
    return num_refused


def main() -> None:
    """Run all of it and write what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument(
        "--stride",
        type=int,
        default=4,
        help="so many moments at most from a kill to the next: enrolment, alignment, prediction, "
        "renewal",
    )
    parser.add_argument(
        "--long-cut",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a network cut of ten minutes, in real time",
    )
    parser.add_argument(
        "--only-absences",
        action="store_true",
        help="only the party that stands still; the rest of the file stays as it is",
    )
    parser.add_argument(
        "--only-kills",
        action="store_true",
        help="only kills in enrolment, alignment, prediction and renewal; the rest stays",
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    nursery = Nursery()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "absences": lambda: run_absences(place / "absences", nursery, seconds=10),
            "kills": lambda: run_kills(
                place / "walk", nursery, seed=arguments.seed, stride=arguments.stride
            ),
        }
        chosen = [name for name in parts if getattr(arguments, f"only_{name}")]
        outcome = read_json(arguments.out) if chosen else _all_of_it(place, nursery, arguments)
        for name in chosen or parts:
            outcome[name] = {"revision": revision(), **parts[name]()}
    nursery.close()
    if arguments.out is not None:
        write_json(arguments.out, outcome)
    sys.stdout.write(json.dumps(outcome, indent=2) + "\n")


def _all_of_it(place: Path, nursery: Nursery, arguments: argparse.Namespace) -> dict[str, Any]:
    campaign = Campaign(place / "kills", nursery, seed=arguments.seed, num_faults=arguments.faults)
    return {
        "name": "faults",
        "seed": arguments.seed,
        "revision": revision(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "kills_and_cuts": campaign.run(),
        "network_cuts": run_cuts(place / "cuts", nursery, long_cut=arguments.long_cut),
        "decoder": fuzz_frames(arguments.frames, arguments.seed),
        "hub": fuzz_hub(arguments.frames, arguments.seed),
    }


if __name__ == "__main__":
    main()
