"""One request against the limits: both protocols ask here."""

from __future__ import annotations

import math

from fastapi import HTTPException

from colonnade.serve.admittance import Admittance, Caller
from colonnade.serve.gathering import Busy, TooLate
from colonnade.serve.prediction_service import PredictionService, Row

__all__ = ["ask"]


async def ask(
    service: PredictionService,
    admittance: Admittance,
    caller: Caller,
    ids: list[str],
    *,
    arrived: float,
    deadline_ms: int,
) -> list[Row]:
    """Check a request against the limits and have it answered.

    Args:
        service: Who answers.
        admittance: Who may ask how much.
        caller: Who asks.
        ids: The sample ids as text.
        arrived: When the request arrived.
        deadline_ms: Milliseconds from then on.

    Returns:
        A row per id.

    Raises:
        HTTPException: A limit was met, or the service drains.
    """
    limits = service.limits
    if len(ids) > limits.most_ids:
        raise HTTPException(413, f"at most {limits.most_ids} ids in a request")
    if deadline_ms > limits.longest_deadline:
        raise HTTPException(422, f"deadline_ms: at most {limits.longest_deadline}")
    if service.is_draining:
        raise HTTPException(503, "draining", {"Retry-After": "1"})
    wait = admittance.seconds_to_wait(caller, len(ids))
    if wait > 0:
        after = {"Retry-After": str(math.ceil(wait))}
        raise HTTPException(429, "this key has asked for too much; ask later", after)
    try:
        return await service.predict(ids, arrived=arrived, deadline_ms=deadline_ms)
    except Busy as error:
        raise HTTPException(429, str(error), {"Retry-After": "1"}) from error
    except TooLate as error:
        raise HTTPException(504, str(error)) from error
