"""The quality of several runs in one picture: over exchanges, and over time on each clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from colonnade.report.axes import axis_of
from colonnade.report.charts import curves_chart
from colonnade.report.curves import Curve
from colonnade.report.markup import figure, text
from colonnade.report.reading import EvaluationPoint, RunRecord
from colonnade.report.sections import clock_of

__all__ = ["overlaid_quality"]


@dataclass(frozen=True, kw_only=True)
class _Course:
    """A run's evaluations on one part, and its place among all runs, which fixes its colour."""

    name: str
    place: int
    clock: str
    part: str
    points: tuple[EvaluationPoint, ...]


def overlaid_quality(records: Mapping[str, RunRecord], metric: str) -> str:
    """One line for each run, in charts that share an axis of quality.

    Args:
        records: The runs, by name.
        metric: The metric that is drawn.

    Returns:
        HTML; empty if fewer than two runs recorded that metric along the way. Runs without it are
        named below the charts. Times on different clocks have charts of their own.
    """
    courses = [
        course
        for place, (name, record) in enumerate(records.items())
        if (course := _course(name, place, record, metric)) is not None
    ]
    if len(courses) < 2:
        return ""
    values = [point.metrics[metric] for course in courses for point in course.points]
    clocks = list(dict.fromkeys(course.clock for course in courses))
    parts = {course.part for course in courses}
    charts = []
    for place, clock in enumerate((None, *clocks)):
        over = "exchange" if clock is None else "elapsed time"
        drawn = [course for course in courses if clock in (None, course.clock)]
        charts.append(
            curves_chart(
                [_curve(course, metric, len(parts) > 1, clock is not None) for course in drawn],
                key=f"overlay-{place}",
                label=f"Lines: {metric} of {len(drawn)} run(s) over {over}"
                + ("" if clock is None else f" on {clock}")
                + ". The numbers are in the sections of the runs.",
                x_label=over if len(clocks) < 2 or clock is None else f"{over}, {clock}",
                y_label=metric,
                size="half",
                x_is_seconds=clock is not None,
                y_range=axis_of(metric, values),
                holds=True,
            )
        )
    where = f"the {parts.pop()} part" if len(parts) == 1 else "the part that each line names"
    caption = f"{metric} on {where}, over exchanges and over time on {' and on '.join(clocks)}."
    without = [name for name in records if name not in {course.name for course in courses}]
    note = f'<p class="soft">No {text(metric)} along the way: {text(", ".join(without))}.</p>\n'
    return figure(charts, caption) + (note if without else "")


def _course(name: str, place: int, record: RunRecord, metric: str) -> _Course | None:
    """The validation part, or else the first part that has the metric."""
    known = [
        point for point in record.evaluations if math.isfinite(point.metrics.get(metric, math.nan))
    ]
    parts = list(dict.fromkeys(point.part for point in known))
    if not parts:
        return None
    part = "validation" if "validation" in parts else parts[0]
    ours = sorted((p for p in known if p.part == part), key=lambda point: point.exchange)
    return _Course(name=name, place=place, clock=clock_of(record), part=part, points=tuple(ours))


def _curve(course: _Course, metric: str, with_part: bool, over_time: bool) -> Curve:
    return Curve(
        name=f"{course.name} ({course.part})" if with_part else course.name,
        xs=[point.elapsed if over_time else point.exchange for point in course.points],
        ys=[point.metrics[metric] for point in course.points],
        place=course.place,
    )
