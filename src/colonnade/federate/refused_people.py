"""Whom the parties of a prediction would refuse, asked before anything leaves.

A party refuses a whole batch if its rules are against one person in it: an account is spent, it was
asked for too often, its features are gone. So it is asked first whom it would refuse. These people
are left out of its questions, and nobody else's answer suffers.
"""

from __future__ import annotations

import secrets

import numpy as np
import torch

from colonnade.core.errors import ProtocolError
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_requests import Request
from colonnade.run.samples import Table

__all__ = ["refused_people"]


def refused_people(model: OpenModel, request: Request) -> Table:
    """Which party refuses which sample because of who it is.

    Args:
        model: The open session.
        request: The samples.

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
    said = model.run(parties.ask("refusing", called, samples, presence, among=asked))
    for party, refused in said.items():
        is_one = isinstance(refused, torch.Tensor) and refused.dtype == torch.bool
        if not is_one or refused.shape != (len(found),):
            raise ProtocolError(f"party '{party}' did not say whom of the samples it refuses")
        place = model.names.index(party)
        found[:, place] = refused.numpy() & request.presence[:, place]
    return found
