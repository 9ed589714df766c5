"""Retraining between organisations starts from the weights of an earlier run there."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from agents import hub_of
from colonnade.core.errors import ConfigError, PartyFailed
from colonnade.federate.training import train_over
from colonnade.run.spec import read_spec
from colonnade.run.storage import read_json, read_state
from e2e.organisations import HOLDER, PARTIES, Organisations


@pytest.fixture
def trained(tmp_path: Path) -> Organisations:
    organisations = partial(Organisations, tmp_path, nursery=None, exchanges=3)()
    train(organisations, organisations.run)
    return organisations


def train(organisations: Organisations, run: Path, text: str | None = None) -> dict[str, Any]:
    if text is not None:
        organisations.config.write_text(text)
    with hub_of(organisations) as hub:
        return train_over(
            hub,
            read_spec(organisations.config),
            HOLDER,
            run,
            alignments=organisations.federation / "alignments",
        )


def started(organisations: Organisations, further: str = "") -> str:
    """The settings of a run that starts from the first one, and hardly learns."""
    text = organisations.config.read_text()
    for rate in ("lr = 0.02", "lr = 0.1"):
        text = text.replace(rate, "lr = 1e-12")
    return f'{text}\n[start]\nrun = "run"\n{further}\n'


def weights(organisations: Organisations, run: Path) -> dict[str, torch.Tensor]:
    tag = read_json(run / "checkpoint.json")["model"]
    name = (run / "run_name").read_text()
    found = {}
    for party in PARTIES:
        state = read_state(organisations.home(party) / "runs" / name / f"{tag}.safetensors")
        found |= {f"{party}.{key}": item for key, item in state["model"].items()}
    holder = read_state(run / "label_holder" / f"{tag}.safetensors")["federation"]["holder"]
    own = read_state(run / "parties" / HOLDER / f"{tag}.safetensors")
    found |= {f"own.{key}": item for key, item in own["model"].items()}
    return found | {f"fusion.{key}": item for key, item in holder["fusion"].items()}


def test_everybody_goes_on_with_the_earlier_weights(trained: Organisations) -> None:
    before = weights(trained, trained.run)
    second = trained.root / "second"
    summary = train(trained, second, started(trained, "freeze_fusion = true"))
    after = weights(trained, second)
    assert before.keys() == after.keys()
    for key, item in before.items():
        torch.testing.assert_close(item, after[key], rtol=1e-5, atol=1e-6, msg=key)
    first = read_json(trained.run / "summary.json")["lineage"]
    assert summary["lineage"]["parent"] == {"run": "run", "settings": first["settings"]}
    assert summary["lineage"]["alignment"] == first["alignment"]
    assert summary["doubts"] == []


def test_the_earlier_preparation_is_kept_when_the_table_has_grown(trained: Organisations) -> None:
    path = trained.root / "shop.csv"
    table = pd.read_csv(path)
    table["shop_0"] = table["shop_0"] * 10 + 5
    pd.concat([table, table.iloc[:1].assign(id="somebody")]).to_csv(path, index=False)
    second = trained.root / "second"
    summary = train(trained, second, started(trained))
    # The table that grew was aligned anew, so other samples are held out.
    (doubt,) = summary["doubts"]
    assert "aligned anew" in doubt
    kept = []
    for run in (trained.run, second):
        name = (run / "run_name").read_text()
        agreed = json.loads((trained.home("shop") / "runs" / name / "agreed.json").read_text())
        kept.append(agreed["preparation"])
    assert kept[0] == kept[1]


def test_what_can_not_be_started_from_is_named(trained: Organisations, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"start\.freeze: between organisations"):
        train(trained, tmp_path / "a", started(trained, 'freeze = ["shop"]'))
    text = trained.config.read_text().replace('freeze = ["shop"]', "")
    with pytest.raises(ConfigError, match="use the same method"):
        train(trained, tmp_path / "b", text.replace('method = "splitnn"', 'method = "fedbcd"'))


def test_a_party_that_lost_its_weights_says_so(trained: Organisations, tmp_path: Path) -> None:
    name = (trained.run / "run_name").read_text()
    for file in (trained.home("telco") / "runs" / name).glob("*.safetensors"):
        file.unlink()
    with pytest.raises(PartyFailed, match="telco"):
        train(trained, tmp_path / "second", started(trained))
