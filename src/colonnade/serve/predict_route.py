"""``POST /v1/predict``: its request, its answer, and a short way to it past the framework.

The framework's route takes four times as long as the rest of a request. ``QuickPredictions`` stands
before it and answers plain requests; whatever is not plain (an idempotency key, a body that is not
as it should be) goes on to the framework's route, which answers the same and says what is wrong.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Annotated, Any

from fastapi import HTTPException, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from colonnade.core.errors import ColonnadeError, ConfigError, NoAnswer
from colonnade.serve.admittance import Admittance, Caller
from colonnade.serve.asking import ask
from colonnade.serve.guard import Application, Receive, Send
from colonnade.serve.prediction_service import (
    PredictionService,
    absent_parties,
    answered,
    refusing_parties,
    told,
)
from colonnade.serve.repeated_requests import OtherRequest

__all__ = ["PREDICT", "PredictRequest", "QuickPredictions", "error_answer", "predicted"]

PREDICT = "/v1/predict"
_LOG = logging.getLogger("colonnade.serve")
_LONGEST_ID = 200
_TEXT_OF = json.JSONEncoder(allow_nan=False).encode
# Under this name the guard counts a request.
_ROUTE = SimpleNamespace(path=PREDICT)


class PredictRequest(BaseModel):
    """Which samples to predict, and by when."""

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[
        list[StrictInt | Annotated[StrictStr, Field(min_length=1, max_length=_LONGEST_ID)]],
        Field(
            min_length=1, description="Sample ids: texts or whole numbers; they come back as is."
        ),
    ]
    deadline_ms: Annotated[int, Field(ge=1, description="Milliseconds to answer in.")] = 200


async def predicted(
    service: PredictionService,
    admittance: Admittance,
    caller: Caller,
    wanted: PredictRequest,
    arrived: float,
) -> tuple[int, bytes]:
    """The status and content of the answer to a request.

    Args:
        service: Who answers.
        admittance: Who may ask how much.
        caller: Who asks.
        wanted: For what.
        arrived: When the request arrived.

    Raises:
        HTTPException: A limit was met, or the service drains.
    """
    request_id = secrets.token_hex(8)
    rows = await ask(
        service,
        admittance,
        caller,
        [str(item) for item in wanted.ids],
        arrived=arrived,
        deadline_ms=wanted.deadline_ms,
    )
    content: dict[str, Any] = {
        "request_id": request_id,
        "model": service.model.name,
        "predictions": [told(given, row) for given, row in zip(wanted.ids, rows, strict=True)],
    }
    status = 200
    if not answered(rows):
        absent, refusing = absent_parties(rows), refusing_parties(rows)
        status = 503 if absent else 403 if refusing else 404
        reason = f"without {', '.join(absent)}" if absent else "these ids are nowhere"
        if refusing and not absent:
            reason = f"refused by {', '.join(refusing)}"
        content["error"] = {"message": f"no answer: {reason}", "parties": list(absent or refusing)}
    return status, _TEXT_OF(content).encode() + b"\n"


class QuickPredictions:
    """An application around the routes, inside the guard.

    Args:
        inner: The routes.
        service: Who answers.
        admittance: Who may ask.
    """

    def __init__(
        self, inner: Application, service: PredictionService, admittance: Admittance
    ) -> None:
        self._inner, self._service, self._admittance = inner, service, admittance

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a plain request for predictions; leave any other one to the routes."""
        wanted = _plain_request(scope)
        if wanted is None:
            await self._inner(scope, receive, send)
            return
        scope["route"] = _ROUTE
        try:
            caller = self._admittance.admit(_key(scope), "predict")
            status, content = await predicted(
                self._service, self._admittance, caller, wanted, scope["state"]["arrived"]
            )
        except (HTTPException, ColonnadeError) as error:
            await error_answer(error)(scope, receive, send)
            return
        headers = [
            (b"content-length", str(len(content)).encode()),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _plain_request(scope: MutableMapping[str, Any]) -> PredictRequest | None:
    if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", PREDICT):
        return None
    if any(name == b"idempotency-key" for name, _ in scope["headers"]):
        return None
    try:
        return PredictRequest.model_validate_json(scope["state"]["body"])
    except ValidationError:
        return None


def _key(scope: MutableMapping[str, Any]) -> str | None:
    """The first header of the name counts, as it does for the framework."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(value, "latin-1")
    return None


def error_answer(error: HTTPException | ColonnadeError) -> Response:
    """What a caller is told of an error; never what a request or a party said."""
    if isinstance(error, HTTPException):
        return _error(error.status_code, str(error.detail), dict(error.headers or {}))
    if isinstance(error, OtherRequest):
        return _error(422, str(error))
    if isinstance(error, ConfigError):
        return _error(400, error.told())
    if isinstance(error, NoAnswer):
        return _error(503, f"no answer from {', '.join(error.parties)}")
    # A message may name what a party refused; the kind of error is enough here.
    _LOG.error("no answer: %s", type(error).__name__)
    return _error(503, "the model can't answer now; see the service's log")


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps({"error": {"message": message}})
    return Response(content, status, headers, media_type="application/json")
