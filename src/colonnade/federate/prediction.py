"""The label holder's side of predictions over the network: a trained run that answers.

``OpenModel`` is one open session in which many requests are answered. What a request's samples are
(from a file of ids, or a part of the run) is in ``prediction_samples``; files are in
``prediction_files``.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ColonnadeError, ConfigError, NoAnswer, PartyFailed, Refused
from colonnade.core.fabric import Fabric
from colonnade.core.federation import Predictions
from colonnade.core.method import Answer
from colonnade.core.parties import Parties, Patience, each
from colonnade.core.party import Party
from colonnade.fabrics.grpc.hub_lane import Lane
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate.addressed_fabric import AddressedFabric, HeldCalls
from colonnade.federate.alignment import preparing
from colonnade.federate.networked_runs import networked_blueprint
from colonnade.federate.party_agent import PREDICT
from colonnade.federate.predict_session import PredictSession
from colonnade.federate.prediction_requests import Layouts, Request
from colonnade.federate.pseudonyms import PairNames
from colonnade.federate.roll_calls import name_of_request
from colonnade.protect.ledger import Ledger
from colonnade.run.assembly import NO_DATA, Blueprint
from colonnade.run.blueprint_files import read_calibration
from colonnade.run.directory import restore_model
from colonnade.run.kept_seals import HEADS, SEALS, KeptHeads, KeptSeals
from colonnade.run.ledger_heads import confirm_heads, heads_and_seals, proofs_for, sealed_ledgers
from colonnade.run.party_building import part_of_rows
from colonnade.run.storage import DirectoryVault, party_directory, read_json

__all__ = ["OpenModel"]

T = TypeVar("T")

# How long a party may be silent where the run's own patience knows no end.
_PATIENCE_TICKS = 60_000


class OpenModel:
    """A networked run's model with its parties at the other end of their links.

    Args:
        hub: Where the parties are connected.
        run: The run's directory at the label holder.
        pairs: The alignment that numbers the samples, and how each party is told of them.
        without: Parties that are away; only a method that can do without blocks answers then.
        patience: For silent parties; by default the run's own, or a minute.
        seals: Where seals of parties' accounts are kept; by default in the run's directory.

    Raises:
        NoAnswer: A party that the method needs is away.
        Refused: A party's policy is against predictions with this run, or a party has put back an
            old copy of its ledger or account.
    """

    def __init__(
        self,
        hub: Lane,
        run: Path,
        pairs: PairNames,
        *,
        without: tuple[str, ...] = (),
        patience: Patience | None = None,
        seals: Path | None = None,
    ) -> None:
        trained = networked_blueprint(run)
        self.tolerant = trained.spec.method.info.tolerates_missing
        if without and not self.tolerant:
            raise NoAnswer(
                f"{', '.join(without)} is not connected, and method "
                f"'{trained.spec.method.info.name}' needs every party; start it (colonnade party "
                "run), then give the same command again: what is finished is kept",
                parties=without,
            )
        patience = patience or _patience(trained, tolerant=self.tolerant)
        self.blueprint = replace(
            trained,
            spec=replace(trained.spec, patience=patience),
            elsewhere=tuple(name for name in trained.elsewhere if name not in without),
            left=tuple(sorted((*trained.left, *without))),
        )
        self.names = trained.everyone
        self.calibration = read_calibration(run)
        self.tag = str(read_json(run / "checkpoint.json")["model"])
        self.run_name = (run / "run_name").read_text(encoding="ascii").strip()
        self._lock = threading.Lock()
        self._own: dict[str, Party] = {}
        self._pairs = pairs
        self._run = run
        self._is_confirmed = False
        self._heads, self._seals = KeptHeads(run / HEADS), KeptSeals(seals or run / SEALS)
        self._open(hub, run)

    @property
    def is_blinded(self) -> bool:
        """Whether embeddings are only known as a sum over parties."""
        return self._federation.sums is not None

    @property
    def num_own_weights(self) -> int:
        """How many weights the networks at the label holder have."""
        own = [self._federation.holder.fusion, *(party.model for party in self._own.values())]
        return sum(item.numel() for network in own for item in network.parameters())

    @property
    def model_version(self) -> str:
        """Which weights answer: the run's name among the parties, and the checkpoint."""
        return f"{self.run_name}/{self.tag}"

    def _open(self, hub: Lane, run: Path) -> None:
        blueprint = self.blueprint
        doors = blueprint.doors()
        holder = blueprint.build_holder(NO_DATA, {})
        self._own = blueprint.build_parties(NO_DATA, {}, doors, holder)
        self._session = Session(
            hub,
            blueprint.elsewhere,
            purpose=PREDICT,
            at_side=self._own,
            waits_at_side=True,
            patience=blueprint.spec.patience,
        )
        self._fabric = GrpcFabric(self._session)
        self._ledgers: list[Ledger] = []
        try:
            self._federation = blueprint.assemble(self._fabric, holder, doors)
            self._layouts = Layouts(blueprint.spec, self.names, blueprint.label_holder, holder)
            for name, party in self._own.items():
                place = party_directory(run, name)
                party.settle_in(DirectoryVault(place), self._ledger(place, run))
            if self._federation.door is not None:
                self._federation.door.write_to(self._ledger(run / "label_holder", run))
            # The package that each party runs.
            asking = self.elsewhere(preparing(blueprint.spec.patience))
            known = (self.run_name, self._pairs.digest, each(self._pairs.marks))
            self.party_versions: dict[str, str] = self._fabric.run(
                asking.ask("load", *known, among=blueprint.elsewhere)
            )
            confirm_heads(self._federation, *self._known())
            self._is_confirmed = True
            restore_model(run, self._federation)
            # For good: switching back and forth costs more than one sample does.
            holder.fusion.eval()
            for party in self._own.values():
                party.model.eval()
        except BaseException:
            self.close()
            raise

    def _ledger(self, place: Path, run: Path) -> Ledger:
        ledger = Ledger(place, run=run.name)
        self._ledgers.append(ledger)
        return ledger

    def elsewhere(self, patience: Patience, fabric: Fabric | None = None) -> Parties:
        """Everybody, for verbs of the session that are no part of the method."""
        aside = fabric or self._fabric.aside()
        return Parties(aside, patience, door=self._federation.door, verbs=PredictSession.verbs)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have something awaited in this thread."""
        return self._fabric.run(coroutine)

    async def predicting(
        self,
        request: Request,
        *,
        each: bool = False,
        known: Mapping[int, Answer] | None = None,
        finished: Callable[[int, Answer], None] | None = None,
        refused: Callable[[int, Refused], None] | None = None,
        through: Callable[[Fabric], Fabric] = lambda fabric: fabric,
        patience: Patience | None = None,
        among: tuple[str, ...] | None = None,
    ) -> Predictions:
        """Raw outputs for the samples of a request; one request after the other.

        ``known``, ``finished`` and ``refused`` are as in ``Federation.predicting``. ``through``
        puts something around the fabric that carries the questions. With a ``patience`` of its own
        a request waits for nobody before its batches: one round trip less. ``among`` are the
        parties elsewhere that are told of it; those who have some of the samples if not given.

        Raises:
            NoAnswer: A party was silent for too long, and the method needs it.
            PartyRestarted: A party lost its half of the session; open another.
            Refused: A party's policy or budget is against it.
        """
        with self._lock:
            told = self.having(request) if among is None else among
            # Drawn anew: a name that came back would tell that the same samples did.
            called = secrets.token_hex(8)
            name = name_of_request(request.numbers, request.presence)
            plan, holder = self._layouts.of(request, name)
            # Of one batch, the samples travel with the question about them.
            is_one = patience is not None and plan.num_batches == 1
            held = HeldCalls(self._session, self._fabric) if is_one else None
            parties = self.elsewhere(self.blueprint.spec.patience, held)
            await self._choose(request, name, plan, called, told, parties, waits=patience is None)
            try:
                names = {
                    **dict.fromkeys(self.blueprint.elsewhere, called),
                    **dict.fromkeys(self._own, name),
                }
                fabric = AddressedFabric(self._session, request.part, names, held)
                view = replace(
                    self._federation,
                    holder=holder,
                    fabric=through(fabric),
                    patience=patience or self._federation.patience,
                )
                return await view.predicting(
                    request.part, plan, each=each, known=known, finished=finished, refused=refused
                )
            except PartyFailed:
                # It may have refused the samples before: then that is why, and is raised.
                await parties.wait_until(parties.now() + 1)
                raise
            finally:
                apart = told if held is None else tuple(sorted(held.told))
                await self._forget(name, called, apart)

    def plan(self, request: Request) -> tuple[str, BatchPlan]:
        """A name for the samples of a request, which stays here, and their batches."""
        name = name_of_request(request.numbers, request.presence)
        return name, self._layouts.of(request, name).plan

    def close(self) -> None:
        """End the session; the hub goes on listening."""
        try:
            # A seal of an old copy would take the place of the newer one that refutes it.
            if self._is_confirmed:
                self._keep(sealed_ledgers(self._federation))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End the session without a word: somebody does not answer."""
        self._fabric.close()
        for ledger in self._ledgers:
            ledger.close()

    def begin_again(self, party: str) -> Callable[[], bool]:
        """Have a party load its half once more, that came back without it; the others go on.

        Returns:
            Says whether the party is ready, without waiting; it raises what the party refused.
            Neither it nor this is called while a request is answered.
        """
        self._session.begin_again(party)
        if self._federation.sums is not None:
            self._federation.sums.forget(party)
        loading = self.elsewhere(self.blueprint.spec.patience)
        mark = self._pairs.by_party[party].mark
        loading.start(party, "load", self.run_name, self._pairs.digest, mark)
        confirming = self._federation.aside()
        confirming.start(party, "confirm", *proofs_for(party, *self._known()))
        fetching = self._federation.aside()
        fetching.start(party, "fetch", self.tag)
        waiting = [loading, confirming, fetching]

        def is_ready() -> bool:
            while waiting:
                first = waiting[0]
                if first.fabric.run(first.arrival(deadline=first.now())) is None:
                    return False
                waiting.pop(0)
            return True

        return is_ready

    def begin_sealing(self) -> Callable[[], bool]:
        """Have every party seal its ledger and account, and keep the seals as they come.

        Returns:
            Says whether all have come, without waiting. Neither it nor this is called while a
            request is answered.
        """
        sealing = self._federation.aside()
        missing = set(self.blueprint.elsewhere)
        for party in sorted(missing):
            sealing.start(party, "seal")

        def are_kept() -> bool:
            while missing:
                came = sealing.fabric.run(sealing.arrival(deadline=sealing.now()))
                if came is None:
                    return False
                missing.discard(came.party)
                self._keep({came.party: came.value} if came.value else {})
            return True

        return are_kept

    def begin_keeping(self, party: str) -> Callable[[], str | None]:
        """Ask a party for how long embeddings may be kept, and of which edition they are.

        Returns:
            Gives the answer if it has come, without waiting. Neither it nor this is called while a
            request is answered.
        """
        asking = self.elsewhere(self.blueprint.spec.patience)
        asking.start(party, "keeping")

        def came() -> str | None:
            # Of a tick that is over: for the one that has begun it would be waited.
            one = asking.fabric.run(asking.arrival(deadline=asking.now() - 1))
            return None if one is None else str(one.value)

        return came

    def _known(self) -> tuple[dict[str, dict[str, Any]], dict[str, bytes]]:
        """The newest heads of ledgers and seals of accounts that parties have given."""
        trained = read_json(self._run / "checkpoint.json")["ledgers"]
        return self._heads.newest(trained), self._seals.read()

    def _keep(self, sealed: Mapping[str, Mapping[str, Any]]) -> None:
        heads, seals = heads_and_seals(sealed)
        self._heads.keep(heads)
        self._seals.keep(seals)

    async def _choose(
        self,
        request: Request,
        name: str,
        plan: BatchPlan,
        called: str,
        told: tuple[str, ...],
        parties: Parties,
        *,
        waits: bool,
    ) -> None:
        """Tell everybody the samples of a request, under a name; refusals come where they wait."""
        # A party that is silent here is silent in the batches too, which know what to do then.
        samples = self.samples_for(request, told)
        telling = parties.ask if waits else parties.tell
        presence = torch.from_numpy(request.presence)
        await telling("choose", called, samples, presence, among=told)
        for owner, party in self._own.items():
            if request.own is None or request.own_rows is None:
                raise ConfigError(f"the block of '{owner}' itself is missing in the request")
            here = request.presence[:, self.names.index(owner)] & (request.own_rows >= 0)
            is_whole = bool(here.all())
            rows = request.own_rows if is_whole else request.own_rows[here]
            own = request.own[torch.from_numpy(rows)]
            known = None if is_whole else torch.from_numpy(here)
            party.parts[name] = part_of_rows(own, plan, known)

    def having(self, request: Request) -> tuple[str, ...]:
        """The parties elsewhere that have some of the samples."""
        here = {self.names[place] for place in np.flatnonzero(request.presence.any(axis=0))}
        return tuple(name for name in self.blueprint.elsewhere if name in here)

    def samples_for(self, request: Request, told: tuple[str, ...]) -> Any:
        """To each party the samples as it knows them."""
        return each(
            {
                party: torch.from_numpy(self._pairs.by_party[party].of(request.numbers))
                for party in told
            }
        )

    async def _forget(self, name: str, called: str, told: tuple[str, ...]) -> None:
        for party in self._own.values():
            party.parts.pop(name, None)
        if not told:
            return
        parties = self.elsewhere(self.blueprint.spec.patience)
        # Whoever has lost the session has lost the samples too.
        with contextlib.suppress(ColonnadeError):
            await parties.tell("forget", called, among=told)


def _patience(blueprint: Blueprint, *, tolerant: bool) -> Patience:
    timeout = blueprint.spec.patience.timeout or _PATIENCE_TICKS
    return Patience(timeout=timeout, then="continue" if tolerant else "stop")
