"""The Open Inference Protocol over gRPC: the same answers, keys and limits as over HTTP."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from authority import Authority
from colonnade.serve.admittance import Admittance
from colonnade.serve.api_keys import KeyFile, make_key
from colonnade.serve.inference_messages import METHODS, SERVICE, message
from colonnade.serve.listening import TlsFiles
from colonnade.serve.run_serving import RunLoader, ServeSettings
from serving import Running, ScriptedPredictor, grpc_face, running, three_parties


class Caller:
    """Calls the protocol's methods by their names."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def __call__(self, method: str, key: str | None = None, **fields: Any) -> Any:
        asked, told = METHODS[method]
        call = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda item: item.SerializeToString(),
            response_deserializer=message(told).FromString,
        )
        metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        return call(message(asked)(**fields), timeout=60, metadata=metadata)

    def refused(self, method: str, code: grpc.StatusCode, **fields: Any) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            self(method, **fields)
        error: Any = caught.value
        assert error.code() is code, error.details()
        return str(error.details())


def ids(*names: Any, kind: str = "BYTES", shape: Any = None, **contents: Any) -> dict[str, Any]:
    place = "bytes_contents" if kind == "BYTES" else "int64_contents"
    contents = contents or {place: [str(n).encode() if kind == "BYTES" else n for n in names]}
    tensor = {"name": "ids", "datatype": kind, "shape": shape or [len(names)], "contents": contents}
    return {"model_name": "credit", "inputs": [tensor]}


@contextmanager
def called(one: Running, keys: Any = None) -> Iterator[Caller]:
    with (
        grpc_face(one, Admittance(keys)) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield Caller(channel)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    place = tmp_path_factory.mktemp("served")
    return place / "credit", three_parties(place)


@contextmanager
def served(run: tuple[Path, dict[str, Path]]) -> Iterator[Running]:
    loader = RunLoader(*run, ServeSettings())
    with running(loader.first(), load=loader) as one:
        yield one


def test_the_answers_are_those_over_http(run: Any) -> None:
    with served(run) as one, called(one) as call:
        assert call("ServerLive").live
        assert call("ServerReady").ready
        assert call("ModelReady", name="credit").ready
        assert call("ServerMetadata").name == "colonnade"
        about = call("ModelMetadata", name="credit")
        assert [tensor.name for tensor in about.outputs] == [
            *("value", "probabilities", "confidence", "blocks")
        ]
        asked = {"deadline_ms": {"int64_param": 30_000}}
        found = call("ModelInfer", id="mine", parameters=asked, **ids(1000, 1003))
        rows = one.predict(1000, 1003)[1]["predictions"]
        outputs = {tensor.name: tensor for tensor in found.outputs}
        values = [item.decode() for item in outputs["value"].contents.bytes_contents]
        assert values == [row["value"] for row in rows]
        expected = [score for row in rows for score in row["probabilities"].values()]
        assert list(outputs["probabilities"].contents.fp64_contents) == pytest.approx(expected)
        assert list(outputs["probabilities"].shape) == [2, 2]
        assert (found.id, found.model_name) == ("mine", "credit")
        assert found.model_version == rows[0]["version"]
        # Numbers, and contents as raw bytes, are the same ids.
        raw = b"".join(struct.pack("<I", 4) + name for name in (b"1000", b"1003"))
        as_bytes = {**ids(1, 2), "raw_input_contents": [raw]}
        as_numbers = {
            **ids(1, 2, kind="INT64"),
            "raw_input_contents": [struct.pack("<2q", 1000, 1003)],
        }
        for request in (ids(1000, 1003, kind="INT64"), as_bytes, as_numbers):
            again = call("ModelInfer", parameters=asked, **request)
            assert again.outputs[0] == found.outputs[0]
        # Without a deadline among the parameters the call's own counts.
        assert call("ModelInfer", **ids(1000)).outputs[0].shape == [1]
        metrics: str = one.get("/metrics")[1]
        assert 'path="grpc ModelInfer",status="0"' in metrics


def test_what_is_wrong_is_said_by_a_code(run: Any) -> None:
    status = grpc.StatusCode
    bad = {
        "another shape": ids(1000, shape=[3]),
        "no elements": ids(shape=[1]),
        "floats": {**ids(1000), "inputs": [{"name": "ids", "datatype": "FP64", "shape": [1]}]},
        "another name": {**ids(1000), "inputs": [{"name": "x", "datatype": "BYTES", "shape": [1]}]},
        "two tensors": {**ids(1000), "inputs": ids(1)["inputs"] * 2},
        "no text": ids(1, bytes_contents=[b"\xff\xfe"]),
        "long": ids(1, bytes_contents=[b"x" * 1000]),
        "cut length": {**ids(1), "raw_input_contents": [b"\x01\x00"]},
        "cut text": {**ids(1), "raw_input_contents": [struct.pack("<I", 9) + b"abc"]},
        "odd numbers": {**ids(1, kind="INT64"), "raw_input_contents": [b"123"]},
        "many": ids(*range(2000)),
        "deadline": {**ids(1000), "parameters": {"deadline_ms": {"string_param": "soon"}}},
        "long deadline": {**ids(1000), "parameters": {"deadline_ms": {"int64_param": 10**9}}},
    }
    with served(run) as one, called(one) as call:
        for name, fields in bad.items():
            words = call.refused("ModelInfer", status.INVALID_ARGUMENT, **fields)
            assert words, name
        assert "nobody" not in call.refused("ModelInfer", status.NOT_FOUND, **ids("nobody"))
        other = {**ids(1000), "model_name": "other"}
        call.refused("ModelInfer", status.NOT_FOUND, **other)
        call.refused("ModelReady", status.NOT_FOUND, name="credit", version="credit@0")
        call.refused("ModelInfer", status.RESOURCE_EXHAUSTED, **ids("x" * (2 << 20)))


def test_keys_and_their_limits_are_the_same(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = make_key(file, "orders", scopes=["predict"], ids_per_second=2)
    watch = make_key(file, "prometheus", scopes=["watch"])
    status = grpc.StatusCode
    with served(run) as one, called(one, KeyFile(file, lambda: 0.0)) as call:
        assert call("ServerReady").ready
        call.refused("ModelInfer", status.UNAUTHENTICATED, **ids(1000))
        call.refused("ModelReady", status.UNAUTHENTICATED, name="credit")
        call.refused("ModelInfer", status.PERMISSION_DENIED, key=watch, **ids(1000))
        asked = {"deadline_ms": {"int64_param": 30_000}}
        assert call("ModelInfer", key=key, parameters=asked, **ids(1000, 1001)).outputs
        call.refused("ModelInfer", status.RESOURCE_EXHAUSTED, key=key, **ids(1000))


def test_over_tls_callers_need_a_certificate_of_the_authority(tmp_path: Path) -> None:
    ours, foreign = Authority(), Authority("somebody else's")
    service, caller = ours.identity("service", dns="service"), ours.identity("orders")
    tls = TlsFiles(
        certificate=tmp_path / "own.pem", key=tmp_path / "own.key", authority=tmp_path / "ca.pem"
    )
    tls.certificate.write_bytes(service.certificate)
    tls.key.write_bytes(service.key)
    assert tls.authority is not None
    tls.authority.write_bytes(service.authority)
    options = [("grpc.ssl_target_name_override", "service")]

    def live(*files: Any, trust: bytes = service.authority) -> bool:
        with grpc.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(trust, *files), options=options
        ) as channel:
            return bool(Caller(channel)("ServerLive").live)

    with running(ScriptedPredictor()) as one, grpc_face(one, tls=tls) as port:
        assert live(caller.key, caller.certificate)
        stranger = foreign.identity("orders")
        for files in ((), (stranger.key, stranger.certificate)):
            with pytest.raises(grpc.RpcError) as refused:
                live(*files)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        # Nor does a caller talk to a service of another authority, or without encryption.
        with pytest.raises(grpc.RpcError):
            live(caller.key, caller.certificate, trust=stranger.authority)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
            Caller(plain).refused("ServerLive", grpc.StatusCode.UNAVAILABLE)
