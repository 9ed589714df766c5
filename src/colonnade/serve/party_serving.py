"""From a party's home and one of its runs to a service that listens."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from colonnade.core.errors import ConfigError
from colonnade.core.task import Task
from colonnade.federate.lone_party import LoneParty
from colonnade.serve.lone_predictor import LonePredictor
from colonnade.serve.predictor import Predictor, ServedModel
from colonnade.serve.run_serving import ServeSettings, serve_with

__all__ = ["PartyLoader", "meaning_of_outputs", "serve_party"]


def meaning_of_outputs(
    num_outputs: int, classes: Sequence[str], scale: tuple[float, float] | None
) -> Task:
    """What a model's outputs mean; the label holder tells its parties in words, not on a link.

    Args:
        num_outputs: How many outputs the model has.
        classes: The labels, in sorted order.
        scale: For a number: mean and deviation of the training labels.

    Raises:
        ConfigError: Neither or both are said, or the count does not fit.
    """
    if bool(classes) == (scale is not None):
        raise ConfigError(
            "--classes or --scale: say one of them; a party is not told what its model's outputs "
            "mean, so ask the label holder"
        )
    if scale is not None:
        if num_outputs != 1:
            raise ConfigError(f"--scale: for one number, and the model has {num_outputs} outputs")
        return Task(kind="regression", loss_name="squared_error", center=scale[0], scale=scale[1])
    expected = max(2, num_outputs)
    if len(classes) != expected:
        raise ConfigError(f"--classes: the model has {expected}, got {len(classes)}")
    if num_outputs == 1:
        return Task(kind="binary", loss_name="binary_cross_entropy", classes=tuple(classes))
    return Task(kind="multiclass", loss_name="cross_entropy", classes=tuple(classes))


class PartyLoader:
    """Loads runs of one party's home.

    Args:
        home: The party's directory.
        place: The run in it.
        classes: The labels, in sorted order.
        scale: For a number: mean and deviation of the training labels.
        checkpoint: The tag of the weights; the newest if none is given.
    """

    def __init__(
        self,
        home: Path,
        place: Path,
        *,
        classes: Sequence[str] = (),
        scale: tuple[float, float] | None = None,
        checkpoint: str | None = None,
    ) -> None:
        self._home, self._place = home, place
        self._classes, self._scale, self._checkpoint = tuple(classes), scale, checkpoint

    def __call__(self, run: str) -> Predictor:
        """Refuse another version: runs of a party need not mean the same by their outputs.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("a party serves one run; start a service for the other one")

    def first(self) -> Predictor:
        """The run that the service begins with.

        Raises:
            ConfigError: No whole model, or its outputs' meaning does not fit.
            Refused: The party's policy is against it.
        """
        party = LoneParty(self._home, self._place, checkpoint=self._checkpoint)
        task = meaning_of_outputs(party.num_outputs, self._classes, self._scale)
        weights = (self._place / f"{party.checkpoint}.safetensors").read_bytes()
        name = self._place.name[:12]
        model = ServedModel(
            name=name,
            version=f"{name}@{hashlib.sha256(weights).hexdigest()[:12]}",
            kind=task.kind,
            label="label",
            classes=task.classes,
            parties=(party.name,),
            tolerates_missing=False,
        )
        return LonePredictor(party, model, task)


def serve_party(
    loader: PartyLoader,
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
    asyncio.run(serve_with(loader, loader.first(), settings, started))
