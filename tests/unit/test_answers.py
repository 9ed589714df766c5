"""Answers from whichever blocks are there; parties that leave and join a trained federation."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import colonnade
from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, MissingBlock, StorageError
from colonnade.methods import register
from colonnade.report import write_report
from colonnade.run.engine import reopen, train
from colonnade.run.leaving import remove_party
from colonnade.run.result import Result
from colonnade.run.spec import parse_spec
from colonnade.run.storage import party_directory
from messages import says
from tolerant import MEAN, MeanOfObserved, frames, labels_of, sources_of

HALF = {"kind": "uniform", "missing": 0.4}


@pytest.fixture(autouse=True)
def _registered(own_methods: None) -> None:
    register(MeanOfObserved)


def settings(**more: Any) -> dict[str, Any]:
    return {
        "method": "mean_of_observed",
        "data": {
            "presence": {"train": HALF, "inference": HALF},
            "split": {"validation": 0.35, "test": 0.25},
            "batch_size": 32,
        },
        "defaults": {"optimizer": {"lr": 0.01}},
        "stop": {"epochs": 6},
        **MEAN,
        **more,
    }


def trained(
    directory: Path | None = None, *, num_parties: int = 3, kind: str = "binary", **more: Any
) -> Result:
    blocks = frames(900, num_parties)
    sources = sources_of(blocks, labels_of(blocks, kind))
    return train(parse_spec(settings(**more)), sources=sources, directory=directory)


def new_blocks() -> dict[str, pd.DataFrame]:
    """Three samples of each party's own; s0 is at all, s1 at bank, s2 at shop and telco."""
    whole = frames(3, seed=5)
    return {
        "bank": whole["bank"].iloc[[0, 1]],
        "shop": whole["shop"].iloc[[0, 2]],
        "telco": whole["telco"].iloc[[2, 0]],
    }


def test_an_answer_says_how_sure_it_is_and_from_which_blocks() -> None:
    result = trained()
    found = result.answer(new_blocks())
    assert list(found.columns) == ["bought", "confidence", "blocks"]
    assert found.loc["s0000", "blocks"] == ("bank", "shop", "telco")
    assert found.loc["s0001", "blocks"] == ("bank",)
    assert found.loc["s0002", "blocks"] == ("shop", "telco")
    assert found["bought"].equals(result.predict(new_blocks()))
    scores = result.predict_proba(new_blocks())
    assert np.array_equal(found["confidence"], scores.max(axis=1))
    assert np.array_equal(scores.idxmax(axis=1), found["bought"])
    some = result.answer(new_blocks(), ids=["s0002", "s0000"])
    pd.testing.assert_frame_equal(some, found.loc[["s0002", "s0000"]])


def test_an_answer_from_some_blocks_is_that_of_a_federation_that_has_no_others() -> None:
    result = trained()
    blocks = new_blocks()
    alone = result.answer({"shop": blocks["shop"]})
    both = result.answer({name: blocks[name] for name in ("shop", "telco")})
    assert alone.loc["s0002", "blocks"] == ("shop",)
    pd.testing.assert_series_equal(both.loc["s0002"], result.answer(blocks).loc["s0002"])


def test_a_sample_without_any_block_is_refused() -> None:
    result = trained()
    with pytest.raises(MissingBlock, match=says("1 of 2", ["bank", "shop", "telco"])):
        result.answer(new_blocks(), ids=["s0000", "s0777"])
    with pytest.raises(MissingBlock, match=says("'mean_of_observed'", ["bank", "shop", "telco"])):
        result.answer({})


def test_temperatures_are_kept_with_the_run_and_change_no_decision(tmp_path: Path) -> None:
    result = trained(tmp_path / "run")
    assert result.calibration is not None
    assert result.calibration.temperatures
    summary = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))
    kept = summary["calibration"]
    assert kept["temperatures"].keys() <= {"1", "2", "3"}
    assert kept["errors"].keys() == {"validation", "test"}
    assert kept["errors"]["validation"].keys() == {"before", "after", "by_size"}
    loaded = Result.load(tmp_path / "run")
    saved = Result.load(loaded.save(tmp_path / "saved"))
    for other in (loaded, saved, copy.deepcopy(result)):
        assert other.calibration == result.calibration
        pd.testing.assert_frame_equal(other.answer(new_blocks()), result.answer(new_blocks()))
    raw = result.outputs(new_blocks())[0]
    assert np.array_equal(raw > 0, result.answer(new_blocks())["bought"] == 1)
    plain = 1 / (1 + np.exp(-raw))
    temperature = result.calibration.temperatures[3]
    sharpened = 1 / (1 + np.exp(-raw["s0000"] / temperature))
    assert result.predict_proba(new_blocks()).loc["s0000", 1] == pytest.approx(sharpened)
    assert temperature != 1.0
    assert plain["s0000"] != pytest.approx(sharpened, abs=1e-9)


def test_a_number_comes_with_the_error_to_expect() -> None:
    result = trained(kind="regression")
    found = result.answer(new_blocks())
    assert list(found.columns) == ["value", "spread", "blocks"]
    assert result.calibration is not None
    assert found.loc["s0001", "spread"] == result.calibration.spreads[1]


def test_a_method_that_needs_every_block_is_not_calibrated() -> None:
    blocks = frames(200, 2)
    result = colonnade.fit(blocks, labels_of(blocks), label_holder="bank", epochs=1)
    assert result.calibration is None
    assert result.summary["presence"] is None
    found = result.answer(blocks)
    assert set(found["blocks"]) == {("bank", "shop")}


# What the summary, the log and the report say


def test_the_summary_has_the_quality_of_every_set_and_the_page_shows_it(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    presence = json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["presence"]
    assert presence["part"] == "test"
    assert presence["num_sets"] == len(presence["by_set"]) == 7
    assert sum(item["num_samples"] for item in presence["by_set"]) == sum(
        item["num_samples"] for item in presence["by_size"]
    )
    full = presence["by_set"][-1]
    assert full["parties"] == ["bank", "shop", "telco"]
    assert full["each"].keys() == {"bank", "shop", "telco"}
    page = write_report(tmp_path / "run").read_text("utf-8")
    assert "Quality by observed set" in page
    assert "goes with its label" not in page


def test_blocks_missing_by_label_are_warned_of_everywhere(tmp_path: Path) -> None:
    drawing = {"kind": "by_label", "classes": {"1": 0.8}, "parties": ["telco"]}
    result = trained(tmp_path / "run", data={"presence": {"train": drawing}})
    (warning,) = result.summary["warnings"]
    assert "party 'telco'" in warning
    assert warning in (tmp_path / "run" / "run.log").read_text("utf-8")
    page = write_report(tmp_path / "run").read_text("utf-8")
    assert "goes with its label" in page
    (found,) = result.summary["presence"]["associations"]
    assert found["party"] == "telco"
    assert found["is_strong"]


# Leaving


def test_a_party_leaves_and_the_rest_predict_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = trained(run)
    blocks = new_blocks()
    rest = {name: blocks[name] for name in ("bank", "shop")}
    before = result.answer(rest)
    assert remove_party(run, "telco") == ("bank", "shop")
    assert party_directory(run, "telco").exists()
    loaded = Result.load(run)
    assert loaded.parties == ("bank", "shop")
    assert loaded.left == ("telco",)
    pd.testing.assert_frame_equal(loaded.answer(rest), before)
    with pytest.raises(MissingBlock, match=says("telco", "left")):
        loaded.answer(blocks)
    assert Result.load(loaded.save(tmp_path / "saved")).left == ("telco",)
    assert "telco left" in write_report(run).read_text("utf-8")
    with pytest.raises(ConfigError, match=says("'telco'", "left", tmp_path / "run")):
        remove_party(run, "telco")
    with pytest.raises(ConfigError, match=says("'bnak'", "'bank'")):
        remove_party(run, "bnak")
    remove_party(run, "shop", erase=True)
    assert not party_directory(run, "shop").exists()
    alone = {"bank": blocks["bank"]}
    pd.testing.assert_frame_equal(Result.load(run).answer(alone), result.answer(alone))
    with pytest.raises(ConfigError, match=says("'bank'", "last")):
        remove_party(run, "bank")
    whole = frames(900, 3)
    sources = sources_of(whole, labels_of(whole))
    with pytest.raises(ConfigError, match=says("telco, shop", "left", "--from")):
        train(parse_spec(settings()), sources=sources, directory=run, resume=True)


def written(place: Path, num_parties: int = 3) -> dict[str, Any]:
    """Files of every party, and settings that name them."""
    place.mkdir(exist_ok=True)
    blocks = frames(900, num_parties)
    labels_of(blocks).to_csv(place / "labels.csv", index_label="id")
    for name, block in blocks.items():
        block.to_csv(place / f"{name}.csv", index_label="id")
    return settings(
        label_holder={
            **MEAN["label_holder"],
            "name": "bank",
            "file": str(place / "labels.csv"),
            "id": "id",
            "label": "bought",
        },
        party={name: {"file": str(place / f"{name}.csv"), "id": "id"} for name in blocks},
    )


def test_evaluation_is_on_the_same_samples_without_who_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(parse_spec(written(tmp_path)), directory=run)
    with_all = reopen(run).evaluate()
    assert with_all["accuracy"] == result.summary["quality"]["test"]["accuracy"]
    remove_party(run, "telco")
    reopened = reopen(run)
    known = reopened._federation.holder.parts["test"].values
    before = result._federation.holder
    kept = before.presence["test"].table[:, :2].any(dim=1).numpy()
    assert np.array_equal(known, before.parts["test"].values[kept])
    metrics = reopened.evaluate()
    assert metrics["accuracy"] < with_all["accuracy"]
    shown = CliRunner().invoke(app, ["evaluate", str(run)])
    assert "without telco, who left" in shown.output
    assert f"{metrics['accuracy']:.4f}" in shown.output


def test_a_method_that_needs_everybody_names_those_that_do_not(tmp_path: Path) -> None:
    spec = parse_spec({"data": {"dataset": "wine"}, "stop": {"exchanges": 1}})
    train(spec, directory=tmp_path / "run")
    with pytest.raises(MissingBlock, match=says("'splitnn'", "'laboratory'", "mean_of_observed")):
        remove_party(tmp_path / "run", Result.load(tmp_path / "run").parties[0])


def test_commands_remove_and_predict_without_a_file(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "predictions.csv"
    train(parse_spec(written(tmp_path)), directory=run)
    runner = CliRunner()
    command = ["predict", str(run), "--block", f"bank={tmp_path / 'bank.csv'}", "--out", str(out)]
    assert runner.invoke(app, command).exit_code == 0
    table = pd.read_csv(out, index_col="id")
    assert list(table.columns) == ["bought", "confidence", "blocks"]
    assert set(table["blocks"]) == {"bank"}
    more = ["--block", f"telco={tmp_path / 'telco.csv'}"]
    assert runner.invoke(app, [*command, *more]).exit_code == 0
    assert set(pd.read_csv(out)["blocks"]) == {"bank; telco"}
    removed = runner.invoke(app, ["party", "remove", str(run), "telco", "--erase"])
    assert removed.exit_code == 0
    assert "bank, shop predict on" in removed.output
    assert isinstance(runner.invoke(app, [*command, *more]).exception, ConfigError)
    assert runner.invoke(app, command).exit_code == 0


def test_a_run_in_use_is_left_alone(tmp_path: Path) -> None:
    from colonnade.run.directory import RunDirectory

    trained(tmp_path / "run")
    held = RunDirectory(tmp_path / "run", resume=True)
    try:
        with pytest.raises(StorageError, match=says(tmp_path / "run", "in use")):
            remove_party(tmp_path / "run", "telco")
    finally:
        held.close()
    assert Result.load(tmp_path / "run").left == ()


# Joining


def model_of(result: Result, name: str) -> dict[str, torch.Tensor]:
    parties = result._federation.fabric.parties
    return {key: item.clone() for key, item in parties[name].model.state_dict().items()}


def test_frozen_parties_answer_as_before_to_the_last_bit(tmp_path: Path) -> None:
    run = tmp_path / "two"
    old = trained(run, num_parties=2)
    start = {"run": str(run), "freeze": ["bank", "shop"], "freeze_fusion": True}
    new = trained(num_parties=3, start=start)
    for name in ("bank", "shop"):
        for key, value in model_of(old, name).items():
            assert torch.equal(value, model_of(new, name)[key])
    said = new.summary["start"]
    assert said["joined"] == ["telco"]
    assert said["fall"] == 0.0
    assert said["within_bound"]
    blocks = new_blocks()
    rest = {name: blocks[name] for name in ("bank", "shop")}
    assert old.outputs(rest).equals(new.outputs(rest))
    assert not old.predict(rest).empty


def test_a_party_joins_and_the_others_stay_within_the_bound(tmp_path: Path) -> None:
    run = tmp_path / "two"
    blocks = frames(900, 3)
    labels = labels_of(blocks)
    two = {name: blocks[name] for name in ("bank", "shop")}
    train(parse_spec(settings()), sources=sources_of(two, labels), directory=run)
    spec = parse_spec(settings(start={"run": str(run), "bound": 0.05}))
    new = train(spec, sources=sources_of(blocks, labels))
    said = new.summary["start"]
    assert said["stayed"] == ["bank", "shop"]
    assert said["within_bound"], said
    assert new.summary["warnings"] == []
    # The new party knows a third of the label.
    assert new.summary["quality"]["test"]["accuracy"] > said["quality_after"]


def test_a_broken_bound_and_other_samples_are_warned_of(tmp_path: Path) -> None:
    run = tmp_path / "two"
    blocks = frames(900, 3)
    labels = labels_of(blocks)
    two = {name: blocks[name] for name in ("bank", "shop")}
    train(parse_spec(settings()), sources=sources_of(two, labels), directory=run)
    hurried = {"optimizer": {"name": "adam", "lr": 10.0}}
    spec = settings(start={"run": str(run), "bound": 0.0}, seed=3, defaults=hurried)
    new = train(parse_spec(spec), sources=sources_of(blocks, labels))
    fell, differ = new.summary["warnings"]
    assert "more than start.bound = 0" in fell
    assert "may have trained on samples that are held out here" in differ


def test_a_joining_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    run = tmp_path / "two"
    trained(run, num_parties=2)
    start = {"run": str(run), "freeze": ["bank"]}
    whole = trained(tmp_path / "whole", start=start)
    trained(tmp_path / "halves", start=start, stop={"epochs": 3})
    blocks = frames(900, 3)
    again = train(
        parse_spec(settings(start=start)),
        sources=sources_of(blocks, labels_of(blocks)),
        directory=tmp_path / "halves",
        resume=True,
    )
    for name in ("bank", "shop", "telco"):
        for key, value in model_of(whole, name).items():
            assert torch.equal(value, model_of(again, name)[key])
    assert again.summary["start"] == whole.summary["start"]


def test_what_can_not_join_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "two"
    trained(run, num_parties=2)
    with pytest.raises(ConfigError, match=says("start.freeze", "'tleco'", "bank, shop")):
        trained(start={"run": str(run), "freeze": ["tleco"]})
    with pytest.raises(ConfigError, match=says("start.run", "'mean_of_observed'", "'splitnn'")):
        trained(start={"run": str(run)}, method="splitnn", data={"incomplete": "drop"})
    wider = {"encoder": {"kind": "mlp", "hidden": [65]}}
    with pytest.raises(ConfigError, match=says("start.run", "'bank'", "encoder.output.weight")):
        trained(start={"run": str(run)}, defaults=wider)
    with pytest.raises(ConfigError, match=says("start.freeze", "run")):
        parse_spec({"start": {"freeze": ["bank"]}})
    blocks = frames(200, 2)
    splitnn = tmp_path / "splitnn"
    colonnade.fit(blocks, labels_of(blocks), label_holder="bank", epochs=1, out=splitnn)
    more = frames(200, 3)
    with pytest.raises(
        ConfigError, match=says("start.run", "'telco'", "'splitnn'", "mean_of_observed")
    ):
        colonnade.fit(
            more,
            labels_of(more),
            label_holder="bank",
            epochs=1,
            settings={"start": {"run": str(splitnn)}},
        )


# Real methods


@pytest.mark.parametrize(
    "method", ["laser", "local", "ensemble", "plug", "combinatorial", "vfedtrans"]
)
def test_who_left_changes_nothing_for_the_others(method: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fusion = {"label_holder": {"fusion": {"kind": "mlp"}}}
    result = trained(run, method=method, stop={"epochs": 1}, **fusion)
    blocks = new_blocks()
    rest = {name: blocks[name] for name in ("shop", "telco")}
    before = result.answer(rest)
    remove_party(run, "bank", erase=True)
    pd.testing.assert_frame_equal(Result.load(run).answer(rest), before)
    used = {"local": ("shop",), "vfedtrans": ("shop",)}.get(method, ("shop", "telco"))
    assert before.loc["s0002", "blocks"] == used


def test_a_guess_names_no_block(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", method="standard", stop={"epochs": 1}, label_holder={})
    found = result.answer(new_blocks())
    assert found.loc["s0000", "blocks"] == ("bank", "shop", "telco")
    assert found.loc["s0001", "blocks"] == ()
    remove_party(tmp_path / "run", "telco")
    rest = {name: new_blocks()[name] for name in ("bank", "shop")}
    assert set(Result.load(tmp_path / "run").answer(rest)["blocks"]) == {()}


def test_a_party_joins_under_laser(tmp_path: Path) -> None:
    blocks = frames(900, 3)
    labels = labels_of(blocks)
    two = {name: blocks[name] for name in ("bank", "shop")}
    run = tmp_path / "two"
    plain = settings(method="laser", label_holder={})
    old = train(parse_spec(plain), sources=sources_of(two, labels), directory=run)
    start = {"run": str(run), "freeze": ["bank", "shop"]}
    new = train(parse_spec({**plain, "start": start}), sources=sources_of(blocks, labels))
    assert new.summary["start"]["fall"] == 0.0
    rest = {name: new_blocks()[name] for name in ("bank", "shop")}
    assert old.outputs(rest).equals(new.outputs(rest))
