"""Label holders that come again, that compare notes, or whose party put back an old copy.

A budget is for people, not for runs: forty runs averaged the noise away while each of them stayed
within the budget.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from colonnade.core.errors import Refused
from colonnade.federate.own_account import (
    acknowledge_copies,
    open_account,
    told_account,
)
from colonnade.federate.party_home import read_party
from colonnade.federate.party_policy import read_policy
from colonnade.protect.people_sums import Held
from contract import test_predictions_between_organisations as predictions
from contract.test_organisations_in_one_process import trained
from e2e.organisations import PARTIES, Organisations

PERTURB = 'protect = [{ kind = "perturb", noise = 4.0 }]'
# Exchanges of a run that go about once through the training part.
ONCE = 5


@pytest.fixture
def make(tmp_path: Path) -> Any:
    return partial(Organisations, tmp_path, nursery=None, exchanges=ONCE, protect=PERTURB)


def policies(rule: str) -> dict[str, str]:
    return {"shop": "", "telco": f"{rule}\n"}


def held_by(organisations: Organisations, name: str = "telco") -> Held:
    home = organisations.home(name)
    settings = read_party(home)
    account = open_account(home, settings, read_policy(settings.policy))
    held = account.held()
    account.close()
    return held


def most_releases(organisations: Organisations) -> int:
    return int(held_by(organisations).quantiles["releases"][-1])


def end_of(organisations: Organisations, run: str) -> str:
    """Train once more, as another run; how it ended."""
    organisations.run = organisations.root / run
    # Another seed: the same values once more would tell nothing new, and cost nothing.
    text = organisations.config.read_text()
    seed = int(text.split("seed = ")[1].split()[0])
    organisations.config.write_text(text.replace(f"seed = {seed}", f"seed = {seed + 1}"))
    try:
        summary = trained(organisations)
    except Refused as refused:
        return str(refused)
    return str(summary.get("refusal") or summary["stopped_by"])


@pytest.mark.attack(
    what="Many runs that average the noise away",
    has="as many runs as it likes (cheating)",
    before="40 runs in 1.2 s, each within the budget",
    now="one budget for all runs: {releases} releases of a person, μ = {mu:.2f} of 1",
)
def test_many_runs_get_no_more_than_one_budget(make: Any, measured: Any) -> None:
    """mu = 1 allows 4 releases of a person with noise 4."""
    organisations = make(policies=policies("budget = { mu = 1.0 }"))
    ends = [end_of(organisations, f"run {number}") for number in range(5)]
    assert ends[0] == "length"
    assert "budget" in ends[-1]
    assert most_releases(organisations) == 4
    measured(releases=4, mu=held_by(organisations).quantiles["mu"][-1])
    assert held_by(organisations).quantiles["mu"][-1] <= 1.0 + 1e-6
    organisations.run = organisations.root / "once more"
    with pytest.raises(Refused, match="'telco' refuses by its policy, rule 'budget'"):
        trained(organisations)


def test_what_is_unprotected_counts_too_and_releases_are_bounded(make: Any) -> None:
    organisations = make(protect="", policies=policies("releases_per_row = 4"))
    ends = [end_of(organisations, f"run {number}") for number in range(5)]
    assert "releases_per_row" in ends[-1]
    held = held_by(organisations)
    assert held.quantiles["releases"][-1] == held.quantiles["without noise"][-1] == 4
    told = "\n".join(told_account(organisations.home("telco")))
    for words in ("no ε bounds", "releases_per_row': 4", "has 0 left"):
        assert words in told
    assert "c0" not in told


@pytest.mark.attack(
    what="Predictions asked for again and again",
    has="as many requests as it likes (cheating)",
    before="predictions were counted by themselves, and anew for every session",
    now="charged to the same account as training: refused, rule 'releases_per_row'",
)
def test_predictions_are_charged_to_the_same_account(make: Any) -> None:
    organisations = make(exchanges=2, policies=policies("releases_per_row = 4"))
    predictions.train(organisations)
    before = held_by(organisations)
    ids = predictions.in_all(organisations)
    first = predictions.predict(organisations, predictions.ids_file(organisations, ids))
    once = held_by(organisations)
    assert once.num_charges > before.num_charges
    # The same request has the same values and the same noise: it tells nothing new.
    again = predictions.predict(organisations, predictions.ids_file(organisations, ids))
    assert again.equals(first)
    assert held_by(organisations) == once

    def ask_for_fewer() -> None:
        for fewer in range(1, 6):
            file = predictions.ids_file(organisations, ids[fewer:])
            predictions.predict(organisations, file)

    with pytest.raises(Refused, match="'telco' refuses by its policy, rule 'releases_per_row'"):
        ask_for_fewer()
    assert most_releases(organisations) == 4


def test_a_new_export_of_the_table_does_not_reset_it(make: Any) -> None:
    organisations = make()
    trained(organisations)
    before, people = most_releases(organisations), held_by(organisations).num_people
    table = organisations.root / "telco.csv"
    header, *rows = table.read_text().splitlines()
    # Somebody was deleted, the rest stands in another order, and ids are written in capitals.
    rows = [row.replace("c0", "C0", 1) for row in reversed(rows[1:])]
    table.write_text("\n".join([header, *rows]) + "\n")
    shutil.rmtree(organisations.home("telco") / "alignment")
    organisations.run = organisations.root / "second"
    text = organisations.config.read_text()
    organisations.config.write_text(
        text.replace("[align]", '[align]\nkey = [{ rules = ["case", "trim"] }]')
    )
    trained(organisations)
    # Whoever was deleted stays as a count.
    assert people <= held_by(organisations).num_people <= people + 1
    assert most_releases(organisations) > before


@pytest.mark.attack(
    what="Two label holders that compare notes",
    has="two federations with one party",
    before="a budget for each run of each",
    now="one account for both: refused, rule 'budget'",
)
def test_two_label_holders_that_compare_notes_get_no_more_than_the_account_says(
    tmp_path: Path,
) -> None:
    """Two federations, two identities, two homes at the telco, and one account."""
    make = partial(
        Organisations,
        nursery=None,
        exchanges=ONCE,
        protect=PERTURB,
        policies=policies("budget = { mu = 1.2 }"),
    )
    first, second = make(tmp_path / "one"), make(tmp_path / "two")
    shared = first.home("telco") / "account.sqlite"
    settings = second.home("telco") / "party.toml"
    settings.write_text(f'account = "{shared}"\n' + settings.read_text())
    trained(first)
    alone = held_by(first)
    ends = [
        end_of(organisations, f"again {number}")
        for number in range(3)
        for organisations in (second, first)
    ]
    together = held_by(second)
    assert together == held_by(first)
    assert together.num_people == alone.num_people
    assert alone.quantiles["mu"][-1] < together.quantiles["mu"][-1] <= 1.2 + 1e-6
    assert all("budget" in end for end in ends[-2:])
    assert not (second.home("telco") / "account.sqlite").exists()


class TestAnOldCopyOfAHome:
    def longer(self, organisations: Organisations, exchanges: int) -> None:
        text = organisations.config.read_text()
        before = json.loads((organisations.run / "config.json").read_text())["stop"]["exchanges"]
        organisations.config.write_text(
            text.replace(f"exchanges = {before}", f"exchanges = {exchanges}")
        )

    @pytest.mark.attack(
        what="An old ledger or an old copy of a party's home",
        has="a backup, put back (or a party that cheats itself)",
        before="8 releases in the account in place of 12, and 'ledger verify' held",
        now="refused until acknowledged, which raises every account to what it can have been",
    )
    @pytest.mark.parametrize("what", ["home", "ledger"])
    def test_it_is_refused_until_acknowledged_and_nothing_is_lower(
        self, make: Any, what: str
    ) -> None:
        """The ledger of exchange 3 beside the checkpoint of exchange 6 lost releases for good."""
        organisations = make(exchanges=3)
        trained(organisations)
        home, copy = organisations.home("telco"), organisations.root / "copy"
        shutil.copytree(home, copy)
        self.longer(organisations, 6)
        trained(organisations, resume=True)
        before = held_by(organisations)
        if what == "home":
            newest = {path: path.read_bytes() for path in home.glob("runs/*/*.safetensors")}
            shutil.rmtree(home)
            shutil.copytree(copy, home)
            for path, content in newest.items():
                path.write_bytes(content)
        else:
            for path in copy.glob("runs/*/ledger*"):
                shutil.copy(path, home / path.relative_to(copy))
        self.longer(organisations, 9)
        rule = "account|ledger" if what == "home" else "ledger"
        for _ in range(2):
            with pytest.raises(Refused, match=f"'telco' refuses, rule '({rule})'.*--acknowledge"):
                trained(organisations, resume=True)
        told = acknowledge_copies(home)
        if len(told) < 2:
            # One at a time: the ledger is found once the account is all right.
            with pytest.raises(Refused, match="rule 'ledger'"):
                trained(organisations, resume=True)
            told = acknowledge_copies(home)
        assert any("ledger" in line for line in told)
        after = held_by(organisations)
        for name in ("releases", "mu"):
            assert all(
                new >= old
                for new, old in zip(after.quantiles[name], before.quantiles[name], strict=True)
            )
        assert trained(organisations, resume=True)["exchanges"] == 9
        assert most_releases(organisations) > before.quantiles["releases"][-1]

    def test_a_new_run_finds_it_as_well(self, make: Any) -> None:
        organisations = make()
        seals = organisations.federation / "account_seals.json"
        trained(organisations, seals=seals)
        account = organisations.home("telco") / "account.sqlite"
        copy = account.read_bytes()
        organisations.run = organisations.root / "second"
        trained(organisations, seals=seals)
        for path in account.parent.glob("account.sqlite*"):
            path.unlink()
        account.write_bytes(copy)
        organisations.run = organisations.root / "third"
        with pytest.raises(Refused, match="'telco' refuses, rule 'account'"):
            trained(organisations, seals=seals)
        assert "BEHIND" in told_account(organisations.home("telco"))[-1]
        assert seals.read_text().count(":") == len(PARTIES)

    @pytest.mark.parametrize("what", ["account.sqlite", "ledger.jsonl"])
    def test_predictions_renew_the_seals_and_find_it_as_well(self, make: Any, what: str) -> None:
        """What left in predictions is sealed too: a copy from before them is refused by name."""
        organisations = make(exchanges=2)
        predictions.train(organisations)
        home = organisations.home("telco")
        (path,) = home.rglob(what)
        copy = path.read_bytes()
        ids = predictions.in_all(organisations)
        predictions.predict(organisations, predictions.ids_file(organisations, ids))
        before = held_by(organisations)
        newest = path.read_bytes()
        for written in path.parent.glob(f"{what}*"):
            written.unlink()
        path.write_bytes(copy)
        rule = what.partition(".")[0]
        for fewer in (1, 2):
            wanted = predictions.ids_file(organisations, ids[fewer:])
            with pytest.raises(Refused, match=f"'telco' refuses, rule '{rule}'.*--acknowledge"):
                predictions.predict(organisations, wanted)
        if rule == "ledger":
            # Its newest copy put back: nothing is missing any more.
            path.write_bytes(newest)
        else:
            acknowledge_copies(home)
        predictions.predict(organisations, predictions.ids_file(organisations, ids[1:]))
        assert most_releases(organisations) > before.quantiles["releases"][-1]
