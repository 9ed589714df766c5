"""A party that owns a whole model serves it by itself: own home, own weights, own policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from agents import hub_of
from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, Refused
from colonnade.federate.lone_party import LoneParty
from colonnade.federate.party_status import announced
from colonnade.federate.runs_at_party import find_run, kept_runs
from colonnade.federate.training import train_over
from colonnade.protect.ledger import read_ledger, verify_ledger
from colonnade.run.spec import read_spec
from colonnade.run.storage import read_state
from colonnade.serve.lone_predictor import LonePredictor
from colonnade.serve.party_serving import PartyLoader, meaning_of_outputs
from e2e.organisations import HOLDER, Organisations
from serving import Running, running


@pytest.fixture
def make(tmp_path: Path) -> Any:
    return partial(Organisations, tmp_path, nursery=None, exchanges=2, combine="mean")


def trained(organisations: Organisations) -> Path:
    """The telco's home, after a training."""
    with hub_of(organisations) as hub:
        train_over(
            hub,
            read_spec(organisations.config),
            HOLDER,
            organisations.run,
            alignments=organisations.federation / "alignments",
        )
    return organisations.home("telco")


@contextmanager
def served(home: Path) -> Iterator[Running]:
    (run,) = kept_runs(home)
    loader = PartyLoader(home, run.place, classes=("no", "yes"))
    with running(loader.first(), load=loader) as one:
        yield one


def ids_at(organisations: Organisations) -> list[str]:
    found: list[str] = pd.read_csv(organisations.root / "telco.csv")["id"].tolist()
    return found


@pytest.mark.parametrize("method", ["laser", "easter"])
def test_it_answers_with_its_own_head_over_its_own_block(make: Any, method: str) -> None:
    organisations = make(method=method)
    home = trained(organisations)
    ids = ids_at(organisations)[:5]
    with served(home) as one:
        status, content = one.predict(*ids, "nobody")
        assert one.get("/readyz")[0] == 200
        assert one.post("/v1/versions/load", {"run": "another"})[0] == 400
    assert status == 200
    *rows, unknown = content["predictions"]
    assert unknown["error"]["reason"] == "unknown"
    run = find_run(home, kept_runs(home)[0].name)
    party = LoneParty(home, run.place)
    model = party._party.model.eval()
    weights = read_state(run.place / f"{run.checkpoints[-1]}.safetensors")["model"]
    assert all(torch.equal(item, weights[key]) for key, item in model.state_dict().items())
    with torch.no_grad():
        outputs = model["head"](model["encoder"](party.features(ids)))
    party.close()
    for row, score in zip(rows, torch.sigmoid(outputs[:, 0].double()).tolist(), strict=True):
        assert row["probabilities"]["yes"] == pytest.approx(score, rel=1e-5)
        assert list(row["parties"]) == ["telco"]
    left = [entry["verb"] for entry in read_ledger(run.place / "alone") if entry["event"] == "left"]
    assert left[:2] == ["infer", "predict" if method == "laser" else "conclude"]
    assert verify_ledger(run.place / "alone")[1] is None


def test_a_person_whose_account_is_spent_is_refused_and_nobody_else(make: Any) -> None:
    organisations = make(method="laser", policies={"shop": "", "telco": "releases_per_row = 40\n"})
    home = trained(organisations)
    spent, other = ids_at(organisations)[:2]
    (run,) = kept_runs(home)
    party = LoneParty(home, run.place)
    # What left before tells nothing new: other values are another release.
    encoder = party._party.model["encoder"]
    for _ in range(60):
        with torch.no_grad():
            for item in encoder.parameters():
                item.add_(0.01)
        try:
            party.answer([spent])
        except Refused:
            break
    else:
        raise AssertionError("the account never ended")
    party.close()
    with served(home) as one:
        # A version of the weights that never left: both would be new releases.
        predictor = one.service.versions.current.predictor
        assert isinstance(predictor, LonePredictor)
        with torch.no_grad():
            for item in predictor._party._party.model["encoder"].parameters():
                item.add_(0.777)
        status, content = one.predict(spent, other)
        assert status == 200
        assert content["predictions"][0]["error"] == {"reason": "away", "parties": ["telco"]}
        assert content["predictions"][1]["value"] in ("no", "yes")
        assert one.predict(spent)[0] == 503


def test_a_table_that_changes_is_read_again_and_none_is_no_answer(make: Any) -> None:
    organisations = make(method="laser")
    home = trained(organisations)
    path = organisations.root / "telco.csv"
    table = pd.read_csv(path)
    with served(home) as one:
        predictor = one.service.versions.current.predictor
        assert isinstance(predictor, LonePredictor)
        pd.concat([table, table.iloc[:1].assign(id="new1")]).to_csv(path, index=False)
        predictor.look()
        assert one.predict("new1")[0] == 200
        table.drop(columns="telco_1").to_csv(path, index=False)
        predictor.look()
        status, content = one.predict(str(table["id"][0]))
        assert status == 503
        assert content["error"]["parties"] == ["telco"]
        assert one.get("/readyz")[0] == 503


def test_a_method_without_a_whole_model_or_a_policy_against_it_ends_at_once(make: Any) -> None:
    organisations = make(method="splitnn")
    home = trained(organisations)
    (run,) = kept_runs(home)
    with pytest.raises(ConfigError, match="no party has a whole model"):
        LoneParty(home, run.place)


def test_a_policy_of_today_refuses(make: Any) -> None:
    organisations = make(method="laser", policies={"shop": "", "telco": ""})
    home = trained(organisations)
    (run,) = kept_runs(home)
    (organisations.root / "telco.policy.toml").write_text('methods = ["splitnn"]\n')
    with pytest.raises(Refused, match="methods"):
        LoneParty(home, run.place)
    assert [entry["event"] for entry in read_ledger(run.place / "alone")] == ["refused"]


def test_outputs_mean_what_the_operator_says() -> None:
    assert meaning_of_outputs(1, ("no", "yes"), None).kind == "binary"
    assert meaning_of_outputs(3, ("a", "b", "c"), None).kind == "multiclass"
    assert meaning_of_outputs(1, (), (5.0, 2.0)).scale == 2.0
    for arguments in ((1, (), None), (1, ("a",), None), (3, ("a", "b"), None), (3, (), (0.0, 1.0))):
        with pytest.raises(ConfigError):
            meaning_of_outputs(*arguments)


def test_runs_and_status_by_readable_names(make: Any) -> None:
    organisations = make(method="laser")
    home = trained(organisations)
    (run,) = kept_runs(home)
    assert run.name.startswith("laser-20")
    assert find_run(home, run.place.name[:8]) == run
    with pytest.raises(ConfigError, match="did you mean"):
        find_run(home, run.name[:-1])
    listed = CliRunner().invoke(app, ["party", "runs", str(home), "--json"])
    (told,) = json.loads(listed.output)
    assert (told["name"], told["method"]) == (run.name, "laser")
    assert told["participants"] == ["bank", "shop", "telco"]

    def status() -> dict[str, Any]:
        shown = CliRunner().invoke(app, ["party", "status", str(home), "--json"])
        assert shown.exit_code == 0, shown.output
        found: dict[str, Any] = json.loads(shown.output)
        return found

    assert status()["agent"] == "not running"
    assert (status()["num_runs"], status()["last_run"]) == (1, run.name)
    with announced(home, "127.0.0.1", 9):
        assert status()["agent"] == "not running"
    lines = CliRunner().invoke(app, ["party", "status", str(home)]).output
    assert run.name in lines
