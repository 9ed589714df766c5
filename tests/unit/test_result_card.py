"""The headline: the right metric, beside a guess and the label holder alone, with intervals."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from colonnade import fit
from colonnade.core.errors import ConfigError
from colonnade.core.task import Task
from colonnade.quality.headline import headline_of
from colonnade.quality.intervals import interval_of
from colonnade.quality.result_card import CardRow, ResultCard, guess_row
from colonnade.report import write_report
from colonnade.report.markup import number
from colonnade.run.result import Result
from messages import says

COUNT = 300
DRAW = np.random.default_rng(6)
IDS = pd.Index([f"u{number}" for number in range(COUNT)], name="id")
BANK = pd.DataFrame(DRAW.normal(size=(COUNT, 2)), index=IDS, columns=["age", "pay"])
TELCO = pd.DataFrame(DRAW.normal(size=(COUNT, 2)), index=IDS, columns=["calls", "sms"])
SIGNAL = BANK["age"] + 2 * TELCO["calls"]
EVEN = pd.Series(np.where(SIGNAL > 0, "yes", "no"), index=IDS, name="left")
RARE = pd.Series(np.where(SIGNAL > 3, "yes", "no"), index=IDS, name="left")
BLOCKS = {"bank": BANK, "telco": TELCO}


def quick(labels: Any, **arguments: Any) -> Result:
    settings = {
        "defaults": {"optimizer": {"lr": 0.02}},
        "label_holder": {"optimizer": {"lr": 0.02}},
        **arguments.pop("settings", {}),
    }
    arguments = {"label_holder": "bank", "epochs": 5, **arguments}
    return fit(BLOCKS, labels, settings=settings, **arguments)


@pytest.mark.parametrize(
    ("labels", "metric"),
    [(EVEN, "accuracy"), (RARE, "auc"), (SIGNAL.rename("debt"), "r2")],
    ids=["even", "rare", "number"],
)
def test_the_card_has_a_guess_alone_and_together(labels: Any, metric: str) -> None:
    result = quick(labels)
    card = result.card()
    assert card is not None
    assert (card.metric, card.part, card.num_samples) == (metric, "test", 45)
    guess, alone, together = card.rows
    assert alone.who == "bank alone"
    assert guess.value < together.value
    assert alone.value < together.value
    assert together.value == pytest.approx(result.summary["quality"]["test"][metric])
    assert together.low <= together.value <= together.high
    assert f"test {metric} {together.value:.3f}" in repr(result)
    assert result.card() is card
    page = result._repr_html_()
    assert "bank alone" in page
    assert f"{together.value:.3f}" in page


def test_alone_is_the_label_holder_on_the_same_samples() -> None:
    card = quick(EVEN).card()
    assert card is not None
    own = quick(EVEN, method="alone")
    assert card.rows[1].value == own.summary["quality"]["test"]["accuracy"]


def test_making_the_card_changes_nothing() -> None:
    first, second = quick(EVEN), quick(EVEN)
    first.card()
    pd.testing.assert_frame_equal(
        first.predict_proba(BLOCKS), second.predict_proba(BLOCKS), check_exact=True
    )
    assert first.summary["bytes_up"] == second.summary["bytes_up"]


def test_a_label_holder_without_columns_is_said(tmp_path: Path) -> None:
    result = quick(EVEN, label_holder="registry", out=tmp_path / "run")
    card = result.card()
    assert card is not None
    assert [row.who for row in card.rows] == ["the commonest class", "together (splitnn)"]
    assert "no columns of its own" in card.note


def test_a_card_is_kept_with_the_model(tmp_path: Path) -> None:
    result = quick(EVEN, out=tmp_path / "run")
    card = result.card()
    assert card is not None
    loaded = Result.load(result.save(tmp_path / "model"))
    assert loaded.card() == card
    copied: Result = pickle.loads(pickle.dumps(result))  # noqa: S301 - written just now
    assert copied.card() == card
    (tmp_path / "run" / "card.json").write_bytes((tmp_path / "model" / "card.json").read_bytes())
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert page.index("bank alone") < page.index("Exchanges")
    # In the terminal, in a notebook and on the page: every row, its value and its interval.
    terminal, notebook = "\n".join(card.lines()), result._repr_html_()
    for row in card.rows:
        assert row.low <= row.value <= row.high
        assert f"{row.who}" in terminal
        assert f"{row.value:.3f}  ({row.low:.3f} to {row.high:.3f})" in terminal
        assert f"<td>{row.value:.3f}</td><td>{row.low:.3f} to {row.high:.3f}</td>" in notebook
        for shown in (row.who, number(row.value), number(row.low), number(row.high)):
            assert shown in page[: page.index("Exchanges")]
    assert card.rows[0].who == "the commonest class"
    assert Result.load(tmp_path / "run").card() == card


def test_a_guess_has_no_skill() -> None:
    task = Task.fit("binary", RARE.to_numpy())
    values = RARE.to_numpy()
    assert guess_row("auc", task, values, values).value == 0.5
    share = float((values == "yes").mean())
    assert guess_row("average_precision", task, values, values).value == pytest.approx(share)
    assert guess_row("accuracy", task, values, values).value == pytest.approx(1 - share)


def test_the_headline_follows_the_labels() -> None:
    task = Task.fit("binary", RARE.to_numpy())
    assert headline_of(task, np.array(["no"] * 9 + ["yes"])) == "auc"
    assert headline_of(task, np.array(["no"] * 7 + ["yes"] * 3)) == "accuracy"
    assert headline_of(task, np.array(["no"] * 9)) == "accuracy"
    assert headline_of(task, np.array(["no"] * 9 + ["yes"]), "loss") == "auc"
    assert headline_of(task, np.array(["no"] * 9), "auc") == "accuracy"


def test_the_headline_is_the_metric_that_was_said() -> None:
    said = {"stop": {"epochs": 5, "patience": 9, "metric": "macro_f1"}}
    result = quick(RARE, settings=said, epochs=None)
    card = result.card()
    assert card is not None
    assert (card.metric, result.summary["headline"]) == ("macro_f1", "macro_f1")
    assert card.rows[-1].value == pytest.approx(result.summary["quality"]["test"]["macro_f1"])
    assert "test macro_f1" in repr(result)


def test_intervals_agree_with_the_slow_way() -> None:
    task = Task.fit("binary", EVEN.to_numpy())
    outputs = torch.from_numpy(SIGNAL.to_numpy() + DRAW.normal(0, 2, COUNT))[:, None]
    values = EVEN.to_numpy()
    draw = np.random.default_rng(0)
    rows = [draw.integers(0, COUNT, COUNT) for _ in range(400)]
    for name in ("auc", "accuracy"):
        slow = [task.measure(outputs[own], values[own])[name] for own in rows]
        expected = np.quantile(slow, [0.025, 0.975])
        np.testing.assert_allclose(interval_of(name, task, outputs, values), expected)


def test_ranking_metrics() -> None:
    binary = Task.fit("binary", np.array(["no", "yes"]))
    outputs = torch.randn(60, 1, generator=torch.Generator().manual_seed(0))
    truth = np.where(np.arange(60) % 3 == 0, "yes", "no")
    found = binary.measure(outputs, truth)
    codes, scores = (truth == "yes").astype(int), outputs[:, 0].numpy()
    assert found["average_precision"] == pytest.approx(average_precision_score(codes, scores))
    several = Task.fit("multiclass", np.arange(3))
    wide = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    expected = roc_auc_score(
        np.arange(60) % 3, torch.softmax(wide.double(), 1).numpy(), multi_class="ovr"
    )
    assert several.measure(wide, np.arange(60) % 3)["auc"] == pytest.approx(expected)
    assert "auc" not in several.measure(wide[:2], np.array([0, 1]))
    for task, rows in ((binary, found), (several, several.measure(wide, np.arange(60) % 3))):
        assert {"loss", *rows} == set(task.metric_names)


def test_patience_on_any_metric() -> None:
    """Patience 1 with a metric that can't improve ends at once; less loss is better."""
    by_loss = quick(
        EVEN, settings={"stop": {"epochs": 12, "patience": 2, "metric": "loss"}}, epochs=None
    )
    best = by_loss.evaluate(part="validation")["loss"]
    assert best == by_loss.summary["quality"]["validation"]["loss"]
    target = {"stop": {"epochs": 12, "target": 100.0, "metric": "loss"}}
    assert quick(EVEN, settings=target, epochs=None).summary["stopped_by"] == "target"
    with pytest.raises(ConfigError, match=says("stop.metric", "'acc'", "did you mean")):
        quick(EVEN, settings={"stop": {"epochs": 2, "metric": "acc"}}, epochs=None)
    with pytest.raises(ConfigError, match=says("stop.metric", "'r2'", "binary")):
        quick(EVEN, settings={"stop": {"epochs": 2, "metric": "r2"}}, epochs=None)


def test_a_card_reads_back() -> None:
    card = quick(EVEN).card()
    assert card is not None
    assert ResultCard.of(card.plain()) == card
    assert card.lines()[0] == "accuracy on 45 test samples (95 % interval)"


def test_a_row_without_an_interval_says_so() -> None:
    missing = float("nan")
    row = CardRow(who="together (splitnn)", value=0.5, low=missing, high=missing)
    card = ResultCard(metric="accuracy", part="test", num_samples=9, rows=(row,), note="")
    assert card.lines()[1] == "  together (splitnn)  0.500  (no interval)"
    assert "<td>no interval</td>" in card.html()
