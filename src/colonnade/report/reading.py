"""A run directory as typed records; a report is drawn from these alone.

A run directory holds ``config.json``, ``metrics.jsonl`` and, once the run is over,
``summary.json``. A file that is missing or damaged is a StorageError with the remedy. Facts about
missing blocks are in ``missing_reading``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError
from colonnade.formats import RUN, format_of
from colonnade.report.fields import Fields, parse_json, read_bytes, read_json
from colonnade.report.missing_reading import Missing, read_missing
from colonnade.report.worth_section import WorthFacts, read_worth
from colonnade.run.history import FIRST

__all__ = [
    "EvaluationPoint",
    "ExchangePoint",
    "Privacy",
    "RunRecord",
    "Summary",
    "read_run",
]

_CONFIG_REMEDY = "put back the configuration that the run was started with, or run again"
_METRICS_REMEDY = "point at a directory that a run wrote, or wait until the run has begun"
_LINE_REMEDY = "remove that line to go on without it, or run again"
_SUMMARY_REMEDY = "delete the file to report on the run as if unfinished, or run again"


@dataclass(frozen=True, kw_only=True)
class ExchangePoint:
    """The state of a run after an exchange.

    Args:
        exchange: The number of the exchange.
        loss: The training loss; NaN where it was not finite.
        elapsed: Seconds on the fabric's clock.
        bytes_up: Bytes so far to the label holder, by party.
        bytes_down: Bytes so far from the label holder, by party.
        computing: Seconds of computing so far, by party.
    """

    exchange: int
    loss: float
    elapsed: float
    bytes_up: Mapping[str, int]
    bytes_down: Mapping[str, int]
    computing: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class EvaluationPoint:
    """The metrics of one part after an exchange.

    Args:
        exchange: The number of the exchange.
        part: ``validation`` or ``test``.
        elapsed: Seconds on the fabric's clock.
        metrics: Values by the metric's name.
    """

    exchange: int
    part: str
    elapsed: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The (epsilon, delta) differential privacy that a party's protection guarantees.

    Args:
        epsilon: The bound; infinite where there is none.
        delta: The probability that the bound does not hold.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary that a finished run wrote; None stands for facts that were not recorded.

    Args:
        method: The method's name.
        task: binary, multiclass or regression.
        quality_name: The metric that counts.
        quality: Metrics at the end, by part and by name.
        exchanges: The number of exchanges.
        best_exchange: The exchange whose weights were kept.
        epochs: Passes over the training part.
        stopped_by: Why training ended.
        local_steps: Local steps by party.
        bytes_up: Bytes to the label holder, by party.
        bytes_down: Bytes from the label holder, by party.
        seconds: Seconds by the wall clock.
        fabric: The fabric's name.
        elapsed_seconds: Seconds on the fabric's clock.
        seconds_computing: Seconds of computing, by party.
        seconds_waiting: Seconds of waiting, by party.
        times: The elapsed seconds by what they went to; empty of older runs.
        late: Answers that came too late, by party.
        left_out: Questions that went on without its answer, by party.
        held_up_seconds: Seconds for which everybody else waited for it, by party.
        starving: The parties whose last answers all came too late to take part.
        privacy: The guarantee of each party; None without one.
        protections: The kinds of protection of each party.
        refusal: Why a party refused to go on, if one did.
        parties: The parties with a block.
        label_holder: The party with the labels.
        num_samples: Samples by part.
        seed: The seed.
        revision: The revision of the code.
        version: The version of Colonnade.
        missing: Facts about missing blocks.
    """

    method: str
    task: str
    quality_name: str
    quality: Mapping[str, Mapping[str, float]]
    exchanges: int
    best_exchange: int | None
    epochs: float | None
    stopped_by: str
    local_steps: Mapping[str, int]
    bytes_up: Mapping[str, int]
    bytes_down: Mapping[str, int]
    seconds: float | None
    fabric: str
    elapsed_seconds: float | None
    seconds_computing: Mapping[str, float]
    seconds_waiting: Mapping[str, float]
    times: Mapping[str, float]
    late: Mapping[str, int]
    left_out: Mapping[str, int]
    held_up_seconds: Mapping[str, float]
    starving: tuple[str, ...]
    privacy: Mapping[str, Privacy | None]
    protections: Mapping[str, tuple[str, ...]]
    refusal: str | None
    parties: tuple[str, ...]
    label_holder: str
    num_samples: Mapping[str, int]
    seed: int | None
    revision: str | None
    version: str | None
    missing: Missing


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A whole run directory.

    Args:
        directory: The run's directory.
        config: The content of ``config.json``.
        summary: The summary; None while the run is unfinished.
        exchanges: The recorded exchanges, in order.
        evaluations: The recorded evaluations, in order.
        num_unknown: Lines of a kind that this version does not know.
        half_written: Whether the last line was cut off.
        left: Parties that left the federation after training.
        worth: What each party is worth, if ``colonnade worth`` was asked.
    """

    directory: Path
    config: Any
    summary: Summary | None
    exchanges: tuple[ExchangePoint, ...] = ()
    evaluations: tuple[EvaluationPoint, ...] = ()
    num_unknown: int = 0
    half_written: bool = False
    left: tuple[str, ...] = ()
    worth: WorthFacts | None = None

    @property
    def method(self) -> str:
        """The method's name, from the summary or from the configuration."""
        if self.summary is not None:
            return self.summary.method
        return self._configured("method") or "unknown method"

    @property
    def label_holder(self) -> str | None:
        """The party with the labels; None if neither summary nor configuration names it."""
        return self.summary.label_holder if self.summary else self._configured("label_holder")

    @property
    def fabric(self) -> str | None:
        """The fabric's name, from the summary or from the configuration."""
        return self.summary.fabric if self.summary else self._configured("fabric")

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties with a block, in the summary's order, without one by name."""
        if self.summary is not None:
            return self.summary.parties
        names = {
            name
            for point in self.exchanges[-1:]
            for values in (point.bytes_up, point.bytes_down, point.computing)
            for name in values
        }
        return tuple(sorted(names))

    @property
    def quality_name(self) -> str | None:
        """The metric that counts; guessed from what was measured while the run is unfinished."""
        if self.summary is not None:
            return self.summary.quality_name
        names = [name for point in self.evaluations for name in point.metrics]
        for preferred in ("accuracy", "r2", *names):
            if preferred in names and preferred != "loss":
                return preferred
        return None

    @property
    def num_exchanges(self) -> int:
        """The number of exchanges that are recorded."""
        if self.summary is not None:
            return self.summary.exchanges
        return max((point.exchange for point in self.exchanges), default=0)

    @property
    def elapsed(self) -> float | None:
        """Seconds on the fabric's clock; None if none are recorded."""
        if self.summary is not None:
            return self.summary.elapsed_seconds
        return self.exchanges[-1].elapsed if self.exchanges else None

    @property
    def bytes_up(self) -> Mapping[str, int]:
        """Bytes from each party to the label holder."""
        return self.summary.bytes_up if self.summary else self._last.bytes_up

    @property
    def bytes_down(self) -> Mapping[str, int]:
        """Bytes from the label holder to each party."""
        return self.summary.bytes_down if self.summary else self._last.bytes_down

    @property
    def computing(self) -> Mapping[str, float]:
        """Seconds that each party computed."""
        return self.summary.seconds_computing if self.summary else self._last.computing

    @property
    def waiting(self) -> Mapping[str, float]:
        """Seconds that each party waited; known once the run is over."""
        return self.summary.seconds_waiting if self.summary else {}

    def _configured(self, key: str) -> str | None:
        """A name in the configuration, given by itself or as ``name`` of a table."""
        found = self.config.get(key) if isinstance(self.config, dict) else None
        if isinstance(found, dict):
            found = found.get("name")
        return found if isinstance(found, str) and found else None

    @property
    def _last(self) -> ExchangePoint:
        return self.exchanges[-1] if self.exchanges else _NOTHING_YET


_NOTHING_YET = ExchangePoint(
    exchange=0, loss=math.nan, elapsed=0.0, bytes_up={}, bytes_down={}, computing={}
)


def read_run(directory: Path) -> RunRecord:
    """Read a run directory, finished or still going.

    Args:
        directory: The run's directory.

    Returns:
        The run's configuration, measurements and, if it is finished, its summary.

    Raises:
        StorageError: It is no directory, or a file in it is missing or damaged.
    """
    if not directory.is_dir():
        raise StorageError(f"{directory}: is not a directory; name the directory of a run")
    format_of(directory, RUN)  # refuses a newer one; what is read here is the same in all others
    config = read_json(directory / "config.json", _CONFIG_REMEDY)
    lines = _Lines(directory / "metrics.jsonl")
    lines.read()
    evaluated = lines
    if (directory / FIRST).is_dir():
        # Only the first of two trainings held samples out to evaluate on.
        evaluated = _Lines(directory / FIRST / "metrics.jsonl")
        evaluated.read()
    summary_path = directory / "summary.json"
    return RunRecord(
        directory=directory,
        config=config,
        summary=_read_summary(summary_path) if summary_path.exists() else None,
        exchanges=tuple(lines.exchanges),
        evaluations=tuple(evaluated.evaluations),
        num_unknown=lines.num_unknown,
        half_written=lines.half_written,
        left=_read_left(directory / "left.json"),
        worth=read_worth(directory / "worth.json"),
    )


def _read_left(path: Path) -> tuple[str, ...]:
    remedy = "delete the file if nobody left"
    return Fields(read_json(path, remedy), str(path), remedy).names("left") if path.exists() else ()


@dataclass
class _Lines:
    """A reader of metrics.jsonl, line by line."""

    path: Path
    exchanges: list[ExchangePoint] = field(default_factory=list)
    evaluations: list[EvaluationPoint] = field(default_factory=list)
    num_unknown: int = 0
    half_written: bool = False

    def read(self) -> None:
        """Take every whole line; the last may be half written while the run goes on."""
        whole, _, rest = read_bytes(self.path, _METRICS_REMEDY).rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n"), start=1):
            if line.strip():
                where = f"{self.path}, line {number}"
                self._take(Fields(parse_json(line, where, _LINE_REMEDY), where, _LINE_REMEDY))
        if rest.strip():
            where = f"{self.path}, last line"
            try:
                values = parse_json(rest, where, _LINE_REMEDY)
            except StorageError:
                self.half_written = True
            else:
                self._take(Fields(values, where, _LINE_REMEDY))

    def _take(self, line: Fields) -> None:
        kind = line.text("kind")
        if kind == "exchange":
            loss = line.number("loss", math.nan)
            finite = loss if math.isfinite(loss) else math.nan
            self.exchanges.append(line.record(ExchangePoint, loss=finite))
        elif kind == "evaluation":
            self.evaluations.append(line.record(EvaluationPoint))
        elif kind != "skipped":
            self.num_unknown += 1


def _read_summary(path: Path) -> Summary:
    found = Fields(read_json(path, _SUMMARY_REMEDY), str(path), _SUMMARY_REMEDY)
    quality = found.inner("quality")
    privacy = found.inner("privacy")
    protections = found.inner("protections")
    was_refused = found.values.get("refusal") is not None
    # A run of an older version has neither.
    attendance = found.inner("attendance") if "attendance" in found.values else None
    return found.record(
        Summary,
        quality={part: quality.numbers(part) for part in quality.values},
        privacy={
            name: None if value is None else _privacy(privacy.inner(name))
            for name, value in privacy.values.items()
        },
        protections={name: protections.names(name) for name in protections.values},
        times=found.numbers("times") if "times" in found.values else {},
        late=attendance.wholes("late") if attendance else {},
        left_out=attendance.wholes("left_out") if attendance else {},
        held_up_seconds=attendance.numbers("held_up_seconds") if attendance else {},
        starving=attendance.names("starving") if attendance else (),
        refusal=found.inner("refusal").text("reason") if was_refused else None,
        missing=read_missing(found),
    )


def _privacy(found: Fields) -> Privacy:
    return Privacy(epsilon=found.number("epsilon", math.inf), delta=found.number("delta", math.nan))
