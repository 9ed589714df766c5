"""Charging what leaves to the people whom it tells of, before it leaves."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from colonnade.core.errors import Refused
from colonnade.core.messages import Value
from colonnade.core.protection import Encoding, PeopleAccount, Protection, Release
from colonnade.core.releases import Declared, Kind

__all__ = ["charge", "take_up"]

# Made of what others sent and of weights: without samples of its own it is charged to nobody.
_OF_NOBODY = (Kind.OUTPUT, Kind.AVERAGE, Kind.ROLL, Kind.LOSS, Kind.COUNT, Kind.BYTES, None)
# Up to so many people, Python's own look at them is quicker than numpy's.
_FEW = 64
# What nearly all that leaves is of; numpy gives its bytes in one step, and knows no bfloat16.
_OF_NUMPY = (torch.float32, torch.float64)


def charge(
    account: PeopleAccount,
    protections: Sequence[Protection],
    value: Value,
    kinds: Declared,
    made: Sequence[Encoding],
    read: Sequence[Encoding],
    owner: str,
) -> None:
    """Charge an answer to everybody whose rows it was made of.

    Args:
        account: Whom to charge.
        protections: What stands at the door. Encodings with noise are charged one by one.
        value: The answer as the method made it.
        kinds: What it is declared to be.
        made: The encodings that it was made of.
        read: Batches whose rows were read for it in any way.
        owner: Whose door this is.

    Raises:
        Refused: If it can't be told whose rows it was made of, or an account is spent.
    """
    priced = [(item, _release(protections, item)) for item in made]
    if priced and all(release is not None for _, release in priced):
        for item, release in priced:
            if release is not None:
                account.charge(release.name, _people(item, owner), release.spent)
        return
    batches = {(item.batch.part, item.batch.number): item for item in (*made, *read)}
    if not batches:
        declared = kinds.values() if isinstance(kinds, Mapping) else (kinds,)
        if all(kind in _OF_NOBODY for kind in declared):
            return
        raise Refused(
            f"'{owner}' refuses, rule 'account': it can't be told whose rows an answer was made "
            "of; a method makes embeddings by 'encode', 'infer' or from 'rows'",
            party=owner,
        )
    each = [_people(item, owner) for item in batches.values()]
    people = each[0] if len(each) == 1 else torch.cat(each)
    # Without noise, the values themselves name the release: what left before tells nothing new.
    name = hashlib.blake2b(people.numpy().tobytes(), digest_size=16)
    for tensor in _tensors_of(value):
        name.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        name.update(_bytes_of(tensor.detach()))
    account.charge(name.digest(), people, None)


def take_up(
    account: PeopleAccount,
    protections: Sequence[Protection],
    name: bytes,
    encoding: Encoding,
    owner: str,
) -> None:
    """Charge an encoding that left under a name once, unless the account knows of it."""
    release = _release(protections, encoding)
    if release is not None:
        account.take_up(name, _people(encoding, owner), release.spent)


def _release(protections: Sequence[Protection], item: Encoding) -> Release | None:
    found = [release for own in protections if (release := own.release(item)) is not None]
    if not found:
        return None
    # A draw that is no longer known has no name by which it could have been charged before.
    return found[0] if found[0].name else Release(secrets.token_bytes(16), found[0].spent)


def _people(item: Encoding, owner: str) -> Tensor:
    if item.people is None:
        raise Refused(
            f"'{owner}' refuses, rule 'account': nobody said who the samples of part "
            f"'{item.batch.part}' are",
            party=owner,
        )
    # By numpy: torch takes ten times as long to choose a few of them.
    people = item.people.numpy()[item.plan.positions(item.batch.number).numpy()]
    if len(people) > _FEW or min(people.tolist(), default=0) < 0:
        people = people[people >= 0]
    return torch.from_numpy(people)


def _tensors_of(value: Value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_of(item)


def _bytes_of(tensor: Tensor) -> bytes:
    """The elements' bytes, in order."""
    if tensor.dtype in _OF_NUMPY:
        return tensor.numpy().tobytes()
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
