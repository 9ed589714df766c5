"""The sections about one run: its end, its curves, and each party's time, bytes and privacy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial

from colonnade.report.axes import axis_of, compared_with
from colonnade.report.charts import PartyBars, curves_chart, party_bars_chart
from colonnade.report.curves import Curve, Tone, smoothed, thinned
from colonnade.report.judgement_section import judgement_section
from colonnade.report.markup import (
    NOT_RECORDED,
    count,
    figure,
    folded_table,
    in_two_sizes,
    number,
    seconds,
    table,
    text,
)
from colonnade.report.missing_section import missing_sections, warnings_first
from colonnade.report.protection_words import protection_in_words
from colonnade.report.readable import format_bytes
from colonnade.report.reading import EvaluationPoint, RunRecord
from colonnade.report.waits import waits
from colonnade.report.worth_section import worth_section

__all__ = ["clock_of", "everybody", "run_sections"]

_MOST_ROWS = 40
# Methods that put every column in one place: there, nothing is private between parties.
_POOLING = frozenset({"centralized"})
_STOPPED: Mapping[str, str] = {
    "length": "It ended at the length that was set.",
    "epochs": "It ended after the epochs that were set.",
    "exchanges": "It ended after the exchanges that were set.",
    "target": "It ended when the target quality was reached.",
    "patience": "It ended because the validation part no longer got better; the best was kept.",
    "interrupted": "It was interrupted: the numbers are those reached by then.",
    "diverged": "It diverged: the loss was no longer a finite number. Don't use this model.",
    "refused": "A party's own rules ended it; the model is that of the last checkpoint before.",
}
_TROUBLE = frozenset({"interrupted", "diverged", "refused"})
_TONES: Mapping[str, Tone] = {"validation": "accent", "test": "ink"}


def everybody(record: RunRecord) -> tuple[str, ...]:
    """The parties, then a label holder without a block, then everybody else that was measured."""
    holder = () if record.label_holder is None else (record.label_holder,)
    measured = (record.bytes_up, record.bytes_down, record.computing, record.waiting)
    others = sorted({name for values in measured for name in values})
    return tuple(dict.fromkeys((*record.parties, *holder, *others)))


def run_sections(
    record: RunRecord, *, key: str, colours: Mapping[str, str], heading_level: int
) -> str:
    """All sections of one run as HTML; ids of elements begin with ``key``."""
    tag = f"h{heading_level}"
    titled = {
        "Loss": _loss(record, key),
        "Quality": _quality(record, key),
        **judgement_section(record.directory, key),
        **missing_sections(record),
        **worth_section(record.worth),
        "Time of each party": _times(record, key, colours),
        "Bytes of each party": _traffic(record, key, colours),
        "Privacy of each party": _privacy(record, colours),
        "Settings": _settings(record),
    }
    body = "".join(f"<{tag}>{title}</{tag}>\n{content}" for title, content in titled.items())
    return _ending(record) + warnings_first(record) + _left_out(record) + _tiles(record) + body


def _ending(record: RunRecord) -> str:
    if record.summary is None:
        return (
            '<p class="warn"><strong>This run is unfinished.</strong> It has no summary.json: it '
            "is still going, or it was stopped before it could write one. What follows is as of "
            f"exchange {record.num_exchanges:,}, the last one recorded.</p>\n"
        )
    stopped = record.summary.stopped_by
    kind = ' class="warn"' if stopped in _TROUBLE else ""
    why = "" if record.summary.refusal is None else f" It said: {text(record.summary.refusal)}."
    return f"<p{kind}>{_STOPPED.get(stopped, f'It ended by: {text(stopped)}.')}{why}</p>\n"


def _left_out(record: RunRecord) -> str:
    said = []
    if record.half_written:
        said.append("The last line of metrics.jsonl is half written and was left out.")
    if record.num_unknown:
        said.append(
            f"Left out: {record.num_unknown} line(s) of metrics.jsonl, of a kind that this "
            "version does not know."
        )
    return "".join(f'<p class="soft">{line}</p>\n' for line in said)


def _tiles(record: RunRecord) -> str:
    summary = record.summary
    part, quality = _headline(record)
    up, down = sum(record.bytes_up.values()), sum(record.bytes_down.values())
    epochs = summary.epochs if summary else None
    wall = summary.seconds if summary else None
    time, clock = seconds(record.elapsed), f"on {clock_of(record)}"
    if wall is not None:
        time, clock = seconds(wall), f"by the wall clock; {time} {clock}"
    tiles = [
        ("Quality", number(quality), f"{text(record.quality_name or 'nothing')} on {text(part)}"),
        (
            "Exchanges",
            count(record.num_exchanges),
            "so far" if summary is None else "" if epochs is None else f"{epochs:.4g} epochs",
        ),
        ("Time", time, clock),
        ("Bytes", format_bytes(up + down), f"{format_bytes(up)} up, {format_bytes(down)} down"),
    ]
    held = "".join(
        f"<div><dt>{title}</dt><dd>{value}<small>{more}</small></dd></div>\n"
        for title, value, more in tiles
    )
    return f'<dl class="tiles">\n{held}</dl>\n'


def _headline(record: RunRecord) -> tuple[str, float | None]:
    """The quality that counts and its part: test, or else validation, or else the latest one."""
    name = record.quality_name
    if name is None:
        return "no part yet", None
    ends = record.summary.quality if record.summary else {}
    for part in ("test", "validation", *ends):
        if name in ends.get(part, {}):
            return f"the {part} part", ends[part][name]
    for point in reversed(record.evaluations):
        if name in point.metrics:
            where = f"the {point.part} part, exchange {point.exchange:,}"
            return where, point.metrics[name]
    return "no part", None


def _loss(record: RunRecord, key: str) -> str:
    points = record.exchanges
    if not points:
        return "<p>No exchange is recorded yet.</p>\n"
    xs = [point.exchange for point in points]
    raw = [point.loss for point in points]
    means = smoothed(raw)
    broken = [point.exchange for point in points if math.isnan(point.loss)]
    caption = "Training loss as recorded, and the mean of those around each."
    if broken:
        caption += (
            f" It was not a finite number {len(broken)} time(s), first at exchange {broken[0]:,}:"
            " those are gaps."
        )
    drawn = partial(
        curves_chart,
        [
            Curve(name="as recorded", xs=xs, ys=raw, tone="muted", faint=True),
            Curve(name="mean around", xs=xs, ys=means),
        ],
        label="Lines: training loss over exchanges. The numbers are in the table after it.",
        x_label="exchange",
        y_label="loss",
        y_range=_from_zero(raw),
    )
    chart = in_two_sizes(drawn, f"{key}-loss")
    rows = [
        [count(xs[n]), seconds(points[n].elapsed), number(raw[n]), number(means[n])]
        for n in thinned(len(points), _MOST_ROWS)
    ]
    head = ["exchange", "elapsed", "loss", "mean around"]
    numbers = folded_table("Loss in numbers", head, rows, numeric=range(4), num_all=len(points))
    return figure([chart], caption) + numbers


def _quality(record: RunRecord, key: str) -> str:
    at_end = _quality_at_end(record)
    name, points = record.quality_name, record.evaluations
    if name is None or not points:
        return at_end + "<p>No evaluation is recorded along the way.</p>\n"
    levels = compared_with(record.directory, name)
    found = [point.metrics.get(name, math.nan) for point in points]
    bounds = axis_of(name, [*found, *(height for _, height in levels)])
    charts = [
        curves_chart(
            _quality_curves(points, name, over_time=over_time),
            key=f"{key}-quality-{'time' if over_time else 'exchange'}",
            label=f"Lines: {name} over {label}. The numbers are in the table after it.",
            x_label=label,
            y_label=name,
            size="half",
            x_is_seconds=over_time,
            y_range=bounds,
            levels=levels,
        )
        for over_time, label in ((False, "exchange"), (True, "elapsed time"))
    ]
    metrics = list(dict.fromkeys(metric for point in points for metric in point.metrics))
    rows = [
        [
            count(point.exchange),
            text(point.part),
            seconds(point.elapsed),
            *(number(point.metrics.get(metric)) for metric in metrics),
        ]
        for point in (points[n] for n in thinned(len(points), _MOST_ROWS))
    ]
    numbers = folded_table(
        "Quality in numbers",
        ["exchange", "part", "elapsed", *metrics],
        rows,
        numeric=[0, *range(2, 3 + len(metrics))],
        num_all=len(points),
    )
    caption = f"Held-out {name}, over exchanges and over time on {clock_of(record)}."
    return at_end + figure(charts, caption) + numbers


def _from_zero(values: Sequence[float]) -> tuple[float, float] | None:
    """Loss is drawn from zero: a small change looks small."""
    finite = [value for value in values if math.isfinite(value)]
    return (0.0, 1.08 * max(finite)) if finite and min(finite) >= 0 < max(finite) else None


def _quality_at_end(record: RunRecord) -> str:
    if record.summary is None or not record.summary.quality:
        return ""
    ends, samples = record.summary.quality, record.summary.num_samples
    metrics = list(dict.fromkeys(metric for found in ends.values() for metric in found))
    return table(
        f"At the end ({record.summary.task} target)",
        ["measure", *ends],
        # A row a metric: there are two parts, and with models of parties' own a dozen metrics.
        [
            ["samples", *(count(samples.get(part)) for part in ends)],
            *([text(m), *(number(found.get(m)) for found in ends.values())] for m in metrics),
        ],
        numeric=range(1, 1 + len(ends)),
    )


def _quality_curves(
    points: tuple[EvaluationPoint, ...], name: str, *, over_time: bool
) -> list[Curve]:
    curves = []
    for part in dict.fromkeys(point.part for point in points):
        ours = sorted((p for p in points if p.part == part), key=lambda point: point.exchange)
        curves.append(
            Curve(
                name=part,
                xs=[point.elapsed if over_time else point.exchange for point in ours],
                ys=[point.metrics.get(name, math.nan) for point in ours],
                tone=_TONES.get(part, "muted"),
            )
        )
    return curves


def _times(record: RunRecord, key: str, colours: Mapping[str, str]) -> str:
    computing, waiting = record.computing, record.waiting
    names = [
        name
        for name in everybody(record)
        if name in record.parties or name in computing or name in waiting
    ]
    if not names:
        return "<p>No times are recorded yet.</p>\n"
    steps = record.summary.local_steps if record.summary else {}
    caption = f"Full colour: computing. Pale: waiting. Time on {clock_of(record)}."
    if record.summary is None:
        caption += " Waiting is known once the run is over."
    bars = PartyBars(
        names=names,
        marks=_marks(record, "label holder"),
        first=("computing", computing),
        second=("waiting", waiting),
        quantity="seconds",
        stacked=True,
    )
    label = "Bars: seconds computing and waiting of each party. The numbers are in the table."
    drawn = partial(party_bars_chart, bars, colours=colours, label=label)
    chart = in_two_sizes(drawn, f"{key}-times")
    rows = [
        [
            _party(record, name, colours),
            seconds(computing.get(name)),
            seconds(waiting.get(name)),
            count(steps.get(name)),
        ]
        for name in names
    ]
    head = ["party", "computing", "waiting", "local steps"]
    own = table("Time in numbers", head, rows, numeric=range(1, 4))
    shown = {name: _party(record, name, colours) for name in names}
    return figure([chart], caption) + own + waits(record, shown)


def _traffic(record: RunRecord, key: str, colours: Mapping[str, str]) -> str:
    up, down = record.bytes_up, record.bytes_down
    names = list(dict.fromkeys((*record.parties, *up, *down)))
    if not names:
        return "<p>No bytes are recorded yet.</p>\n"
    caption = (
        "Full colour: up, to the label holder. Pale: down, to the party. Training only; "
        "evaluation is not counted."
    )
    bars = PartyBars(
        names=names,
        marks=_marks(record, "local"),
        first=("up", up),
        second=("down", down),
        quantity="bytes",
        stacked=False,
    )
    label = "Bars: bytes up and down of each party. The numbers are in the table."
    drawn = partial(party_bars_chart, bars, colours=colours, label=label)
    chart = in_two_sizes(drawn, f"{key}-bytes")
    where = NOT_RECORDED if record.label_holder is None else "over its link"
    local = "local: its own block is at its side, nothing crosses a link"
    rows = [
        [
            _party(record, name, colours),
            count(up.get(name)),
            count(down.get(name)),
            local if name == record.label_holder else where,
        ]
        for name in names
    ]
    head = ["party", "bytes up", "bytes down", "where"]
    return figure([chart], caption) + table("Bytes in numbers", head, rows, numeric=(1, 2))


def _privacy(record: RunRecord, colours: Mapping[str, str]) -> str:
    if record.summary is None:
        return "<p>What was spent is known once the run is over.</p>\n"
    note = ""
    if record.summary.method in _POOLING:
        note = (
            '<p class="warn">This method puts the columns of every party in one place: nothing is '
            "private between them.</p>\n"
        )
    rows = [
        [_party(record, name, colours), protection_in_words(record, name)]
        for name in record.parties
    ]
    return note + table(
        "Differential privacy of what each party sent; a smaller ε protects more",
        ["party", "protection"],
        rows,
        numeric=(),
    )


def _settings(record: RunRecord) -> str:
    summary = record.summary
    content = ""
    if summary is not None:
        facts = {
            "method": summary.method,
            "best on validation": f"at exchange {summary.best_exchange:,}"
            if summary.best_exchange
            else None,
            "label holder": summary.label_holder,
            "parties": str(len(summary.parties)),
            "samples": ", ".join(f"{n:,} {part}" for part, n in summary.num_samples.items()),
            "fabric": summary.fabric,
            "seed": None if summary.seed is None else str(summary.seed),
            "Colonnade": summary.version,
            "revision": summary.revision,
        }
        rows = [[text(fact), text(value or NOT_RECORDED)] for fact, value in facts.items()]
        content += table("What ran", ["what", "value"], rows, numeric=())
    shown = json.dumps(record.config, indent=2, ensure_ascii=False)
    return content + (
        "<details><summary>Configuration (config.json)</summary>\n"
        f"<pre>{text(shown)}</pre></details>\n"
    )


def clock_of(record: RunRecord) -> str:
    """The clock that a run's times are on, in words."""
    return "the simulated clock" if record.fabric == "simulated" else "the fabric's clock"


def _marks(record: RunRecord, mark: str) -> dict[str, str]:
    return {} if record.label_holder is None else {record.label_holder: mark}


def _party(record: RunRecord, name: str, colours: Mapping[str, str]) -> str:
    dot = f'<span class="dot" style="background:{colours[name]}"></span>'
    more = " (label holder)" if name == record.label_holder else ""
    return f"{dot}<bdi>{text(name)}</bdi>{more}"
