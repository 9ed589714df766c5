"""The result card on top of a run's page."""

from __future__ import annotations

import math

from colonnade.quality.result_card import ResultCard
from colonnade.report.markup import number, table, text

__all__ = ["card_section"]


def card_section(card: ResultCard) -> str:
    """A table of the headline: a guess, the label holder alone, all together.

    Args:
        card: As the run wrote it.

    Returns:
        HTML.
    """
    rows = [
        [text(row.who), *(number(None if math.isnan(item) else item) for item in values)]
        for row in card.rows
        for values in [(row.value, row.low, row.high)]
    ]
    head = ["who", "value", "from", "to"]
    shown = table(card.title, head, rows, numeric=range(1, 4))
    note = f'<p class="soft">{text(card.note)}</p>\n' if card.note else ""
    return f"{shown}{note}"
