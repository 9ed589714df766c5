"""Whom the parties of a prediction refuse, so that nobody else's answer suffers.

A party refuses a whole batch if its rules are against one person in it. So it is asked whom it
would refuse, and these people are left out of its questions. Whom it was asked for too often, and
who has no features, is known before anything leaves. Spent accounts are asked about once a batch
was refused: what left before may leave again, and costs nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
import torch

from colonnade.core.errors import ProtocolError
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_requests import Request
from colonnade.run.samples import Table

__all__ = ["refused_people", "say_refused"]


def refused_people(model: OpenModel, request: Request, *, spent: bool) -> Table:
    """Which party refuses which sample because of who it is.

    Args:
        model: The open session.
        request: The samples.
        spent: Whether people whose account allows no further release are among them.

    Returns:
        A row per sample, and a column per name of ``OpenModel.names``. A party that is silent
        refuses nobody yet, where the method does without it.

    Raises:
        NoAnswer: A party was silent for too long, and the method needs it.
        ProtocolError: A party said something else.
    """
    found = np.zeros_like(request.presence)
    asked = model.having(request)
    if not asked:
        return found
    parties = model.elsewhere(model.blueprint.spec.patience)
    called, samples = secrets.token_hex(8), model.samples_for(request, asked)
    presence = torch.from_numpy(request.presence)
    said = model.run(parties.ask("refusing", called, samples, presence, spent, among=asked))
    for party, refused in said.items():
        is_one = isinstance(refused, torch.Tensor) and refused.dtype == torch.bool
        if not is_one or refused.shape != (len(found),):
            raise ProtocolError(f"party '{party}' did not say whom of the samples it refuses")
        place = model.names.index(party)
        found[:, place] = refused.numpy() & request.presence[:, place]
    return found


def say_refused(model: OpenModel, refused: Table, say: Callable[[str], None]) -> None:
    """Say how many people each party refuses, if any."""
    for name, num_people in zip(model.names, refused.sum(axis=0).tolist(), strict=True):
        if num_people:
            say(f"'{name}' refuses {num_people} of {len(refused)} people by its rules")
