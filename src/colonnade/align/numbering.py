"""From fully blinded ids to sample numbers and the presence table.

Works on one range of the blinded ids after the other. Blinded ids are as good as random, so the
memory in use does not grow with the lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from colonnade.align.group import Indices, Numbers
from colonnade.align.record import HolderRecord
from colonnade.core.errors import ProtocolError

__all__ = ["CHECK", "number_samples"]

Flags = np.ndarray[Any, np.dtype[np.bool_]]

# The number of a check point, which is no sample.
CHECK = -2

# About so many ids are compared at the same time.
_AT_ONCE = 2**17
_MOST_RANGES = 256


def number_samples(
    record: HolderRecord, needed: frozenset[str]
) -> tuple[Numbers, dict[tuple[str, ...], int]]:
    """Number every sample, and find the participants that have it; earlier numbers stay.

    New numbers follow the order of the blinded ids, which tells nobody anything.
    """
    names = record.names
    least = sum(1 << names.index(name) for name in needed)
    earlier = np.zeros(record.num_samples, dtype=np.int32)
    later = [np.zeros(0, np.int32)]
    counts: Counter[int] = Counter()
    num_twice = 0
    for places in _ranges(record):
        lengths = [len(item) for item in places]
        if not sum(lengths):
            continue
        order, is_first = _grouped(record, places)
        bits = np.repeat(1 << np.arange(len(names), dtype=np.int32), lengths)[order]
        starts = np.flatnonzero(is_first)
        who = np.bitwise_or.reduceat(bits, starts)
        num_twice += int((np.add.reduceat(bits, starts, dtype=np.int64) != who).sum())
        numbers = np.maximum.reduceat(_gathered(names, record.numbers, places)[order], starts)
        known = numbers >= 0
        earlier[numbers[known]] = who[known]
        fresh = np.flatnonzero(~known & (who & least == least))
        numbers[fresh] = record.num_samples + np.arange(len(fresh), dtype=np.int32)
        record.num_samples += len(fresh)
        later.append(who[fresh])
        spread = np.empty(len(order), dtype=np.int32)
        spread[order] = np.repeat(numbers, np.diff(np.append(starts, len(order))))
        begins = np.cumsum([0, *lengths[:-1]])
        for name, chosen, begin in zip(names, places, begins, strict=True):
            record.numbers[name][chosen] = spread[begin : begin + len(chosen)]
        counts.update(_counted(who))
    if num_twice:
        raise ProtocolError(
            f"{num_twice} samples stand twice in the list of one participant; a list was mixed up "
            "on its way, or its owner kept duplicates; align again"
        )
    combinations = {
        tuple(name for place, name in enumerate(names) if kind >> place & 1): count
        for kind, count in sorted(counts.items())
    }
    return np.concatenate([earlier, *later]), combinations


def _ranges(record: HolderRecord) -> Iterator[list[Indices]]:
    """Everybody's positions with tags in one range; range after range, in the tags' order."""
    total = sum(len(item) for item in record.tags.values())
    num_ranges = 1
    while num_ranges < _MOST_RANGES and total > num_ranges * _AT_ONCE:
        num_ranges *= 2
    width = _MOST_RANGES // num_ranges
    for number in range(num_ranges):
        low, high = number * width, (number + 1) * width - 1
        # The eighth byte is the highest of the first word.
        yield [
            np.flatnonzero(
                (record.tags[name][:, 7] >= low)
                & (record.tags[name][:, 7] <= high)
                & (record.numbers[name] != CHECK)
            )
            for name in record.names
        ]


def _grouped(record: HolderRecord, places: Sequence[Indices]) -> tuple[Indices, Flags]:
    """An order that puts equal tags side by side, and where each group of equals begins."""
    halves = [
        {name: record.tags[name].view("<u8")[:, at] for name in record.names} for at in (0, 1)
    ]
    words = [_gathered(record.names, half, places) for half in halves]
    order = np.argsort(words[0], kind="stable")
    is_first = np.ones(len(order), dtype=bool)
    first, second = (word[order] for word in words)
    is_first[1:] = first[1:] != first[:-1]
    if (second[1:] != second[:-1])[~is_first[1:]].any():
        # Two tags share their first half only: hardly ever, so sort again by both halves.
        order = np.lexsort((words[1], words[0]))
        is_first[1:] = np.logical_or.reduce([word[order[1:]] != word[order[:-1]] for word in words])
    return order, is_first


def _gathered(names: Sequence[str], values: Mapping[str, Any], places: Sequence[Indices]) -> Any:
    """Everybody's values at its positions, end to end."""
    return np.concatenate(
        [values[name][chosen] for name, chosen in zip(names, places, strict=True)]
    )


def _counted(who: Numbers) -> Mapping[int, int]:
    kinds, counts = np.unique(who, return_counts=True)
    return dict(zip(kinds.tolist(), counts.tolist(), strict=True))
