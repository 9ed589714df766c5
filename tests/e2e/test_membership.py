"""From init to join and to revocation: real processes, real TLS, each with its own directory."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from colonnade.cli.main import main
from colonnade.core.errors import IdentityRefused
from colonnade.federate.party_home import own_identity
from colonnade.federate.renewal import renew
from e2e.organisations import free_port
from messages import says

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
COMMAND = (sys.executable, "-m", "colonnade")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command does, in this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["colonnade", *map(str, arguments)])
        monkeypatch.setenv("COLONNADE_DEBUG", "")
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        else:
            code = 0
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "customers.csv").write_text("customer_id,calls\n1,2\n2,3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hub(place: Path, run: Run) -> Iterator[subprocess.Popen[str]]:
    """A federation, and the process that answers for it."""
    address, enrolment = (f"127.0.0.1:{free_port()}" for _ in range(2))
    made = run(
        "federation", "init", "fed", "--name", "bank", "--address", address,
        "--enrolment", enrolment,
    )  # fmt: skip
    assert made.code == 0, made.err
    with subprocess.Popen(
        [*COMMAND, "federation", "enrol", "fed", "--renewals"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"enrolment at {enrolment}")
        assert process.stdout.readline().startswith(f"renewal at {address}")
        yield process
        process.kill()


def assert_one_line(outcome: Outcome, *fragments: str) -> None:
    assert outcome.code == 1, outcome
    assert outcome.err.startswith("error: "), outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    for fragment in fragments:
        assert fragment in outcome.err


def test_from_init_to_revocation(place: Path, run: Run, hub: subprocess.Popen[str]) -> None:
    assert run("federation", "invite", "fed", "telco").code == 0
    table = ("--data", "customers.csv", "--id", "customer_id", "--no-run")

    # A party in a process of its own.
    joined = subprocess.run(
        [*COMMAND, "party", "join", "telco.invitation", *table],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert joined.returncode == 0, joined.stderr
    assert "2 rows, 1 columns besides the id" in joined.stdout
    assert "'telco' joined the federation of 'bank'" in joined.stdout

    # Its key is at its home and nowhere else, and no one else can read it.
    identity = own_identity(Path("telco"))
    key = identity.key.splitlines()[1]
    holding = [path for path in place.rglob("*") if path.is_file() and key in path.read_bytes()]
    assert holding == [place / "telco" / "identity.pem"]
    for path in ("telco/identity.pem", "fed/authority.key.pem", "fed/identity.pem"):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path("telco.invitation").stat().st_mode) == 0o600

    # The invitation is spent.
    assert_one_line(
        run("party", "join", "telco.invitation", *table, "--home", "thief"), "was used on"
    )
    assert not Path("thief").exists()

    # A member renews; a revoked one does not.
    address = re.search(r'hub = "(.*)"', Path("telco/party.toml").read_text())
    assert address is not None
    renewed = renew(identity, address[1])
    listed = json.loads(run("federation", "list", "fed", "--json").out)
    assert [(row["party"], row["is"]) for row in listed] == [
        ("bank", "label holder"),
        ("telco", "member"),
    ]
    revoked = run("federation", "revoke", "fed", "telco")
    assert (revoked.code, revoked.out) == (0, "'telco' is revoked: its identity (2)\n")
    for refused in (identity, renewed):
        with pytest.raises(IdentityRefused, match=says("'telco'", "revoked")) as error:
            renew(refused, address[1])
        assert error.value.reason == "revoked"

    hub.send_signal(signal.SIGTERM)
    out, err = hub.communicate(timeout=60)
    assert hub.returncode == 0
    assert out == "stopped\n"
    # The hub tells in its log who came and why somebody was refused, and no token and no key.
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [line.get("reason") or line["event"] for line in lines] == [
        "a party enrolled",
        "invitation already used",
        "a certificate was renewed",
        "revoked",
        "revoked",
    ]
    assert lines[0]["party"] == "telco"
    token = json.loads(Path("telco.invitation").read_text())["token"]
    assert token not in out + err


def test_mistakes_end_in_one_line(place: Path, run: Run) -> None:
    table = ("--data", "customers.csv", "--id", "customer_id")
    Path("full").mkdir()
    Path("full/file").write_text("")
    init = ("federation", "init")
    assert_one_line(run(*init, "full", "--name", "bank"), "full: exists and is not empty")
    assert_one_line(run(*init, "f", "--name", "The Bank"), "name: 'The Bank'", "lower-case")
    assert_one_line(run(*init, "f", "--name", "b", "--address", "here"), "--address", "HOST:PORT")
    assert_one_line(run(*init, "f", "--name", "b", "--days", "0"), "certificate_days")
    assert not Path("f").exists()

    assert_one_line(run("federation", "invite", "absent", "telco"), "federation init")
    assert_one_line(run("federation", "revoke", "full", "telco"), "not a federation's directory")
    assert_one_line(run("federation", "list", "customers.csv"), "not a federation's directory")
    assert run(*init, "fed", "--name", "bank").code == 0
    assert_one_line(run(*init, "fed", "--name", "bank"), "not empty")
    assert_one_line(run("federation", "invite", "fed", "bank"), "is the label holder")
    assert_one_line(run("federation", "invite", "fed", "telco", "--valid", "soon"), "7d, 12h")
    assert_one_line(run("federation", "revoke", "fed", "telco"), "members: nobody")
    assert run("federation", "invite", "fed", "telco").code == 0
    assert_one_line(run("federation", "invite", "fed", "telco"), "telco.invitation: exists")

    assert_one_line(run("party", "join", "absent", *table), "absent: no such file")
    assert_one_line(run("party", "join", "customers.csv", *table), "not an invitation")
    assert_one_line(
        run("party", "join", "telco.invitation", "--data", "customers.csv", "--id", "id"),
        "no column 'id'",
        "customer_id, calls",
    )
    assert_one_line(run("party", "run", "full"), "not a party's directory")
    assert not Path("telco").exists()


def test_what_is_not_installed_is_named(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "grpc" else found(name)
    )
    assert_one_line(
        run("federation", "list", "fed"),
        "needs the package grpc, which is not installed",
        "pip install '.[network]'",
    )
