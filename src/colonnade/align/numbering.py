"""From fully blinded ids to sample numbers and the presence table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from colonnade.align.files import HolderRecord
from colonnade.align.group import Indices
from colonnade.core.errors import ProtocolError

__all__ = ["CHECK", "number_samples"]

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Words = np.ndarray[Any, np.dtype[np.uint64]]

# The number of a check point, which is no sample.
CHECK = -2


def number_samples(
    record: HolderRecord, needed: frozenset[str]
) -> tuple[Indices, dict[tuple[str, ...], int]]:
    """Give every sample its number, and find who has it; earlier numbers stay.

    New numbers follow the fully blinded ids, an order that means nothing to anybody.
    """
    names = record.names
    places = {name: np.flatnonzero(record.numbers[name] != CHECK) for name in names}
    order, is_first = _grouped(record, places)
    old = np.concatenate([record.numbers[name][places[name]] for name in names])[order]
    bits = np.repeat(
        1 << np.arange(len(names), dtype=np.int32), [len(places[name]) for name in names]
    )[order]
    if not len(order):
        return np.zeros(0, np.int64), {}
    starts = np.flatnonzero(is_first)
    who = np.bitwise_or.reduceat(bits, starts)
    sizes = np.diff(np.append(starts, len(order)))
    is_twice = np.add.reduceat(bits, starts, dtype=np.int64) != who
    if is_twice.any():
        raise ProtocolError(
            f"{int(is_twice.sum())} samples stand twice in the list of one participant; a list was "
            "mixed up on its way, or its owner kept duplicates; align again"
        )
    numbers = np.maximum.reduceat(old, starts)
    least = sum(1 << names.index(name) for name in needed)
    fresh = np.flatnonzero((numbers < 0) & (who & least == least))
    numbers[fresh] = record.num_samples + np.arange(len(fresh))
    record.num_samples += len(fresh)
    spread = np.empty(len(order), dtype=np.int64)
    spread[order] = np.repeat(numbers, sizes)
    end = 0
    for name in names:
        begin, end = end, end + len(places[name])
        record.numbers[name][places[name]] = spread[begin:end]
    presence = np.zeros(record.num_samples, dtype=np.int64)
    presence[numbers[numbers >= 0]] = who[numbers >= 0]
    kinds, counts = np.unique(who, return_counts=True)
    combinations = {
        tuple(name for place, name in enumerate(names) if kind >> place & 1): int(count)
        for kind, count in zip(kinds.tolist(), counts, strict=True)
    }
    return presence, combinations


def _grouped(record: HolderRecord, places: Mapping[str, Indices]) -> tuple[Indices, Flags]:
    """An order that puts equal tags side by side, and where each group of equals begins."""
    order = np.argsort(_words(record, places, 0), kind="stable")
    is_first = np.ones(len(order), dtype=bool)
    half = _words(record, places, 0)[order]
    is_first[1:] = half[1:] != half[:-1]
    half = _words(record, places, 1)[order]
    if (half[1:] != half[:-1])[~is_first[1:]].any():
        # Two that are equal in half of their bytes only: hardly ever, so sort again by all.
        words = [_words(record, places, number) for number in (0, 1)]
        order = np.lexsort(words)
        is_first[1:] = np.logical_or.reduce([word[order[1:]] != word[order[:-1]] for word in words])
    return order, is_first


def _words(record: HolderRecord, places: Mapping[str, Indices], number: int) -> Words:
    """One half of everybody's tags; halves one by one take half of the memory."""
    return np.concatenate(
        [record.tags[name].view("<u8")[chosen, number] for name, chosen in places.items()]
    )
