"""The facts of a summary about missing blocks, as typed records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from colonnade.report.fields import Fields

__all__ = ["Association", "Missing", "SetQuality", "Start", "read_missing"]


@dataclass(frozen=True, kw_only=True)
class SetQuality:
    """Quality on the samples of one observed set, or of one set size; NaN where there is none."""

    parties: tuple[str, ...]
    size: int
    num_samples: int
    quality: float
    each: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Association:
    """How strongly one party's presence depends on the label."""

    party: str
    measure: str
    value: float
    p_value: float
    is_strong: bool


@dataclass(frozen=True, kw_only=True)
class Start:
    """A warm start: who stayed and joined, and the quality without the joined before and after.

    Qualities are None where they were not measured.
    """

    stayed: tuple[str, ...]
    joined: tuple[str, ...]
    frozen: tuple[str, ...]
    bound: float
    part: str | None
    quality_before: float | None
    quality_after: float | None


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Everything a report says about missing blocks; empty where nothing is missing."""

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
    """Read the facts from a summary; one of an earlier version has none of them."""
    presence, calibration = (
        summary.inner(key) if summary.values.get(key) is not None else summary.inner("")
        for key in ("presence", "calibration")
    )
    errors = calibration.inner("errors")
    return Missing(
        warnings=summary.names("warnings") if "warnings" in summary.values else (),
        associations=tuple(item.record(Association) for item in presence.inners("associations")),
        part=presence.optional_text("part"),
        by_set=_qualities(presence, "by_set"),
        by_size=_qualities(presence, "by_size"),
        temperatures=calibration.numbers("temperatures"),
        spreads=calibration.numbers("spreads"),
        errors={
            part: (errors.inner(part).number("before"), errors.inner(part).number("after"))
            for part in errors.values
        },
        start=None if summary.values.get("start") is None else summary.inner("start").record(Start),
    )


def _qualities(presence: Fields, key: str) -> tuple[SetQuality, ...]:
    return tuple(item.record(SetQuality, ("quality",)) for item in presence.inners(key))
