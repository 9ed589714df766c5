"""Calls of a party to the hub beside sessions: one short JSON object each way.

Messages have a fixed set of keys and a small limit on size. Anything else ends the call with a
named error, and changes nothing. A refusal is an answer with a reason. gRPC carries the bytes as
they are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc

from colonnade.core.config import dump, parse
from colonnade.core.errors import (
    ColonnadeError,
    ConfigError,
    IdentityRefused,
    ProtocolError,
    RunError,
)
from colonnade.fabrics.grpc.identity import HUB_NAME
from colonnade.federate.certificates import Reason
from colonnade.federate.offline_signing import AwaitsSigning

__all__ = [
    "MESSAGE_OPTIONS",
    "VERSION",
    "Message",
    "call_handler",
    "certificate_handler",
    "request_answer",
    "request_certificate",
]

VERSION = 1
# A request is about 500 bytes, an answer about 1,000.
_MOST_BYTES = 16_384
_PATIENCE_SECONDS = 30.0
MESSAGE_OPTIONS = (
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.max_metadata_size", _MOST_BYTES),
)
_LOG = logging.getLogger("colonnade.membership")


class Message(Protocol):
    """A request: a frozen dataclass with the version of the protocol that it is written in."""

    @property
    def version(self) -> int: ...


M = TypeVar("M", bound=Message)


@dataclass(frozen=True, kw_only=True)
class _Refusal:
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A certificate, or why there is none."""

    version: int
    certificate: str | None = None
    refused: _Refusal | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) == (self.refused is None):
            raise ConfigError("certificate: either it or 'refused' must be there")


def certificate_handler(
    path: str, kind: type[M], certify: Callable[[M, grpc.ServicerContext], bytes]
) -> grpc.GenericRpcHandler:
    """A handler of a path's calls; ``certify`` gives the certificate (PEM) for each request."""

    def answer(request: M, context: grpc.ServicerContext) -> _Answer:
        try:
            return _Answer(version=VERSION, certificate=certify(request, context).decode())
        except IdentityRefused as error:
            fields = {"call": path, "reason": error.reason}
            _LOG.warning("no certificate was issued", extra={"fields": fields})
            refusal = _Refusal(reason=error.reason, message=str(error))
            return _Answer(version=VERSION, refused=refusal)

    return call_handler(path, kind, answer)


def call_handler(
    path: str, kind: type[M], answer: Callable[[M, grpc.ServicerContext], Message]
) -> grpc.GenericRpcHandler:
    """A handler of a path's calls.

    Args:
        path: The path.
        kind: What a request is.
        answer: Gives the answer to each request, or raises.

    Returns:
        What a hub that listens adds to its own.
    """

    def answered(content: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return _encoded(answer(_decoded(kind, content), context))
        except (ProtocolError, IdentityRefused) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except AwaitsSigning as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except ColonnadeError as error:
            # Such as a full disk: the party may try again, and need not know more.
            _LOG.error("no answer to %s: %s", path, error)
            context.abort(grpc.StatusCode.INTERNAL, "the hub can't answer this now")
        raise AssertionError  # abort raises

    service, method = path.strip("/").split("/")
    return grpc.method_handlers_generic_handler(
        service, {method: grpc.unary_unary_rpc_method_handler(answered)}
    )


def request_certificate(
    address: str, credentials: grpc.ChannelCredentials, path: str, request: Message
) -> bytes:
    """Ask a hub for a certificate (PEM)."""
    answer = request_answer(address, credentials, path, request, _Answer)
    if answer.refused is not None:
        raise IdentityRefused(answer.refused.message, reason=answer.refused.reason)
    assert answer.certificate is not None
    return answer.certificate.encode()


def request_answer(
    address: str, credentials: grpc.ChannelCredentials, path: str, request: Message, kind: type[M]
) -> M:
    """Ask a hub something.

    Args:
        address: The hub's.
        credentials: Of a link to it.
        path: What is asked.
        request: The question.
        kind: What an answer is.

    Returns:
        The answer, checked for its form.

    Raises:
        ProtocolError: The answer has another form.
        RunError: Nobody answers, or the hub can't.
    """
    options = (*MESSAGE_OPTIONS, ("grpc.ssl_target_name_override", HUB_NAME))
    with grpc.secure_channel(address, credentials, options=options) as channel:
        try:
            content = channel.unary_unary(path)(_encoded(request), timeout=_PATIENCE_SECONDS)
        except grpc.RpcError as error:
            raise _unanswered(address, error) from error
    return _decoded(kind, content)


def _unanswered(address: str, error: Any) -> ColonnadeError:
    code, details = error.code(), str(error.details())[:300]
    if code is grpc.StatusCode.UNAVAILABLE and "handshak" in details.lower():
        return IdentityRefused(
            f"{address}: no safe link: whoever answers there is not this federation's hub, or "
            f"does not accept this party's certificate ({details})",
            reason=Reason.FOREIGN,
        )
    if code is grpc.StatusCode.UNAVAILABLE and "closed" in details.lower():
        # In TLS 1.3 a refusal of one's own certificate looks like this too.
        return RunError(
            f"{address}: the hub closed the link without an answer ({details}); it may have ended, "
            "or not accept this party's certificate"
        )
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return RunError(
            f"{address}: nobody answers ({details}); ask the label holder whether the hub is up "
            "(colonnade federation enrol), and whether a firewall is in between"
        )
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return RunError(f"{address}: {details}")
    return RunError(f"{address}: {code.name.lower().replace('_', ' ')}: {details}")


def _encoded(message: Any) -> bytes:
    return json.dumps(dump(message), separators=(",", ":")).encode()


def _decoded(kind: type[M], content: bytes) -> M:
    if len(content) > _MOST_BYTES:
        raise ProtocolError(f"a message of {len(content)} bytes; at most {_MOST_BYTES}")
    try:
        plain = json.loads(content, object_pairs_hook=_once)
        # Refuses half of a surrogate pair, which has no bytes in UTF-8.
        json.dumps(plain, ensure_ascii=False).encode()
        message = parse(kind, plain)
    except ConfigError as error:
        # Not the error's own text: it shows values, and one of them is a token.
        key = str(error).partition(":")[0]
        raise ProtocolError(f"a message of another form than expected, at '{key[:40]}'") from None
    except (ValueError, RecursionError):
        raise ProtocolError("a message that is not JSON") from None
    if message.version != VERSION:
        raise ProtocolError(f"version {message.version}; this hub and party speak {VERSION}")
    return message


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key stands twice")
    return content
