"""Arrays and a few values about them in one file, written wholly or not at all.

The file is NumPy's: a zip archive with a checksum for each array, so that reading finds damage.
Arrays are written straight to the disk: an alignment of millions is never in memory twice.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from colonnade.core.errors import StorageError
from colonnade.files import writing_atomically

__all__ = ["read_archive", "write_archive"]

# Bytes per write.
_AT_ONCE = 2**20


def write_archive(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a file that only its owner may read."""
    packed = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    with (
        writing_atomically(path, owner_only=True) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, array in {"meta": packed, **arrays}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                _write_array(entry, np.ascontiguousarray(array))


def _write_array(entry: IO[bytes], array: np.ndarray[Any, Any]) -> None:
    """As ``np.save`` does, a megabyte at a time rather than sixteen."""
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(entry, header)
    if array.size:
        content = array.reshape(-1).view(np.uint8).data
        for begin in range(0, len(content), _AT_ONCE):
            entry.write(content[begin : begin + _AT_ONCE])


def read_archive(path: Path, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values and arrays of a file of ``write_archive``; ``what`` names the file in errors."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        meta: dict[str, Any] = json.loads(arrays.pop("meta").tobytes())
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such file; run colonnade align first") from error
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise StorageError(f"{path}: damaged {what} ({error}); align again") from error
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
    return meta, arrays
