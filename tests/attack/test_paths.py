"""A label holder that names files: none of its names leads out of the party's own place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from colonnade.core.batches import BatchPlan
from colonnade.core.messages import Call
from colonnade.core.party import Part
from colonnade.parts.split_step import SplitParty
from colonnade.run.storage import DirectoryVault
from federations import PLAIN_SGD, mlp

ODD = (
    *("../outside", "../../../outside", "/absolute", "a/b", "..", ".", "", "a\\b", "a.b", "a\x00b"),
    *("~", "x" * 65, "a b", "a\nb", "exchange-1\n"),
)


@pytest.fixture
def party(tmp_path: Path) -> SplitParty:
    part = Part(features=torch.randn(8, 3), plan=BatchPlan(8, 4, seed=0, shuffle=True))
    home = tmp_path / "home" / "runs" / "one"
    home.mkdir(parents=True)
    return SplitParty(
        name="telco",
        encoder=mlp()(3),
        optimizer=PLAIN_SGD,
        parts={"train": part},
        vault=DirectoryVault(home),
    )


@pytest.mark.attack(
    what="Paths in the names of checkpoints: write and delete",
    has="the verb 'keep' with any tag (cheating)",
    before="files outside the party's home, mode 0644",
    now="refused: a tag is no path",
)
@pytest.mark.parametrize("tag", ODD)
def test_no_tag_writes_or_deletes_outside(party: SplitParty, tmp_path: Path, tag: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    for verb, arguments in (
        ("keep", (tag,)),
        ("retain", (tag, "a", "a")),
        ("retain", ("a", "a", tag)),
    ):
        reply = party.execute(Call(0, "telco", verb, arguments, 0, True))
        assert reply.failure is not None
        assert reply.failure.kind == "ProtocolError"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.attack(
    what="Paths in the names of checkpoints: read",
    has="the verb 'fetch' with any tag (cheating)",
    before="files outside the party's home",
    now="refused: a tag is no path",
)
@pytest.mark.parametrize("tag", ODD)
def test_no_tag_reads_outside(party: SplitParty, tmp_path: Path, tag: str) -> None:
    """Not even a state that is really there."""
    DirectoryVault(tmp_path).keep("outside", party.state())
    reply = party.execute(Call(0, "telco", "fetch", (tag,), 0, True))
    assert reply.failure is not None
    assert reply.failure.kind == "ProtocolError"


@pytest.mark.parametrize("tag", ["exchange-000000007", "model", "12", "a_b-C"])
def test_ordinary_tags_work(party: SplitParty, tag: str) -> None:
    for verb, arguments in (("keep", (tag,)), ("retain", (tag, tag, tag)), ("fetch", (tag,))):
        assert party.execute(Call(0, "telco", verb, arguments, 0, True)).failure is None
