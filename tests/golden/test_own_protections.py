"""A protection of one's own, on either side: every fabric, every method that admits one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import colonnade.protect
from colonnade.core.errors import ConfigError, PartyFailed, Refused
from colonnade.core.fabric import Fabric
from colonnade.core.federation import Federation
from colonnade.core.messages import Batch, Call
from colonnade.core.protection import Leaving, Protection
from colonnade.core.releases import Embedding, Kind
from colonnade.core.verbs import verb
from colonnade.fabrics.in_process import InProcess
from colonnade.fabrics.simulated import Simulated
from colonnade.methods import METHODS
from colonnade.parts.split_step import SplitParty
from colonnade.protect import Place, ProtectionSpec
from colonnade.protect.ledger import read_ledger, verify_ledger
from colonnade.run.engine import train
from colonnade.run.fitting import fit_blueprint
from colonnade.run.party_building import make_plans
from colonnade.run.samples import arrange
from colonnade.run.spec import parse_spec
from colonnade.run.storage import read_json
from federations import assert_bitwise_equal, weights
from federations import train as train_on
from messages import says
from networks import LoopbackFabric
from tolerant import frames, labels_of, sources_of

# The protection under test: what leaves is four times as large, and is divided where it arrives.
TOLD = frozenset({Kind.EMBEDDING, Kind.OWN_OUTPUT, Kind.OUTPUT, Kind.DERIVATIVE, Kind.AVERAGE})


@dataclass(frozen=True, kw_only=True)
class Magnify(ProtectionSpec):
    """Multiplies what leaves; the far end divides."""

    kind: ClassVar[str] = "magnify"
    covers: ClassVar[frozenset[Kind]] = TOLD
    sides: ClassVar[frozenset[Any]] = frozenset({"party", "label_holder"})

    factor: float = 4.0

    def stand_at(self, place: Place) -> Protection:
        return Magnifying(self)

    def read(self, value: Tensor) -> Tensor:
        return value / self.factor


class Magnifying(Protection):
    """The near end."""

    kind = Magnify.kind
    covers = TOLD

    def __init__(self, spec: Magnify) -> None:
        self._spec = spec

    def leaving(self, item: Leaving) -> Tensor:
        return item.value * self._spec.factor


def test_it_takes_fewer_than_forty_lines() -> None:
    assert sum(len(inspect.getsource(item).splitlines()) for item in (Magnify, Magnifying)) < 40


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    colonnade.protect.register(Magnify)
    yield
    del colonnade.protect._PROTECTIONS["magnify"]


BLOCKS = frames(60)
MEAN = {"fusion": {"kind": "mlp", "hidden": [5], "combine": "mean"}}
SIDES = ("party", "label_holder", "both")
ADMITTED = [
    name for name, item in METHODS.items() if item().needs.protectable and not item().needs.pooled
]


def settings(side: str, method: str) -> dict[str, Any]:
    chain = [{"kind": "magnify"}]
    return {
        "method": method,
        "data": {"batch_size": 8},
        "defaults": {
            "encoder": {"kind": "mlp", "hidden": [6], "embedding": 4},
            "protect": chain if side in ("party", "both") else [],
        },
        "label_holder": {**MEAN, "protect": chain if side in ("label_holder", "both") else []},
        "stop": {"exchanges": 4},
    }


def build(values: dict[str, Any], kind: str) -> Federation:
    """The federation of these settings, on a fabric of one's choice."""
    spec, given = parse_spec(values), sources_of(BLOCKS, labels_of(BLOCKS))
    arrangement = arrange(spec, given)
    blueprint = fit_blueprint(spec, given, arrangement)
    data = blueprint.training_data(arrangement)
    doors, plans = blueprint.doors(), make_plans(spec, data.roll, blueprint.label_holder)
    holder = blueprint.build_holder(data, plans)
    parties = blueprint.build_parties(data, plans, doors, holder)
    make: dict[str, type[Fabric]] = {
        "in_process": InProcess,
        "simulated": Simulated,
        "grpc": LoopbackFabric,
    }
    return blueprint.assemble(make[kind](parties, local=frozenset({"bank"})), holder, doors)


def trained(side: str, method: str, kind: str) -> dict[str, Tensor]:
    federation = build(settings(side, method), kind)
    try:
        train_on(federation, 4)
        federation.fabric.run(federation.parties.settle())
        return weights(federation)
    finally:
        federation.fabric.close()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("method", ADMITTED)
def test_with_every_method_that_admits_protections(method: str, side: str) -> None:
    """A factor of four is exact: with it on either side the weights are the same to the bit."""
    kind = "simulated"
    assert_bitwise_equal(trained(side, method, kind), trained("none", method, kind))


@pytest.mark.parametrize("kind", ["in_process", "grpc"])
@pytest.mark.parametrize("method", ["splitnn", "laser", "easter", "aggvfl"])
def test_on_every_fabric(method: str, kind: str) -> None:
    assert_bitwise_equal(trained("both", method, kind), trained("none", method, "in_process"))


@pytest.mark.parametrize("side", ["party", "both"])
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ADMITTED])
def test_the_others_refuse_before_training_starts(method: str, side: str, tmp_path: Path) -> None:
    sources = sources_of(BLOCKS, labels_of(BLOCKS))
    with pytest.raises(ConfigError, match=says(f"'{method}'")):
        train(parse_spec(settings(side, method)), sources=sources, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_crosses_is_written_down_on_both_sides(tmp_path: Path) -> None:
    root = tmp_path / "run"
    sources = sources_of(BLOCKS, labels_of(BLOCKS))
    train(parse_spec(settings("both", "splitnn")), sources=sources, directory=root)
    up = [entry for entry in read_ledger(root / "parties" / "shop") if entry["event"] == "left"]
    assert {entry["protection"] for entry in up if entry["verb"] == "embed"} == {"magnify"}
    own = root / "label_holder"
    down = [entry for entry in read_ledger(own) if entry["event"] == "left"]
    assert {entry["verb"] for entry in down} == {"descend"}
    assert {entry["to"] for entry in down} == set(BLOCKS)
    assert {entry["protection"] for entry in down} == {"magnify"}
    assert all(entry["kinds"] == {"gradient": "derivative"} for entry in down)
    assert all(entry["bytes"] >= 4 * 4 * len(entry["shape"]) for entry in down)
    count, fault = verify_ledger(own)
    assert fault is None
    assert read_json(root / "checkpoint.json")["own_ledger"]["entries"] == count


# Nothing fails open.


class Careless(SplitParty):
    """Sends embeddings in other guises."""

    @verb
    def reshaped(self, batch: Batch) -> Embedding:
        return self.encode(batch) * 1.0

    @verb
    def undeclared(self, batch: Batch) -> Tensor:
        return self.encode(batch) * 1.0

    @verb
    def mislabelled(self, batch: Batch) -> dict[str, float]:
        return {"embedding": self.encode(batch)}  # type: ignore[dict-item]


BLIND = {"defaults": {"protect": ["blind"]}, "label_holder": MEAN}


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> Federation:
    spec, given = parse_spec(BLIND), sources_of(BLOCKS, labels_of(BLOCKS))
    arrangement = arrange(spec, given)
    blueprint = fit_blueprint(spec, given, arrangement)
    doors = blueprint.doors()
    monkeypatch.setattr(type(spec.method), "party", Careless)
    data = blueprint.training_data(arrangement)
    plans = make_plans(spec, data.roll, blueprint.label_holder)
    holder = blueprint.build_holder(data, plans)
    parties = blueprint.build_parties(data, plans, doors, holder)
    return blueprint.assemble(InProcess(parties, local=frozenset({"bank"})), holder, doors)


@pytest.mark.parametrize("name", ["reshaped", "undeclared", "mislabelled"])
def test_an_embedding_in_another_guise_does_not_leave(careless: Federation, name: str) -> None:
    ask = careless.parties.ask(name, Batch("train", 0), among=["shop"])
    with pytest.raises((Refused, PartyFailed)) as refused:
        careless.fabric.run(ask)
    assert "'shop'" in str(refused.value)
    assert name in str(refused.value)


def test_an_undeclared_verb_admits_no_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["splitnn"], "party", Careless)
    sources = sources_of(BLOCKS, labels_of(BLOCKS))
    with pytest.raises(ConfigError, match=says("'splitnn'", "'undeclared'", "its answer")):
        train(parse_spec(settings("party", "splitnn")), sources=sources)


def test_a_count_is_no_place_to_hide_rows() -> None:
    federation = build(settings("party", "splitnn"), "in_process")
    door = federation.fabric.parties["shop"].door
    call = Call(0, "shop", "width", (), 0, True)
    for kind, value in (
        (Kind.COUNT, torch.randn(8, 4)),
        (Kind.COUNT, torch.arange(1000)),
        (Kind.LOSS, torch.randn(8)),
        (Kind.BYTES, torch.randn(8)),
        (Kind.UNDECLARED, torch.randn(8)),
    ):
        known = replace(SplitParty.verbs["embed"], name="width", releases=kind)
        with pytest.raises(Refused, match=says("'shop'", "declared")):
            door.answer(call, known, value, ())


def test_every_registered_method_declares_everything() -> None:
    for name, method in METHODS.items():
        for known in method.party.verbs.values():
            assert not known.undeclared, (name, known.name)
