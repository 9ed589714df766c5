"""From a federation's directory and one of its runs to a service that listens."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from colonnade.core.errors import ConfigError, NoAnswer
from colonnade.fabrics.grpc.event_loop import event_loop
from colonnade.fabrics.grpc.hub_lane import Lane
from colonnade.federate.networked_runs import networked_blueprint
from colonnade.federate.prediction import OpenModel
from colonnade.federate.prediction_files import alignments_of
from colonnade.federate.prediction_samples import wanted_ids
from colonnade.run.kept_seals import SEALS
from colonnade.serve.kept_embeddings import KeptEmbeddings
from colonnade.serve.listening import stopped_by_signals
from colonnade.serve.networked_predictor import NetworkedPredictor
from colonnade.serve.predictor import Predictor, ServedModel
from colonnade.serve.run_serving import ServeSettings, model_digest, run_beside, serve_with

__all__ = ["FederationLoader", "serve_federation"]

Say = Callable[[str], None]


class FederationLoader:
    """Loads runs of a federation: every party loads its half, each run on a lane of its own.

    Args:
        lanes: Of an open hub, with its parties; as many versions can be loaded at once.
        federation: The federation's directory.
        root: The first run's directory.
        ids: A table with the ids that may be asked for.
        settings: How to serve.
        wait_seconds: How long to wait for parties that are not connected.
        say: Told what is done.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        federation: Path,
        root: Path,
        ids: Path,
        settings: ServeSettings,
        *,
        wait_seconds: float = 30.0,
        say: Say = lambda line: None,
    ) -> None:
        self._lanes, self._federation, self._root = lanes, federation, root.resolve()
        self._ids, self._settings, self._say = ids, settings, say
        self._wait_seconds = wait_seconds
        self._loaded: dict[int, NetworkedPredictor] = {}

    def __call__(self, run: str) -> Predictor:
        """Load a run beside the served one, at every party that the served one has now.

        Raises:
            ConfigError: There is no such run, or no lane is free.
            NoAnswer: A party did not load it; nothing has changed.
            Refused: A party's policy is against it; nothing has changed.
        """
        directory = run_beside(self._root, run)
        wanted = networked_blueprint(directory).elsewhere
        here = set(wanted) - set(self._lanes[0].wait_for(wanted, timeout=0.0))
        lane = self._free_lane()
        lacking = tuple(sorted(here & set(lane.wait_for(here, timeout=self._wait_seconds))))
        if lacking:
            raise NoAnswer(
                f"{', '.join(lacking)} could not load run '{run}': no second link yet; try again",
                parties=lacking,
            )
        found = self._load(directory, lane, wait_seconds=0.0)
        lost = tuple(sorted(here - found.loaded_at))
        if lost:
            found.close()
            raise NoAnswer(f"{', '.join(lost)} did not load run '{run}'", parties=lost)
        return found

    def first(self) -> Predictor:
        """The run that the service begins with.

        Raises:
            NoAnswer: A party that the method needs is away.
            Refused: A party's policy is against it.
        """
        directory = run_beside(self._root, self._root.name)
        return self._load(directory, self._free_lane(), wait_seconds=self._wait_seconds)

    def _free_lane(self) -> Lane:
        self._loaded = {n: item for n, item in self._loaded.items() if not item.is_closed}
        for number, lane in enumerate(self._lanes):
            if number not in self._loaded:
                return lane
        if len(self._lanes) == 1:
            raise ConfigError(
                "a federation without a serving address has one version at a time: parties keep "
                "one run loaded; set 'serving' in federation.toml and in every party.toml"
            )
        raise ConfigError(
            f"{len(self._lanes)} versions are loaded, as many as parties keep; unload one first"
        )

    def _load(self, directory: Path, lane: Lane, *, wait_seconds: float) -> NetworkedPredictor:
        blueprint = networked_blueprint(directory)
        away = lane.wait_for(blueprint.elsewhere, timeout=wait_seconds)
        wanted = wanted_ids(
            lane,
            blueprint,
            directory,
            alignments_of(self._federation, directory, blueprint),
            self._ids,
            id_column=self._settings.id_column,
            away=away,
            say=self._say,
        )
        if wanted.ids.nlevels > 1:
            raise ConfigError("--ids: ids of several columns can't be asked for over HTTP yet")

        def describe(model: OpenModel) -> ServedModel:
            task = model.blueprint.task
            return ServedModel(
                name=self._root.name,
                version=f"{directory.name}@{model_digest(directory)}",
                kind=task.kind,
                label=blueprint.label_name,
                classes=task.classes,
                parties=blueprint.owners,
                tolerates_missing=model.tolerant,
                is_blinded=model.is_blinded,
            )

        seals = self._federation / SEALS
        kept = KeptEmbeddings(
            most=self._settings.cache_size,
            longest_seconds=self._settings.cache_seconds,
            clock=time.monotonic,
            asks_consent=True,
        )
        found = NetworkedPredictor(lane, directory, wanted, describe, seals=seals, kept=kept)
        self._loaded[self._lanes.index(lane)] = found
        return found


def serve_federation(
    loader: FederationLoader,
    settings: ServeSettings,
    *,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        loader: What loads the run.
        settings: How to serve.
        started: Called with the address when requests are accepted.

    Raises:
        RunError: The address can't be listened at.
    """
    first = loader.first()
    can_be_stopped: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    # Where replies arrive: from a request to its answer no thread hands work to another one.
    serving = asyncio.run_coroutine_threadsafe(
        serve_with(loader, first, settings, started, can_be_stopped.put), event_loop()
    )
    serving.add_done_callback(lambda _: can_be_stopped.put(None))
    stop = can_be_stopped.get()
    if stop is not None:
        stopped_by_signals(stop)
    serving.result()
