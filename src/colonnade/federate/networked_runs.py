"""Trained runs between organisations, as the label holder's directory has them."""

from __future__ import annotations

from pathlib import Path

from colonnade.core.errors import ConfigError
from colonnade.fabrics import GrpcSpec
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.run.assembly import Blueprint
from colonnade.run.blueprint_files import read_blueprint

__all__ = ["networked_blueprint", "networked_links"]


def networked_blueprint(run: Path) -> Blueprint:
    """The blueprint of a run between organisations; ConfigError if it is none."""
    blueprint = read_blueprint(run)
    if not blueprint.elsewhere:
        raise ConfigError(
            f"{run}: its parties are in one process, not in a federation; use colonnade predict "
            "and colonnade evaluate"
        )
    return blueprint


def networked_links(run: Path) -> LinkSpec | None:
    """The link settings that a run between organisations was trained with; None if it is local."""
    fabric = networked_blueprint(run).spec.fabric
    return fabric.link if isinstance(fabric, GrpcSpec) else None
