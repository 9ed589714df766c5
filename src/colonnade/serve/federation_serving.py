"""From a federation's directory and one of its runs to a service that listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from colonnade.core.errors import ConfigError
from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.prediction import OpenModel, networked_blueprint
from colonnade.federate.prediction_files import alignments_of
from colonnade.federate.prediction_samples import wanted_ids
from colonnade.run.kept_seals import SEALS
from colonnade.serve.networked_predictor import NetworkedPredictor
from colonnade.serve.predictor import Predictor, ServedModel
from colonnade.serve.run_serving import ServeSettings, model_digest, run_beside, serve_with

__all__ = ["FederationLoader", "serve_federation"]

Say = Callable[[str], None]


class FederationLoader:
    """Loads a run of a federation: every party loads its half.

    Args:
        hub: Open, with its parties.
        federation: The federation's directory.
        root: The first run's directory.
        ids: A table with the ids that may be asked for.
        settings: How to serve.
        wait_seconds: How long to wait for parties that are not connected.
        say: Told what is done.
    """

    def __init__(
        self,
        hub: Hub,
        federation: Path,
        root: Path,
        ids: Path,
        settings: ServeSettings,
        *,
        wait_seconds: float = 30.0,
        say: Say = lambda line: None,
    ) -> None:
        self._hub, self._federation, self._root = hub, federation, root.resolve()
        self._ids, self._settings, self._say = ids, settings, say
        self._wait_seconds = wait_seconds

    def __call__(self, run: str) -> Predictor:
        """Refuse another version: a party has one session, and one run loaded in it.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "between organisations a service has one version: parties keep one run loaded at a "
            "time; start a service for the other run"
        )

    def first(self) -> Predictor:
        """The run that the service begins with.

        Raises:
            NoAnswer: A party that the method needs is away.
            Refused: A party's policy is against it.
        """
        directory = run_beside(self._root, self._root.name)
        blueprint = networked_blueprint(directory)
        away = self._hub.wait_for(blueprint.elsewhere, timeout=self._wait_seconds)
        wanted = wanted_ids(
            self._hub,
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

        return NetworkedPredictor(
            self._hub, directory, wanted, describe, seals=self._federation / SEALS
        )


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
    asyncio.run(serve_with(loader, loader.first, settings, started))
