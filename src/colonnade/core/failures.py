"""Errors that the label holder makes of parties' failures, wild numbers and silence.

Messages count exchanges as logs and metrics do, from 1; 0 is before the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from colonnade.core.errors import (
    BadReply,
    BudgetSpent,
    ColonnadeError,
    Diverged,
    NoAnswer,
    PartyFailed,
    ProtocolError,
    Refused,
    StorageError,
)
from colonnade.core.messages import Reply
from colonnade.core.respondent import Awaited, Fault

__all__ = ["bad_reply", "failure_of", "no_answer", "no_value", "not_finite"]

# Failures that are decisions: they keep their kind on the way.
_REFUSALS: Mapping[str, type[Refused]] = {"Refused": Refused, "BudgetSpent": BudgetSpent}


def failure_of(reply: Reply, verb: str) -> ColonnadeError:
    """The error for a reply that tells of a failure."""
    failure, party = reply.failure, reply.party
    assert failure is not None
    if failure.kind in _REFUSALS:
        return _REFUSALS[failure.kind](failure.message, party=party)
    if failure.kind == "Diverged":
        return Diverged(failure.message, exchange=reply.exchange + 1, party=party)
    if isinstance(failure.cause, StorageError):
        return failure.cause  # the party is in this process: it is our own disk
    error = PartyFailed(
        f"party '{party}' failed at exchange {reply.exchange + 1} ({verb}): "
        f"{failure.kind}: {failure.message}",
        party=party,
    )
    error.__cause__ = failure.cause
    return error


def bad_reply(awaited: Awaited, fault: Fault) -> BadReply | Diverged:
    """The error for an answer that is not what its verb declares; wild numbers have diverged."""
    party, verb, exchange = awaited.party, awaited.verb, awaited.exchange + 1
    if fault.wild:
        return Diverged(
            f"exchange {exchange}: party '{party}' sent {fault.wild} ('{verb}') with values that "
            f"are not finite, or too large: expected {fault.words}; lower its learning rate, or "
            "check its data",
            exchange=exchange,
            party=party,
        )
    return BadReply(
        f"exchange {exchange}: party '{party}' sent an answer to '{verb}' that does not fit: "
        f"expected {fault.words}; ask that party which version and which method it runs",
        party=party,
    )


def not_finite(answers: Mapping[str, Tensor], verb: str, exchange: int) -> Diverged:
    """Blames the first party whose numbers are not finite; else the one with the largest."""
    wild = [name for name, item in answers.items() if not torch.isfinite(item).all()]
    who = wild[0] if wild else max(answers, key=lambda name: float(answers[name].abs().max()))
    return Diverged(
        f"exchange {exchange + 1}: party '{who}' sent an answer to '{verb}' with values that are "
        "not finite, or too large to be summed; lower its learning rate, or check its data",
        exchange=exchange + 1,
        party=who,
    )


def no_answer(silent: Iterable[str], verb: str, exchange: int, timeout: int | None) -> NoAnswer:
    """Names the parties that did not answer in time."""
    parties = tuple(sorted(set(silent)))
    names = ", ".join(f"'{name}'" for name in parties)
    return NoAnswer(
        f"no answer from {names} to '{verb}' at exchange {exchange + 1} within {timeout} ticks; "
        "check that party, raise patience.timeout, or use a method that goes on without it",
        parties=parties,
    )


def no_value(party: str, verb: str) -> ProtocolError:
    """Names the party for which a call with a value for each party has none."""
    return ProtocolError(f"'{verb}': no value for party '{party}' among those for each party")
