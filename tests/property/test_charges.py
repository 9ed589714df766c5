"""Charges: the account amounts to what a list of all releases amounts to, and so do names."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.charging import charge
from colonnade.core.messages import Batch
from colonnade.core.protection import Encoding, PeopleAccount
from colonnade.core.releases import Kind
from colonnade.protect.lifetime_account import LifetimeAccount
from colonnade.protect.people_sums import PeopleSums

PEOPLE = st.lists(st.integers(0, 6), max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), PEOPLE, st.sampled_from((None, 0.0, 0.1, 0.7)))))
def test_an_account_is_the_sum_over_names_that_were_not_there_before(
    releases: list[tuple[int, list[int], float | None]],
) -> None:
    account = LifetimeAccount(None, party="shop")
    names: set[int] = set()
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for name, people, spent in releases:
        numbers = torch.tensor(people, dtype=torch.int64)
        assert account.charge(b"%d" % name, numbers, spent) == (name not in names)
        if name not in names:
            for person in set(people):
                often = float(people.count(person))
                more = (often, often * (spent or 0.0), often * (spent is None))
                sums[person] = [one + two for one, two in zip(sums[person], more, strict=True)]
        names.add(name)
    found = account._sums
    assert {key: found.table[place].tolist() for key, place in found.places.items()} == dict(sums)
    account.close()


@given(st.lists(st.lists(st.integers(0, 20), max_size=12), max_size=4))
def test_people_are_counted_as_a_sort_counts_them(batches: list[list[int]]) -> None:
    quick, plain = PeopleSums(), PeopleSums()
    for people in batches:
        keys = np.array(people, dtype=np.int64)
        places, often = quick.counted(keys)
        wanted = np.unique(plain.places_of(keys), return_counts=True)
        order = np.argsort(places)
        assert places[order].tolist() == wanted[0].tolist()
        assert often[order].tolist() == wanted[1].tolist()


class _Heard(PeopleAccount):
    """Keeps what it is charged."""

    def __init__(self) -> None:
        self.charges: list[tuple[bytes, list[int]]] = []

    def charge(self, name: bytes, people: Tensor, spent: float | None) -> bool:
        assert spent is None
        self.charges.append((name, people.tolist()))
        return True

    def take_up(self, name: bytes, people: Tensor, spent: float) -> None:
        raise NotImplementedError

    def seal(self) -> bytes:
        raise NotImplementedError

    def confirm(self, seal: bytes) -> None:
        raise NotImplementedError


@given(
    st.lists(st.integers(-1, 9), min_size=1, max_size=9),
    st.sampled_from((1, 2, 5, 100)),
    st.booleans(),
    st.sampled_from((torch.float32, torch.float64, torch.bfloat16, torch.float16)),
    st.data(),
)
def test_a_release_is_named_by_its_people_and_its_values(
    persons: list[int], size: int, shuffle: bool, dtype: torch.dtype, data: Any
) -> None:
    # Many people and few are looked at in two ways.
    persons = persons * (40 if size == 100 else 1)
    plan = BatchPlan(len(persons), size, seed=3, shuffle=shuffle)
    people = torch.tensor(persons)
    numbers = data.draw(st.sets(st.integers(0, 5), min_size=1, max_size=3).map(sorted))
    made = [Encoding("infer", 1, Batch("new", at), plan, people) for at in numbers]
    # Not in order in memory, as a transposed one is.
    value = torch.arange(6.0).reshape(2, 3).t().to(dtype)
    account = _Heard()
    charge(account, (), {"one": value, "other": value[0, 0]}, Kind.EMBEDDING, made, (), "shop")
    every = torch.cat([people[plan.positions(at)] for at in numbers])
    every = every[every >= 0]
    name = hashlib.blake2b(every.numpy().tobytes(), digest_size=16)
    for tensor in (value, value[0, 0]):
        name.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        name.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    assert account.charges == [(name.digest(), every.tolist())]
