"""A party's session for predictions: its half of a trained run, over samples of its table of now.

The party is rebuilt from what it kept of the run: the agreed settings, its own preparation, its
weights. Doors, policy, account and ledger are those of training: a prediction is a release like
any other. Nothing is learned here and no checkpoint is changed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from colonnade.align.ids import PreparedIds
from colonnade.align.participant_files import DirectoryStore
from colonnade.align.terms import AlignSpec
from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ProtocolError, Refused
from colonnade.core.messages import Batch, Call, Reply
from colonnade.core.party import Party
from colonnade.core.releases import Embedding, RollOfSamples
from colonnade.core.verbs import verb
from colonnade.data.blocks import Block, make_block
from colonnade.data.table_files import read_table
from colonnade.federate.addressed_fabric import renamed
from colonnade.federate.alignments import find_alignment
from colonnade.federate.feature_sources import CalledFeatures, Features, FeatureSource, LiveFeatures
from colonnade.federate.own_account import open_account, people_of
from colonnade.federate.party_sessions import SessionAtParty, keyed_table, read_terms
from colonnade.federate.pseudonyms import Pseudonyms, check_mark, kept_key
from colonnade.federate.query_counts import QueryCounts
from colonnade.federate.rebuilt_party import rebuilt_party
from colonnade.federate.roll_calls import checked_request, name_of_request
from colonnade.federate.run_at_party import (
    AgreedRun,
    NotedUse,
    note_refusal,
    noting_refusals,
    read_agreed,
    run_directory,
)
from colonnade.federate.served_rows import Aggregates, RowsWatched, ServedRows
from colonnade.protect.lifetime_account import LifetimeAccount
from colonnade.protect.policy import Terms
from colonnade.run.alignment_files import load_alignment, rows_of_samples
from colonnade.run.door_building import Doors
from colonnade.run.party_building import make_plans, part_of_rows
from colonnade.run.samples import Roll, Rows, Table, bounds_of

__all__ = ["PredictSession"]

# So many requests may be open at once.
_MOST_REQUESTS = 64
# So many rows of the table stand for all of it.
_MOST_USUAL = 500


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """A party ready to predict: its half of the run, its table, the row of every sample in it."""

    agreed: AgreedRun
    doors: Doors
    # What the run asks of the party, but for the samples of a request.
    terms: Terms
    place: Path
    party: Party
    features: FeatureSource
    rows: Rows
    pseudonyms: Pseudonyms
    # The person of every row of the table, for the account.
    people: Rows
    account: LifetimeAccount
    served: ServedRows
    queries: QueryCounts
    use: NotedUse


class PredictSession(SessionAtParty):
    """Loads the party's half of a run; then it takes samples, and the method's verbs answer."""

    _loaded: _Loaded | None = None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # The party's own numbers; an agent gives all its sessions the same.
        self.watched = RowsWatched()
        # Open requests: what the party calls the samples, by what the label holder calls them.
        self._requests: dict[str, str] = {}
        # Sizes of requests that the policy has allowed: it is asked once about each.
        self._allowed: set[tuple[int, int]] = set()
        # The batches of requests that everybody has all samples of, by the number of samples.
        self._plans: dict[int, BatchPlan] = {}
        # The one whose samples came with a question: it is open until the next one is.
        self._passing: str | None = None

    def execute(self, call: Call) -> Reply:
        """Run one call, about samples as the party calls them."""
        if self._loaded is not None:
            self._loaded.use.note()
        return super().execute(renamed(call, self._requests))

    @verb
    def load(self, run: str, digest: str, mark: str) -> str:
        """Rebuild the party's half of a run, over the table under an alignment; its version.

        ``mark`` is the label holder's, of the key of pseudonyms. Weights are fetched afterwards, by
        the tag of a checkpoint.
        """
        place = run_directory(self._home, run)
        agreed = read_agreed(place)
        spec, policy = agreed.spec, self._policy
        doors = Doors(
            spec=spec, participants=agreed.names, label_holder=spec.label_holder.name or ""
        )
        with noting_refusals(place, "load"):
            policy.check_settings(
                spec,
                self.name,
                doors.terms_of(self.name),
                allow_unprotected=self._settings.allow_unprotected,
            )
        aligned = find_alignment(self._home, digest, self.name)
        key = kept_key(aligned, self._settings.label_holder)
        check_mark(key, mark, self.name)
        terms = read_terms(aligned)
        ids, table = keyed_table(self._settings, policy, terms)
        alignment = load_alignment(DirectoryStore(aligned).alignment_path, ids)
        columns = agreed.preparation.columns
        whole = make_block(self.name, table, ids=ids.ids[:], columns=columns)
        whole = replace(whole, origin=ids.rows)
        features = self._features(terms, ids, whole, agreed)
        account = open_account(self._home, self._settings, policy)
        party = rebuilt_party(
            self._home,
            self._settings,
            policy,
            agreed,
            doors,
            place,
            account,
            # All parties of a sum predict with the same run over the same alignment.
            told=f"predict {run} {digest}".encode(),
        )
        self._loaded = _Loaded(
            agreed=agreed,
            doors=doors,
            terms=replace(doors.terms_of(self.name), columns=columns, num_rows=len(ids)),
            place=place,
            party=party,
            features=features,
            rows=rows_of_samples(alignment, ids),
            pseudonyms=Pseudonyms(key, alignment.num_samples),
            people=people_of(account, self._settings, policy, ids).numpy(),
            account=account,
            served=ServedRows(
                agreed.preparation,
                lambda rows: _embedded(party, rows),
                lambda: _some_rows(agreed, whole),
                self.watched,
            ),
            queries=QueryCounts(self._home / "queries.sqlite", self.name),
            use=NotedUse(place, DirectoryStore(aligned).alignment_path),
        )
        self._successor, self._requests, self._passing = party, {}, None
        self._allowed.clear()
        self._plans.clear()
        return version("colonnade")

    @verb
    def choose(self, request: str, samples: RollOfSamples, presence: RollOfSamples) -> int:
        """Take the samples of a request, by their pseudonyms; gives how many of them are here.

        They are asked for in the batches that follow from who has which, until ``forget``.
        """
        loaded = self._ready()
        if self._passing is not None:
            self.forget(self._passing)
            self._passing = None
        if len(self._requests) >= _MOST_REQUESTS:
            raise ProtocolError(f"{_MOST_REQUESTS} requests are open; forget one first")
        if request in self._requests:
            raise ProtocolError("a request of this name is open; forget it first")
        numbers, table, said = self._asked(loaded, request, samples, presence)
        rows = loaded.rows[numbers][said]
        part = name_of_request(numbers, table)
        plan = self._plan(loaded, part, table)
        people = torch.from_numpy(loaded.people[rows])
        try:
            self._policy.limits.check(self.name, {"max_samples": len(numbers)})
            self._check_sizes(loaded.terms, len(rows), plan.smallest_batch)
            # Before anything is computed for them: a refused request counts nothing.
            loaded.queries.count(self._policy.queries, people, time.time())
        except Refused as error:
            note_refusal(loaded.place, "choose", error)
            raise
        features = torch.from_numpy(loaded.features.take(rows))
        if not len(rows):
            raise ProtocolError(
                f"party '{self.name}' has none of the samples of a request; ask only those who "
                "have some"
            )
        here = None if len(rows) == len(numbers) else torch.from_numpy(said)
        loaded.party.parts[part] = part_of_rows(features, plan, here, people)
        self._requests[request] = part
        loaded.served.see(features, people)
        return len(rows)

    @verb
    def refusing(
        self, request: str, samples: RollOfSamples, presence: RollOfSamples, spent: bool
    ) -> RollOfSamples:
        """Tell which samples of a request would be refused because of who they are; counts nothing.

        With ``spent`` also those whose account allows no further release; what left before may
        leave again. The label holder learns all this too by asking for one after the other.
        """
        loaded = self._ready()
        numbers, _, said = self._asked(loaded, request, samples, presence)
        self._policy.limits.check(self.name, {"max_samples": len(numbers)})
        rows = loaded.rows[numbers][said]
        people = torch.from_numpy(loaded.people[rows])
        found = loaded.queries.refuses(self._policy.queries, people, time.time())
        found |= torch.from_numpy(loaded.features.lacks(rows))
        if spent:
            price = max((item.price() for item in loaded.party.door.protections), default=0.0)
            found |= loaded.account.refuses(people, price)
        refused = torch.zeros(len(numbers), dtype=torch.bool)
        refused[torch.from_numpy(said)] = found
        return refused

    def _asked(
        self, loaded: _Loaded, request: str, samples: torch.Tensor, presence: torch.Tensor
    ) -> tuple[Rows, Table, Table]:
        """The samples of a request by the alignment's numbers, who has which, and those here."""
        everyone = loaded.agreed.names
        names, table = checked_request(self.name, everyone, request, samples, presence)
        lowest, highest = bounds_of(names) if len(names) else (-1, -1)
        if lowest < 0 or highest >= len(loaded.rows):
            raise ProtocolError("a request: no samples, or samples outside the alignment")
        numbers, said = loaded.pseudonyms.numbers(names), table[:, everyone.index(self.name)]
        rows = loaded.rows[numbers][said]
        if len(rows) and bounds_of(rows)[0] < 0:
            raise ProtocolError(f"party '{self.name}' lacks some samples that it is said to have")
        return numbers, table, said

    def _plan(self, loaded: _Loaded, part: str, table: Table) -> BatchPlan:
        """Give the batches of a request; of samples that everybody has, only their number tells."""
        is_complete = np.count_nonzero(table) == table.size
        known = self._plans.get(len(table)) if is_complete else None
        if known is not None:
            return known
        # In a request, samples are numbered by their place.
        samples = {part: np.arange(len(table))}
        asked = Roll(names=loaded.agreed.names, samples=samples, presence={part: table})
        plan = make_plans(loaded.agreed.spec, asked, loaded.doors.label_holder)[part]
        if is_complete and len(self._plans) < _MOST_REQUESTS:
            self._plans[len(table)] = plan
        return plan

    def _check_sizes(self, terms: Terms, num_rows: int, smallest_batch: int) -> None:
        """Refuse a request whose sizes the policy is against; all else of a session stays."""
        if (num_rows, smallest_batch) in self._allowed:
            return
        self._policy.check(
            self.name, replace(terms, num_rows_used=num_rows, smallest_batch=smallest_batch)
        )
        # Bounded by what one request may have; sizes that come once need no place in it.
        if len(self._allowed) < _MOST_REQUESTS:
            self._allowed.add((num_rows, smallest_batch))

    @verb
    def infer_about(
        self, request: str, samples: RollOfSamples, presence: RollOfSamples, number: int
    ) -> Embedding:
        """Take the samples of a request, and give their embeddings at once.

        The samples are kept until the next request, and need not be forgotten.
        """
        self.choose(request, samples, presence)
        self._passing = request
        batch = Batch(self._requests[request], number)
        call = Call(0, self.name, "infer", (batch,), self.exchange, True)
        embedding = self._watched_successor().answer_or_raise(call)
        assert isinstance(embedding, torch.Tensor)
        return embedding

    @verb
    def keeping(self) -> str:
        """For how many seconds released embeddings may be used again, and of which edition.

        The edition is a random word that changes when the features may have changed.
        """
        return f"{self._policy.cache_seconds:g} {self._ready().features.edition}"

    @verb
    def forget(self, request: str) -> None:
        """Let go of a request's samples."""
        part = self._requests.pop(request, None)
        if part is not None and part not in self._requests.values():
            self._ready().party.parts.pop(part, None)

    @verb
    def aggregates(self) -> Aggregates:
        """Tell counts over the rows served since the last time, if the policy allows; else nothing.

        They are charged to everybody in them like any release.
        """
        loaded = self._ready()
        with noting_refusals(loaded.place, "aggregates"):
            return loaded.served.tell(self._policy, loaded.account, loaded.place)

    def _features(
        self, terms: AlignSpec, ids: PreparedIds, whole: Block, agreed: AgreedRun
    ) -> FeatureSource:
        """Where the columns come from, as the party's own settings say."""
        own, columns = self._settings.features, agreed.preparation.columns

        def prepare(block: Block) -> Features:
            # Of the run's type once for all rows, not in every request for some of them.
            return _prepared(agreed, block).numpy()

        if own.function is not None:
            key = self._policy.key or (self._settings.id,)
            raw = read_table(self._settings.data, text_columns=key)[list(key)].iloc[ids.rows]
            named = raw.iloc[:, 0] if len(key) == 1 else raw.apply(tuple, axis=1)
            return CalledFeatures(self.name, own.function, named.tolist(), columns, prepare)
        settings = replace(self._settings, data=own.file or self._settings.data)
        first = [whole] if own.file is None else []

        def read() -> Block:
            if first:
                return first.pop()
            found, rows = keyed_table(settings, self._policy, terms)
            block = make_block(self.name, rows, ids=found.ids[:], columns=columns)
            return replace(block, origin=found.rows)

        return LiveFeatures(self.name, settings.data, read, prepare, ids.ids[:])

    def _ready(self) -> _Loaded:
        if self._loaded is None:
            raise ProtocolError(f"party '{self.name}': no run is loaded; load one first")
        return self._loaded


def _embedded(party: Party, rows: torch.Tensor) -> torch.Tensor:
    """Embeddings of prepared rows for the party's own eyes."""
    with party.evaluating():
        found: torch.Tensor = party.encoder(rows)
    return found


def _some_rows(agreed: AgreedRun, whole: Block) -> torch.Tensor:
    """Prepared rows of the party's table, evenly over it."""
    places = np.unique(np.linspace(0, len(whole.ids) - 1, _MOST_USUAL).astype(int))
    return _prepared(agreed, whole.take(places))


def _prepared(agreed: AgreedRun, block: Block) -> torch.Tensor:
    """The rows of a block as the run's networks take them."""
    rows = agreed.preparation.apply(block)
    return torch.as_tensor(rows, dtype=getattr(torch, agreed.spec.dtype))
