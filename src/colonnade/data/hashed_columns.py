"""Free text and categories of very many levels as a fixed number of columns, by hashing.

Every word, or every category as a whole, adds 1 or -1 to the column that its hash names. So no
vocabulary is learned or kept, and a value that training never saw has its place.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["hashed_categories", "hashed_words"]

Array = np.ndarray[Any, Any]

_WORD = re.compile(r"\w+")


def hashed_words(column: pd.Series[Any], width: int) -> Array:
    """The words of free text, without regard to their order or to capital letters.

    Args:
        column: The texts; a missing one has no words.
        width: How many columns they become.

    Returns:
        (rows, width); every row with words has length 1.
    """
    texts = column.astype(object).where(column.notna(), "")
    sums = _hashed([_WORD.findall(str(text).lower()) for text in texts], width)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    scaled: Array = sums / np.where(lengths > 0, lengths, 1.0)
    return scaled


def hashed_categories(levels: Array, width: int) -> Array:
    """Categories as wholes.

    Args:
        levels: One text per row.
        width: How many columns they become.

    Returns:
        (rows, width), with one 1 or -1 in every row.
    """
    return _hashed([[level] for level in levels], width)


def _hashed(tokens: list[list[str]], width: int) -> Array:
    # Imported when first needed: it takes seconds.
    from sklearn.feature_extraction import FeatureHasher

    found: Array = FeatureHasher(width, input_type="string").transform(tokens).toarray()
    return found
