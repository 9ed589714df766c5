"""The settings by which a party prepares its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colonnade.core.errors import ConfigError

__all__ = ["PrepareSpec"]


@dataclass(frozen=True, kw_only=True)
class PrepareSpec:
    """The settings of a preparation.

    Columns of text, and those named in ``categorical_columns``, are categorical. ``shape`` folds
    numeric columns into an image or a sequence, e.g. [1, 28, 14]. ``skewed = "log"`` puts columns
    with a long upper tail (amounts, counts, energies) on a log scale before they are scaled.
    ``text_columns`` hold free text, whose words are hashed into ``hash_width`` columns;
    ``hashed_columns`` hold categories of very many levels, hashed as wholes.
    """

    scale: bool = True
    skewed: Literal["keep", "log"] = "keep"
    categorical: Literal["one_hot", "embedding"] = "one_hot"
    categorical_columns: tuple[str, ...] = ()
    text_columns: tuple[str, ...] = ()
    hashed_columns: tuple[str, ...] = ()
    hash_width: int = 256
    missing: Literal["refuse", "mean"] = "refuse"
    constant: Literal["refuse", "drop", "keep"] = "refuse"
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise ConfigError(f"shape: positive sizes only, got {list(self.shape)}")
        if self.hash_width < 2:
            raise ConfigError(f"hash_width: at least 2, got {self.hash_width}")
        named = (*self.categorical_columns, *self.text_columns, *self.hashed_columns)
        for name in named:
            if named.count(name) > 1:
                raise ConfigError(
                    f"text_columns: '{name}' is named twice; a column is either categorical, text "
                    "or hashed"
                )
        if self.skewed == "log" and not self.scale:
            raise ConfigError('skewed: "log" is a part of scaling; set scale = true')
