"""States of participants, and JSON, in files; the lock of a directory."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from colonnade.core.errors import StorageError
from colonnade.files import write_atomically

__all__ = [
    "DirectoryVault",
    "MemoryVault",
    "RunInUse",
    "finite",
    "lock_or_refuse",
    "party_directory",
    "read_json",
    "read_state",
    "state_bytes",
    "write_json",
    "write_state",
]

_TENSOR = "$tensor"
_TABLE = "$table"
_SUFFIX = ".safetensors"
_IN_USE = "in_use.lock"


def party_directory(root: Path, name: str) -> Path:
    """Where a party's own files are; its name can't lead out of the run directory."""
    return root / "parties" / quote(name, safe=" ").replace(".", "%2E")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file is a StorageError that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such file; is this a run directory?") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: damaged: {error}") from error
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a nested state: tensors as safetensors, the rest as JSON in its header."""
    write_atomically(path, state_bytes(state))


def state_bytes(state: Mapping[str, Any]) -> bytes:
    """The content of a state's file."""
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(_separate(state, "", tensors))
    return save(tensors, metadata={"state": plain, "digest": _digest(plain, tensors)})


def read_state(path: Path, *, has_digest: bool = True) -> dict[str, Any]:
    """Read what ``write_state`` wrote, and check that no bit of it has changed.

    Files of format 1 have no digest.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            said = file.metadata() or {}
        plain = said["state"]
        if has_digest and said["digest"] != _digest(plain, tensors):
            raise StorageError(f"{path}: damaged checkpoint: its content has changed")
        state: dict[str, Any] = _join(json.loads(plain), tensors)
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such checkpoint file") from error
    except (SafetensorError, KeyError, OSError, ValueError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: damaged checkpoint: {error}") from error
    return state


def _digest(plain: str, tensors: Mapping[str, Tensor]) -> str:
    """A hash over everything that a state's file holds."""
    found = hashlib.sha256(plain.encode())
    for name, item in sorted(tensors.items()):
        found.update(f"\n{name} {item.dtype} {tuple(item.shape)}\n".encode())
        found.update(item.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _separate(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The plain skeleton of a state; its tensors go into ``tensors``, numbered and by path."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)} {path}"
        tensors[name] = value.detach().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        table = {
            str(key): _separate(item, f"{path}/{key}" if path else str(key), tensors)
            for key, item in value.items()
        }
        # A table that could be taken for a tensor's place is wrapped.
        return {_TABLE: table} if table.keys() & {_TENSOR, _TABLE} else table
    if isinstance(value, list | tuple):
        return [_separate(item, f"{path}/{at}", tensors) for at, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise StorageError(f"state '{path}': a {type(value).__name__} can't be kept")


def _join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        table = value[_TABLE] if value.keys() == {_TABLE} else value
        return {key: _join(item, tensors) for key, item in table.items()}
    if isinstance(value, list):
        return [_join(item, tensors) for item in value]
    return value


class DirectoryVault:
    """One participant's checkpoints in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def keep(self, tag: str, state: Mapping[str, Any]) -> None:
        """Write a state."""
        write_state(self.directory / f"{tag}{_SUFFIX}", state)

    def retain(self, tags: Collection[str]) -> None:
        """Remove all but these."""
        for path in self.directory.glob(f"*{_SUFFIX}"):
            if path.stem not in tags:
                path.unlink(missing_ok=True)

    def holds(self, tag: str) -> bool:
        """Whether there is a state under a tag."""
        return (self.directory / f"{tag}{_SUFFIX}").exists()

    def fetch(self, tag: str) -> dict[str, Any]:
        """Read a state."""
        return read_state(self.directory / f"{tag}{_SUFFIX}")


class MemoryVault:
    """One participant's checkpoints in memory, for runs without a directory."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[Any, dict[str, Tensor]]] = {}

    def keep(self, tag: str, state: Mapping[str, Any]) -> None:
        """Copy a state."""
        tensors: dict[str, Tensor] = {}
        self._states[tag] = (_separate(state, "", tensors), tensors)

    def retain(self, tags: Collection[str]) -> None:
        """Forget all but these."""
        self._states = {tag: item for tag, item in self._states.items() if tag in tags}

    def fetch(self, tag: str) -> dict[str, Any]:
        """Read a state."""
        if tag not in self._states:
            raise StorageError(f"no checkpoint '{tag}' in memory; there are {list(self._states)}")
        plain, tensors = self._states[tag]
        # Optimizers take tensors as they are and then change them in place.
        copies = {name: item.clone() for name, item in tensors.items()}
        state: dict[str, Any] = _join(plain, copies)
        return state


def lock_or_refuse(root: Path) -> int:
    """Hold a run directory for this process; gives the handle to close."""
    return _lock(root, "lock", fcntl.LOCK_EX, "wait for it, or choose another directory")


class RunInUse:
    """Says that this process answers from a run: until ``close`` the run is not deleted.

    Args:
        root: The run's directory. Several processes may answer from it.

    Raises:
        StorageError: The run is being deleted.
    """

    def __init__(self, root: Path) -> None:
        self._handle: int | None = None
        # Where nothing can be written, nothing can be deleted either.
        if os.access(root, os.W_OK):
            self._handle = _lock(root, _IN_USE, fcntl.LOCK_SH, "it is being deleted")

    def close(self) -> None:
        """The run may be deleted as far as this process is concerned."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @staticmethod
    def refuse(root: Path) -> int:
        """Raise StorageError if a process answers from a run; else keep others from beginning."""
        return _lock(root, _IN_USE, fcntl.LOCK_EX, "unload it there, or end that service")


def _lock(root: Path, name: str, how: int, remedy: str) -> int:
    # The system lets go of the lock when the process ends, however it ends.
    handle = os.open(root / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StorageError(f"{root}: in use by another process; {remedy}") from error
    return handle
