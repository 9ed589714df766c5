"""One account per table: by person, never less, for several processes, and known from copies."""

from __future__ import annotations

import hmac
import json
import math
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from colonnade.core.errors import BudgetSpent, Refused, StorageError
from colonnade.protect.accounting import epsilon_of_mu, largest_mu
from colonnade.protect.budget import Budget
from colonnade.protect.lifetime_account import LifetimeAccount, Rules

NOBODY = torch.zeros(0, dtype=torch.int64)


def account(path: Path, **rules: object) -> LifetimeAccount:
    return LifetimeAccount(path / "account.sqlite", party="telco", rules=Rules(**rules))  # type: ignore[arg-type]


def most(held: LifetimeAccount) -> tuple[float, ...]:
    """The largest of releases, μ and releases without noise."""
    return tuple(ranks[-1] for ranks in held.held().quantiles.values())


def test_a_release_is_charged_to_everybody_in_it_and_once(tmp_path: Path) -> None:
    held = account(tmp_path)
    everybody = held.people(["a", "b", "c"])
    assert held.charge(b"one", everybody, 0.25)
    assert not held.charge(b"one", everybody, 0.25)
    assert held.charge(b"two", everybody[:1], 0.75)
    assert held.charge(b"three", everybody[1:2], None)
    assert most(held) == (2, pytest.approx(1.0), 1)
    found = held.held()
    assert (found.num_people, found.num_charges, found.num_bare) == (3, 3, 1)
    assert found.quantiles["releases"][0] == 1


def test_a_person_with_several_rows_in_a_release_is_charged_for_each(tmp_path: Path) -> None:
    held = account(tmp_path)
    held.charge(b"one", held.people(["a", "b", "a", "a"]), 0.25)
    assert most(held) == (3, pytest.approx(math.sqrt(0.75)), 0)
    held.charge(b"nobody", NOBODY, 0.25)
    assert most(held) == (3, pytest.approx(math.sqrt(0.75)), 0)


@pytest.mark.parametrize(
    ("rules", "spent", "rule"),
    [
        ({"releases_per_row": 3}, None, "releases_per_row"),
        ({"releases_per_row": 3}, 0.1, "releases_per_row"),
        ({"budget": Budget(mu=1.0)}, 1 / 3, "budget"),
        ({"budget": Budget(epsilon=2.0)}, largest_mu(Budget(epsilon=2.0)) ** 2 / 3, "budget"),
    ],
)
def test_what_would_be_too_much_is_refused_and_not_charged(
    tmp_path: Path, rules: dict[str, object], spent: float | None, rule: str
) -> None:
    held = account(tmp_path, **rules)
    for number in range(3):
        held.charge(b"%d" % number, held.people(["a", "b"]), spent)
    before = most(held)
    with pytest.raises(BudgetSpent, match=f"'telco'.*rule '{rule}'"):
        held.charge(b"3", held.people(["b", "c"]), spent)
    assert most(held) == before
    assert held.held().num_people == 2
    # Those who have some left go on, and what was charged may be sent again.
    assert held.charge(b"4", held.people(["c"]), spent)
    assert not held.charge(b"0", held.people(["a", "b"]), spent)


def test_no_budget_bounds_what_left_without_noise(tmp_path: Path) -> None:
    account(tmp_path).charge(b"0", account(tmp_path).people(["a"]), None)
    held = account(tmp_path, budget=Budget(mu=100.0))
    with pytest.raises(BudgetSpent, match="without noise"):
        held.charge(b"1", held.people(["a"]), 0.01)
    assert held.charge(b"1", held.people(["b"]), 0.01)


def test_a_budget_allows_the_largest_mu_that_fits() -> None:
    for epsilon in (0.1, 1.0, 8.0):
        mu = largest_mu(Budget(epsilon=epsilon))
        assert epsilon_of_mu(mu, 1e-5) <= epsilon < epsilon_of_mu(mu * 1.0001, 1e-5)


def test_no_epsilon_is_lost_to_the_last_place_of_a_root_finder() -> None:
    found = [epsilon_of_mu(number / 100, 1e-5) for number in range(1, 400)]
    assert all(map(math.isfinite, found))
    assert found == sorted(found)


def test_the_account_outlives_its_process_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first = account(tmp_path)
    people = first.people(["a"])
    first.charge(b"one", people, 1.0)
    first.close()
    again = account(tmp_path)
    assert torch.equal(again.people(["a"]), people)
    assert not again.charge(b"one", people, 1.0)
    assert most(again) == (1, 1.0, 0)
    assert stat.S_IMODE((tmp_path / "account.sqlite").stat().st_mode) == 0o600
    content = (tmp_path / "account.sqlite").read_bytes()
    again.charge(b"two", again.people(["customer-4711"]), 1.0)
    assert b"customer-4711" not in content + (tmp_path / "account.sqlite-wal").read_bytes()


def test_another_export_of_an_id_is_the_same_person(tmp_path: Path) -> None:
    held = account(tmp_path)
    same = held.people(["Müller 7", " mu\u0308ller7", "MÜLLER 7 "])
    assert len(torch.unique(same)) == 1
    assert torch.equal(held.people(["42"]), held.people(["42.0"]))
    others = held.people(["7", "8", "07", "7.5", "a7"])
    assert len(torch.unique(others)) == 5
    (tmp_path / "other").mkdir()
    assert not torch.equal(account(tmp_path / "other").people(["7"]), held.people(["7"]))


def test_a_file_that_is_no_account_is_named(tmp_path: Path) -> None:
    (tmp_path / "account.sqlite").write_bytes(b"no account, but a text of some length" * 100)
    with pytest.raises(StorageError, match=r"account\.sqlite"):
        account(tmp_path)


CHARGING = """
import sys
from pathlib import Path
from colonnade.protect.lifetime_account import LifetimeAccount, Rules
from colonnade.core.errors import BudgetSpent
held = LifetimeAccount(Path(sys.argv[1]), party="telco", rules=Rules(releases_per_row=50))
done = 0
for number in range(40):
    try:
        done += held.charge(f"{sys.argv[2]} {number}".encode(), held.people(["a", "b"]), 0.5)
    except BudgetSpent:
        pass
print(done)
"""


def test_processes_share_one_account_and_together_get_no_more_than_it_allows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "account.sqlite"
    command = [sys.executable, "-c", CHARGING, str(path)]
    processes = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True)
        for name in ("bank", "insurer")
    ]
    done = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert sum(done) == 50
    assert most(account(tmp_path)) == (50, pytest.approx(5.0), 0)


def test_a_second_session_lets_go_of_no_lock_of_the_first(tmp_path: Path) -> None:
    """Another process that looks meanwhile would take the account for closed, and fold its log."""
    path = tmp_path / "account.sqlite"
    first, second = account(tmp_path), account(tmp_path)
    first.charge(b"one", first.people(["a"]), None)
    look = "import sqlite3, sys; file = sqlite3.connect(sys.argv[1]); "
    look += "print(file.execute('SELECT COUNT(*) FROM charges').fetchone()); file.close()"
    told = subprocess.run([sys.executable, "-c", look, path], capture_output=True, check=True)
    assert told.stdout == b"(1,)\n"
    # It stays as long as somebody has the account open.
    assert path.with_name("account.sqlite-wal").exists()
    second.charge(b"two", second.people(["a"]), None)
    assert first.charge(b"three", first.people(["a"]), None)
    assert most(first)[0] == 3


def test_threads_share_one_account(tmp_path: Path) -> None:
    held = account(tmp_path)
    people = held.people([str(number) for number in range(30)])

    def charge(name: str) -> None:
        for number in range(20):
            held.charge(f"{name} {number}".encode(), people, 0.25)

    threads = [threading.Thread(target=charge, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most(held) == (60, pytest.approx(math.sqrt(15.0)), 0)


@pytest.mark.parametrize("most", [0, 5, 10**9], ids=["always", "now and then", "never"])
def test_folding_changes_nothing(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was charged is the same, whether it is read as charges or as sums, and by whom."""
    monkeypatch.setattr("colonnade.protect.lifetime_account._FOLD_ROWS", most)
    monkeypatch.setattr("colonnade.protect.lifetime_account._FOLD_FACTOR", 1)
    draw = np.random.default_rng(1)
    one, two = account(tmp_path), account(tmp_path)
    truth: dict[str, float] = {}
    for number in range(40):
        chosen = draw.choice(9, 3).tolist()
        held = (one, two)[number % 3 == 0]
        held.charge(b"%d" % number, held.people(map(str, chosen)), 0.25)
        for name in map(str, chosen):
            truth[name] = truth.get(name, 0) + 1
        if number % 4 == 0:
            held.seal()
    for held in (one, two, account(tmp_path)):
        assert held.held().num_people == len(truth)
        assert held.held().num_charges == 40
        places = held._sums.places_of(held.people(truth).numpy())
        assert held._sums.table[places, 0].tolist() == list(truth.values())
        assert not held.charge(b"7", held.people(["1"]), 0.25)


class TestAnOldCopy:
    """Somebody puts back yesterday's file: what left since then is missing in it."""

    def put_back(self, tmp_path: Path) -> tuple[LifetimeAccount, bytes, dict[str, int]]:
        """The old copy, the newest seal, and how often each person was released in truth."""
        draw = np.random.default_rng(3)
        held = account(tmp_path)
        names = [str(number) for number in range(12)]
        truth = dict.fromkeys(names, 0)
        for number in range(30):
            if number == 10:
                held.seal()
                held.close()
                shutil.copy(tmp_path / "account.sqlite", tmp_path / "copy")
                held = account(tmp_path)
            chosen = draw.choice(names, 4, replace=False).tolist()
            held.charge(b"%d" % number, held.people(chosen), 0.5)
            for name in chosen:
                truth[name] += 1
        seal = held.seal()
        held.close()
        for left in tmp_path.glob("account.sqlite-*"):
            left.unlink()
        shutil.copy(tmp_path / "copy", tmp_path / "account.sqlite")
        return account(tmp_path), seal, truth

    def test_it_is_refused_until_somebody_has_taken_note(self, tmp_path: Path) -> None:
        old, seal, truth = self.put_back(tmp_path)
        # Nobody noticed yet: the seal has not come back.
        assert not old.held().is_behind
        with pytest.raises(Refused, match=r"rule 'account'.*--acknowledge"):
            old.confirm(seal)
        old.close()
        again = account(tmp_path)
        assert again.held().is_behind
        with pytest.raises(Refused, match="rule 'account'"):
            again.charge(b"new", again.people(["1"]), 0.5)
        assert again.acknowledge() == 1
        again.confirm(seal)
        assert again.charge(b"new", NOBODY, 0.5)
        for name, count in truth.items():
            (place,) = again._sums.places_of(again.people([name]).numpy())
            assert again._sums.table[place, 0] >= count
        assert most(again)[0] == max(truth.values())

    def test_nobody_begins_below_what_they_can_have_had(self, tmp_path: Path) -> None:
        old, seal, truth = self.put_back(tmp_path)
        with pytest.raises(Refused):
            old.confirm(seal)
        old.acknowledge()
        old.charge(b"new", old.people(["somebody else"]), 0.5)
        assert most(old)[0] == max(truth.values()) + 1

    def test_a_copy_that_went_on_by_itself_is_found_too(self, tmp_path: Path) -> None:
        old, seal, _ = self.put_back(tmp_path)
        for number in range(60):
            old.charge(b"other %d" % number, old.people(["1"]), 0.5)
        with pytest.raises(Refused, match="rule 'account'"):
            old.confirm(seal)

    def test_older_seals_of_the_same_account_are_fine(self, tmp_path: Path) -> None:
        held = account(tmp_path)
        seals = [held.seal()]
        for number in range(3):
            held.charge(b"%d" % number, held.people(["a"]), None)
            seals.append(held.seal())
        for seal in seals:
            held.confirm(seal)

    def test_a_seal_is_made_as_in_every_release_before(self, tmp_path: Path) -> None:
        # Label holders keep seals for years: a later release must open them.
        held = account(tmp_path)
        held.charge(b"one", held.people(["a"]), 0.25)
        seal = held.seal()
        key = hmac.digest(held._secret, b"colonnade account: seal", "sha256")
        assert json.loads(AESGCM(key).decrypt(seal[:12], seal[12:], b""))

    def test_a_seal_that_somebody_made_up_is_refused_and_tells_nothing(
        self, tmp_path: Path
    ) -> None:
        held = account(tmp_path)
        held.charge(b"one", held.people(["a"]), 0.5)
        seal = held.seal()
        assert b"releases" not in seal
        assert held.seal() != seal
        for number in range(20):
            held.charge(b"%d" % number, held.people(["a"]), 0.123)
        assert len(held.seal()) == len(seal)
        (tmp_path / "other").mkdir()
        for bad in (
            b"",
            b"x",
            seal[:-1] + bytes([seal[-1] ^ 1]),
            account(tmp_path / "other").seal(),
        ):
            with pytest.raises(Refused, match="not of this account"):
                held.confirm(bad)
        assert not held.held().is_behind


@pytest.mark.parametrize(
    "rules",
    [{}, {"releases_per_row": 3}, {"budget": Budget(epsilon=4.0, delta=1e-5)}],
    ids=["none", "releases", "budget"],
)
@pytest.mark.parametrize("seed", range(4))
def test_whom_it_would_refuse_is_whom_it_refuses(
    tmp_path: Path, rules: dict[str, object], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    names = [f"person {number}" for number in range(6)]
    held, price = account(tmp_path, **rules), 0.4
    for number in range(12):
        some = held.people(draw.choice(names, 2).tolist())
        held.take_up(f"before {number}".encode(), some, price)
    # Somebody whom it does not know, and somebody with two rows.
    asked = held.people([*names, "new", names[0]])
    found = held.refuses(asked, price)
    before = most(held)
    assert most(held) == before
    for name in (*names, "new"):
        own = asked[asked == held.people([name])]
        # Each by itself, in a copy of the account.
        (tmp_path / name).mkdir()
        held.copy_to(tmp_path / name / "account.sqlite")
        copy = account(tmp_path / name, **rules)
        try:
            is_refused = not copy.charge(b"another", own, price)
        except Refused:
            is_refused = True
        assert found[asked == own[0]].tolist() == [is_refused] * len(own)
        copy.close()
