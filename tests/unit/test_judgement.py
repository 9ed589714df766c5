"""Mistakes, counted: against scikit-learn and by hand; verdicts claim no more than they may."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from colonnade.core.errors import ConfigError, StorageError
from colonnade.core.task import Task
from colonnade.quality.judgement import judge
from colonnade.quality.result_card import CardRow, ResultCard
from colonnade.report.axes import axis_of, compared_with
from colonnade.report.comparison import compare_runs
from colonnade.report.judgement_section import judgement_section
from colonnade.report.verdict import verdict
from messages import says
from report_pages import Page, run_directory


def test_two_classes_agree_with_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    truth = generator.random(4000) < 0.3
    outputs = torch.tensor(generator.normal(size=4000) + 1.5 * truth - 1.0)[:, None]
    labels = np.where(truth, "yes", "no")
    task = Task.fit("binary", labels)
    found = judge(task, outputs, labels, part="test")
    area = sk.auc(*zip(*found["roc"], strict=True))
    assert area == pytest.approx(sk.roc_auc_score(truth, outputs[:, 0]), abs=0.01)
    assert len(found["roc"]) <= 50
    assert found["roc"][0] == [0.0, 0.0]
    assert found["roc"][-1] == [1.0, 1.0]
    assert found["precision_recall"][-1][0] == 1.0
    guessed = outputs[:, 0].numpy() > 0
    assert found["confusion"]["counts"] == sk.confusion_matrix(truth, guessed).tolist()
    assert sum(item["num_samples"] for item in found["calibration"]) == 4000


def test_small_groups_and_many_classes_are_left_out() -> None:
    labels = np.array(["a", "b", "c"] * 4)
    task = Task.fit("multiclass", labels)
    found = judge(task, torch.eye(3).repeat(4, 1) * 5, labels, part="test")
    assert found["confusion"]["counts"] == [[4, 0, 0], [0, 4, 0], [0, 0, 4]]
    assert [item["num_samples"] for item in found["calibration"]] == [12]
    assert "roc" not in found
    many = np.arange(42) % 21
    crowd = judge(Task.fit("multiclass", many), torch.eye(21).repeat(2, 1), many, part="test")
    assert "confusion" not in crowd
    one_class = np.array(["yes", "no", "no"])
    lone = judge(Task.fit("binary", one_class), torch.zeros(2, 1), one_class[1:], part="test")
    assert "roc" not in lone
    assert lone["calibration"] == []


def test_residuals_are_in_the_labels_units() -> None:
    values = np.linspace(100.0, 200.0, 60)
    task = Task.fit("regression", values)
    outputs = torch.tensor((values - 3.0 - task.center) / task.scale)[:, None]
    found = judge(task, outputs, values, part="test")["residuals"]
    assert found["mean"] == pytest.approx(3.0, abs=1e-3)
    assert len(found["groups"]) == 10
    assert all(item["middle"] == pytest.approx(3.0, abs=1e-3) for item in found["groups"])
    few = judge(task, outputs[:6], values[:6], part="test")["residuals"]
    assert few["groups"] == []


def card(
    together: float, alone: float | None, spread: float, metric: str = "accuracy"
) -> ResultCard:
    def row(who: str, value: float) -> CardRow:
        return CardRow(who=who, value=value, low=value - spread, high=value + spread)

    rows = [row("the commonest class", 0.5)]
    if alone is not None:
        rows.append(row("bank alone", alone))
    rows.append(row("together (splitnn)", together))
    return ResultCard(metric=metric, part="test", num_samples=200, rows=tuple(rows))


@pytest.mark.parametrize(
    ("shown", "says_so", "kind"),
    [
        (card(0.9, 0.7, 0.05), "0.200 more than bank alone: more than chance", "good"),
        (card(0.72, 0.7, 0.05), "0.020 more than bank alone, which may be chance", "warn"),
        (card(0.6, 0.7, 0.05), "0.100 less than bank alone: more than chance", "warn"),
        (card(0.9, None, 0.05), "0.400 more than the commonest class", "good"),
        (card(0.9, 0.7, math.nan), "no interval is known, so this may be chance", "warn"),
        (card(0.52, 0.3, 0.05), "not clearly better than the commonest class (0.500)", "warn"),
        (card(0.6, 0.9, 0.05, "rmse"), "0.300 better than bank alone", "good"),
    ],
)
def test_a_verdict_claims_no_more_than_the_intervals_allow(
    shown: ResultCard, says_so: str, kind: str
) -> None:
    said = verdict(shown)
    assert says_so in Page(said).text
    assert f'class="verdict {kind}"' in said


def test_axes_hold_still() -> None:
    assert axis_of("accuracy", [0.801, 0.803]) == (0.7, 1.02)
    assert axis_of("auc", [0.02, 0.9]) == (0.0, 1.02)
    assert axis_of("rmse", [2.0, 4.0]) == (0.0, pytest.approx(4.32))
    assert axis_of("r2", [0.5]) == (-0.05, 1.02)
    assert axis_of("own", [0.5]) is None
    assert axis_of("accuracy", [math.nan]) is None


def test_a_page_shows_mistakes_and_escapes_their_classes(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")
    assert judgement_section(run, "x") == {}
    labels = np.array(["<b>a</b>", "b"] * 40)
    found = judge(Task.fit("binary", labels), torch.randn(80, 1), labels, part="test")
    (run / "judgement.json").write_text(json.dumps(found))
    section = judgement_section(run, "x")["Mistakes"]
    assert "<b>a" not in section
    page = Page(section)
    assert len(page.rows("<b>a</b>")) == 1
    assert "precision" in page.text
    (run / "judgement.json").write_text('{"part": "test"}')
    with pytest.raises(StorageError, match=says("judgement.json", "damaged")):
        judgement_section(run, "x")


def test_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    first, second = run_directory(tmp_path / "first"), run_directory(tmp_path / "second")
    page = Page(compare_runs([first, second], tmp_path / "both.html").read_text("utf-8"))
    assert [len(page.rows(name)) for name in ("first", "second")] == [1, 1]
    assert page.rows("first")[0][1] == "0.9652"
    again = run_directory(tmp_path / "other" / "first", finished=False)
    page = Page(compare_runs([first, again], tmp_path / "both.html").read_text("utf-8"))
    assert "unfinished" in page.text
    with pytest.raises(ConfigError, match="given twice"):
        compare_runs([first, first], tmp_path / "both.html")
    assert compared_with(first, "accuracy") == []
