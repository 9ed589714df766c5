"""Serving as parties decide it: what may be kept, how often people are asked, whence features."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from agents import agents_of, hub_of
from colonnade.federate.feature_sources import FeaturesSpec, LiveFeatures
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.party_home import read_party, write_party
from colonnade.federate.training import train_over
from colonnade.files import write_atomically
from colonnade.protect.ledger import read_ledger
from colonnade.run.spec import read_spec
from colonnade.serve.federation_serving import FederationLoader
from colonnade.serve.run_serving import ServeSettings
from e2e.organisations import HOLDER, PARTIES, Organisations
from networks import QUICK
from serving import Running, running


@pytest.fixture(scope="module", params=["splitnn", "laser"])
def organisations(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Organisations:
    method = request.param
    if method == "laser":
        method = '{ name = "laser", heads = "label_holder" }'
    make: Any = partial(Organisations, tmp_path_factory.mktemp("parties"), nursery=None)
    policies = dict.fromkeys(PARTIES, "")
    made: Organisations = make(method=method, combine="mean", exchanges=2, policies=policies)
    with hub_of(made) as hub:
        train_over(
            hub,
            read_spec(made.config),
            HOLDER,
            made.run,
            alignments=made.federation / "alignments",
        )
    return made


@contextmanager
def served(
    organisations: Organisations, *, cache_seconds: float = 0.0, **policies: str
) -> Iterator[tuple[Running, ExitStack]]:
    """A service over agents with these policies; closing the stack ends the telco's agent."""
    for name in PARTIES:
        (organisations.root / f"{name}.policy.toml").write_text(policies.get(name, ""))
    with (
        open_hub(organisations.federation, links=QUICK, address="127.0.0.1:0", enrols=False) as hub,
        agents_of(organisations, hub, ["shop"]),
        ExitStack() as telco,
    ):
        telco.enter_context(agents_of(organisations, hub, ["telco"]))
        loader = FederationLoader(
            [hub],
            organisations.federation,
            organisations.run,
            organisations.root / "bank.csv",
            ServeSettings(id_column="id", cache_seconds=cache_seconds),
            wait_seconds=20.0,
        )
        with running(loader.first(), load=loader) as one:
            yield one, telco
            telco.close()


def ids_of_all(organisations: Organisations) -> list[str]:
    tables = [pd.read_csv(organisations.root / f"{name}.csv") for name in (HOLDER, *PARTIES)]
    shared = set(tables[0]["id"]).intersection(*(table["id"] for table in tables[1:]))
    return sorted(shared)


def rows_of(one: Running, *ids: str) -> list[dict[str, Any]]:
    status, content = one.predict(*ids)
    assert status == 200, content
    return list(content["predictions"])


def until(holds: Callable[[], bool]) -> None:
    """Ask again until something holds; a hang is found by the test's timeout."""
    while not holds():
        pass


def num_released(organisations: Organisations, party: str) -> int:
    name = (organisations.run / "run_name").read_text()
    entries = read_ledger(organisations.home(party) / "runs" / name)
    return sum(entry.get("verb") == "infer" for entry in entries)


def is_kept(row: dict[str, Any], party: str) -> bool:
    return bool(row["parties"][party]["cached"])


def test_what_a_party_lets_be_kept_is_asked_for_once(organisations: Organisations) -> None:
    ids = ids_of_all(organisations)[:12]
    is_needy = "splitnn" in organisations.config.read_text()
    with served(organisations, cache_seconds=3600, telco="cache_seconds = 1800") as (one, telco):
        first = rows_of(one, *ids)
        until(lambda: all(is_kept(row, "telco") for row in rows_of(one, *ids)))
        before = {name: num_released(organisations, name) for name in PARTIES}
        again = rows_of(one, *ids)
        # The shop has not agreed and is asked again; of the telco nothing new has left.
        assert not any(is_kept(row, "shop") for row in again)
        assert num_released(organisations, "telco") == before["telco"]
        assert num_released(organisations, "shop") > before["shop"]
        assert all(row["parties"]["telco"]["age_ms"] > 0 for row in again)
        for row, other in zip(first, again, strict=True):
            assert row["confidence"] == pytest.approx(other["confidence"], rel=1e-5)
        telco.close()
        until(lambda: "telco" in one.service.versions.current.predictor.away())
        # From what is kept everybody is answered without it; for others it is away.
        assert [row["confidence"] for row in rows_of(one, *ids)] == pytest.approx(
            [row["confidence"] for row in again], rel=1e-5
        )
        status, content = one.predict(ids_of_all(organisations)[20])
        if is_needy:
            assert status == 503
            assert content["error"]["parties"] == ["telco"]
        else:
            assert sorted(content["predictions"][0]["parties"]) == [HOLDER, "shop"]


@pytest.mark.parametrize("organisations", ["splitnn"], indirect=True)
def test_a_changed_table_empties_what_is_kept(organisations: Organisations) -> None:
    first = ids_of_all(organisations)[0]
    path = organisations.root / "telco.csv"
    table = pd.read_csv(path)
    policy = "cache_seconds = 1800"
    with served(organisations, cache_seconds=3600, telco=policy) as (one, _):
        until(lambda: is_kept(rows_of(one, first)[0], "telco"))
        before = rows_of(one, first)[0]["confidence"]
        changed = table.copy()
        changed.loc[changed["id"] == first, ["telco_0", "telco_1", "telco_2"]] = [5.0, -5.0, 5.0]
        changed.to_csv(path, index=False)
        until(lambda: rows_of(one, first)[0]["confidence"] != pytest.approx(before, rel=1e-6))
        # A file that can't be read puts its party away until it is whole again.
        path.write_text("")
        until(lambda: "telco" not in one.predict(first)[1]["predictions"][0].get("parties", []))
        table.to_csv(path, index=False)
        until(
            lambda: (
                rows_of(one, first)[0].get("confidence") == pytest.approx(before, rel=1e-6)
                if one.predict(first)[0] == 200
                else False
            )
        )


def test_a_person_is_asked_for_so_often_and_others_go_on(organisations: Organisations) -> None:
    first, *others = ids_of_all(organisations)[30:37]
    is_needy = "splitnn" in organisations.config.read_text()
    rules = "[queries]\nmax_per_person = 3\nper_hours = 1000000"
    (organisations.home("telco") / "queries.sqlite").unlink(missing_ok=True)
    for _ in range(2):
        # The counts are there for the next session, too.
        with served(organisations, telco=rules) as (one, _):
            for _ in range(3):
                one.predict(first)
            status, content = one.predict(first)
            row = content["predictions"][0]
            if is_needy:
                assert status == 403
                assert row["error"] == {"reason": "refused", "parties": ["telco"]}
            else:
                assert sorted(row["parties"]) == [HOLDER, "shop"]
            assert one.service.breakers.states()["telco"] == "closed"
    with served(organisations, telco=rules) as (one, _):
        rows = {row["id"]: row for row in rows_of(one, first, *others)}
        for name in others:
            assert sorted(rows[name]["parties"]) == [HOLDER, *PARTIES]


def lookup(ids: list[str]) -> pd.DataFrame:
    """A feature store's client."""
    table = pd.read_csv(STORE[0]).set_index("id")
    return table.loc[ids]


STORE: list[Path] = []


@pytest.mark.parametrize("organisations", ["splitnn"], indirect=True)
def test_features_come_from_a_function_of_the_party(organisations: Organisations) -> None:
    first, second = ids_of_all(organisations)[:2]
    home, module = organisations.home("telco"), sys.modules[__name__]
    before = read_party(home)
    with served(organisations) as (one, _):
        expected = [row["confidence"] for row in rows_of(one, first, second)]
    STORE[:] = [organisations.root / "telco.csv"]
    spec = FeaturesSpec(function=f"{module.__name__}:lookup")
    write_party(home, replace(before, features=spec))
    try:
        with served(organisations) as (one, _):
            found = [row["confidence"] for row in rows_of(one, first, second)]
            assert found == pytest.approx(expected, rel=1e-5)
            # The store fails: the party has no features, and its message is told nobody.
            STORE[:] = [organisations.root / "no such file with a secret"]
            content = one.predict(first)[1]
            assert "secret" not in str(content)
            assert "telco" not in content["predictions"][0].get("parties", {})
    finally:
        write_party(home, before)


@pytest.mark.parametrize("organisations", ["splitnn"], indirect=True)
def test_features_come_from_a_live_file_of_the_party(
    organisations: Organisations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LiveFeatures.__init__.__kwdefaults__, "look_seconds", 0.02)
    monkeypatch.setattr("colonnade.serve.refused_samples._SECONDS", 0.1)
    first, second = ids_of_all(organisations)[:2]
    home, file = organisations.home("telco"), organisations.root / "telco_now.csv"
    before = read_party(home)
    table = pd.read_csv(organisations.root / "telco.csv")

    def replace_file(text: str) -> None:
        write_atomically(file, text.encode())

    def confidences(one: Running) -> list[float]:
        return [row["confidence"] for row in rows_of(one, first, second)]

    def is_refused(one: Running, name: str) -> bool:
        status, content = one.predict(name)
        error = {"reason": "refused", "parties": ["telco"]}
        return status == 403 and content["predictions"][0]["error"] == error

    with served(organisations) as (one, _):
        expected = confidences(one)
    write_party(home, replace(before, features=FeaturesSpec(file=file)))
    # The file has its own order, and more columns than training needs.
    own = table[::-1].assign(since=2026)
    changed = own.copy()
    changed.loc[changed["id"] == first, ["telco_0", "telco_1", "telco_2"]] = [5.0, -5.0, 5.0]
    replace_file(own.to_csv(index=False))
    try:
        with served(organisations) as (one, _):
            assert confidences(one) == pytest.approx(expected, rel=1e-5)
            replace_file(changed.to_csv(index=False))
            until(lambda: confidences(one)[0] != pytest.approx(expected[0], rel=1e-5))
            assert confidences(one)[1] == pytest.approx(expected[1], rel=1e-5)
            # Old rows are not given in the place of a file that lost a column, or of a lost row.
            replace_file(own.drop(columns="telco_1").to_csv(index=False))
            until(lambda: is_refused(one, second))
            replace_file(own[own["id"] != first].to_csv(index=False))
            until(lambda: one.predict(second)[0] == 200)
            assert is_refused(one, first)
            replace_file(own.to_csv(index=False))
            until(lambda: one.predict(first)[0] == 200)
            assert confidences(one) == pytest.approx(expected, rel=1e-5)
    finally:
        write_party(home, before)
