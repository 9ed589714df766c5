"""Participants of an alignment with their ids, and the plain join that they must agree with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from colonnade.align import (
    announcement,
    group,
    list_blinding,
    matching,
    participant,
    point_lists,
)
from colonnade.align.alignment_file import PartyAlignment
from colonnade.align.ids import prepare_ids
from colonnade.align.matching import Overlap, match
from colonnade.align.participant import AlignParty
from colonnade.align.rules import KeyPart
from colonnade.align.terms import AlignPolicy, AlignSpec
from colonnade.core.messages import Call, Reply
from colonnade.core.parties import Parties
from colonnade.fabrics.durations import Uniform
from colonnade.fabrics.in_process import InProcess
from colonnade.fabrics.simulated import Profile, Simulated
from probes import Wrapped

SALT = "a salt of this federation only"
MODES = ("intersection", "union")
KEY = (KeyPart(rules=("nfkc", "trim", "case")),)


class Federation:
    """Participants with their ids, on a fabric; ``holder`` has the labels."""

    def __init__(
        self,
        ids: Mapping[str, Sequence[str]],
        *,
        fabric: Any = "in_process",
        own: bool = True,
        holder: str | None = None,
        places: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
        policy: AlignPolicy | None = None,
        wrap: Any = None,
        salts: Mapping[str, str] | None = None,
        **terms: Any,
    ) -> None:
        self.ids = {name: list(items) for name, items in ids.items()}
        self.holder = holder or min(ids)
        self.spec = AlignSpec(salt=SALT, key=KEY, duplicates="keep_first", **terms)
        self.everyone = {
            name: AlignParty(
                name=name,
                ids=prepare_ids([items], KEY, where=name, duplicates="keep_first"),
                spec=replace(self.spec, salt=(salts or {}).get(name, SALT)),
                policy=policy,
                store=(places or {}).get(name),
                count=(counts or {}).get(name),
                today=lambda: 1000,
            )
            for name, items in self.ids.items()
        }
        parties = dict(self.everyone)
        self.own = parties.pop(self.holder) if own else None
        if callable(fabric):
            self.fabric: Any = fabric(parties)
        elif fabric == "in_process":
            self.fabric = InProcess(parties)
        else:
            slow = Profile(latency=Uniform(low=0, high=50), bandwidth=1000)
            self.fabric = Simulated(parties, default=slow, seed=3)
        if wrap is not None:
            self.fabric = wrap(self.fabric)

    def match(self, **settings: Any) -> Overlap:
        return self.fabric.run(
            match(
                Parties(self.fabric),
                spec=self.spec,
                own=self.own,
                label_holder=None if self.own else self.holder,
                **settings,
            )
        )

    @property
    def alignments(self) -> dict[str, PartyAlignment]:
        return {name: party.alignment for name, party in self.everyone.items()}


def plain_join(
    ids: Mapping[str, Sequence[str]], holder: str, *, mode: str, labelled_only: bool, own: bool
) -> pd.DataFrame:
    """The oracle: an outer join on normalised ids; one row per sample, own rows as columns."""
    tables = []
    for name in sorted(ids):
        keys = [KEY[0].apply(text) for text in ids[name]]
        table = pd.DataFrame({"id": keys, name: np.arange(len(keys))}).astype({"id": object})
        tables.append(table.drop_duplicates("id"))
    joined = tables[0]
    for table in tables[1:]:
        joined = joined.merge(table, on="id", how="outer")
    needed = set()
    if labelled_only:
        needed.add(holder)
    if mode == "intersection":
        needed |= set(ids) - ({holder} if own else set()) | ({holder} if labelled_only else set())
    return joined.dropna(subset=sorted(needed)).set_index("id")


def assert_equals_plain_join(federation: Federation, overlap: Overlap) -> None:
    spec, names = federation.spec, sorted(federation.ids)
    expected = plain_join(
        federation.ids,
        federation.holder,
        mode=spec.mode,
        labelled_only=spec.labelled_only,
        own=federation.own is not None,
    )
    assert overlap.num_samples == len(expected)
    found: dict[int, dict[str, float]] = {number: {} for number in range(len(expected))}
    ids_of: dict[int, set[str]] = {number: set() for number in found}
    for name, alignment in federation.alignments.items():
        assert alignment.digest == overlap.digest
        assert alignment.names == tuple(names)
        for number, row in zip(alignment.numbers.tolist(), alignment.rows.tolist(), strict=True):
            found[number][name] = float(row)
            ids_of[number].add(KEY[0].apply(federation.ids[name][row]))
        present = alignment.presence
        assert present.shape == (len(expected), len(names))
    assert all(len(ids) == 1 for ids in ids_of.values())
    rows = {
        next(iter(ids_of[number])): {name: found[number].get(name) for name in names}
        for number in found
    }
    assert rows.keys() == set(expected.index)
    for key, row in rows.items():
        for name in names:
            value = expected.loc[key, name]
            assert row[name] == (None if pd.isna(value) else value)
    table = next(iter(federation.alignments.values())).presence
    for number, row in found.items():
        assert {name for place, name in enumerate(names) if table[number, place]} == row.keys()
    # The pattern that the label holder reports is the outer join's, over all samples.
    everything = plain_join(
        federation.ids, federation.holder, mode="union", labelled_only=False, own=True
    )
    patterns: dict[tuple[str, ...], int] = {}
    for _, series in everything.iterrows():
        kind = tuple(name for name in names if not pd.isna(series[name]))
        patterns[kind] = patterns.get(kind, 0) + 1
    assert dict(overlap.combinations) == patterns
    assert overlap.sizes == {
        name: len({KEY[0].apply(text) for text in items}) for name, items in federation.ids.items()
    }


PEOPLE = {
    "bank": ["Ada Lovelace", "Grace Hopper", "Émilie du Châtelet", "Mary Somerville"],
    "shop": ["grace hopper", "Sofya Kovalevskaya", "ada lovelace"],
    "telco": [" ADA  LOVELACE", "Emmy Noether", "Grace Hopper", "Sofya Kovalevskaya"],
}


class Recording(Wrapped):
    """Every call and reply that crosses a link, as tensors and bytes."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.calls: list[Call] = []
        self.replies: list[Reply] = []

    def send(self, call: Call) -> None:
        self.calls.append(call)
        super().send(call)

    async def receive(self, deadline: int | None) -> Reply | None:
        reply = await super().receive(deadline)
        if reply is not None:
            self.replies.append(reply)
        return reply

    def tensors(self) -> list[Tensor]:
        values: list[Any] = [item for call in self.calls for item in call.arguments]
        for reply in self.replies:
            values += reply.value.values() if isinstance(reply.value, dict) else [reply.value]
        return [item for item in values if isinstance(item, Tensor)]

    def transcript(self) -> bytes:
        texts = [
            str(item) for call in self.calls for item in call.arguments if not torch.is_tensor(item)
        ]
        return b"|".join(
            [*(item.numpy().tobytes() for item in self.tensors()), *(t.encode() for t in texts)]
        )

    def messages(self) -> set[bytes]:
        """Every call and reply that carries anything of a list, each as one."""
        carried = [item.arguments for item in self.calls]
        carried += [
            tuple(item.value.values()) if isinstance(item.value, dict) else (item.value,)
            for item in self.replies
        ]
        return {
            b"|".join(item.numpy().tobytes() for item in items if torch.is_tensor(item))
            for items in carried
            if any(map(torch.is_tensor, items))
        }

    def rows(self) -> set[bytes]:
        return {
            row.tobytes()
            for item in self.tensors()
            if item.dtype == torch.uint8
            for row in item.numpy().reshape(-1, 32)
        }


def make_chunks_small(monkeypatch: Any) -> None:
    """Chunks so small that short point_lists take several."""
    for module in (list_blinding, group, point_lists, matching, participant):
        monkeypatch.setattr(module, "CHUNK", 16, raising=True)
    monkeypatch.setattr(announcement, "_NUMBERS_CHUNK", 7)
