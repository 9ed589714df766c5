"""The result card on top of a run's page."""

from __future__ import annotations

import json
import math
from pathlib import Path

from colonnade.core.errors import StorageError
from colonnade.quality.result_card import ResultCard
from colonnade.report.markup import number, table, text

__all__ = ["card_section"]


def card_section(file: Path) -> str:
    """A table of the headline: a guess, the label holder alone, all together.

    Args:
        file: The card that a run wrote.

    Returns:
        HTML.

    Raises:
        StorageError: The file is damaged.
    """
    try:
        card = ResultCard.of(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{file}: damaged: {type(error).__name__}: {error}") from error
    rows = [
        [text(row.who), *(number(None if math.isnan(item) else item) for item in values)]
        for row in card.rows
        for values in [(row.value, row.low, row.high)]
    ]
    head = ["who", "value", "from", "to"]
    shown = table(card.title, head, rows, numeric=range(1, 4))
    note = f'<p class="soft">{text(card.note)}</p>\n' if card.note else ""
    return f"{shown}{note}"
