"""The section about mistakes: ROC, precision and recall, confusion, calibration, residuals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError
from colonnade.quality.judgement import JUDGEMENT
from colonnade.report.charts import curves_chart
from colonnade.report.curves import Curve, Tone
from colonnade.report.markup import count, figure, in_two_sizes, number, table, text

__all__ = ["judgement_section"]


def judgement_section(run: Path, key: str) -> dict[str, str]:
    """Titles and HTML of what a run wrote about its mistakes.

    Args:
        run: The run's directory.
        key: Ids of elements begin with it.

    Returns:
        Nothing for a run that wrote none.

    Raises:
        StorageError: The file is damaged.
    """
    file = run / JUDGEMENT
    if not file.exists():
        return {}
    try:
        return {"Mistakes": _section(json.loads(file.read_text(encoding="utf-8")), key)}
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise StorageError(f"{file}: damaged: {type(error).__name__}: {error}") from error


def _section(found: Mapping[str, Any], key: str) -> str:
    shown = f"<p>On {int(found['num_samples']):,} samples of the {text(found['part'])} part.</p>\n"
    if "roc" in found:
        shown += _ranking(found, key)
    if found.get("calibration"):
        shown += _calibration(found["calibration"], key)
    if "confusion" in found:
        shown += _confusion(found["confusion"])
    if "residuals" in found:
        shown += _residuals(found["residuals"], key)
    return shown


def _square(curves: Sequence[Curve], *, key: str, label: str, x: str, y: str) -> str:
    return curves_chart(
        curves,
        key=key,
        label=label,
        x_label=x,
        y_label=y,
        size="half",
        x_is_share=True,
        y_range=(0.0, 1.02),
    )


def _ranking(found: Mapping[str, Any], key: str) -> str:
    counts = found["confusion"]["counts"]
    share = sum(counts[1]) / max(1, sum(map(sum, counts)))
    roc, trade = found["roc"], found["precision_recall"]
    diagonal = Curve(name="a guess", xs=[0.0, 1.0], ys=[0.0, 1.0], tone="muted", faint=True)
    level = Curve(name="a guess", xs=[0.0, 1.0], ys=[share, share], tone="muted", faint=True)
    charts = [
        _square(
            [diagonal, _curve("this model", roc)],
            key=f"{key}-roc",
            label="Line: true positive rate over false positive rate.",
            x="false positive rate",
            y="true positive rate",
        ),
        _square(
            [level, _curve("this model", trade)],
            key=f"{key}-trade",
            label="Line: precision over recall.",
            x="recall",
            y="precision",
        ),
    ]
    rows = [[number(x), number(y)] for x, y in roc]
    return figure(charts, "ROC, and precision over recall, at every threshold.") + (
        "<details><summary>ROC in numbers</summary>\n"
        + table("ROC", ["false positive rate", "true positive rate"], rows, numeric=range(2))
        + "</details>\n"
    )


def _curve(name: str, points: Sequence[Sequence[float]]) -> Curve:
    return Curve(name=name, xs=[float(x) for x, _ in points], ys=[float(y) for _, y in points])


def _calibration(bins: Sequence[Mapping[str, float]], key: str) -> str:
    ideal = Curve(name="ideal", xs=[0.0, 1.0], ys=[0.0, 1.0], tone="muted", faint=True)
    own = _curve("this model", [[item["said"], item["happened"]] for item in bins])
    chart = _square(
        [ideal, own],
        key=f"{key}-calibration",
        label="Line: how often it was so, over how sure the model was. The table has the numbers.",
        x="how sure the model was",
        y="how often it was so",
    )
    rows = [
        [number(item["said"]), number(item["happened"]), count(int(item["num_samples"]))]
        for item in bins
    ]
    numbers = table(
        "Calibration; groups of fewer than five samples are left out",
        ["how sure", "how often so", "samples"],
        rows,
        numeric=range(3),
    )
    caption = "Calibration: above the diagonal the model was too unsure, below it too sure."
    return f'<div class="pair">{figure([chart], caption)}<div>{numbers}</div></div>\n'


def _confusion(found: Mapping[str, Any]) -> str:
    classes = [str(item) for item in found["classes"]]
    rows = []
    for name, counts in zip(classes, found["counts"], strict=True):
        total = sum(counts)
        right = counts[classes.index(name)] / total if total else None
        rows.append([text(name), *(count(int(item)) for item in counts), number(right)])
    head = ["true class", *(f"predicted {name}" for name in classes), "share right"]
    return table("Confusion", head, rows, numeric=range(1, len(head)))


def _residuals(found: Mapping[str, Any], key: str) -> str:
    groups = found["groups"]
    said = f"<p>True minus predicted is {number(found['mean'])} on average.</p>\n"
    if not groups:
        return said
    xs = [float(item["predicted"]) for item in groups]
    zero = Curve(name="no error", xs=xs, ys=[0.0] * len(xs), tone="muted", faint=True)

    def line(name: str, part: str, tone: Tone) -> Curve:
        return Curve(name=name, xs=xs, ys=[float(item[part]) for item in groups], tone=tone)

    lines = [
        line("90 %", "high", "muted"),
        line("median", "middle", "accent"),
        line("10 %", "low", "ink"),
    ]
    drawn = partial(
        curves_chart,
        [zero, *lines],
        label="Lines: quantiles of true minus predicted, over the prediction.",
        x_label="predicted",
        y_label="true minus predicted",
        x_is_share=True,
    )
    chart = in_two_sizes(drawn, f"{key}-residuals")
    rows = [
        [*(number(item[part]) for part in ("predicted", "low", "middle", "high"))]
        for item in groups
    ]
    head = ["predicted", "10 %", "median", "90 %"]
    return (
        said
        + figure([chart], "Residuals: flat around zero is good.")
        + table("Residuals in numbers", head, rows, numeric=range(4))
    )
