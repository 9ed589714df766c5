"""Every rule of a party's policy refuses by its name, before the party's table is even read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from colonnade.core.errors import ConfigError, Refused, StorageError
from colonnade.core.messages import Call, Failure
from colonnade.core.numerics import NUMERICS
from colonnade.core.optimizers import OptimizerSpec
from colonnade.federate.party_home import PartySettings
from colonnade.federate.party_limits import Limits, Runs
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.train_session import TrainSession
from colonnade.protect.budget import Budget
from colonnade.protect.policy import Policy, Terms
from messages import says

RUN = "ab" * 16
PERTURB = {"kind": "perturb", "noise": 2.0, "clip": 1.0}
BLIND = {"kind": "blind"}
PROPOSED: Mapping[str, Any] = {
    "names": ["shop", "telco"],
    "numerics": NUMERICS,
    "label_holder": {"name": "bank", "fusion": {"kind": "mlp", "combine": "mean"}},
    "stop": {"exchanges": 5},
}


def asked(home: Path, verb: str, *arguments: Any, **settings: Any) -> Failure | None:
    """Ask telco, whose table does not exist; settings are those of its policy and party.toml."""
    own = {key: settings.pop(key) for key in ("allow_unprotected",) if key in settings}
    there = PartySettings(
        name="telco",
        label_holder="bank",
        hub="127.0.0.1:1",
        data=Path("none.csv"),
        id="id",
        **{"allow_unprotected": True, **own},
    )
    session = TrainSession(home=home, settings=there, policy=PartyPolicy(**settings))
    return session.execute(Call(0, "telco", verb, arguments, 0, True)).failure


def telco(**own: Any) -> dict[str, Any]:
    return {"party": {"telco": own}}


# Rule, the party's settings, what the label holder proposes.
ON_SETTINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("methods", {"methods": ("fedbcd",)}, {}),
    ("participants", {"participants": ("bank", "telco")}, {}),
    ("columns", {"columns": ("calls",)}, telco(columns=["calls", "illness"])),
    ("columns", {"columns": ("calls",)}, telco(prepare={"categorical_columns": ["illness"]})),
    ("require", {"require": ("perturb",)}, {}),
    ("forbid", {"forbid": ("perturb",)}, telco(protect=[PERTURB])),
    ("least_noise", {"least_noise": 2.5}, telco(protect=[PERTURB])),
    ("largest_noise", {"largest_noise": 1.5}, telco(protect=[PERTURB])),
    ("least_clip", {"least_clip": 1.5}, telco(protect=[PERTURB])),
    ("largest_clip", {"largest_clip": 0.5}, telco(protect=[PERTURB])),
    ("budget", {"budget": Budget(epsilon=1.0)}, {}),
    ("steps_per_release", {"steps_per_release": 4}, {"method": "fedbcd"}),
    ("steps_per_release", {"steps_per_release": 999}, {"method": "flex"}),
    ("least_parties", {"least_parties": 3}, {"defaults": {"protect": [BLIND]}}),
    ("largest_lr", {"largest_lr": 0.01}, telco(optimizer={"name": "sgd", "lr": 0.02})),
    ("limits.max_threads", {"limits": Limits(max_threads=4)}, {"threads": 2000}),
    ("limits.max_exchanges", {"limits": Limits(max_exchanges=4)}, {}),
    (
        "limits.max_local_steps",
        {"limits": Limits(max_local_steps=50)},
        {"method": {"name": "fedbcd", "local_steps": 10**15}},
    ),
]

# What an agent refuses that has no policy file.
BY_DEFAULT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("encoders", {}, telco(encoder="linear")),
    ("encoders", {}, {"defaults": {"encoder": "linear"}}),
    ("encoders", {}, telco(encoder={"kind": "mlp", "hidden": []})),
    ("encoders", {}, telco(encoder={"kind": "mlp", "activation": "identity"})),
    ("encoders", {}, telco(encoder={"kind": "cnn", "activation": "identity"})),
    ("dtypes", {}, {"dtype": "float64"}),
    ("unscaled", {}, telco(prepare={"scale": False})),
    ("largest_lr", {}, telco(optimizer={"name": "sgd", "lr": 50.0})),
    (
        "largest_shrinkage",
        {},
        telco(optimizer={"name": "sgd", "lr": 0.5, "options": {"weight_decay": 1.0}}),
    ),
    (
        "largest_shrinkage",
        {},
        telco(optimizer={"name": "adam", "lr": 0.01, "options": {"weight_decay": 1e-12}}),
    ),
    ("allow_unprotected", {"allow_unprotected": False}, {}),
    (
        "allow_unprotected",
        {"allow_unprotected": False},
        telco(protect=[{"kind": "quantize", "bits": 8}]),
    ),
    ("limits.max_local_steps", {}, {"method": {"name": "fedbcd", "local_steps": 10**15}}),
]


class TestOnSettingsAlone:
    @pytest.mark.parametrize("verb", ["consider", "assemble"])
    @pytest.mark.parametrize(("rule", "own", "proposed"), [*ON_SETTINGS, *BY_DEFAULT])
    def test_the_rule_is_named(
        self, rule: str, own: dict[str, Any], proposed: dict[str, Any], verb: str, tmp_path: Path
    ) -> None:
        settings = json.dumps({**PROPOSED, **proposed})
        roll = {"train": torch.arange(6)}, {"train": torch.ones(6, 2, dtype=torch.bool)}
        further = () if verb == "consider" else ("digest", 1, *roll)
        failure = asked(tmp_path, verb, RUN, settings, *further, **own)
        assert failure is not None
        assert failure.kind == "Refused", failure.message
        assert f"rule '{rule}'" in failure.message
        assert "'telco'" in failure.message
        # It is in the party's own log too.
        assert rule in (tmp_path / "refused.jsonl").read_text()

    def test_every_rule_of_a_policy_is_tried_in_this_file(self) -> None:
        tried = {rule.partition(".")[0] for rule, *_ in [*ON_SETTINGS, *BY_DEFAULT, *ON_DATA]}
        elsewhere = {
            *("key", "duplicates", "custom_encoders", "peers", "align"),  # an agent's own matters
            *("fixed_participants", "flat_parts"),  # tests/attack/test_blinding_undone.py
            "releases_per_row",  # tests/attack/test_one_account.py
            "tells",  # tests/unit/test_served_rows.py
            "queries",  # tests/unit/test_query_counts.py
            "cache_seconds",  # tests/contract/test_serving_at_parties.py
            "largest_gradient",  # tests/attack/test_steps_are_not_free.py
        }
        rules = {field.name for field in dataclasses.fields(PartyPolicy)} - elsewhere
        assert rules - tried == set()

    def test_an_ordinary_run_is_let_pass(self, tmp_path: Path) -> None:
        assert asked(tmp_path, "consider", RUN, json.dumps(PROPOSED)) is None
        for protect in (PERTURB, BLIND):
            settings = json.dumps({**PROPOSED, "defaults": {"protect": [protect]}})
            assert asked(tmp_path, "consider", RUN, settings, allow_unprotected=False) is None

    def test_nothing_but_a_refused_column_is_named(self, tmp_path: Path) -> None:
        settings = json.dumps({**PROPOSED, **telco(columns=["calls", "illness"])})
        failure = asked(tmp_path, "consider", RUN, settings, columns=("calls", "tariff", "debts"))
        assert failure is not None
        assert "illness" in failure.message
        assert "tariff" not in failure.message
        assert "debts" not in failure.message


TERMS = Terms(
    method="splitnn",
    shares_labels=False,
    protections=(),
    participants=("bank", "telco"),
    encoder="mlp",
    width=4,
    lr=0.1,
    shrinkage=0.0,
    scaled=True,
    dtype="float32",
    local_steps=1,
    columns=("calls", "minutes", "late_bills"),
    num_rows=100,
    num_rows_used=90,
    smallest_batch=3,
)

ON_DATA: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("columns", {"columns": ("calls", "minutes")}, {}),
    ("least_columns_per_width", {"least_columns_per_width": 1.0}, {}),
    ("rows", {"rows": 0.8}, {}),
    ("least_samples", {"least_samples": 4}, {}),
    ("shared_labels", {"shared_labels": False}, {"shares_labels": True}),
]


class TestOnColumnsAndSamples:
    @pytest.mark.parametrize(("rule", "own", "terms"), ON_DATA)
    def test_the_rule_is_named(self, rule: str, own: Any, terms: Any) -> None:
        with pytest.raises(Refused, match=f"rule '{rule}'"):
            Policy(**own).check("telco", replace(TERMS, **terms))

    @pytest.mark.parametrize(
        "own",
        [
            {"least_columns_per_width": 0.75},
            {"rows": 0.9},
            {"least_samples": 3},
            {"columns": TERMS.columns},
        ],
    )
    def test_just_allowed(self, own: Any) -> None:
        Policy(**own).check("telco", TERMS)

    @pytest.mark.parametrize(
        ("rule", "own", "num_outputs"),
        [
            ("least_samples", {"least_samples": 5}, 1),
            ("limits.max_outputs", {}, 10**7),
            ("limits.max_samples", {"limits": Limits(max_samples=3)}, 1),
            ("distinct samples", {}, 1),
        ],
    )
    def test_a_roll_is_judged_before_the_table_is_read(
        self, rule: str, own: Any, num_outputs: int, tmp_path: Path
    ) -> None:
        numbers = torch.tensor([0, 1, 2, 2 if rule.startswith("distinct") else 3])
        roll = {"train": numbers}, {"train": torch.ones(4, 2, dtype=torch.bool)}
        arguments = (RUN, json.dumps(PROPOSED), "digest", num_outputs, *roll)
        failure = asked(tmp_path, "assemble", *arguments, **own)
        assert failure is not None
        assert f"rule '{rule}'" in failure.message
        # A run that was refused is no run.
        assert not (tmp_path / "runs.json").exists()


class TestRunsOfAParty:
    LIMITS = Limits(max_runs=2, per_days=10, max_hours=5)

    def test_so_many_in_so_many_days(self, tmp_path: Path) -> None:
        runs, day = Runs(tmp_path / "runs.json"), 86_400.0
        for number in range(2):
            runs.begin(self.LIMITS, "telco", number * day, run=f"run {number}")
        with pytest.raises(Refused, match=says("rule 'limits.max_runs'", "2 runs in 10 days")):
            runs.check(self.LIMITS, "telco", 9.9 * day)
        with pytest.raises(Refused, match=r"rule 'limits\.max_runs'"):
            runs.begin(self.LIMITS, "telco", 9.9 * day, run="run 2")
        runs.begin(self.LIMITS, "telco", 10.1 * day, run="run 2")

    def test_a_run_goes_on_until_its_time_is_over(self, tmp_path: Path) -> None:
        runs, hour = Runs(tmp_path / "runs.json"), 3_600.0
        for time in (0.0, 2 * hour, 5 * hour, -hour):
            runs.begin(self.LIMITS, "telco", time, run="one")
        with pytest.raises(Refused, match=r"rule 'limits\.max_hours'"):
            runs.check(self.LIMITS, "telco", 5 * hour + 1, run="one")

    def test_a_damaged_list_is_no_empty_one(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.json"
        for content in ("[", "[]", '{"one": "yesterday"}'):
            path.write_text(content)
            with pytest.raises(StorageError, match=r"runs\.json: damaged"):
                Runs(path).check(self.LIMITS, "telco", 0.0)


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"least_clip": 0.0}, "least_clip"),
        ({"largest_shrinkage": 1.0}, "largest_shrinkage"),
        ({"steps_per_release": 0}, "steps_per_release"),
        ({"least_parties": 1}, "least_parties"),
        ({"encoders": ("mpl",)}, "encoders: unknown kind 'mpl'; did you mean 'mlp'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_a_mistake(own: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        PartyPolicy(**own)


def test_a_limit_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="max_hours"):
        Limits(max_hours=0)


@pytest.mark.parametrize(
    ("name", "lr", "options", "shrinkage"),
    [
        ("sgd", 0.1, {"weight_decay": 0.01}, 1e-3),
        ("sgd", 0.1, {"weight_decay": 0.01, "momentum": 0.9}, 1e-2),
        # Torch's own default.
        ("adamw", 0.1, {}, 1e-3),
        ("adam", 0.1, {}, 0.0),
        ("adam", 0.1, {"weight_decay": 1e-9}, float("inf")),
        ("proximal", 0.1, {}, 0.0),
    ],
)
def test_how_much_of_the_weights_a_step_takes_off(
    name: str, lr: float, options: dict[str, float], shrinkage: float
) -> None:
    made = OptimizerSpec(name=name, lr=lr, options=options)
    assert made.shrinkage == pytest.approx(shrinkage)
