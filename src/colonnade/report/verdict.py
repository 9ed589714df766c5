"""The verdict on top of a run's page: what it reached, and whether that is more than chance."""

from __future__ import annotations

import json
import math
from pathlib import Path

from colonnade.core.errors import StorageError
from colonnade.quality.result_card import CARD, CardRow, ResultCard
from colonnade.report.markup import text

__all__ = ["read_card", "verdict"]

_LOWER = frozenset({"loss", "rmse", "mae"})


def read_card(run: Path) -> ResultCard | None:
    """The result card of a run directory.

    Args:
        run: The directory.

    Returns:
        None if the run has none.

    Raises:
        StorageError: The file is damaged.
    """
    file = run / CARD
    if not file.exists():
        return None
    try:
        return ResultCard.of(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{file}: damaged: {type(error).__name__}: {error}") from error


def verdict(card: ResultCard) -> str:
    """One or two sentences: what was reached, and against what it counts.

    Two values differ if each is outside the other's 95 % interval. Where there is no interval, the
    sentence says so and claims nothing.

    Args:
        card: A guess, perhaps the label holder alone, and all together.

    Returns:
        HTML.
    """
    *others, last = card.rows
    if math.isnan(last.value) or not others:
        return ""
    said = f"<strong>{text(last.who)} reaches {text(card.title.split(' on ')[0])} {last.value:.3f}"
    said += f"</strong> on {card.num_samples:,} {text(card.part)} samples."
    is_lower_better = card.metric in _LOWER
    alone = next((row for row in others if row.who.endswith(" alone")), None)
    against = alone or others[0]
    difference = (last.value - against.value) * (-1 if is_lower_better else 1)
    shown = f"{abs(difference):.3f} {'more' if difference > 0 else 'less'} than {text(against.who)}"
    if is_lower_better:
        shown = (
            f"{abs(difference):.3f} {'better' if difference > 0 else 'worse'} than "
            f"{text(against.who)}"
        )
    if math.isnan(last.low) or math.isnan(against.low):
        said += f" That is {shown}; no interval is known, so this may be chance."
        kind = "warn"
    elif _differ(last, against):
        said += f" That is {shown}: more than chance on these samples."
        kind = "good" if difference > 0 else "warn"
    else:
        said += (
            f" That is {shown}, which may be chance: the 95 % intervals hold each other's value. "
            "More held-out samples, or several seeds, would tell."
        )
        kind = "warn"
    guess = others[0]
    if guess is not against and not math.isnan(guess.value) and not _differ(last, guess):
        said += f" It is not clearly better than {text(guess.who)} ({guess.value:.3f})."
        kind = "warn"
    return f'<p class="verdict {kind}">{said}</p>\n'


def _differ(one: CardRow, other: CardRow) -> bool:
    return not (one.low <= other.value <= one.high and other.low <= one.value <= other.high)
