"""Keys of callers: hashed in a file, with scopes and a limit each, revocable while a service runs.

A key is ``NAME.SECRET`` with 256 random bits, so a plain SHA-256 of it can't be guessed back.
Hashes are compared in constant time, and an unknown name takes as long as a known one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, StorageError
from colonnade.files import write_atomically

__all__ = ["SCOPES", "ApiKey", "KeyFile", "make_key", "read_keys", "revoke_key"]

# predict: ask. watch: metrics and the page. manage: versions.
SCOPES = ("predict", "watch", "manage")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A caller's key, as the file has it.

    ``ids_per_second`` bounds what it may ask for; a second's worth may come at once.
    """

    digest: str
    scopes: tuple[str, ...] = ("predict",)
    ids_per_second: float = 1000.0
    is_revoked: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(set(self.scopes) - set(SCOPES))
        if unknown or not self.scopes:
            raise ConfigError(f"scopes: some of {list(SCOPES)}, got {list(self.scopes)}")
        if not self.ids_per_second > 0:
            raise ConfigError(f"ids_per_second: above 0, got {self.ids_per_second}")


def make_key(
    path: Path, name: str, *, scopes: Iterable[str] = ("predict",), ids_per_second: float = 1000.0
) -> str:
    """Add a key to a file, which is made if it is not there.

    Args:
        path: The file.
        name: The caller's name: small letters, digits, ``-`` and ``_``.
        scopes: What it may do.
        ids_per_second: How much it may ask for.

    Returns:
        The key; it is kept nowhere.

    Raises:
        ConfigError: The name is taken or can't be used, or a setting is wrong.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"key '{name[:40]}': 1 to 40 small letters, digits, '-' or '_'")
    known = read_keys(path) if path.exists() else {}
    if name in known:
        raise ConfigError(f"key '{name}': there is one already; revoke it, or choose another name")
    secret = secrets.token_urlsafe(32)
    key = ApiKey(
        digest=_digest(f"{name}.{secret}"), scopes=tuple(scopes), ids_per_second=ids_per_second
    )
    _write(path, {**known, name: key})
    return f"{name}.{secret}"


def revoke_key(path: Path, name: str) -> None:
    """Revoke a key; a running service refuses it from the next request on.

    Raises:
        ConfigError: There is no such key.
    """
    known = read_keys(path)
    if name not in known:
        raise ConfigError(f"key '{name[:40]}': not in {path.name}; there are {sorted(known)}")
    _write(path, {**known, name: replace(known[name], is_revoked=True)})


def read_keys(path: Path) -> dict[str, ApiKey]:
    """Read a file of keys, by name.

    Raises:
        StorageError: It is not there or damaged.
        ConfigError: An entry is wrong.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: can't be read as a file of keys") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("keys"), Mapping):
        raise StorageError(f"{path}: not a file of keys; make one with colonnade keys make")
    return {
        name: parse(ApiKey, entry, path=f"keys.{name}") for name, entry in content["keys"].items()
    }


def _write(path: Path, keys: Mapping[str, ApiKey]) -> None:
    content = {"keys": {name: dump(key) for name, key in keys.items()}}
    write_atomically(path, json.dumps(content, indent=2).encode() + b"\n", owner_only=True)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class KeyFile:
    """The keys that a service accepts, read again when the file changes, and what each used up."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._keys = read_keys(path)
        self._mark = _mark(path)
        # By name: what may still be asked for, and when that was so.
        self._left: dict[str, tuple[float, float]] = {}

    def find(self, given: str | None) -> tuple[str, ApiKey] | None:
        """The name and entry of a key; None for none, a wrong or a revoked one."""
        self._read_again()
        name = (given or "").partition(".")[0]
        known = self._keys.get(name)
        expected = known.digest if known is not None else _digest("nobody")
        is_right = hmac.compare_digest(_digest(given or ""), expected)
        if known is None or not is_right or known.is_revoked:
            return None
        return name, known

    def seconds_to_wait(self, name: str, key: ApiKey, num_ids: int) -> float:
        """Take so many ids from what a key may ask for; how long to wait if that is too many."""
        now = self._clock()
        left, then = self._left.get(name, (key.ids_per_second, now))
        left = min(key.ids_per_second, left + (now - then) * key.ids_per_second)
        # A request larger than a second's worth is let through when nothing was used.
        needed = min(num_ids, key.ids_per_second)
        if left < needed:
            self._left[name] = left, now
            return (needed - left) / key.ids_per_second
        self._left[name] = left - num_ids, now
        return 0.0

    def _read_again(self) -> None:
        mark = _mark(self._path)
        if mark == self._mark:
            return
        try:
            self._keys = read_keys(self._path)
        except (StorageError, ConfigError):
            # Nothing fails open: with no file that can be read nobody has a key.
            self._keys = {}
        self._mark = mark


def _mark(path: Path) -> Any:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
