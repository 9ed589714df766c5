"""What a summary says of missing blocks, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from colonnade.report.fields import Fields

__all__ = ["Association", "Missing", "SetQuality", "Start", "read_missing"]


@dataclass(frozen=True, kw_only=True)
class SetQuality:
    """The quality on the samples of one observed set, or of one set size; NaN says nothing."""

    parties: tuple[str, ...]
    size: int
    num_samples: int
    quality: float
    each: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Association:
    """How one party's presence goes with the label."""

    party: str
    measure: str
    value: float
    p_value: float
    is_strong: bool


@dataclass(frozen=True, kw_only=True)
class Start:
    """What became of the quality without those who joined; None where it was not measured."""

    stayed: tuple[str, ...]
    joined: tuple[str, ...]
    frozen: tuple[str, ...]
    bound: float
    part: str | None
    before: float | None
    after: float | None


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Empty where nothing is missing."""

    warnings: tuple[str, ...]
    associations: tuple[Association, ...]
    part: str | None
    by_set: tuple[SetQuality, ...]
    by_size: tuple[SetQuality, ...]
    temperatures: Mapping[str, float]
    spreads: Mapping[str, float]
    # Expected calibration error by part: before and after.
    errors: Mapping[str, tuple[float, float]]
    start: Start | None


def read_missing(summary: Fields) -> Missing:
    """Take it from a summary; a run of an earlier version says nothing of it."""
    presence, calibration = (
        summary.inner(key) if summary.values.get(key) is not None else summary.inner("")
        for key in ("presence", "calibration")
    )
    errors = calibration.inner("errors")
    return Missing(
        warnings=summary.names("warnings") if "warnings" in summary.values else (),
        associations=tuple(
            Association(
                party=item.text("party"),
                measure=item.text("measure"),
                value=item.number("value"),
                p_value=item.number("p_value"),
                is_strong=item.truth("is_strong"),
            )
            for item in presence.inners("associations")
        ),
        part=presence.optional_text("part"),
        by_set=tuple(map(_set_quality, presence.inners("by_set"))),
        by_size=tuple(map(_set_quality, presence.inners("by_size"))),
        temperatures=calibration.numbers("temperatures"),
        spreads=calibration.numbers("spreads"),
        errors={
            part: (errors.inner(part).number("before"), errors.inner(part).number("after"))
            for part in errors.values
        },
        start=None if summary.values.get("start") is None else _start(summary.inner("start")),
    )


def _set_quality(item: Fields) -> SetQuality:
    return SetQuality(
        parties=item.names("parties"),
        size=item.whole("size"),
        num_samples=item.whole("num_samples"),
        quality=item.number("quality", float("nan")),
        each=item.numbers("each"),
    )


def _start(item: Fields) -> Start:
    return Start(
        stayed=item.names("stayed"),
        joined=item.names("joined"),
        frozen=item.names("frozen"),
        bound=item.number("bound"),
        part=item.optional_text("part"),
        before=item.optional_number("quality_before"),
        after=item.optional_number("quality_after"),
    )
