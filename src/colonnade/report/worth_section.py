"""The section about what each party is worth, from ``worth.json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colonnade.report.fields import Fields, read_json
from colonnade.report.markup import number, table, text

__all__ = ["WorthFacts", "read_worth", "worth_section"]

_REMEDY = "write it again with: colonnade worth RUN"


@dataclass(frozen=True, kw_only=True)
class PartyWorth:
    """What one party adds, with its interval."""

    party: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class WorthFacts:
    """Everything that a report says about worth; ``by_costs`` is empty without costs."""

    part: str
    metric: str
    num_samples: int
    num_orders: int
    total: float
    nothing: float
    parties: tuple[PartyWorth, ...]
    by_costs: tuple[PartyWorth, ...]


def read_worth(path: Path) -> WorthFacts | None:
    """The file's content; None if the run has none."""
    if not path.exists():
        return None
    plain = read_json(path, _REMEDY)
    fields = Fields(plain, str(path), _REMEDY)
    costs = () if plain.get("by_costs") is None else _parties(fields.inner("by_costs"))
    return fields.record(WorthFacts, parties=_parties(fields), by_costs=costs)


def _parties(fields: Fields) -> tuple[PartyWorth, ...]:
    return tuple(item.record(PartyWorth) for item in fields.inners("parties"))


def worth_section(facts: WorthFacts | None) -> dict[str, str]:
    """The section by its title; none without facts."""
    if facts is None:
        return {}
    how = (
        f"from {facts.num_orders} sampled orders of the parties"
        if facts.num_orders
        else "over all sets of parties"
    )
    said = (
        f"<p>Shapley values {how}, for the trained model on {facts.num_samples} samples of the "
        f"{text(facts.part)} part. {text(facts.metric)} is {number(facts.nothing)} without any "
        f"block and {number(facts.total)} with all; the values add up to the difference. "
        "Intervals (95 %) are by bootstrap over samples.</p>\n"
    )
    content = said + _table(f"Worth in {facts.metric}", facts.parties)
    if facts.by_costs:
        content += _table("Worth in gain per sample, by the given costs", facts.by_costs)
    return {"What each party is worth": content}


def _table(title: str, parties: tuple[PartyWorth, ...]) -> str:
    rows = [
        [text(item.party), number(item.value), number(item.low), number(item.high)]
        for item in parties
    ]
    return table(title, ["party", "worth", "from", "to"], rows, numeric=range(1, 4))
