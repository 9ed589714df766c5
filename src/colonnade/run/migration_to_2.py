"""From format 1 to format 2: what a checkpoint and a run's settings hold.

In format 2 a party's state has its door's in place of its guard's, what a method remembers is
under the names of its memories, a started call says its verb, and a checkpoint's file has a digest
of its content. Noise inside an encoder
(``inner`` of ``perturb``) is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError
from colonnade.run.storage import read_json, read_state, state_bytes

__all__ = ["party_step", "run_step"]

# Format 1's keys of a memory, by memory and field of format 2.
_MEMORIES = {
    "table": ("KnownEmbeddings", None),
    "next": ("OwnPace", "next"),
    "num_left_out": ("LeftOut", "count"),
    "early": ("Ahead", "embeddings"),
    "embedding widths": ("Widths", "by_party"),
    "num_steps": ("Pace", "num_steps"),
    "configured_rate": ("Pace", "configured_rate"),
}
_PACKINGS = ("top_k", "random_k", "quantize")


def run_step(root: Path) -> Mapping[Path, bytes]:
    """The files of a run directory that are different in format 2."""
    found = {root / "config.json": _settings(root / "config.json")}
    for path in sorted((root / "label_holder").glob("*.safetensors")):
        state = read_state(path, has_digest=False)
        federation = state["federation"]
        holder = {**federation["holder"], "memory": _memory(federation["holder"]["memory"])}
        renewed = {**federation, "holder": holder}
        if "parties" in federation:
            calls = federation["parties"]["started"]
            # Every method asked for embeddings only.
            started = [[*call, "embed"][:4] for call in calls]
            renewed["parties"] = {**federation["parties"], "started": started}
        found[path] = state_bytes({**state, "federation": renewed})
    return found | _party_states(root.glob("parties/*/*.safetensors"))


def party_step(home: Path) -> Mapping[Path, bytes]:
    """The files of a party's home that are different in format 2."""
    return _party_states(home.glob("runs/*/*.safetensors"))


def _party_states(paths: Any) -> dict[Path, bytes]:
    return {
        path: state_bytes(_party_state(read_state(path, has_digest=False)))
        for path in sorted(paths)
    }


def _party_state(state: dict[str, Any]) -> dict[str, Any]:
    if "door" in state:
        return state
    guard = state.pop("guard") or {}
    protections = {
        # Whichever of them the party has takes up what was left out.
        **({kind: {"left_out": guard["left_out"]} for kind in _PACKINGS} if guard else {}),
    }
    if guard.get("secret") is not None:
        protections["perturb"] = {"secret": guard["secret"], "account": guard["account"]}
    door = {"num_inferences": guard.get("num_inferences", 0), "protections": protections}
    return {**state, "memory": _memory(state["memory"]), "door": door}


def _memory(memory: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in memory.items():
        kind, field = _MEMORIES.get(key, (key, None))
        found.setdefault(kind, {}).update(value if field is None else {field: value})
    return found


def _settings(path: Path) -> bytes:
    """A run's settings without ``inner``, which must have been 0."""
    values = read_json(path)
    chains = [item.get("protect") for item in (values["defaults"], *values["party"].values())]
    for item in (item for chain in chains for item in chain or ()):
        if isinstance(item, dict) and item.pop("inner", 0.0):
            raise StorageError(
                f"{path}: 'perturb' had noise inside the encoder (inner), which this Colonnade "
                "does not have; go on with the one that wrote it, or train again"
            )
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
