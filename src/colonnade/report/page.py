"""The two kinds of pages: one run, and several side by side.

A table beside each chart has the chart's numbers. Text from a run is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from colonnade.report.card_section import card_section
from colonnade.report.charts import party_colours, ranking_chart
from colonnade.report.markup import figure, in_two_sizes, number, table, text, write_page
from colonnade.report.overlay import overlaid_quality
from colonnade.report.readable import format_bytes, format_number, format_seconds
from colonnade.report.reading import RunRecord, read_run
from colonnade.report.sections import everybody, run_sections
from colonnade.report.verdict import read_card, verdict

__all__ = ["ComparisonRow", "write_comparison", "write_report"]


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One line of a comparison.

    Args:
        name: The name of the method or setting; a run of this name is linked.
        summary: What it is, in a few words.
        quality: The metric that is compared and drawn.
        metrics: Further metrics, by name.
        bytes_total: Bytes over all links, both ways.
        seconds: The time of training.
        note: A remark; the column is left out where no row has one.
    """

    name: str
    summary: str
    quality: float
    metrics: Mapping[str, float]
    bytes_total: int
    seconds: float
    note: str = ""


def write_report(run_directory: Path, out: Path | None = None) -> Path:
    """Write the page of one run.

    Args:
        run_directory: The run's directory; the run may still be going.
        out: The page's file; by default ``report.html`` in the run's directory.

    Returns:
        The path of the page.

    Raises:
        StorageError: A file of the run is missing or damaged, or the page can't be written.
    """
    record = read_run(run_directory)
    name = run_directory.resolve().name
    body = f'<h1>{text(record.method)}</h1>\n<p class="soft">Run: {text(name)}</p>\n'
    card = read_card(run_directory)
    if card is not None:
        body += verdict(card) + card_section(card)
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
    """Write one page that compares rows and shows the curves of runs.

    Args:
        rows: The lines of the comparison, in order.
        title: The page's title.
        intro: A paragraph below the title.
        out: The page's file.
        quality_name: The name of the rows' metric.
        runs: Run directories by name; a run with the name of a row is linked from it.

    Returns:
        The path of the page.

    Raises:
        StorageError: A file of a run is missing or damaged, or the page can't be written.
    """
    records = {name: read_run(directory) for name, directory in (runs or {}).items()}
    anchors = {name: f"run-{place}" for place, name in enumerate(records, start=1)}
    colours = _colours(list(records.values()))
    body = f"<h1>{text(title)}</h1>\n<p>{text(intro)}</p>\n<h2>Comparison</h2>\n"
    body += _comparison(rows, quality_name, anchors)
    courses = overlaid_quality(records, quality_name)
    if courses:
        body += f"<h2>Quality along the way</h2>\n{courses}"
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
    drawn = partial(
        ranking_chart,
        [(row.name, row.quality) for row in rows],
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
    chart = in_two_sizes(drawn, "ranking")
    return figure([chart], caption) + table("Side by side", head, cells, numeric=numeric)


def _colours(records: Sequence[RunRecord]) -> dict[str, str]:
    """One colour for each party on the whole page, by the order of names alone."""
    parties = sorted({name for record in records for name in record.parties})
    others = (name for record in records for name in everybody(record))
    return party_colours(tuple(dict.fromkeys((*parties, *others))))


def _linked(name: str, anchors: Mapping[str, str]) -> str:
    return f'<a href="#{anchors[name]}">{text(name)}</a>' if name in anchors else text(name)
