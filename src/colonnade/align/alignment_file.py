"""A participant's alignment, the file that training needs: its own rows, and presence.

Other files of an alignment are in ``participant_files``, ``record`` and ``point_lists``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.align.archives import read_archive, write_archive
from colonnade.align.group import Indices
from colonnade.align.ids import PreparedIds
from colonnade.core.errors import DataError, StorageError

__all__ = ["PartyAlignment", "check_together"]

Table = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class PartyAlignment:
    """One participant's alignment: its own rows, and which sample is at which participant.

    Row ``rows[i]`` of its own table is sample ``numbers[i]``; numbers ascend. ``presence`` has a
    row per sample and a column per name. Two alignments belong together if their digests are
    equal. ``table`` is a digest of the participant's ids by row: a table in another order, or with
    other rows, needs a new alignment.
    """

    participant: str
    names: tuple[str, ...]
    label_holder: str
    mode: str
    run: str
    round: int
    num_samples: int
    numbers: Indices
    rows: Indices
    presence: Table
    digest: str
    table: str = ""

    def __post_init__(self) -> None:
        shapes = (self.numbers.shape, self.rows.shape, self.presence.shape)
        size = (len(self.numbers),)
        if shapes != (size, size, (self.num_samples, len(self.names))):
            raise StorageError(
                f"alignment of '{self.participant}': its parts have sizes {shapes} for "
                f"{self.num_samples} samples of {len(self.names)} participants; align again"
            )

    def check_ids(self, ids: PreparedIds) -> None:
        """Refuse a table whose ids are not, row by row, those that were aligned."""
        if self.table != ids.digest(self.run.encode()):
            raise DataError(
                f"the table of '{self.participant}' is not the one that was aligned: ids were "
                "added, removed, changed or put in another order; align again (--extend keeps "
                "earlier sample numbers)"
            )

    def row_of_sample(self) -> Indices:
        """The own row of every sample; -1 where it is not here."""
        found = np.full(self.num_samples, -1, dtype=np.int64)
        found[self.numbers] = self.rows
        return found

    def save(self, path: Path) -> None:
        """Write the file, which only its owner may read."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        arrays = {name: content.pop(name) for name in ("numbers", "rows", "presence")}
        write_archive(path, content, arrays)

    @classmethod
    def load(cls, path: Path) -> PartyAlignment:
        """Read the file; a damaged one is refused."""
        meta, arrays = read_archive(path, "alignment")
        meta["names"] = tuple(meta["names"])
        try:
            return cls(**meta, **arrays)
        except TypeError as error:
            raise StorageError(f"{path}: not an alignment of this version; align again") from error


def check_together(digests: Mapping[str, str]) -> None:
    """Refuse alignments that do not come from the same run: their sample numbers differ."""
    if len(set(digests.values())) > 1:
        listed = ", ".join(f"'{name}' {digest[:12]}" for name, digest in sorted(digests.items()))
        raise DataError(
            f"these alignments don't belong together (digests: {listed}); align again, or take "
            "the files of one and the same alignment"
        )
