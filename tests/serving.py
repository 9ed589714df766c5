"""A prediction service over real HTTP in a thread of this process, and a run for it to serve."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.fabrics.grpc.event_loop import run_there
from colonnade.run.fit import fit
from colonnade.serve.admittance import Admittance
from colonnade.serve.api_keys import KeyFile
from colonnade.serve.http_routes import make_application
from colonnade.serve.listening import Listening, TlsFiles, loopback_hosts
from colonnade.serve.networked_predictor import NetworkedPredictor
from colonnade.serve.prediction_service import PredictionService, ServiceLimits
from colonnade.serve.predictor import (
    ObservedRows,
    Outcome,
    Predictor,
    Provenance,
    ServedExchange,
    ServedModel,
    Unanswered,
)

__all__ = [
    "HeldRequest",
    "Running",
    "ScriptedPredictor",
    "grpc_face",
    "running",
    "three_parties",
    "wait_until_refused",
]

PARTIES = ("bank", "shop", "telco")


def three_parties(
    place: Path, *, method: str = "splitnn", run: str = "credit", seed: int = 0, **settings: Any
) -> dict[str, Path]:
    """Train a small run in ``place``; the files of the parties' columns, by party."""
    numbers = np.random.default_rng(5)
    ids = np.arange(1000, 1120)
    blocks = {
        name: pd.DataFrame({"id": ids, **{f"x{c}": numbers.normal(size=120) for c in range(3)}})
        for name in PARTIES
    }
    score = sum(block["x0"] for block in blocks.values())
    labels = pd.Series(np.where(score > 0, "good", "bad"), index=ids, name="risk")
    files = {}
    for name, block in blocks.items():
        files[name] = place / f"{name}.csv"
        block.to_csv(files[name], index=False)
    fit(
        blocks,
        labels,
        id_column="id",
        method=method,
        epochs=1,
        seed=seed,
        out=place / run,
        settings=settings,
    )
    return files


class Running:
    """A service that listens; ask it by ``get`` and ``post``."""

    def __init__(self, service: PredictionService, loop: asyncio.AbstractEventLoop) -> None:
        self.service, self.loop = service, loop
        self.address = ""
        self.port = 0
        self.listening: Listening

    def call(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        context: Any = None,
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, content (JSON where it is) and headers of one request."""
        data = None if content is None else json.dumps(content).encode()
        named = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.address + path, data, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as reply:
                return _read(reply.status, reply)
        except urllib.error.HTTPError as reply:
            with reply:
                return _read(reply.code, reply)

    def get(self, path: str, **others: Any) -> tuple[int, Any, Mapping[str, str]]:
        """Ask for a page."""
        return self.call("GET", path, **others)

    def post(self, path: str, content: Any, **others: Any) -> tuple[int, Any, Mapping[str, str]]:
        """Send JSON."""
        return self.call("POST", path, content, **others)

    def predict(self, *ids: int | str, **others: Any) -> tuple[int, Any]:
        """Ask for predictions, with minutes of patience: nothing here depends on speed."""
        status, content, _ = self.post("/v1/predict", {"ids": ids, "deadline_ms": 60_000, **others})
        return status, content


def _read(status: int, reply: Any) -> tuple[int, Any, Mapping[str, str]]:
    raw = reply.read()
    is_json = reply.headers.get("content-type", "").startswith("application/json")
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return status, json.loads(raw) if is_json else raw.decode(), headers


@contextmanager
def running(
    first: Predictor,
    *,
    load: Any = None,
    limits: ServiceLimits | None = None,
    keys: Path | None = None,
    tls: TlsFiles | None = None,
    clock: Any = None,
) -> Iterator[Running]:
    """Serve from another thread, on a port of loopback; drained at the end.

    A federation's predictor is served on the event loop of its links, as by the command.
    """
    ready = threading.Event()
    found: list[Running] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        import time

        service = PredictionService(load, limits=limits, clock=clock or time.monotonic)
        service.begin(first)
        kept = None if keys is None else KeyFile(keys, clock or time.monotonic)
        hosts = loopback_hosts("127.0.0.1") if keys is None and tls is None else None
        application = make_application(service, Admittance(kept), hosts=hosts)
        one = Running(service, asyncio.get_running_loop())
        one.listening = Listening(
            application,
            host="127.0.0.1",
            port=0,
            limits=service.limits,
            tls=tls,
            drain=service.drain,
        )
        one.port = one.listening.port
        scheme = "http" if tls is None else "https"
        one.address = f"{scheme}://localhost:{one.port}".replace("localhost", "127.0.0.1")
        found.append(one)
        await one.listening.serve(ready.set)

    def run() -> None:
        try:
            if isinstance(first, NetworkedPredictor):
                run_there(serve())
            else:
                asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    if failed:
        raise failed[0]
    try:
        yield found[0]
    finally:
        found[0].listening.stop()
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def grpc_face(
    one: Running, admittance: Admittance | None = None, *, tls: TlsFiles | None = None
) -> Iterator[int]:
    """The same service over gRPC too; gives the port."""
    from colonnade.serve.grpc_face import GrpcFace

    face = GrpcFace(one.service, admittance or Admittance(None), host="127.0.0.1", port=0, tls=tls)
    asyncio.run_coroutine_threadsafe(face.start(), one.loop).result(60)
    try:
        yield face.port
    finally:
        asyncio.run_coroutine_threadsafe(face.stop(), one.loop).result(60)


class HeldRequest:
    """A request for predictions whose body is held back; the service has it in hand meanwhile."""

    def __init__(self, port: int, content: Mapping[str, Any]) -> None:
        self._body = json.dumps(content).encode()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.putrequest("POST", "/v1/predict")
        self._connection.putheader("Content-Type", "application/json")
        self._connection.putheader("Content-Length", str(len(self._body)))
        self._connection.putheader("Expect", "100-continue")
        self._connection.endheaders()

    def __enter__(self) -> HeldRequest:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def wait_until_in_hand(self) -> None:
        """The service asks for the body; this answer is left for whoever reads on."""
        begin = b"HTTP/1.1 100 Continue"
        found = self._connection.sock.recv(len(begin), socket.MSG_PEEK | socket.MSG_WAITALL)
        assert found == begin

    def answered(self) -> tuple[int, Any]:
        """Send the body; status and content of the answer."""
        self._connection.send(self._body)
        with self._connection.getresponse() as reply:
            return reply.status, json.load(reply)


def wait_until_refused(port: int) -> None:
    """Wait until nobody listens on a port of loopback, without connecting meanwhile."""
    listener, pause = f"0100007F:{port:04X} 00000000:0000 0A", threading.Event()
    while listener in Path("/proc/net/tcp").read_text():
        pause.wait(0.01)
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionRefusedError:
        return
    raise AssertionError("somebody was taken")


class ScriptedPredictor:
    """A predictor that answers when it is told to, with whoever the script lets come."""

    def __init__(
        self, version: str = "credit@1", *, tolerant: bool = True, parties: Sequence[str] = PARTIES
    ) -> None:
        self._model = ServedModel(
            name="credit",
            version=version,
            kind="binary",
            label="risk",
            classes=("bad", "good"),
            parties=tuple(parties),
            tolerates_missing=tolerant,
        )
        # Closed: exchanges wait. Every exchange that begins is announced.
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        self.asked: list[tuple[str, ...]] = []
        self.left_out: list[frozenset[str]] = []
        self.frozen: set[str] = set()
        self.fails = False
        self.closed = False

    @property
    def model(self) -> ServedModel:
        return self._model

    def predict(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> ServedExchange:
        self.asked.append(tuple(ids))
        self.left_out.append(frozenset(without))
        self.begun.release()
        assert self.gate.wait(60)
        if self.fails:
            raise RuntimeError("the row of person 4711 has value 3.25")
        here = [name for name in self._model.parties if name not in self.frozen | set(without)]
        silent = tuple(sorted(self.frozen - set(without)))
        lacking = tuple(name for name in self._model.parties if name not in here)
        found: Outcome | Unanswered = Outcome(
            value="good",
            probabilities=(0.25, 0.75),
            confidence=0.75,
            spread=None,
            parties={name: Provenance(age=0.0) for name in here},
        )
        if lacking and not self._model.tolerates_missing:
            found = Unanswered(reason="away", parties=lacking)
        return ServedExchange(
            outcomes=[found for _ in ids], seconds=dict.fromkeys(here, 0.001), silent=silent
        )

    def predict_here(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> None:
        pass

    def warm_up(self) -> None:
        pass

    def away(self) -> Mapping[str, str]:
        return {}

    def observed(self) -> Mapping[str, ObservedRows]:
        return {}

    def close(self) -> None:
        self.closed = True
