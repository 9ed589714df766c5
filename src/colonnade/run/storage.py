"""Files that are there wholly or not at all, and states in them."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from colonnade.core.errors import StorageError

__all__ = [
    "DirectoryVault",
    "MemoryVault",
    "read_json",
    "read_state",
    "write_atomically",
    "write_json",
    "write_state",
]

_TENSOR = "$tensor"
_SUFFIX = ".safetensors"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        if isinstance(error, OSError):
            raise StorageError(f"{path}: can't be written: {error.strerror}") from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file is a StorageError that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such file; is this a run directory?") from error
    except json.JSONDecodeError as error:
        raise StorageError(f"{path}: damaged: {error}") from error


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a nested state: tensors as safetensors, the rest as JSON in its header."""
    tensors: dict[str, Tensor] = {}
    plain = _separate(state, "", tensors)
    write_atomically(path, save(tensors, metadata={"state": json.dumps(plain)}))


def read_state(path: Path) -> dict[str, Any]:
    """Read what ``write_state`` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            plain = json.loads((file.metadata() or {})["state"])
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such checkpoint file") from error
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise StorageError(f"{path}: damaged checkpoint: {error}") from error
    state: dict[str, Any] = _join(plain, tensors)
    return state


def _separate(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The plain skeleton of a state; its tensors go into ``tensors`` by path."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().clone().contiguous()
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        return {
            str(key): _separate(item, f"{path}/{key}" if path else str(key), tensors)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_separate(item, f"{path}/{at}", tensors) for at, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise StorageError(f"state '{path}': a {type(value).__name__} can't be kept")


def _join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _join(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_join(item, tensors) for item in value]
    return value


class DirectoryVault:
    """One participant's checkpoints in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def keep(self, tag: str, state: Mapping[str, Any], *, best: str) -> None:
        """Write a state; drop all others but the one before and the best."""
        earlier = sorted(path.stem for path in self.directory.glob(f"*{_SUFFIX}"))
        write_state(self.directory / f"{tag}{_SUFFIX}", state)
        stay = {tag, best, *[item for item in earlier if item not in (tag, best)][-1:]}
        for name in set(earlier) - stay:
            (self.directory / f"{name}{_SUFFIX}").unlink(missing_ok=True)

    def fetch(self, tag: str) -> dict[str, Any]:
        """Read a state."""
        return read_state(self.directory / f"{tag}{_SUFFIX}")


class MemoryVault:
    """One participant's checkpoints in memory, for runs without a directory."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[Any, dict[str, Tensor]]] = {}

    def keep(self, tag: str, state: Mapping[str, Any], *, best: str) -> None:
        """Copy a state; drop all others but the best."""
        tensors: dict[str, Tensor] = {}
        plain = _separate(state, "", tensors)
        kept = {name: item for name, item in self._states.items() if name == best}
        self._states = {**kept, tag: (plain, tensors)}

    def fetch(self, tag: str) -> dict[str, Any]:
        """Read a state."""
        if tag not in self._states:
            raise StorageError(f"no checkpoint '{tag}' in memory; there are {list(self._states)}")
        plain, tensors = self._states[tag]
        # Optimizers take tensors as they are and then change them in place.
        copies = {name: item.clone() for name, item in tensors.items()}
        state: dict[str, Any] = _join(plain, copies)
        return state
