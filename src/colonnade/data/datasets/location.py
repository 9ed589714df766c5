"""The directories with files of named data sets, and the cache of computed features.

Files are searched in this order: the caller's directory, ``COLONNADE_DATA``, and ``data/`` in the
cache directory. The cache directory is ``COLONNADE_CACHE``, or else ``colonnade`` under
``XDG_CACHE_HOME``, or else ``~/.cache/colonnade``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from colonnade.core.errors import DatasetNotFound

__all__ = ["cache_directory", "data_places", "find_data", "has_data"]


def cache_directory() -> Path:
    """Find the directory for files that can be computed or fetched again.

    Returns:
        Its path; it may not exist yet.
    """
    own = os.environ.get("COLONNADE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared).expanduser() if shared else Path.home() / ".cache"
    return base / "colonnade"


def data_places(root: Path | None = None) -> list[tuple[str, Path]]:
    """The directories to search, in order, each with its origin."""
    places = []
    if root is not None:
        places.append(("the directory given", Path(root).expanduser()))
    named = os.environ.get("COLONNADE_DATA")
    if named:
        places.append(("COLONNADE_DATA", Path(named).expanduser()))
    places.append(("the cache", cache_directory() / "data"))
    return places


def has_data(paths: Sequence[str], root: Path | None = None) -> bool:
    """Say whether one directory has all these files."""
    return any(not absent_files(paths, place) for _, place in data_places(root))


def find_data(name: str, paths: Sequence[str], source: str, root: Path | None = None) -> Path:
    """The first place that has all these files; otherwise an error that says how to get them."""
    places = data_places(root)
    for _, place in places:
        if not absent_files(paths, place):
            return place
    # The directory with the fewest missing files is most likely the intended one.
    absent = min((absent_files(paths, place) for _, place in places), key=len)
    looked = [f"{place} ({reason})" for reason, place in places]
    if "COLONNADE_DATA" not in {reason for reason, _ in places}:
        looked.append("COLONNADE_DATA (not set)")
    raise DatasetNotFound(
        f"data set '{name}': {len(absent)} of {len(paths)} files are missing: {', '.join(absent)}. "
        f"Looked in: {'; '.join(looked)}. "
        f"Get them from their provider ({source}), put them in one directory so that it has "
        f"{paths[0]}, and set the environment variable COLONNADE_DATA to that directory."
    )


def absent_files(paths: Sequence[str], place: Path) -> list[str]:
    return [path for path in paths if not (place / path).is_file()]
