"""The predictor of a federation: parties elsewhere, reached over the links of one open session.

A party that is not connected is not waited for. A party that comes back without its half of the
session loads it again, while the others answer. A party that was away from the start joins in
another session, which everybody opens at once. A party that can't load its half is left out, and
asked again after a pause that doubles.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from colonnade.core.errors import ColonnadeError, PartyRestarted
from colonnade.core.fabric import drive
from colonnade.core.parties import Patience
from colonnade.core.printable import printable
from colonnade.data.blocks import as_ids
from colonnade.fabrics.grpc.event_loop import is_on_loop
from colonnade.fabrics.grpc.hub_lane import Lane
from colonnade.fabrics.grpc.loop_driving import drive_on_loop
from colonnade.federate.networked_runs import networked_blueprint
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_samples import Wanted
from colonnade.run.storage import RunInUse
from colonnade.serve.kept_embeddings import KeptEmbeddings
from colonnade.serve.linked_exchange import LinkedExchange, ServedSamples
from colonnade.serve.observations import Observations
from colonnade.serve.predictor import ObservedRows, ServedExchange, ServedModel, Unanswered
from colonnade.serve.refused_samples import RefusedSamples

__all__ = ["NetworkedPredictor"]

_LOG = logging.getLogger("colonnade.serve")
_LOOK_SECONDS = 0.5
# How often parties seal their accounts while they answer: each time theirs goes to their disks.
_SEAL_SECONDS = 60.0
# What opening and ending a session wait for a silent party.
_OPENING_TICKS = 5_000
# Before a party that could not load its half is asked to do so again.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 300.0
# So many samples at most are answered on the event loop, by networks of so many weights.
_FEW_IDS, _FEW_WEIGHTS = 64, 500_000
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")


class NetworkedPredictor:
    """One version of a model whose parties answer over the network.

    Args:
        hub: Where the parties are connected.
        run: The run's directory at the label holder.
        wanted: The samples that may be asked for, by an alignment.
        describe: What callers may know of the model.
        seals: Where seals of parties' accounts are kept; by default in the run's directory.
        kept: Where embeddings are kept that parties let be kept; nowhere if not given.
        look_seconds: How often to look whether somebody came back.

    Raises:
        NoAnswer: A party that the method needs is away.
        Refused: A party's policy is against predictions with this run.
    """

    def __init__(
        self,
        hub: Lane,
        run: Path,
        wanted: Wanted,
        describe: Callable[[OpenModel], ServedModel],
        *,
        seals: Path | None = None,
        kept: KeptEmbeddings | None = None,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._hub, self._run, self._wanted, self._seals = hub, run, wanted, seals
        ids = as_ids(wanted.ids, "ids").tolist()
        if kept is None:
            kept = KeptEmbeddings(most=0, longest_seconds=0.0, clock=time.monotonic)
        self._kept = kept
        self._samples = ServedSamples(
            wanted=wanted,
            place_of={name: place for place, name in enumerate(ids)},
            kept=self._kept,
            refused=RefusedSamples(time.monotonic),
        )
        # By party, a question for its consent, and the edition of what is kept of it.
        self._consents: dict[str, Callable[[], str | None]] = {}
        self._editions: dict[str, str] = {}
        trained = networked_blueprint(run)
        self._elsewhere = trained.elsewhere
        self._then: Literal["stop", "continue"] = "stop"
        if trained.spec.method.info.tolerates_missing:
            self._then = "continue"
        self._run_in_use = RunInUse(run)
        try:
            self._open = self._opened(self._absent())
        except BaseException:
            self._run_in_use.close()
            raise
        self._model = describe(self._open)
        self._is_small = self._open.num_own_weights <= _FEW_WEIGHTS
        self._in_use = threading.Lock()
        # Parties that came back without their half, and those that load it again.
        self._lost: set[str] = set()
        self._loading: dict[str, Callable[[], bool]] = {}
        # By party that was silent, a question that nobody waits for.
        self._sought: dict[str, Callable[[], str | None]] = {}
        # Parties that could not load it: when they are asked again, and how long the pause was.
        self._unable: dict[str, tuple[float, float]] = {}
        # Answers whose seals are not kept yet, and what looks whether seals have come.
        self._num_unsealed = 0
        self._sealing: Callable[[], bool] | None = None
        self._sealed_at = time.monotonic()
        self._observations = Observations()
        # The session has ended, and no other one could be opened yet.
        self._is_broken = False
        self._is_over = threading.Event()
        self._look_seconds = look_seconds
        self._watching = threading.Thread(target=self._watch, name="sessions", daemon=True)
        self._watching.start()

    def _opened(self, absent: tuple[str, ...]) -> OpenModel:
        patience = Patience(timeout=_OPENING_TICKS, then=self._then)
        return OpenModel(
            self._hub,
            self._run,
            self._wanted.pairs,
            without=absent,
            patience=patience,
            seals=self._seals,
        )

    def _absent(self) -> tuple[str, ...]:
        return self._hub.wait_for(self._elsewhere, timeout=0.0)

    @property
    def model(self) -> ServedModel:
        """What it is."""
        return self._model

    def away(self) -> Mapping[str, str]:
        """Parties that are not connected, or not yet in the open session."""
        here = set(self._open.blueprint.elsewhere) - self._lost
        coming = {name: "coming back" for name in self._elsewhere if name not in here}
        unable = {name: "can't load its half" for name in coming if name in self._unable}
        return {**coming, **unable, **dict.fromkeys(self._absent(), "not connected")}

    def observed(self) -> Mapping[str, ObservedRows]:
        """What parties tell by a declared release, as far as their policies allow."""
        return self._observations.found()

    def warm_up(self) -> None:
        """Nothing: every question to a party is a release."""

    @property
    def loaded_at(self) -> frozenset[str]:
        """The parties that have loaded their half."""
        return frozenset(self._open.party_versions) - self._lost

    @property
    def is_closed(self) -> bool:
        """Whether its lane is free for another version."""
        return self._is_over.is_set()

    def close(self) -> None:
        """End the session; the hub goes on listening."""
        self._is_over.set()
        self._watching.join()
        self._run_in_use.close()
        with self._in_use:
            if self._is_broken:
                return
            if self._lost or self._absent():
                self._open.abandon()
            else:
                self._open.close()

    # Sessions

    def _watch(self) -> None:
        """Look who came back; every look is between two exchanges."""
        while not self._is_over.wait(self._look_seconds):
            absent = self._absent()
            with self._in_use:
                pausing = self._pausing()
                for party in sorted(self._lost - set(absent) - pausing):
                    self._begin_again(party)
                joined = set(() if self._is_broken else self._open.blueprint.elsewhere)
                if set(self._elsewhere) - set(absent) - joined - pausing:
                    self._open_again(tuple(sorted(pausing.union(absent))))
                elif not self._is_broken:
                    self._renew_consents(absent)
                    if not self._lost:
                        self._keep_seals()
                        self._observe(set(joined) - set(absent))

    def _observe(self, here: Collection[str]) -> None:
        try:
            self._observations.look(self._open, here)
        except PartyRestarted as error:
            self._lost.add(error.party)

    def _renew_consents(self, absent: Collection[str]) -> None:
        """Hear for how long embeddings may be kept, and drop those of another edition."""
        if not self._kept.is_open or self._model.is_blinded:
            return
        for party in set(self._open.blueprint.elsewhere) - set(absent) - self._lost:
            try:
                if party not in self._consents:
                    self._consents[party] = self._open.begin_keeping(party)
                said = self._consents[party]()
            except ColonnadeError as error:
                said = "0"
                if isinstance(error, PartyRestarted):
                    self._lost.add(error.party)
            if said is None:
                continue
            self._consents.pop(party, None)
            seconds, _, edition = said.partition(" ")
            self._kept.allow(party, float(seconds) if _NUMBER.fullmatch(seconds) else 0.0)
            if edition != self._editions.get(party):
                self._kept.forget(party)
                self._editions[party] = edition

    def _keep_seals(self) -> None:
        """Have parties seal their accounts now and then, if they answered anything since."""
        try:
            if self._sealing is not None:
                self._sealing = None if self._sealing() else self._sealing
            elif self._num_unsealed and time.monotonic() - self._sealed_at > _SEAL_SECONDS:
                self._num_unsealed, self._sealed_at = 0, time.monotonic()
                self._sealing = self._open.begin_sealing()
        except ColonnadeError as error:
            _LOG.warning("no seal of an account: %s", type(error).__name__)
            self._sealing = None
            if isinstance(error, PartyRestarted):
                self._lost.add(error.party)

    def _begin_again(self, party: str) -> None:
        """Take one step of having a party load its half again."""
        try:
            if party not in self._loading:
                self._sought.pop(party, None)
                self._loading[party] = self._open.begin_again(party)
            if not self._loading[party]():
                return
        except PartyRestarted:
            # It, or another one, was lost once more: from the beginning.
            self._loading.pop(party, None)
            return
        except ColonnadeError as error:
            self._loading.pop(party, None)
            self._pause(party, error)
            return
        del self._loading[party]
        self._lost.discard(party)
        self._unable.pop(party, None)
        _LOG.info("party '%s' is back", party)

    def _open_again(self, absent: tuple[str, ...]) -> None:
        """Open another session with everybody who is there; nobody is answered meanwhile."""
        if not self._is_broken:
            self._open.abandon()
        self._is_broken = True
        self._lost.clear()
        self._loading.clear()
        self._sealing = None
        self._consents.clear()
        self._sought.clear()
        left_out = set(absent)
        while True:
            try:
                self._open = self._opened(tuple(sorted(left_out)))
                break
            except ColonnadeError as error:
                _LOG.warning("no session yet: %s", printable(str(error)))
                named = {getattr(error, "party", None), *getattr(error, "parties", ())}
                unable = named.intersection(self._elsewhere) - left_out
                for party in sorted(unable):
                    self._pause(party, error)
                if not unable or self._then == "stop" or isinstance(error, PartyRestarted):
                    return
                left_out |= unable
        self._is_broken = False
        for party in self._open.party_versions:
            self._unable.pop(party, None)
        _LOG.info("a session with %s is open", ", ".join(self._open.blueprint.elsewhere))

    def _pausing(self) -> set[str]:
        """Parties that could not load their half a moment ago."""
        now = time.monotonic()
        return {name for name, (until, _) in self._unable.items() if now < until}

    def _pause(self, party: str, error: ColonnadeError) -> None:
        """Leave a party out for a while: whoever can't load can't keep the others busy."""
        if isinstance(error, PartyRestarted):
            return
        _, before = self._unable.get(party, (0.0, 0.0))
        pause = min(before * 2 or _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._unable[party] = time.monotonic() + pause, pause
        said = printable(str(error))
        _LOG.warning(
            "party '%s' can't load its half, and is asked again in %g s: %s", party, pause, said
        )

    # Answers

    def predict(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> ServedExchange:
        """Answer for these ids with whoever answers in time."""
        with self._in_use:
            return drive(self._exchange(ids, deadline, without))

    def predict_here(
        self, ids: Sequence[str], *, deadline: float, without: Collection[str]
    ) -> Coroutine[Any, Any, ServedExchange] | None:
        """The same on the links' event loop, if that is where this is called and nobody waits long.

        One thread less hands work to another one. Many samples, or a large network of the label
        holder's own, would hold up every link: they are for a thread.
        """
        if len(ids) > _FEW_IDS or not self._is_small or not is_on_loop():
            return None
        # Whoever has it waits for the loop, which must not wait for it in turn.
        if not self._in_use.acquire(blocking=False):
            return None
        return self._exchange_here(ids, deadline, without)

    async def _exchange_here(
        self, ids: Sequence[str], deadline: float, without: Collection[str]
    ) -> ServedExchange:
        try:
            return await drive_on_loop(self._exchange(ids, deadline, without))
        finally:
            self._in_use.release()

    async def _exchange(
        self, ids: Sequence[str], deadline: float, without: Collection[str]
    ) -> ServedExchange:
        if self._is_broken:
            nobody = Unanswered(reason="away", parties=self._elsewhere)
            return ServedExchange(outcomes=[nobody for _ in ids])
        absent = set(self._absent())
        away = absent | (set(self._elsewhere) - set(self._open.blueprint.elsewhere))
        back = self._seek(without, away) if without else frozenset()
        gone = (set(without) - back) | away | self._lost
        exchange = LinkedExchange(
            self._open,
            self._model,
            self._samples,
            gone=gone,
            deadline=deadline,
            then=self._then,
        )
        found = await exchange.run(ids)
        self._lost |= exchange.lost
        self._num_unsealed += 1
        return replace(found, back=back, sought=frozenset(self._elsewhere))

    def _seek(self, parties: Collection[str], away: Collection[str]) -> frozenset[str]:
        """Who of the parties that were silent has answered a question that nobody waited for.

        The question is no release. A party that stands still answers it when it goes on.
        """
        back = set(parties) - set(self._elsewhere)
        for party in set(parties) & set(self._elsewhere):
            if party in away or party in self._lost:
                # With its half gone, so is the question; it is asked another one then.
                self._sought.pop(party, None)
                continue
            try:
                if party not in self._sought:
                    self._sought[party] = self._open.begin_keeping(party)
                has_answered = self._sought[party]() is not None
            except PartyRestarted as error:
                self._lost.add(error.party)
                self._sought.pop(error.party, None)
                continue
            except ColonnadeError:
                # A refusal is an answer.
                has_answered = True
            if has_answered:
                self._sought.pop(party, None)
                back.add(party)
        return frozenset(back)
