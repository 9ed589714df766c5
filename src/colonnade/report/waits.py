"""Who waited for whom in a run, and where its time went."""

from __future__ import annotations

from collections.abc import Mapping

from colonnade.report.markup import count, seconds, table, text
from colonnade.report.reading import RunRecord, Summary

__all__ = ["waits"]


def waits(record: RunRecord, shown: Mapping[str, str]) -> str:
    """The tables on waiting; nothing of a run that is not over, or of an older version.

    Args:
        record: The run.
        shown: By party, how its name is shown.

    Returns:
        HTML.
    """
    found = record.summary
    return "" if found is None else _held_up(found, shown) + _where_it_went(found)


def _held_up(found: Summary, shown: Mapping[str, str]) -> str:
    if not any((*found.held_up_seconds.values(), *found.left_out.values())):
        return ""
    rows = [
        [
            html,
            seconds(found.held_up_seconds.get(name)),
            count(found.late.get(name)),
            count(found.left_out.get(name)),
            *(["always too late" if name in found.starving else ""] if found.starving else []),
        ]
        for name, html in shown.items()
    ]
    head = ["party", "the others waited for it", "answers too late", "left out"]
    head += ["at the end"] if found.starving else []
    return table("Held up by", head, rows, numeric=range(1, 4))


def _where_it_went(found: Summary) -> str:
    if not found.times:
        return ""
    rows = [[text(what), seconds(spent)] for what, spent in found.times.items()]
    return table("Where the time went", ["on", "time"], rows, numeric=range(1, 2))
