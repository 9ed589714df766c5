"""SIGTERM to a service: whoever is in hand is answered, nobody else is taken."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from colonnade.serve.inference_messages import METHODS, SERVICE, message
from colonnade.serve.prediction_service import ServiceLimits
from colonnade.serve.run_serving import ServeSettings, serve_with
from serving import HeldRequest, ScriptedPredictor, running, wait_until_refused

TOLD = re.compile(r"http://127\.0\.0\.1:(\d+), gRPC at 127\.0\.0\.1:(\d+)")


@pytest.fixture
def handlers() -> Iterator[None]:
    """The event loop puts defaults in the place of handlers that were there."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def begin(channel: grpc.Channel, method: str, **fields: Any) -> Any:
    """A call over gRPC that is under way."""
    asked, told = METHODS[method]
    call = channel.unary_unary(
        f"/{SERVICE}/{method}",
        request_serializer=lambda item: item.SerializeToString(),
        response_deserializer=message(told).FromString,
    )
    return call.future(message(asked)(**fields), timeout=60)


def is_refused_over_grpc(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return begin(channel, "ServerLive").code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.usefixtures("handlers")
def test_sigterm_answers_who_is_in_hand_and_takes_nobody_else() -> None:
    predictor, pause = ScriptedPredictor(), threading.Event()
    predictor.gate.clear()

    def meanwhile(port: int, grpc_port: int) -> None:
        tensor = {
            "name": "ids",
            "datatype": "BYTES",
            "shape": [1],
            "contents": {"bytes_contents": [b"a"]},
        }
        with (
            grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
            HeldRequest(port, {"ids": ["b"], "deadline_ms": 60_000}) as held,
        ):
            try:
                called = begin(channel, "ModelInfer", model_name="credit", inputs=[tensor])
                assert predictor.begun.acquire(timeout=60)
                held.wait_until_in_hand()
                assert not is_refused_over_grpc(grpc_port)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
            try:
                wait_until_refused(port)
                # The other listener does not wait for this one's answers.
                while not is_refused_over_grpc(grpc_port):
                    pause.wait(0.01)
                assert not called.done()
            finally:
                predictor.gate.set()
            assert held.answered()[0] == 200
            assert called.result().outputs
        assert predictor.asked == [("a",), ("b",)]

    with ThreadPoolExecutor(1) as pool:
        beside = []

        def started(told: str) -> None:
            ports = TOLD.fullmatch(told)
            assert ports is not None
            beside.append(pool.submit(meanwhile, int(ports[1]), int(ports[2])))

        settings = ServeSettings(port=0, grpc_port=0)
        asyncio.run(serve_with(lambda run: predictor, predictor, settings, started))
        beside[0].result()
    assert predictor.closed


def test_no_request_is_cut_off_that_may_be_in_hand() -> None:
    limits = ServiceLimits(longest_deadline=90_500, slowest_body=4.0)
    with running(ScriptedPredictor(), limits=limits) as one:
        config = one.listening._uvicorn.config
    assert config.timeout_graceful_shutdown == 95
