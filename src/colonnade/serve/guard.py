"""What every request passes before a route sees it: size, time, kind of content, host.

It also counts and logs: the route's name, the status and the time; no id, no value, no address of
a page that a caller made up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from colonnade.serve.prediction_service import PredictionService

__all__ = ["Guard"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_LOG = logging.getLogger("colonnade.serve")
_PORT = re.compile(r":\d*$")
_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    ),
]


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """An application around the routes.

    Args:
        inner: The routes.
        service: The service, for its limits and counts.
        hosts: Host names that requests may name; any if None.
    """

    def __init__(
        self, inner: Application, service: PredictionService, hosts: frozenset[str] | None
    ) -> None:
        self._inner, self._service, self._hosts = inner, service, hosts

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        began = time.monotonic()
        scope.setdefault("state", {})["arrived"] = began
        status, has_begun = 500, False

        async def sending(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        try:
            self._check(scope)
            await self._inner(scope, await self._whole(scope, receive), sending)
        except _Refusal as error:
            await _answer(sending, error.status, str(error))
        except Exception as error:
            # What went wrong may quote data: its kind is enough for the log, and for the caller
            # that something did.
            _LOG.error("a request failed: %s", type(error).__name__)
            if not has_begun:
                await _answer(sending, 500, "internal error")
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        self._service.watching.request(path, status, time.monotonic() - began)

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        headers = dict(scope["headers"])
        if self._hosts is not None:
            host = _PORT.sub("", headers.get(b"host", b"").decode("latin-1")).lower()
            if host not in self._hosts:
                raise _Refusal(421, "this service answers on its own address only")
        if scope["method"] in ("POST", "PUT", "PATCH"):
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                raise _Refusal(415, "send JSON: Content-Type: application/json")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._service.limits.largest_body:
            raise _Refusal(413, f"at most {self._service.limits.largest_body} bytes")

    async def _whole(self, scope: MutableMapping[str, Any], receive: Receive) -> Receive:
        """The whole body, within bounds of size and time; routes read it from memory."""
        limits = self._service.limits
        parts, size, more = [], 0, True
        if scope["method"] in ("GET", "HEAD"):
            return receive
        try:
            async with asyncio.timeout(limits.slowest_body):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refusal(400, "the caller left")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
                    if size > limits.largest_body:
                        raise _Refusal(413, f"at most {limits.largest_body} bytes")
        except TimeoutError as error:
            raise _Refusal(408, "the request did not arrive in time") from error
        body = scope["state"]["body"] = parts[0] if len(parts) == 1 else b"".join(parts)
        is_read = False

        async def again() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        return again


async def _answer(send: Send, status: int, message: str) -> None:
    content = json.dumps({"error": {"message": message}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
