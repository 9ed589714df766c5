"""What can't be between organisations is refused before anybody is asked; so at the party."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from colonnade.core.errors import ConfigError
from colonnade.core.messages import Call
from colonnade.core.numerics import NUMERICS
from colonnade.fabrics import GrpcSpec
from colonnade.federate.party_home import PartySettings
from colonnade.federate.party_policy import PartyPolicy, read_policy
from colonnade.federate.train_session import TrainSession
from colonnade.federate.training import _for_the_network
from colonnade.run.spec import parse_spec
from messages import says

PLAIN: Mapping[str, Any] = {"party": {"telco": {}}, "stop": {"exchanges": 1}}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"party": {}}, says("party", "[party.NAME]")),
        ({"party": {"telco": {"file": "x.csv"}}}, "party.telco.file"),
        ({"label_holder": {"name": "shop"}}, "label_holder.name"),
        ({"data": {"dataset": "wine"}}, "data.dataset"),
        ({"method": "centralized"}, says("method.name", "'centralized'")),
        ({"party": {"telco": {"policy": "p.toml"}}}, "party.telco.policy"),
    ],
)
def test_the_hub_refuses(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        _for_the_network(parse_spec({**PLAIN, **change}), "bank")


def test_the_fabric_is_named_for_what_it_is() -> None:
    assert isinstance(_for_the_network(parse_spec(PLAIN), "bank").fabric, GrpcSpec)


def refusal(policy: PartyPolicy, **changes: Any) -> str:
    """What a party says to settings; its table does not even exist."""
    settings = PartySettings(
        name="telco", label_holder="bank", hub="127.0.0.1:1", data=Path("none.csv"), id="id"
    )
    desk = TrainSession(home=Path("nowhere"), settings=settings, policy=policy)
    agreed = {"names": ["telco"], "numerics": NUMERICS, **PLAIN, **changes}
    table = {"train": torch.arange(2)}, {"train": torch.ones(2, 1, dtype=torch.bool)}
    arguments = ("ab" * 16, json.dumps(agreed), "digest", 1, *table)
    reply = desk.execute(Call(0, "telco", "assemble", arguments, 0, True))
    assert reply.failure is not None
    return f"{reply.failure.kind}: {reply.failure.message}"


CUSTOM = {"party": {"telco": {"encoder": {"kind": "custom", "module": "os:PathLike"}}}}


@pytest.mark.parametrize(
    ("policy", "changes", "complaint"),
    [
        (PartyPolicy(), CUSTOM, "imports no encoder that its own policy does not name"),
        (PartyPolicy(), {"names": ["shop"]}, "only in runs that name it"),
        (PartyPolicy(), {"method": "centralized"}, "leaves columns and labels"),
        (PartyPolicy(), {"nonsense": 1}, "ConfigError: nonsense: unknown key"),
    ],
)
def test_the_party_refuses(policy: PartyPolicy, changes: dict[str, Any], complaint: str) -> None:
    assert re.search(complaint, refusal(policy, **changes))


def test_a_run_can_not_name_a_directory() -> None:
    settings = PartySettings(
        name="telco", label_holder="bank", hub="127.0.0.1:1", data=Path("none.csv"), id="id"
    )
    desk = TrainSession(home=Path("nowhere"), settings=settings, policy=PartyPolicy())
    arguments: tuple[Any, ...] = ("../../etc", "{}", "", 1, {}, {})
    reply = desk.execute(Call(0, "telco", "assemble", arguments, 0, True))
    assert reply.failure is not None
    assert "hexadecimal" in reply.failure.message


def test_a_policy_file_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('methods = ["splitnn"]\ncustom_encoders = ["mine:Encoder"]\n')
    assert read_policy(path) == PartyPolicy(methods=("splitnn",), custom_encoders=("mine:Encoder",))
    path.write_text("method = 1\n")
    with pytest.raises(ConfigError, match=says("policy.toml", "method", "'methods'")):
        read_policy(path)
    assert read_policy(None) == PartyPolicy()
