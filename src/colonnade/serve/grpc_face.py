"""The Open Inference Protocol over gRPC, beside HTTP: same gathering, deadlines, keys and limits.

A key comes as metadata, ``authorization: Bearer KEY``. The deadline is the parameter
``deadline_ms``, else what is left of the call's own, else 200 ms.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from fastapi import HTTPException

from colonnade.core.errors import ColonnadeError, ConfigError, RunError
from colonnade.serve.admittance import Admittance
from colonnade.serve.asking import ask
from colonnade.serve.inference_messages import METHODS, SERVICE, message
from colonnade.serve.inference_protocol import answer_tensors, model_metadata
from colonnade.serve.listening import TlsFiles
from colonnade.serve.prediction_service import PredictionService

__all__ = ["GrpcFace"]

_LOG = logging.getLogger("colonnade.serve")
_DEADLINE_MS = 200
# What is left of a call without a deadline is more than this.
_NO_DEADLINE_SECONDS = 86_400
_LONGEST_ID = 200
_MOST_METADATA_BYTES = 16_384
_IDLE_MS = 300_000
# Calls of one connection at a time.
_MOST_STREAMS = 256
_CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# Where a tensor's elements stand in a message.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class GrpcFace:
    """A gRPC listener in the service's own event loop.

    Args:
        service: Who answers.
        admittance: Who may ask.
        host: The address.
        port: The port; 0 for any that is free.
        tls: Certificates; none for plain gRPC.
    """

    def __init__(
        self,
        service: PredictionService,
        admittance: Admittance,
        *,
        host: str,
        port: int,
        tls: TlsFiles | None = None,
    ) -> None:
        self._service, self._admittance = service, admittance
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._tls = tls
        self.port = port
        self._listener: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: A certificate can't be used.
            RunError: The address is taken.
        """
        limits = self._service.limits
        self._listener = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", limits.largest_body),
                ("grpc.max_metadata_size", _MOST_METADATA_BYTES),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.max_concurrent_streams", _MOST_STREAMS),
                ("grpc.server_handshake_timeout_ms", int(limits.slowest_body * 1000)),
                # Two services must not share a port unnoticed.
                ("grpc.so_reuseport", 0),
            ),
            maximum_concurrent_rpcs=limits.most_connections,
        )
        self._listener.add_generic_rpc_handlers((self._handlers(),))
        try:
            if self._tls is None:
                self.port = self._listener.add_insecure_port(self._address)
            else:
                self.port = self._listener.add_secure_port(self._address, _credentials(self._tls))
        except RuntimeError as error:
            raise RunError(
                f"can't listen at {self._address}: choose another --grpc-port"
            ) from error
        await self._listener.start()

    async def stop(self) -> None:
        """Take no more calls, and answer those that are here."""
        if self._listener is not None:
            await self._listener.stop(self._service.limits.drain_seconds)

    def _handlers(self) -> grpc.GenericRpcHandler:
        answers: Mapping[str, Callable[[Any, Any, float], Awaitable[Any]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._about,
            "ModelMetadata": self._metadata,
            "ModelInfer": self._infer,
        }
        handlers = {
            # As a stream of one message: gRPC waits for a whole message without end.
            name: grpc.stream_unary_rpc_method_handler(
                self._guarded(name, answers[name]),
                request_deserializer=message(asked).FromString,
                response_serializer=lambda item: item.SerializeToString(),
            )
            for name, (asked, _) in METHODS.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _guarded(
        self, name: str, answer: Callable[[Any, Any, float], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """The answer, counted; what goes wrong becomes a code and words without data."""

        async def guarded(requests: Any, context: Any) -> Any:
            arrived = time.monotonic()
            code, words = grpc.StatusCode.INTERNAL, "internal error"
            try:
                request = await self._message(context)
                found = await answer(request, context, arrived)
            except HTTPException as error:
                code, words = _CODES.get(error.status_code, code), str(error.detail)
            except ConfigError as error:
                code, words = grpc.StatusCode.INVALID_ARGUMENT, error.told()
            except ColonnadeError as error:
                _LOG.error("no answer: %s", type(error).__name__)
                code = grpc.StatusCode.UNAVAILABLE
                words = "the model can't answer now; see the service's log"
            except Exception as error:
                # What went wrong may quote data.
                _LOG.error("a call failed: %s", type(error).__name__)
            else:
                self._count(name, grpc.StatusCode.OK, arrived)
                return found
            self._count(name, code, arrived)
            return await context.abort(code, words)  # it raises

        return guarded

    async def _message(self, context: Any) -> Any:
        """The call's one message; HTTPException if it does not come in time, or is none."""
        seconds = self._service.limits.slowest_body
        try:
            request = await asyncio.wait_for(context.read(), seconds)
        except TimeoutError as error:
            raise HTTPException(504, f"the message did not come in {seconds:g} seconds") from error
        if request is grpc.aio.EOF:
            raise HTTPException(422, "a call has one message")
        return request

    def _count(self, name: str, code: grpc.StatusCode, arrived: float) -> None:
        seconds = time.monotonic() - arrived
        self._service.watching.request(f"grpc {name}", code.value[0], seconds)

    # Calls

    async def _live(self, request: Any, context: Any, arrived: float) -> Any:
        return message("ServerLiveResponse")(live=True)

    async def _ready(self, request: Any, context: Any, arrived: float) -> Any:
        return message("ServerReadyResponse")(ready=self._service.unready() is None)

    async def _about(self, request: Any, context: Any, arrived: float) -> Any:
        return message("ServerMetadataResponse")(name="colonnade", version="2")

    async def _model_ready(self, request: Any, context: Any, arrived: float) -> Any:
        self._caller(context)
        self._named(request.name, request.version)
        return message("ModelReadyResponse")(ready=self._service.unready() is None)

    async def _metadata(self, request: Any, context: Any, arrived: float) -> Any:
        self._caller(context)
        model = self._named(request.name, request.version)
        found = model_metadata(model, sorted(self._service.versions.loaded))
        return message("ModelMetadataResponse")(**found)

    async def _infer(self, request: Any, context: Any, arrived: float) -> Any:
        caller = self._caller(context)
        self._named(request.model_name, request.model_version)
        rows = await ask(
            self._service,
            self._admittance,
            caller,
            _ids(request),
            arrived=arrived,
            deadline_ms=_deadline(request, context, self._service.limits.longest_deadline),
        )
        found = answer_tensors(rows, request.id or None)
        outputs = [
            {
                "name": tensor["name"],
                "datatype": tensor["datatype"],
                "shape": tensor["shape"],
                "contents": {_CONTENTS[tensor["datatype"]]: _elements(tensor)},
            }
            for tensor in found.pop("outputs")
        ]
        return message("ModelInferResponse")(outputs=outputs, **found)

    def _caller(self, context: Any) -> Any:
        given = dict(context.invocation_metadata() or ())
        header = given.get("authorization")
        return self._admittance.admit(header if isinstance(header, str) else None, "predict")

    def _named(self, name: str, version: str) -> Any:
        try:
            return self._service.named(name, version or None)
        except ConfigError as error:
            raise HTTPException(404, str(error)) from error


def _elements(tensor: Mapping[str, Any]) -> list[Any]:
    if tensor["datatype"] == "BYTES":
        return [str(item).encode() for item in tensor["data"]]
    return list(tensor["data"])


def _deadline(request: Any, context: Any, longest: int) -> int:
    wanted = request.parameters.get("deadline_ms")
    if wanted is not None:
        if wanted.WhichOneof("parameter_choice") != "int64_param" or wanted.int64_param < 1:
            raise HTTPException(422, "deadline_ms: a whole number above 0 (int64_param)")
        return int(wanted.int64_param)
    left = context.time_remaining()
    if left is None or left > _NO_DEADLINE_SECONDS:
        return _DEADLINE_MS
    return min(longest, max(1, int(left * 1000)))


def _ids(request: Any) -> list[str]:
    """The ids of the one tensor, from typed or raw contents, checked."""
    if len(request.inputs) != 1 or request.inputs[0].name != "ids":
        raise HTTPException(422, "inputs: one tensor, 'ids'")
    tensor = request.inputs[0]
    if tensor.datatype not in ("BYTES", "INT64"):
        raise HTTPException(422, "ids: BYTES or INT64")
    is_text = tensor.datatype == "BYTES"
    if len(request.raw_input_contents) > 1:
        raise HTTPException(422, "raw_input_contents: one for the one tensor")
    if request.raw_input_contents:
        raw = request.raw_input_contents[0]
        found: list[Any] = _raw_texts(raw) if is_text else _raw_numbers(raw)
    else:
        contents = tensor.contents
        found = list(contents.bytes_contents if is_text else contents.int64_contents)
    size = 1
    for length in tensor.shape:
        size *= length
    if not found or size != len(found) or not 1 <= len(tensor.shape) <= 2:
        raise HTTPException(422, f"ids: shape {list(tensor.shape)} for {len(found)} elements")
    if not is_text:
        return [str(item) for item in found]
    if any(len(item) > 4 * _LONGEST_ID for item in found):
        raise HTTPException(422, f"ids: at most {_LONGEST_ID} characters")
    try:
        return [item.decode() for item in found]
    except UnicodeDecodeError as error:
        raise HTTPException(422, "ids: text in UTF-8") from error


def _raw_texts(raw: bytes) -> list[bytes]:
    """Texts, each after its length in four bytes."""
    found, place = [], 0
    while place < len(raw):
        if place + 4 > len(raw):
            raise HTTPException(422, "raw_input_contents: cut off")
        (length,) = struct.unpack_from("<I", raw, place)
        place += 4
        if place + length > len(raw):
            raise HTTPException(422, "raw_input_contents: cut off")
        found.append(raw[place : place + length])
        place += length
    return found


def _raw_numbers(raw: bytes) -> list[int]:
    if len(raw) % 8:
        raise HTTPException(422, "raw_input_contents: whole numbers of eight bytes")
    return [number for (number,) in struct.iter_unpack("<q", raw)]


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    try:
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        authority = None if tls.authority is None else tls.authority.read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS: {error.filename} can't be read: {error.strerror}") from error
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authority, require_client_auth=authority is not None
    )
