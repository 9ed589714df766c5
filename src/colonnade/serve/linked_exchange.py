"""One gathered exchange over the links: whom to ask for which ids, and what came of it.

Ids go together unless they can't. Where embeddings are kept, ids that the same parties have, with
the same parties' embeddings kept, make one batch. A party that refuses a batch is asked for its
halves, so that one person whom it refuses spoils nobody else's answer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import MissingBlock, NoAnswer, PartyFailed, PartyRestarted, Refused
from colonnade.core.fabric import TICKS_PER_SECOND, Fabric
from colonnade.core.parties import Patience
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_requests import Request
from colonnade.federate.prediction_samples import Wanted
from colonnade.run.answered import Answered
from colonnade.serve.kept_embeddings import KeptEmbeddings
from colonnade.serve.outcomes import outcomes_of
from colonnade.serve.predictor import Outcome, ServedExchange, ServedModel, Unanswered
from colonnade.serve.refused_samples import RefusedSamples
from colonnade.serve.watched_fabric import WatchedFabric

__all__ = ["LinkedExchange", "ServedSamples"]

# As many as evaluation takes: one batch of a method's ``predict``.
_MOST_TOGETHER = 1024
# Of a request's time: the rest is for those who arrived meanwhile and go with the next exchange.
_SHARE = 0.8
# The same for the first question of a method that asks twice.
_FIRST_SHARE = 0.5
# So often is a batch that a party refuses divided, in one exchange.
_MOST_HALVINGS = 24


class ServedSamples(NamedTuple):
    """The samples that may be asked for, and what is known of them between exchanges."""

    wanted: Wanted
    place_of: Mapping[str, int]
    kept: KeptEmbeddings
    refused: RefusedSamples


class _Group(NamedTuple):
    """Ids that go together: who has them is the same for all, if anything of them is kept."""

    present: tuple[str, ...]
    kept: tuple[str, ...]


class _TooOldError(Exception):
    """What was kept has grown too old since the ids were grouped."""


class LinkedExchange:
    """One exchange.

    Args:
        model: The open session.
        served: What callers may know of the model.
        samples: The samples.
        gone: Parties that are not asked.
        deadline: When to answer with whoever came, on the monotonic clock.
        then: What a method does without an answer.
    """

    def __init__(
        self,
        model: OpenModel,
        served: ServedModel,
        samples: ServedSamples,
        *,
        gone: Collection[str],
        deadline: float,
        then: Literal["stop", "continue"],
    ) -> None:
        self._open, self._model = model, served
        self._samples, self._deadline, self._then = samples, deadline, then
        self._gone = set(gone)
        self._needs_heads = model.blueprint.spec.method.needs.heads
        # A method that asks a party twice can't be answered from its first answer alone.
        self._keeps = samples.kept.is_open and not served.is_blinded and not self._needs_heads
        self._outcomes: dict[str, Outcome | Unanswered] = {}
        self._seconds: dict[str, float] = {}
        self._silent: set[str] = set()
        self._num_halvings = 0
        # By id, whose embeddings its answer is to be made from.
        self._present_of: dict[str, tuple[str, ...]] = {}
        # Parties that came back without their half.
        self.lost: set[str] = set()

    async def run(self, ids: Sequence[str]) -> ServedExchange:
        """Answer for these ids with whoever answers in time."""
        work: list[list[str]] = [list(ids)]
        while work:
            for group, members in self._groups(work.pop(0)).items():
                for begin in range(0, len(members), _MOST_TOGETHER):
                    work += await self._try(members[begin : begin + _MOST_TOGETHER], group)
        return ServedExchange(
            outcomes=[self._outcomes[name] for name in ids],
            seconds={
                name: taken for name, taken in self._seconds.items() if name not in self._silent
            },
            silent=tuple(sorted(self._silent)),
        )

    def _groups(self, ids: Sequence[str]) -> dict[_Group, list[str]]:
        """Whom to ask for which ids; outcomes of those that can't be answered are noted."""
        found: dict[_Group, list[str]] = defaultdict(list)
        for name in ids:
            group = self._group(name)
            if isinstance(group, Unanswered):
                self._outcomes[name] = group
            else:
                self._present_of[name] = group.present
                found[group if self._keeps else _Group((), ())].append(name)
        return found

    def _present(self, place: int) -> list[str]:
        row = self._samples.wanted.presence[place].tolist()
        return [party for party, is_here in zip(self._open.names, row, strict=True) if is_here]

    def _group(self, name: str) -> _Group | Unanswered:
        samples = self._samples
        place = samples.place_of.get(name)
        if place is None or samples.wanted.numbers[place] < 0:
            return Unanswered(reason="unknown")
        present = self._present(place)
        kept: tuple[str, ...] = ()
        if self._keeps:
            kept = tuple(party for party in present if samples.kept.find(party, name) is not None)
        refused = samples.refused.by(name, present)
        left = tuple(
            party
            for party in present
            if party in kept or not (party in self._gone or party in refused)
        )
        if self._model.tolerates_missing:
            if left:
                return _Group(left, kept)
            return _why(present, self._gone, refused)
        lacking = tuple(party for party in self._model.parties if party not in present)
        if lacking:
            return Unanswered(reason="missing", parties=lacking)
        if len(left) < len(present):
            return _why([party for party in present if party not in left], self._gone, refused)
        return _Group(left, kept)

    async def _try(self, ids: list[str], group: _Group) -> list[list[str]]:
        """Ask for ids; those that have no outcome yet, as they are to be asked for next."""
        fabrics: list[WatchedFabric] = []
        again: list[list[str]] = []
        try:
            found = await self._answer(ids, group, fabrics)
            self._outcomes.update(zip(ids, found, strict=True))
        except _TooOldError:
            again = [ids]
        except Refused as error:
            if len(ids) > 1 and self._num_halvings < _MOST_HALVINGS:
                self._num_halvings += 1
                middle = len(ids) // 2
                again = [ids[:middle], ids[middle:]]
            else:
                self._samples.refused.note(error.party, ids)
                again = [ids]
        except (PartyFailed, PartyRestarted) as error:
            if isinstance(error, PartyRestarted):
                self.lost.add(error.party)
            self._silent.add(error.party)
            self._gone.add(error.party)
            again = [ids]
        except NoAnswer as error:
            self._silent.update(error.parties)
            self._gone.update(error.parties)
            again = [ids]
        except MissingBlock:
            late = tuple(sorted({name for item in fabrics for name in item.unanswered}))
            self._outcomes.update(dict.fromkeys(ids, Unanswered(reason="away", parties=late)))
        for fabric in fabrics:
            self._silent.update(fabric.unanswered)
            for party, taken in fabric.seconds.items():
                self._seconds[party] = max(self._seconds.get(party, 0.0), taken)
        return again

    def _request(self, ids: Sequence[str]) -> Request:
        wanted = self._samples.wanted
        places = np.array([self._samples.place_of[name] for name in ids])
        presence = wanted.presence[places]
        for row, name in enumerate(ids):
            present = self._present_of[name]
            presence[row] = [party in present for party in self._open.names]
        return Request(
            numbers=wanted.numbers[places],
            presence=presence,
            own=wanted.own,
            own_rows=None if wanted.own_rows is None else wanted.own_rows[places],
            part=wanted.part,
        )

    async def _answer(
        self, ids: Sequence[str], group: _Group, fabrics: list[WatchedFabric]
    ) -> list[Outcome]:
        model, request = self._open, self._request(ids)
        now = time.monotonic()
        left = max(0.001, self._deadline - now)
        until = now + left * _SHARE
        first = now + left * (_FIRST_SHARE if self._needs_heads else _SHARE)
        kept, ages = self._from_cache(ids, group, now)

        def through(fabric: Fabric) -> Fabric:
            watched = WatchedFabric(
                fabric,
                kept,
                is_direct=False,
                until=int(until * TICKS_PER_SECOND),
                first_until=int(first * TICKS_PER_SECOND),
            )
            fabrics.append(watched)
            return watched

        having = {party for name in ids for party in self._present_of[name]}
        asked = having - set(group.kept)
        predicted = await model.predicting(
            request,
            patience=Patience(timeout=max(1, int(left * TICKS_PER_SECOND)), then=self._then),
            among=tuple(party for party in model.blueprint.elsewhere if party in asked),
            through=through,
        )
        for party, embeddings in fabrics[-1].released.items() if self._keeps else ():
            if party in asked and len(embeddings) == len(ids):
                self._samples.kept.keep(party, ids, embeddings, now)
        answered = Answered(
            outputs=predicted.outputs,
            used=predicted.used,
            presence=request.presence,
            task=model.blueprint.task,
            calibration=model.calibration,
        )
        return outcomes_of(answered, ages, kept)

    def _from_cache(
        self, ids: Sequence[str], group: _Group, now: float
    ) -> tuple[dict[str, Tensor], dict[str, list[float]]]:
        """Kept embeddings by party, and how old every party's are."""
        kept: dict[str, Tensor] = {}
        ages = {party: [0.0] * len(ids) for party in self._open.names}
        for party in group.kept:
            entries = [self._samples.kept.find(party, name) for name in ids]
            known = [entry for entry in entries if entry is not None]
            if len(known) < len(ids):
                raise _TooOldError
            kept[party] = torch.stack([entry.value for entry in known])
            ages[party] = [now - entry.released for entry in known]
        return kept, ages


def _why(lacking: Sequence[str], gone: Collection[str], refused: Collection[str]) -> Unanswered:
    """Why there is no answer without these."""
    by = tuple(party for party in lacking if party in refused)
    away = tuple(party for party in lacking if party in gone)
    if by and not away:
        return Unanswered(reason="refused", parties=by)
    return Unanswered(reason="away", parties=away or tuple(lacking))
