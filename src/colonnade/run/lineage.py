"""Where a model comes from: settings, data, alignment, the run before it, and the revision."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError
from colonnade.run.assembly import Blueprint, TrainingData
from colonnade.run.spec import RunSpec, plain_spec
from colonnade.run.storage import read_json

__all__ = ["lineage_of", "settings_digest"]


def lineage_of(blueprint: Blueprint, data: TrainingData) -> dict[str, Any]:
    """What a summary says of a model's origin.

    Args:
        blueprint: Of the run.
        data: What is in this process of its data; of parties elsewhere there is nothing.

    Returns:
        ``settings``: a digest of all settings but where files are, none if a function of the
        caller's own is among them; ``data``: a digest per party
        whose rows are here, and of labels and roll; ``alignment``; ``parent``: the run that the
        weights started from, with its own settings' digest.
    """
    return {
        "settings": _settings(blueprint.spec),
        "data": {**_blocks(data), "labels": _labels(data)},
        "alignment": data.alignment,
        "parent": _parent(blueprint.spec.start.run),
    }


def settings_digest(spec: RunSpec) -> str:
    """A digest of settings, whatever directory their files are in."""
    plain = plain_spec(spec)
    plain["data"].pop("alignment", None)
    plain.pop("device")
    if spec.precision == "full":
        plain.pop("precision")  # as it always was
    for table in (plain["label_holder"], *plain["party"].values()):
        for key in ("file", "policy"):
            table.pop(key, None)
    plain["start"].pop("run", None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _settings(spec: RunSpec) -> str | None:
    try:
        return settings_digest(spec)
    except StorageError:
        return None  # code has no digest that would tell another code from it


def _blocks(data: TrainingData) -> dict[str, str]:
    found = {}
    for name, features in sorted(data.features.items()):
        digest = hashlib.sha256(f"{features.dtype} {tuple(features.shape)}".encode())
        digest.update(features.contiguous().numpy().tobytes())
        digest.update(data.rows[name].tobytes())
        found[name] = digest.hexdigest()
    return found


def _labels(data: TrainingData) -> str:
    digest = hashlib.sha256(repr(data.roll.names).encode())
    for part, values in sorted(data.labels.items()):
        digest.update(f"\n{part} {len(values)}\n".encode())
        digest.update("\x1f".join(map(str, values.tolist())).encode())
        if part in data.weights:
            digest.update(data.weights[part].tobytes())
        digest.update(data.roll.samples[part].tobytes() + data.roll.presence[part].tobytes())
    return digest.hexdigest()


def _parent(run: Path | None) -> dict[str, Any] | None:
    if run is None:
        return None
    summary = run / "summary.json"
    known = read_json(summary).get("lineage") if summary.exists() else None
    return {"run": run.name, "settings": known["settings"] if known else None}
