"""A party that answers with what its verb does not declare: it is named, and nobody else.

Before, fourteen of these ended in internal errors that named no party, and a value of 3e38 was
blamed on the label holder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from colonnade.core.errors import BadReply, ColonnadeError, Diverged
from colonnade.core.federation import Federation
from colonnade.core.messages import Batch, Call, Reply
from colonnade.core.party import Party
from colonnade.methods.combinatorial import Combinatorial
from colonnade.methods.easter import Easter
from colonnade.methods.flex import PBCD
from colonnade.methods.laser import Laser
from colonnade.methods.splitnn import SplitNN
from colonnade.run.engine import train
from colonnade.run.fitting import fit_blueprint
from colonnade.run.samples import arrange
from colonnade.run.sources import load_sources
from colonnade.run.spec import parse_spec

CHEAT = "party_2"


def with_value(index: int, wanted: float) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        value.view(-1)[index] = wanted
        return value

    return change


MALFORMED: dict[str, Callable[[Tensor], Any]] = {
    "float64": lambda value: value.double(),
    "float16": lambda value: value.half(),
    "whole numbers": lambda value: value.long(),
    "truth values": lambda value: value > 0,
    "one row less": lambda value: value[..., 1:, :],
    "one row more": lambda value: torch.cat([value, value[..., :1, :]], dim=-2),
    "one column less": lambda value: value[..., 1:],
    "one column more": lambda value: torch.cat([value, value[..., :1]], dim=-1),
    "an axis less": lambda value: value[0],
    "an axis more": lambda value: value[None],
    "transposed": lambda value: value.transpose(-1, -2),
    "no rows": lambda value: value[..., :0, :],
    "a single number": lambda value: value.sum(),
    "a table": lambda value: {"embedding": value},
    "a whole number": lambda value: 3,
    "a text": lambda value: "embedding",
    "nothing": lambda value: None,
    "a batch": lambda value: Batch("train", 0),
}
WILD = {
    "not a number": with_value(0, math.nan),
    "infinite": with_value(5, math.inf),
    "minus infinite": with_value(1, -math.inf),
    "3e38": with_value(2, 3e38),
    "-1e30": with_value(3, -1e30),
}


def answering(change: Callable[[Any], Any], verb: str) -> Callable[[Party, Call], Reply]:
    """A party's ``execute`` that changes its answers to one verb."""

    def execute(party: Party, call: Call) -> Reply:
        reply = type(party).execute(party, call)
        return replace(reply, value=change(reply.value)) if call.verb == verb else reply

    return execute


def cheating(federation: Federation, change: Callable[[Any], Any], verb: str = "embed") -> None:
    party = federation.fabric.parties[CHEAT]  # type: ignore[attr-defined]
    execute = answering(change, verb)
    party.execute = lambda call: execute(party, call)


def federation_of(method: Any) -> Federation:
    needs_mean = method.needs.one_width and method.needs.fusion
    fusion = {"kind": "mlp", "combine": "mean"} if needs_mean else {"kind": "mlp"}
    spec = parse_spec(
        {
            "data": {"dataset": "wine", "num_parties": 3, "batch_size": 16},
            "label_holder": {"fusion": fusion},
            "stop": {"exchanges": 2},
        }
    )
    spec = replace(spec, method=method)
    sources = load_sources(spec)
    arrangement = arrange(spec, sources)
    blueprint = fit_blueprint(spec, sources, arrangement)
    return blueprint.build(blueprint.training_data(arrangement))


def first_exchange(federation: Federation) -> ColonnadeError:
    batch = Batch("train", 0)
    with pytest.raises(ColonnadeError) as caught:
        federation.fabric.run(
            federation.method.exchange(federation.holder, federation.parties, batch)
        )
    return caught.value


@pytest.mark.attack(
    what="Malformed replies of a party",
    has="any answer to a call (cheating party)",
    before="14 forms ended in an internal error that named nobody",
    now="the run names the party and what it sent",
)
@pytest.mark.parametrize("form", MALFORMED)
def test_a_malformed_embedding_is_its_party_s_fault(form: str) -> None:
    federation = federation_of(SplitNN())
    cheating(federation, MALFORMED[form])
    error = first_exchange(federation)
    assert isinstance(error, BadReply)
    assert error.party == CHEAT
    for fact in ("exchange 0", f"'{CHEAT}'", "'embed'", "expected", "got"):
        assert fact in str(error)


@pytest.mark.attack(
    what="Huge, infinite or undefined numbers in a reply",
    has="any answer to a call (cheating party)",
    before="3e38 was blamed on the label holder",
    now="the run names the party that sent them",
)
@pytest.mark.parametrize("form", WILD)
def test_wild_numbers_are_their_party_s_fault(form: str) -> None:
    federation = federation_of(SplitNN())
    cheating(federation, WILD[form])
    error = first_exchange(federation)
    assert isinstance(error, Diverged)
    assert error.party == CHEAT
    assert "'embed'" in str(error)


@pytest.mark.parametrize(
    ("method", "verb", "change"),
    [
        (SplitNN(pipelined=True), "embed", MALFORMED["one row less"]),
        (Laser(), "embed", MALFORMED["one column less"]),
        (Laser(), "outputs", MALFORMED["one row more"]),
        (Laser(), "outputs", lambda value: value[:-1]),
        (Laser(), "backward", lambda value: value[..., :0, :]),
        (Combinatorial(), "embed", lambda value: value[:-1]),
        (Easter(), "decide", MALFORMED["one column more"]),
        (PBCD(), "embed", lambda value: {**value, "more": value["embedding"]}),
        (PBCD(), "embed", lambda value: {**value, "embedding": value["embedding"][1:]}),
        (PBCD(), "embed", lambda value: {**value, "fitting": torch.tensor(1.5)}),
        (PBCD(), "embed", lambda value: value["embedding"]),
    ],
)
def test_every_method_s_answers_are_held_to_what_its_verbs_declare(
    method: Any, verb: str, change: Callable[[Any], Any]
) -> None:
    federation = federation_of(method)
    cheating(federation, change, verb)
    federation.fabric.run(method.begin(federation.holder, federation.parties))
    error = first_exchange(federation)
    assert isinstance(error, BadReply)
    assert error.party == CHEAT


@pytest.mark.parametrize("count", [-1, 1 << 60, 2.5, "3"])
def test_counts_are_checked_too(count: Any) -> None:
    federation = federation_of(SplitNN())
    cheating(federation, lambda _: count, "local_steps")
    with pytest.raises(BadReply, match=f"'{CHEAT}'"):
        federation.ask_all("local_steps")


def test_the_fault_is_in_log_and_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third exchange on a party sends rows of another width."""
    spec = parse_spec(
        {
            "data": {"dataset": "wine", "num_parties": 2},
            "stop": {"exchanges": 5},
            "method": "splitnn",
        }
    )
    honest = SplitNN.party.execute

    def execute(party: Party, call: Call) -> Reply:
        reply = honest(party, call)
        if party.name == CHEAT and call.verb == "embed" and call.exchange >= 2:
            return replace(reply, value=MALFORMED["one column less"](reply.value))
        return reply

    monkeypatch.setattr(SplitNN.party, "execute", execute)
    with pytest.raises(BadReply):
        train(spec, directory=tmp_path / "run")
    assert f"BadReply: exchange 3: party '{CHEAT}'" in (tmp_path / "run" / "run.log").read_text()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_by"] == "fault"
    assert summary["fault"]["party"] == CHEAT
    assert "exchange 3" in summary["fault"]["reason"]


@pytest.mark.attack(
    what="Gradients that are not finite or of another dtype",
    has="the label holder",
    before="the party trained with them",
    now="refused before any step, in the name of the label holder",
)
@pytest.mark.parametrize(
    "change", [MALFORMED["float64"], MALFORMED["whole numbers"], *WILD.values()]
)
def test_a_party_checks_gradients_and_blames_the_label_holder(
    change: Callable[[Tensor], Tensor],
) -> None:
    federation = federation_of(SplitNN())
    party = federation.fabric.parties[CHEAT]  # type: ignore[attr-defined]
    batch = Batch("train", 0)
    reply = party.execute(Call(0, CHEAT, "embed", (batch,), 0, True))
    before = [item.detach().clone() for item in party.model.parameters()]
    gradient = change(torch.zeros_like(reply.value))
    failure = party.execute(Call(1, CHEAT, "descend", (batch, gradient), 0, False)).failure
    assert failure is not None
    assert failure.kind in ("ProtocolError", "Diverged")
    assert "gradient" in failure.message
    assert f"label holder '{federation.holder.name}'" in failure.message
    assert all(map(torch.equal, before, party.model.parameters()))
