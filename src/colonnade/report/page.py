"""Write the pages: one run, or several side by side.

Every number in a chart also stands in a table beside it. Whatever comes from a run is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from colonnade.report.charts import (
    format_bytes,
    format_number,
    format_seconds,
    party_colours,
    ranking_chart,
)
from colonnade.report.markup import figure, number, table, text, write_page
from colonnade.report.reading import RunRecord, read_run
from colonnade.report.sections import everybody, run_sections

__all__ = ["ComparisonRow", "write_comparison", "write_report"]


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One line of a comparison: a method or a setting and what came of it."""

    name: str
    summary: str
    quality: float
    metrics: Mapping[str, float]
    bytes_total: int
    seconds: float
    note: str = ""


def write_report(run_directory: Path, out: Path | None = None) -> Path:
    """Write the page of one run, in its directory unless told otherwise; gives the page's path."""
    record = read_run(run_directory)
    name = run_directory.resolve().name
    body = f'<h1>{text(record.method)}</h1>\n<p class="soft">Run: {text(name)}</p>\n'
    body += run_sections(record, key="run", colours=_colours([record]), heading_level=2)
    return write_page(f"{record.method}: {name}", body, out or run_directory / "report.html")


def write_comparison(
    rows: Sequence[ComparisonRow],
    *,
    title: str,
    intro: str,
    out: Path,
    quality_name: str = "quality",
    runs: Mapping[str, Path] | None = None,
) -> Path:
    """Write one page that compares rows and holds the curves of the runs; gives the page's path.

    A run with the name of a row is linked from it. A party has one colour on the whole page.
    """
    records = {name: read_run(directory) for name, directory in (runs or {}).items()}
    anchors = {name: f"run-{place}" for place, name in enumerate(records, start=1)}
    colours = _colours(list(records.values()))
    body = f"<h1>{text(title)}</h1>\n<p>{text(intro)}</p>\n<h2>Comparison</h2>\n"
    body += _comparison(rows, quality_name, anchors)
    for name, record in records.items():
        sections = run_sections(record, key=anchors[name], colours=colours, heading_level=3)
        body += (
            f'<section class="run" id="{anchors[name]}">\n<h2>{text(name)}</h2>\n'
            f"{sections}</section>\n"
        )
    return write_page(title, body, out)


def _comparison(
    rows: Sequence[ComparisonRow], quality_name: str, anchors: Mapping[str, str]
) -> str:
    if not rows:
        return "<p>There is nothing to compare yet.</p>\n"
    chart = ranking_chart(
        [(row.name, row.quality) for row in rows],
        key="ranking",
        label=f"Bars: {quality_name} of each row. The numbers are in the table.",
        x_label=quality_name,
    )
    metrics = list(
        dict.fromkeys(name for row in rows for name in row.metrics if name != quality_name)
    )
    notes = ["note"] if any(row.note for row in rows) else []
    cells = [
        [
            _linked(row.name, anchors),
            format_number(row.quality),
            *(number(row.metrics.get(metric)) for metric in metrics),
            format_bytes(row.bytes_total),
            format_seconds(row.seconds),
            text(row.summary),
            *(text(row.note) for _ in notes),
        ]
        for row in rows
    ]
    head = ["name", quality_name, *metrics, "bytes", "time", "what it is", *notes]
    numeric = range(1, 4 + len(metrics))
    caption = f"{quality_name}, from zero; more is better."
    return figure([chart], caption) + table("Side by side", head, cells, numeric=numeric)


def _colours(records: Sequence[RunRecord]) -> dict[str, str]:
    """One colour per name, the same before and after a run says in which order parties come."""
    parties = sorted({name for record in records for name in record.parties})
    others = (name for record in records for name in everybody(record))
    return party_colours(tuple(dict.fromkeys((*parties, *others))))


def _linked(name: str, anchors: Mapping[str, str]) -> str:
    return f'<a href="#{anchors[name]}">{text(name)}</a>' if name in anchors else text(name)
