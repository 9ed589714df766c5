"""A party that leaves a trained federation for good; the rest predict on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, MissingBlock
from colonnade.methods import METHODS
from colonnade.run.blueprint_files import LEFT, read_blueprint
from colonnade.run.storage import lock_or_refuse, party_directory, write_json

__all__ = ["remove_party"]


def remove_party(root: Path, name: str, *, erase: bool = False) -> tuple[str, ...]:
    """Note that a party left a run's federation; gives the parties that stay.

    What it keeps in the run directory stays there, unread, unless ``erase``: then its weights and
    its statistics are deleted. Its data files are its own and are never touched. A party behind a
    network keeps its own half; here it is no longer asked.
    """
    blueprint = read_blueprint(root)
    info = blueprint.spec.method.info
    if name in blueprint.left:
        raise ConfigError(f"party '{name}' left the federation in {root} before")
    if name not in blueprint.owners:
        raise ConfigError(f"there is no party '{name}'{nearest(name, blueprint.owners)}")
    if not info.tolerates_missing:
        tolerant = [other for other, item in METHODS.items() if item.info.tolerates_missing]
        raise MissingBlock(
            f"method '{info.name}' needs the blocks of every party it was trained with, so "
            f"'{name}' can't leave; train with a method that can do without: "
            f"{', '.join(tolerant) or 'none here'}"
        )
    if erase and name in blueprint.elsewhere:
        raise ConfigError(
            f"--erase: party '{name}' is behind a network and keeps its own half; it deletes that "
            "itself: colonnade party prune"
        )
    stay = tuple(other for other in blueprint.owners if other != name)
    if not stay:
        raise ConfigError(f"party '{name}' is the last one; nobody would be left to predict")
    lock = lock_or_refuse(root)
    try:
        # Who left is known before anything is deleted: a run is never half without a party.
        write_json(root / LEFT, {"left": [*blueprint.left, name]})
        if erase:
            shutil.rmtree(party_directory(root, name), ignore_errors=False)
    finally:
        os.close(lock)
    return stay
