"""The sections about missing blocks: quality by observed set, calibration, who left and joined."""

from __future__ import annotations

import math
from collections.abc import Sequence

from colonnade.report.heat_map import Column, heat_map
from colonnade.report.markup import count, figure, folded_table, number, table, text
from colonnade.report.missing_reading import Association, Missing, SetQuality, Start
from colonnade.report.reading import RunRecord

__all__ = ["missing_sections", "warnings_first"]

# With more sets than this a column of the picture stands for all sets of one size.
_MOST_SETS = 40
_FEW_ROWS = 16


def warnings_first(record: RunRecord) -> str:
    """Warnings, and parties that left since: a reader needs them before any number."""
    warnings = record.summary.missing.warnings if record.summary else ()
    said = [f"<strong>Warning:</strong> {text(item)}." for item in warnings]
    for name in record.left:
        said.append(
            f"{text(name)} left this federation after training; the numbers here are from before."
        )
    return "".join(f'<p class="warn">{line}</p>\n' for line in said)


def missing_sections(record: RunRecord) -> dict[str, str]:
    """The sections that this run has facts for, by title."""
    if record.summary is None:
        return {}
    missing, found = record.summary.missing, {}
    if missing.by_set:
        found["Quality by observed set"] = _by_set(record, missing)
    if missing.temperatures or missing.spreads:
        found["Calibration by number of blocks"] = _calibration(missing)
    if missing.associations:
        found["Presence and label"] = _associations(missing.associations)
    if missing.start is not None:
        found["Started from an earlier run"] = _start(missing.start)
    return found


def _by_set(record: RunRecord, missing: Missing) -> str:
    sets = missing.by_set if len(missing.by_set) <= _MOST_SETS else missing.by_size
    by_size = sets is missing.by_size
    name = record.quality_name or "quality"
    columns = [
        Column(
            group=_blocks(item.size),
            parties=frozenset(record.parties if by_size else item.parties),
            num_samples=item.num_samples,
            quality=item.quality,
            each=item.each,
        )
        for item in sets
    ]
    each = any(item.each for item in sets)
    caption = (
        f"Quality ({name}) on the {missing.part} part by the blocks that samples have; a fuller "
        "colour is better. First row: the federation's answer. "
        + (
            "Below: each party's own predictor; a dot where it does not have the samples."
            if each
            else "Below: which blocks the set has."
        )
        + (" There are too many sets to draw; a column is a number of blocks." if by_size else "")
    )
    chart = heat_map(
        columns,
        parties=record.parties,
        together="federation",
        label=f"Heat map: {name} by observed set. The numbers are in the table after it.",
    )
    return figure([chart], caption) + _table(record, missing.by_set, name)


def _table(record: RunRecord, sets: Sequence[SetQuality], name: str) -> str:
    predictors = [party for party in record.parties if any(party in item.each for item in sets)]
    head = ["blocks", "samples", name, *(f"{name} of {party}" for party in predictors)]
    rows = [
        [
            text(", ".join(item.parties)),
            count(item.num_samples),
            number(item.quality),
            *(
                number(item.each[party]) if party in item.each else "not in it"
                for party in predictors
            ),
        ]
        for item in sets
    ]
    title, numeric = "Quality by observed set in numbers", range(1, len(head))
    if len(rows) <= _FEW_ROWS:
        return table(title, head, rows, numeric=numeric)
    return folded_table(title, head, rows, numeric=numeric, num_all=len(rows))


def _calibration(missing: Missing) -> str:
    fitted, what = missing.temperatures, "temperature"
    said = (
        "Outputs are divided by a temperature, fitted on the validation part for each number of "
        "blocks; above 1 the model was too sure of itself, below 1 not sure enough."
    )
    if missing.spreads:
        fitted, what = missing.spreads, "error"
        said = "The error to expect: the root mean square on the validation part."
    rows = [[_blocks(int(size)), number(value)] for size, value in fitted.items()]
    shown = f"<p>{said}</p>\n" + table("By number of blocks", ["blocks", what], rows, numeric=(1,))
    errors = [
        [text(part), number(before), number(after)]
        for part, (before, after) in missing.errors.items()
    ]
    if not errors:
        return shown
    head = ["part", "before", "after"]
    return shown + table("Expected calibration error", head, errors, numeric=(1, 2))


def _associations(found: Sequence[Association]) -> str:
    names = {"cramers_v": "Cramér's V", "correlation_ratio": "correlation ratio"}
    rows = [
        [
            text(item.party),
            text(names.get(item.measure, item.measure)),
            number(item.value),
            number(item.p_value),
            "strong" if item.is_strong else "no warning",
        ]
        for item in found
    ]
    return table(
        "Having a sample against its label",
        ["party", "measure", "value", "p-value", "judgement"],
        rows,
        numeric=(2, 3),
    )


def _start(start: Start) -> str:
    facts = [
        ("stayed", ", ".join(start.stayed)),
        ("joined", ", ".join(start.joined) or "nobody"),
        ("frozen", ", ".join(start.frozen) or "nobody"),
    ]
    if start.quality_before is not None and start.quality_after is not None:
        fall = start.quality_before - start.quality_after
        kept = "kept" if fall <= start.bound else "not kept"
        facts += [
            (f"quality without them before ({start.part})", number(start.quality_before)),
            (f"quality without them after ({start.part})", number(start.quality_after)),
            ("fall", number(fall if math.isfinite(fall) else None)),
            ("bound", f"{number(start.bound)}, {kept}"),
        ]
    rows = [[text(what), text(value)] for what, value in facts]
    return table("Who goes on and who is new", ["what", "value"], rows, numeric=())


def _blocks(size: int) -> str:
    return "1 block" if size == 1 else f"{size} blocks"
