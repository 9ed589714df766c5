"""In one process a budget is for people, over training, evaluation and predictions of a run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.core.errors import BudgetSpent, Refused, StorageError
from colonnade.protect.lifetime_account import LifetimeAccount
from colonnade.run.engine import train
from colonnade.run.result import Result
from colonnade.run.spec import parse_spec
from colonnade.run.storage import party_directory
from golden.test_protected_runs import PERTURB, settings, sources, with_policy

EPOCHS = {"epochs": 2, "evaluate_every": 100}
STEPS = {"kind": "private_steps", "noise": 2.0}


def trained(tmp_path: Path, budget: str, chain: list[Any], **more: Any) -> tuple[Result, Path]:
    values = with_policy(tmp_path, f"[budget]\n{budget}", settings(chain, stop=EPOCHS, **more))
    root = tmp_path / "run"
    return train(parse_spec(values), sources=sources(), directory=root), root


def tables() -> dict[str, Any]:
    return {block.owner: block for block in sources().blocks.values()}


def held(root: Path) -> Any:
    account = LifetimeAccount(party_directory(root, "shop") / "account.sqlite", party="shop")
    found = account.held()
    account.close()
    return found


def some(blocks: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    return {name: block.take(range(begin, end)) for name, block in blocks.items()}


def ask_again(*asking: Callable[[], Any]) -> None:
    for _ in range(4):
        for ask in asking:
            ask()


def test_predictions_are_charged_to_the_account_of_training(tmp_path: Path) -> None:
    """μ² = k for noise 2: two epochs and two predictions are four releases of a person."""
    result, root = trained(tmp_path, "mu = 2.0", [PERTURB])
    before = held(root)
    assert before.quantiles["releases"][-1] == 2
    blocks = some(tables(), 0, 8)
    # Another process knows no more than the directory: what it sends again is no news.
    with pytest.raises(BudgetSpent, match="rule 'budget'"):
        ask_again(lambda: Result.load(root).predict(blocks), lambda: result.predict(blocks))
    assert held(root).quantiles["releases"][-1] == 4
    assert held(root).quantiles["mu"][-1] <= 2.0
    # Nobody else's account is spent by that.
    others = some(tables(), 8, 16)
    result.predict(others)
    Result.load(root).predict(others)


def test_steps_and_embeddings_have_one_budget(tmp_path: Path) -> None:
    chain = [STEPS, PERTURB]
    result, root = trained(tmp_path, "mu = 2.0", chain)
    # Each exchange is a release and a step: two epochs are all that four units pay for.
    assert result.summary["stopped_by"] == "length"
    assert held(root).quantiles["mu"][-1] == pytest.approx(2.0)
    (tmp_path / "less").mkdir()
    result, root = trained(tmp_path / "less", "mu = 1.9", chain)
    assert result.summary["stopped_by"] == "refused"
    assert held(root).quantiles["mu"][-1] <= 1.9


def test_evaluating_again_in_another_process_goes_on_with_the_account(tmp_path: Path) -> None:
    _, root = trained(tmp_path, "mu = 3.0", [PERTURB])
    before = held(root)
    labels = pd.Series(sources().labels.values, index=sources().labels.ids)
    Result.load(root).evaluate(tables(), labels)
    after = held(root)
    assert after.num_charges > before.num_charges
    assert after.quantiles["releases"][-1] == before.quantiles["releases"][-1] + 1
    assert after.num_people == before.num_people


def test_an_account_that_is_gone_or_old_is_refused(tmp_path: Path) -> None:
    values = with_policy(tmp_path, "[budget]\nmu = 3.0", settings([PERTURB], stop=EPOCHS))
    root = tmp_path / "run"
    train(parse_spec(values), sources=sources(), directory=root)
    file = party_directory(root, "shop") / "account.sqlite"
    file.unlink()
    with pytest.raises(StorageError, match="no such account"):
        Result.load(root)
    LifetimeAccount(file, party="shop").close()
    longer = parse_spec(values | {"stop": {**EPOCHS, "epochs": 3}})
    with pytest.raises(Refused, match="rule 'account'"):
        train(longer, sources=sources(), directory=root, resume=True)


def test_a_saved_result_takes_its_account_along_and_is_not_copied_without(tmp_path: Path) -> None:
    values = with_policy(tmp_path, "[budget]\nmu = 2.0", settings([PERTURB], stop=EPOCHS))
    result = train(parse_spec(values), sources=sources())
    with pytest.raises(StorageError, match="one account"):
        copy.deepcopy(result)
    saved = result.save(tmp_path / "saved")
    assert held(saved).quantiles["releases"][-1] == 2
    blocks = some(tables(), 0, 8)
    loaded = Result.load(saved)
    with pytest.raises(BudgetSpent):
        ask_again(lambda: loaded.predict(blocks))


def test_without_a_budget_there_is_no_account_and_the_weights_are_the_same(tmp_path: Path) -> None:
    result, _ = trained(tmp_path, "mu = 9.0", [PERTURB])
    free = train(
        parse_spec(settings([PERTURB], stop=EPOCHS)), sources=sources(), directory=tmp_path / "free"
    )
    assert not (party_directory(tmp_path / "free", "shop") / "account.sqlite").exists()
    assert free.summary["privacy"] == result.summary["privacy"]
    assert isinstance(free.predict(some(tables(), 0, 8)), pd.Series)


def test_prepared_rows_are_charged_by_their_ids_as_in_serving(tmp_path: Path) -> None:
    result, root = trained(tmp_path, "mu = 9.0", [PERTURB])
    blocks = some(tables(), 0, 8)
    features = {name: result.features(block) for name, block in blocks.items()}
    rows = {name: np.array([5, 2, 7]) for name in blocks}
    ids = [str(blocks["shop"].ids[row]) for row in (5, 2, 7)]
    before = held(root)
    result.answer_rows(features, rows, ids=ids)
    after = held(root)
    assert (after.num_people, after.num_charges) == (before.num_people, before.num_charges + 1)
    with pytest.raises(Refused, match="nobody said who"):
        result.answer_rows(features, rows)
