"""A party's own settings: in its party.toml, before what is proposed, and within its policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from at_home import RUN, AtHome
from colonnade.core.errors import ConfigError, StorageError
from colonnade.core.optimizers import OptimizerSpec
from colonnade.data.prepare import PrepareSpec
from colonnade.federate.feature_sources import FeaturesSpec
from colonnade.federate.own_settings import (
    SECRET,
    OwnSettings,
    effective_settings,
    own_seed,
)
from colonnade.federate.party_home import PartySettings, make_home, read_party, write_party
from colonnade.federate.party_limits import Limits
from colonnade.federate.party_policy import PartyPolicy
from colonnade.models import HeadSpec, LSTMSpec, MLPSpec
from colonnade.run.spec import parse_spec
from messages import says

OWN = OwnSettings(
    encoder=MLPSpec(hidden=(9, 5), dropout=0.5),
    head=HeadSpec(hidden=(3,)),
    optimizer=OptimizerSpec(name="sgd", lr=0.25, options={"momentum": 0.5, "nesterov": True}),
    prepare=PrepareSpec(scale=False, categorical_columns=("region",)),
)


def settings(home: Path, **more: Any) -> PartySettings:
    return PartySettings(
        name="telco", label_holder="bank", hub="127.0.0.1:1", data=home / "t.csv", id="id", **more
    )


class TestInPartyToml:
    @pytest.mark.parametrize(
        "more",
        [{}, {"own": OWN}, {"own": OwnSettings(prepare=PrepareSpec()), "common_seed": True}],
    )
    def test_written_it_comes_back(self, tmp_path: Path, more: dict[str, Any]) -> None:
        make_home(tmp_path)
        wanted = settings(tmp_path, **more)
        write_party(tmp_path, wanted)
        assert read_party(tmp_path) == wanted

    def test_paths_begin_at_home(self, tmp_path: Path) -> None:
        make_home(tmp_path)
        files = {"policy": Path("p.toml"), "account": Path("../a.sqlite")}
        wanted = settings(Path("sub"), **files, features=FeaturesSpec(file=Path("f.csv")))
        write_party(tmp_path, wanted)
        found = read_party(tmp_path)
        assert found.data == tmp_path / "sub" / "t.csv"
        assert (found.policy, found.account) == (tmp_path / "p.toml", tmp_path.parent / "a.sqlite")
        assert found.features.file == tmp_path / "f.csv"
        write_party(tmp_path, settings(tmp_path))
        found = read_party(tmp_path)
        assert (found.policy, found.account, found.features.file) == (None, None, None)

    def test_what_is_off_is_not_written(self, tmp_path: Path) -> None:
        make_home(tmp_path)
        write_party(tmp_path, settings(tmp_path))
        text = (tmp_path / "party.toml").read_text()
        assert "common_seed" not in text
        assert "[own" not in text

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ('[own.encoder]\nkind = "mlp"\nembedding = 3\n', says("own.encoder.embedding")),
            ('[own.encoder]\nkind = "mpl"\n', says("own.encoder.kind", "'mlp'")),
            ("[own.optimizer]\nlr = -1\n", says("own.optimizer.lr")),
            ("[own]\nprotect = []\n", says("own.protect")),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, text: str, complaint: str) -> None:
        make_home(tmp_path)
        write_party(tmp_path, settings(tmp_path))
        with (tmp_path / "party.toml").open("a") as file:
            file.write(text)
        with pytest.raises(ConfigError, match=complaint):
            read_party(tmp_path)


class TestBeforeWhatIsProposed:
    PROPOSED = parse_spec(
        {
            "party": {"telco": {"encoder": {"kind": "linear", "embedding": 11}, "columns": ["a"]}},
            "defaults": {"optimizer": {"name": "adam", "lr": 0.5}},
        }
    )

    def test_own_settings_win_and_the_width_is_agreed(self) -> None:
        spec = effective_settings(self.PROPOSED, "telco", OWN)
        assert spec.encoder_of("telco") == replace(OWN.encoder, embedding=11)  # type: ignore[type-var]
        assert spec.optimizer_of("telco") == OWN.optimizer
        assert spec.head_of("telco") == OWN.head
        assert spec.prepare_of("telco") == OWN.prepare
        assert spec.party["telco"].columns == ("a",)
        assert spec.optimizer_of("shop").lr == 0.5

    def test_without_own_ones_the_proposal_is_taken(self) -> None:
        spec = effective_settings(self.PROPOSED, "telco", OwnSettings())
        assert spec == self.PROPOSED

    def test_a_party_that_the_proposal_does_not_name(self) -> None:
        spec = effective_settings(parse_spec({}), "telco", OwnSettings(encoder=LSTMSpec()))
        assert spec.encoder_of("telco").kind == "lstm"


class TestSecret:
    def test_it_is_made_once_and_names_every_run(self, tmp_path: Path) -> None:
        seed = own_seed(tmp_path, "a" * 32)
        assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
        assert own_seed(tmp_path, "a" * 32) == seed
        assert own_seed(tmp_path, "b" * 32) != seed
        (tmp_path / SECRET).unlink()
        assert own_seed(tmp_path, "a" * 32) != seed

    @pytest.mark.parametrize("content", ["", "zz", "00" * 31])
    def test_a_damaged_one_is_no_new_one(self, tmp_path: Path, content: str) -> None:
        (tmp_path / SECRET).write_text(content)
        with pytest.raises(StorageError, match=SECRET):
            own_seed(tmp_path, "a" * 32)


class TestWithinThePolicy:
    TABLE = np.arange(24.0).reshape(8, 3) ** 1.5

    def test_a_network_that_is_too_large_is_refused_before_it_takes_memory(
        self, tmp_path: Path
    ) -> None:
        policy = PartyPolicy(limits=Limits(max_parameters=10**6))
        home = AtHome(tmp_path, {"telco": self.TABLE}, policies={"telco": policy})
        huge = {"defaults": {"encoder": {"kind": "mlp", "hidden": [10**7, 10**7]}}}
        failure = home.assemble("telco", huge)
        assert failure is not None
        assert "rule 'limits.max_parameters'" in failure.message

    @pytest.mark.attack(
        what="Names of columns from refusals",
        has="settings that name any column (cheating)",
        before="a refused column listed all columns of the table",
        now="the refusal repeats the names that were asked for; one that is not there and one that "
        "may not be used are refused alike",
    )
    @pytest.mark.parametrize("key", ["columns", "prepare"])
    def test_a_refused_column_lists_no_others(self, tmp_path: Path, key: str) -> None:
        policy = PartyPolicy(columns=("c0", "c1"))
        homes = {
            "open": AtHome(tmp_path / "open", {"telco": self.TABLE}),
            "some": AtHome(tmp_path / "some", {"telco": self.TABLE}, policies={"telco": policy}),
        }
        told = set()
        for where, column in (("open", "age"), ("some", "age"), ("some", "c2")):
            own = {"columns": [column]}
            if key == "prepare":
                own = {"prepare": {"categorical_columns": [column]}}  # type: ignore[dict-item]
            failure = homes[where].assemble("telco", {"party": {"telco": own}})
            assert failure is not None
            assert "rule 'columns'" in failure.message
            assert column in failure.message
            assert not {"c0", "c1", "c2"} - {column} & set(failure.message.split("'"))
            told.add(failure.message.replace(column, "COLUMN"))
        assert len(told) == 1

    def test_columns_that_may_be_used_are(self, tmp_path: Path) -> None:
        policy = PartyPolicy(columns=("c0", "c1"))
        home = AtHome(tmp_path, {"telco": self.TABLE}, policies={"telco": policy})
        assert home.assemble("telco", {}) is None
        assert home.party("telco").parts["train"].features.shape == (8, 2)
        assert (tmp_path / "telco" / "runs" / RUN / "agreed.json").exists()
