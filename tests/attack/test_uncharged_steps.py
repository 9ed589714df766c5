"""A label holder that trains on a sample without asking for it: steps are paid for by releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from at_home import AtHome
from colonnade.core.federation import Federation, LoopState, Stop
from colonnade.core.messages import Batch
from colonnade.core.step_rules import StepRules
from colonnade.quality.evaluation import evaluate
from federations import assert_bitwise_equal, checkpoint, resume, weights
from golden.test_resume_in_flight import VARIANTS, build

BATCH = Batch("train", 0)
PERTURB = {"defaults": {"protect": [{"kind": "perturb", "noise": 2.0}]}}


@pytest.fixture
def home(tmp_path: Path) -> AtHome:
    return AtHome(tmp_path, {"telco": np.random.default_rng(2).normal(size=(30, 3))})


def descend(home: AtHome, *arguments: Any) -> Any:
    return home.failure("telco", "descend", BATCH, torch.ones(30, 32), *arguments)


@pytest.mark.attack(
    what="Local steps that nobody charges",
    has="the verb 'descend', as often as it likes, on one sample (cheating)",
    before="after 200 steps other samples' noisy embeddings told the sample (AUC 0.98), and its "
    "account said 0",
    now="refused, rule 'steps_per_release': steps on a batch follow a charged release of it, once",
)
@pytest.mark.parametrize(
    ("method", "steps"), [("splitnn", ()), ({"name": "fedbcd", "local_steps": 3}, (3,))]
)
def test_steps_follow_a_release_once(home: AtHome, method: Any, steps: tuple[int, ...]) -> None:
    assert home.assemble("telco", {**PERTURB, "method": method}) is None
    party = home.party("telco")
    before = {key: item.clone() for key, item in party.model.state_dict().items()}
    for _ in range(3):
        failure = descend(home, *steps)
        assert failure is not None
        assert "rule 'steps_per_release'" in failure.message
    assert_bitwise_equal(before, party.model.state_dict())
    home.ask("telco", "embed", BATCH)
    assert descend(home, *steps) is None
    assert party.num_local_steps == (steps or (1,))[0]
    failure = descend(home, *steps)
    assert failure is not None
    assert failure.kind == "Refused"


def test_a_release_of_other_samples_pays_for_nothing(home: AtHome) -> None:
    proposed = {**PERTURB, "data": {"batch_size": 10}}
    assert home.assemble("telco", proposed) is None
    home.ask("telco", "embed", Batch("train", 1))
    failure = home.failure("telco", "descend", BATCH, torch.ones(10, 32))
    assert failure is not None
    assert "rule 'steps_per_release'" in failure.message


AT_HOME = [name for name, method in VARIANTS.items() if method.stays_home]


@pytest.mark.parametrize("variant", AT_HOME)
def test_every_method_pays_for_its_steps_also_when_it_is_resumed(variant: str) -> None:
    """With calls under way: what was released before a checkpoint is paid for after it."""

    def paying() -> Federation:
        federation = build(variant, "latencies")
        for party in federation.fabric.parties.values():  # type: ignore[attr-defined]
            party.step_rules = StepRules(party.name, 1000)
        return federation

    whole, kept = paying(), {}
    for event in whole.train(Stop(exchanges=7), LoopState(), evaluate):
        if event.exchange == 4:
            kept = checkpoint(whole)
    resumed = paying()
    resume(resumed, kept)
    for _ in resumed.train(Stop(exchanges=7), LoopState(exchange=4), evaluate):
        pass
    assert_bitwise_equal(weights(resumed), weights(whole))
