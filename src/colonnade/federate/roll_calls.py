"""A roll as it comes from the network: numbers of samples, and who has which; checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.protect.policy import refusal
from colonnade.run.samples import Roll, Rows, Table

__all__ = ["checked_names", "checked_request", "checked_roll", "name_of_request"]

_MOST_PARTS = 16
_MOST_NAMES = 1024
_FEW_SAMPLES = 1024


def checked_names(said: object) -> tuple[str, ...]:
    """The names of a run's parties as they come from the network.

    Raises:
        ProtocolError: They are no list of texts, too many, or one is there twice.
    """
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise ProtocolError("names: a list of parties' names")
    if len(said) > _MOST_NAMES or len(set(said)) < len(said):
        raise ProtocolError(f"names: at most {_MOST_NAMES} parties, each once")
    return tuple(said)


def checked_roll(
    party: str,
    names: tuple[str, ...],
    samples: Mapping[str, Tensor],
    presence: Mapping[str, Tensor],
) -> Roll:
    """A roll as it comes to a party.

    Raises ProtocolError unless numbers and presence fit together, Refused if a sample stands in it
    twice.
    """
    _check_counts(len(samples), len(names))
    if samples.keys() != presence.keys():
        raise ProtocolError("the roll: every part has sample numbers and a presence table")
    for part, numbers in samples.items():
        _check_fit(part, numbers, presence[part], len(names))
    _check_distinct(party, np.concatenate([numbers.numpy() for numbers in samples.values()]))
    return Roll(
        names=names,
        samples={part: item.numpy() for part, item in samples.items()},
        presence={part: item.numpy() for part, item in presence.items()},
    )


def checked_request(
    party: str, names: tuple[str, ...], request: str, samples: Tensor, presence: Tensor
) -> tuple[Rows, Table]:
    """The samples of a request and who has them; refused as a roll with this part alone is."""
    _check_counts(1, len(names))
    _check_fit(request, samples, presence, len(names))
    numbers: Rows = samples.numpy()
    _check_distinct(party, numbers)
    return numbers, presence.numpy()


def _check_counts(num_parts: int, num_names: int) -> None:
    if num_parts > _MOST_PARTS or num_names > _MOST_NAMES:
        raise ProtocolError(
            f"the roll: {num_parts} parts and {num_names} parties; at most {_MOST_PARTS} and "
            f"{_MOST_NAMES}"
        )


def _check_fit(part: str, numbers: Tensor, table: Tensor, num_names: int) -> None:
    fits = numbers.dtype is torch.int64 and table.dtype is torch.bool and numbers.dim() == 1
    if not fits or table.shape != (*numbers.shape, num_names):
        raise ProtocolError(f"the roll, part '{part}': numbers and presence don't fit")


def _check_distinct(party: str, every: Rows) -> None:
    # A sort of a few numbers takes numpy longer than Python's own look.
    few = len(every) <= _FEW_SAMPLES
    if (len(set(every.tolist())) if few else len(np.unique(every))) < len(every):
        # Named twice, a sample would be released twice for the price of one, or be its own mask.
        raise refusal(party, "distinct samples", "the roll names a sample more than once")


def name_of_request(numbers: Rows, presence: Table) -> str:
    """A name for samples to predict: a digest of their numbers and of who has them.

    Each side makes it by itself, so parties whose answers are added up add up the same samples.
    It crosses no link: whoever sees it can find the numbers.
    """
    # Their bytes are in the order of rows and columns, however they lie in memory.
    content = f"{len(numbers)} {presence.shape}".encode() + numbers.tobytes() + presence.tobytes()
    return hashlib.sha256(content).hexdigest()
