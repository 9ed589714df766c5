"""Read a run directory into typed records; everything in a report is drawn from these.

A run directory holds ``config.json``, ``metrics.jsonl`` and, once the run is over,
``summary.json``. A file that is missing or damaged is a StorageError that says what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError
from colonnade.report.fields import Fields, parse_json, read_bytes, read_json
from colonnade.report.missing_reading import Missing, read_missing

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
    """How things stood after an exchange. A loss that was not finite is NaN."""

    exchange: int
    loss: float
    elapsed: float
    bytes_up: Mapping[str, int]
    bytes_down: Mapping[str, int]
    computing: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class EvaluationPoint:
    """The metrics of one part (validation, test) after an exchange."""

    exchange: int
    part: str
    elapsed: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What a party's protection guarantees: (epsilon, delta) differential privacy."""

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished run wrote about itself. None means that it was not recorded."""

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
    """Everything that a run directory tells.

    ``num_unknown`` counts lines of a kind that this version does not know; ``half_written`` says
    that the last line was cut off.
    """

    directory: Path
    config: Any
    summary: Summary | None
    exchanges: tuple[ExchangePoint, ...] = ()
    evaluations: tuple[EvaluationPoint, ...] = ()
    num_unknown: int = 0
    half_written: bool = False
    # Who left the federation after training.
    left: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The method's name, from the summary or else from the configuration."""
        if self.summary is not None:
            return self.summary.method
        return self._configured("method") or "unknown method"

    @property
    def label_holder(self) -> str | None:
        """Who has the labels; None if neither summary nor configuration names them."""
        return self.summary.label_holder if self.summary else self._configured("label_holder")

    @property
    def fabric(self) -> str | None:
        """What carried the calls, from the summary or else from the configuration."""
        return self.summary.fabric if self.summary else self._configured("fabric")

    @property
    def parties(self) -> tuple[str, ...]:
        """Who has a block: in the summary's order, else by name."""
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
        """How many exchanges were done, as far as is recorded."""
        if self.summary is not None:
            return self.summary.exchanges
        return max((point.exchange for point in self.exchanges), default=0)

    @property
    def elapsed(self) -> float | None:
        """Seconds on the fabric's clock, as far as is recorded."""
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
    """Read a run directory, finished or still going."""
    if not directory.is_dir():
        raise StorageError(f"{directory}: is not a directory; name the directory of a run")
    config = read_json(directory / "config.json", _CONFIG_REMEDY)
    lines = _Lines(directory / "metrics.jsonl")
    lines.read()
    summary_path = directory / "summary.json"
    return RunRecord(
        directory=directory,
        config=config,
        summary=_read_summary(summary_path) if summary_path.exists() else None,
        exchanges=tuple(lines.exchanges),
        evaluations=tuple(lines.evaluations),
        num_unknown=lines.num_unknown,
        half_written=lines.half_written,
        left=_read_left(directory / "left.json"),
    )


def _read_left(path: Path) -> tuple[str, ...]:
    remedy = "delete the file if nobody left"
    return Fields(read_json(path, remedy), str(path), remedy).names("left") if path.exists() else ()


@dataclass
class _Lines:
    """Goes through metrics.jsonl line by line."""

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
            self.exchanges.append(
                ExchangePoint(
                    exchange=line.whole("exchange"),
                    loss=loss if math.isfinite(loss) else math.nan,
                    elapsed=line.number("elapsed"),
                    bytes_up=line.wholes("bytes_up"),
                    bytes_down=line.wholes("bytes_down"),
                    computing=line.numbers("computing"),
                )
            )
        elif kind == "evaluation":
            self.evaluations.append(
                EvaluationPoint(
                    exchange=line.whole("exchange"),
                    part=line.text("part"),
                    elapsed=line.number("elapsed"),
                    metrics=line.numbers("metrics"),
                )
            )
        else:
            self.num_unknown += 1


def _read_summary(path: Path) -> Summary:
    found = Fields(read_json(path, _SUMMARY_REMEDY), str(path), _SUMMARY_REMEDY)
    quality = found.inner("quality")
    privacy = found.inner("privacy")
    protections = found.inner("protections")
    was_refused = found.values.get("refusal") is not None
    return Summary(
        method=found.text("method"),
        task=found.text("task"),
        quality_name=found.text("quality_name"),
        quality={part: quality.numbers(part) for part in quality.values},
        exchanges=found.whole("exchanges"),
        best_exchange=found.optional_whole("best_exchange"),
        epochs=found.optional_number("epochs"),
        stopped_by=found.text("stopped_by"),
        local_steps=found.wholes("local_steps"),
        bytes_up=found.wholes("bytes_up"),
        bytes_down=found.wholes("bytes_down"),
        seconds=found.optional_number("seconds"),
        fabric=found.text("fabric"),
        elapsed_seconds=found.optional_number("elapsed_seconds"),
        seconds_computing=found.numbers("seconds_computing"),
        seconds_waiting=found.numbers("seconds_waiting"),
        privacy={
            name: None if value is None else _privacy(privacy.inner(name))
            for name, value in privacy.values.items()
        },
        protections={name: protections.names(name) for name in protections.values},
        refusal=found.inner("refusal").text("reason") if was_refused else None,
        parties=found.names("parties"),
        label_holder=found.text("label_holder"),
        num_samples=found.wholes("num_samples"),
        seed=found.optional_whole("seed"),
        revision=found.optional_text("revision"),
        version=found.optional_text("version"),
        missing=read_missing(found),
    )


def _privacy(found: Fields) -> Privacy:
    return Privacy(epsilon=found.number("epsilon", math.inf), delta=found.number("delta", math.nan))
