"""The command line: the real command where it matters, the same code in this process elsewhere."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from colonnade.cli import showcase as demo_module
from colonnade.cli.main import app, main
from colonnade.data.datasets import DATASETS
from colonnade.methods import METHODS
from colonnade.run.storage import read_json

COMMAND = str(Path(sys.executable).with_name("colonnade"))
README = Path(__file__).parents[2] / "README.md"
QUICKSTART = README.parent / "docs" / "quickstart.md"
# How far a page's numbers may be from what comes: other machines round differently.
LAST_DIGITS = 0.01
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
COMMANDS = [str(command.name) for command in app.registered_commands]
GROUPS = {str(group.name): group.typer_instance for group in app.registered_groups}
IN_GROUPS = [
    f"{name} {command.name}"
    for name, group in GROUPS.items()
    if group is not None
    for command in group.registered_commands
]
SETTINGS = """
[label_holder]
name = "bank"
label = "defaulted"
[party.bank]
file = "bank.csv"
id = "customer"
[party.telco]
file = "telco.csv"
id = "customer"
[data]
batch_size = 16
[defaults]
encoder = { kind = "mlp", hidden = [8], embedding = 4, dropout = 0.2 }
[stop]
exchanges = 12
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """What the command does, in this process: arguments in, exit code and both streams out."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["colonnade", *arguments])
        monkeypatch.setenv("COLONNADE_DEBUG", "")  # put back afterwards, as --debug sets it
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
    """A working directory with two parties' files and a run's settings."""
    draw = np.random.default_rng(3)
    ids = np.arange(120)
    bank = pd.DataFrame({"customer": ids, "income": draw.normal(size=120)})
    telco = pd.DataFrame({"customer": ids[::-1], "calls": draw.normal(size=120)})
    signal_of = bank["income"] + telco["calls"].to_numpy()[::-1]
    bank["defaulted"] = np.where(signal_of > 0, "yes", "no")
    bank.to_csv(tmp_path / "bank.csv", index=False)
    telco.to_csv(tmp_path / "telco.csv", index=False)
    (tmp_path / "credit.toml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def is_plain(text: str) -> bool:
    """No colours, no cursor movements: nothing below a space but the ends of lines."""
    return not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def assert_one_line(outcome: Outcome, *fragments: str) -> None:
    assert outcome.code == 1, outcome
    assert outcome.err.startswith("error: "), outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.err
    for fragment in fragments:
        assert fragment in outcome.err


def weights(directory: Path) -> dict[str, torch.Tensor]:
    tag = read_json(directory / "checkpoint.json")["model"]
    files = sorted(directory.rglob(f"{tag}.safetensors"))
    assert len(files) == 3  # the label holder's and two parties'
    return {
        f"{file.relative_to(directory)}/{name}": item
        for file in files
        for name, item in load_file(file).items()
    }


# Help and lists


@pytest.mark.parametrize("name", [*COMMANDS, *IN_GROUPS])
def test_every_command_has_help_with_an_example(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"])
    assert shown.exit_code == 0
    assert re.search(rf"Example:\s+colonnade {name}\b", shown.output)


def test_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert re.fullmatch(r"colonnade \d+\.\d+\.\d+\S*\n", shown.stdout)


def test_help_does_not_wait_for_what_commands_work_with() -> None:
    """PyTorch alone takes seconds to load."""
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from colonnade.cli.main import app\n"
        "for name in sys.argv[1:]:\n"
        "    assert CliRunner().invoke(app, [*name.split(), '--help']).exit_code == 0\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'matplotlib', 'sklearn'} & set(sys.modules)))\n"
    )
    words = [sys.executable, "-c", script, "", *COMMANDS, *IN_GROUPS]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_help_lists_every_command() -> None:
    for arguments in (["--help"], ["-h"], []):
        listed = CliRunner().invoke(app, arguments).output
        assert all(re.search(rf"\b{name}\b", listed) for name in (*COMMANDS, *GROUPS))


def test_methods_as_json() -> None:
    rows = json.loads(CliRunner().invoke(app, ["methods", "--json"]).output)
    assert [row["name"] for row in rows] == list(METHODS)
    for row in rows:
        assert all(isinstance(row[key], str) and row[key] for key in ("name", "paper", "summary"))
        flags = ("tolerates_missing", "tolerates_slow", "heterogeneous_models")
        assert all(isinstance(row[key], bool) for key in flags)


def test_datasets_as_json() -> None:
    rows = json.loads(CliRunner().invoke(app, ["datasets", "--json"]).output)
    assert [row["name"] for row in rows] == list(DATASETS)
    for row in rows:
        assert {"name", "available", "task", "samples", "parties", "summary", "source"} <= set(row)
    assert next(row for row in rows if row["name"] == "digits")["available"] is True


@pytest.mark.parametrize("name", ["methods", "datasets"])
def test_lists_for_people_name_everything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, [name]).output
    assert all(item in shown for item in (METHODS if name == "methods" else DATASETS))
    assert is_plain(shown)


# The demo


def test_demo_prints_the_table_and_leaves_a_report(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    demo = subprocess.run(
        [COMMAND, "demo", "--out", "../demo"],
        cwd=elsewhere,
        env={**ENVIRONMENT, "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert demo.returncode == 0, demo.stderr
    qualities = _qualities(demo.stdout)
    assert list(qualities)[:3] == ["label holder alone", "all three together", "centralized"]
    assert qualities == pytest.approx(_qualities(README.read_text("utf-8")), abs=LAST_DIGITS)
    alone, together, ideal, missing, laser, laser_missing = qualities.values()
    assert missing < alone < laser_missing < together
    assert laser_missing < laser
    assert max(abs(together - ideal), abs(together - laser)) < 0.05
    waits, goes_on = _seconds(demo.stdout).values()
    assert goes_on < waits / 3
    assert _seconds(demo.stdout) == pytest.approx(_seconds(README.read_text("utf-8")), abs=0.1)
    assert "simulated seconds" in (tmp_path / "demo" / "demo.svg").read_text("utf-8")
    page = (tmp_path / "demo" / "report.html").read_text("utf-8")
    assert "all three together" in page
    assert "report in ../demo/report.html" in demo.stdout
    assert list(elsewhere.iterdir()) == []
    assert is_plain(demo.stdout)
    assert is_plain(demo.stderr)
    assert re.search(r"^all three together: exchange \d+/500  loss ", demo.stderr, re.M)


def _seconds(shown: str) -> dict[str, float]:
    """The table of the demo with a slow party: simulated seconds by method."""
    rows = re.findall(r"│ (\w[^│]*?) +│ (\d+\.\d) +│\n", shown)
    return {name: float(seconds) for name, seconds in rows}


def _qualities(shown: str) -> dict[str, float]:
    """The first two columns of the demo's table."""
    rows = re.findall(r"│ (\w[^│]*?) +│ (0\.\d{3}) +│", shown)
    return {name: float(quality) for name, quality in rows}


def test_demo_replaces_an_earlier_demo_and_nothing_else(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {**demo_module._SETTINGS, "stop": {"exchanges": 2}}
    monkeypatch.setattr(demo_module, "_SETTINGS", short)
    monkeypatch.setattr(demo_module, "write_comparison", lambda *_, out, **__: out)
    (tmp_path / "demo").mkdir()
    for left_over in (".colonnade-demo", "old"):
        (tmp_path / "demo" / left_over).touch()
    assert run("demo", "--out", str(tmp_path / "demo")).code == 0
    assert not (tmp_path / "demo" / "old").exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    for target in (precious, precious / "thesis.tex"):
        assert_one_line(run("demo", "--out", str(target)), "something other than a demo")
    assert (precious / "thesis.tex").read_text() == "years of work"


# Training, evaluating, predicting, reporting


def test_the_quickstart_works_as_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown: list[str] = []
    for language, block in re.findall(
        r"^```(\w+)\n(.*?)^```", QUICKSTART.read_text("utf-8"), re.M | re.S
    ):
        if language in ("python", "toml"):
            name = re.match(r"# (\S+\.\w+)\n", block)
            assert name, f"say in the block's first line which file it is: {block[:60]}"
            Path(name[1]).write_text(block)
        elif language == "bash":
            shown = [_line_of_quickstart(run, line) for line in block.splitlines()]
        else:
            _assert_alike(block, "".join(shown))
    assert Path("runs/credit/report.html").read_text("utf-8").startswith("<!doctype html")
    predictions = pd.read_csv("predictions.csv", index_col="customer")["defaulted"]
    probabilities = pd.read_csv("probabilities.csv", index_col="customer")
    assert predictions.index.tolist() == pd.read_csv("new_bank.csv")["customer"].tolist()
    assert predictions.tolist() == probabilities.idxmax(axis=1).tolist()
    assert np.allclose(probabilities.sum(axis=1), 1)


def _line_of_quickstart(run: Run, line: str) -> str:
    program, *arguments = line.split()
    if program == "colonnade":
        outcome = run(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out
    interpreter = f"{sys.executable}{line.removeprefix('python')}" if program == "python" else line
    subprocess.run(["bash", "-c", interpreter], env=ENVIRONMENT, check=True)
    return ""


def _assert_alike(written: str, shown: str) -> None:
    """What the page shows is what came, up to small changes of the numbers."""
    numbers = r"\d+\.\d+"
    for line in written.splitlines():
        pattern = f"({numbers})".join(map(re.escape, re.split(numbers, line)))
        came = re.search(f"^{pattern}$", shown, re.M)
        assert came, f"'{line}' in:\n{shown}"
        for expected, number in zip(re.findall(numbers, line), came.groups(), strict=True):
            assert abs(float(expected) - float(number)) < LAST_DIGITS, line


def test_a_party_that_refuses_is_heard(run: Run, place: Path) -> None:
    protect = 'protect = [{ kind = "perturb", noise = 2.0 }]\npolicy = "policy.toml"'
    settings = (place / "credit.toml").read_text()
    assert "[party.telco]\n" in settings
    changed = settings.replace("[party.telco]\n", f"[party.telco]\n{protect}\n")
    (place / "credit.toml").write_text(changed)
    (place / "policy.toml").write_text("[budget]\nmu = 1.5")  # k releases: 2√k/2
    outcome = run("train", "credit.toml", "--out", "some")
    assert outcome.code == 0, outcome.err
    done = read_json(place / "some" / "summary.json")["exchanges"]
    assert "party 'telco' refuses by its policy, rule 'budget'" in outcome.out
    assert f"the weights are those after exchange {done}\n" in outcome.out
    (place / "policy.toml").write_text("[budget]\nmu = 0.5")
    outcome = run("train", "credit.toml", "--out", "none")
    assert outcome.code == 1
    assert "error: party 'telco' refuses by its policy, rule 'budget'" in outcome.err


def test_any_partys_model_may_answer_where_each_has_one(run: Run, place: Path) -> None:
    settings = (place / "credit.toml").read_text()
    (place / "easter.toml").write_text(f'method = "easter"\n{settings}')
    assert run("train", "easter.toml", "--out", "own").code == 0
    blocks = ("--block", "bank=bank.csv", "--block", "telco=telco.csv", "--probabilities")
    answers = {}
    for model in ((), ("--model", "bank"), ("--model", "telco")):
        outcome = run("predict", "own", *blocks, "--out", "new.csv", *model)
        assert outcome.code == 0, outcome.err
        answers[model] = (place / "new.csv").read_text()
    mine, bank, telco = answers.values()
    assert mine == bank != telco
    refused = run("predict", "own", *blocks, "--out", "new.csv", "--model", "shop")
    assert "model: 'shop' has none of its own; there are those of ['bank', 'telco']" in refused.err


def test_evaluate_as_json_agrees_with_the_summary(run: Run, place: Path) -> None:
    trained = run("train", "credit.toml", "--out", "runs/one")
    assert trained.code == 0
    assert is_plain(trained.err)
    assert trained.err.splitlines()[0] == "splitnn: 12 exchanges"
    measured = json.loads(run("evaluate", "runs/one", "--json").out)
    assert measured == read_json(place / "runs/one/summary.json")["quality"]["test"]
    validation = json.loads(run("evaluate", "runs/one", "--part", "validation", "--json").out)
    assert validation != measured


def test_a_run_is_not_overwritten(run: Run, place: Path) -> None:
    assert run("train", "credit.toml").code == 0
    before = (place / "runs/credit/summary.json").read_bytes()
    assert_one_line(run("train", "credit.toml"), "holds a run already", "--resume")
    assert (place / "runs/credit/summary.json").read_bytes() == before


def test_a_directory_in_use_is_refused(run: Run, place: Path) -> None:
    (place / "busy").mkdir()
    with (place / "busy" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_one_line(run("train", "credit.toml", "--out", "busy"), "in use by another process")
    assert run("train", "credit.toml", "--out", "busy").code == 0


def test_ctrl_c_keeps_a_checkpoint_and_resume_ends_with_the_same_weights(
    run: Run, place: Path
) -> None:
    settings = place / "credit.toml"
    settings.write_text(SETTINGS.replace("exchanges = 12", "exchanges = 1000000"))
    with subprocess.Popen(
        [COMMAND, "train", "credit.toml", "--out", "stopped"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "splitnn: 1000000 exchanges\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert err == "stopping after this exchange; Ctrl-C again to stop at once\n"
    said = re.fullmatch(r"stopped after exchange (\d+); --resume goes on in stopped\n", out)
    assert said
    done = int(said[1])
    summary = read_json(place / "stopped" / "summary.json")
    assert (summary["stopped_by"], summary["exchanges"]) == ("interrupted", done)
    assert read_json(place / "stopped" / "checkpoint.json")["tag"] == f"exchange-{done:09d}"

    settings.write_text(SETTINGS.replace("exchanges = 12", f"exchanges = {done + 25}"))
    resumed = run("train", "credit.toml", "--out", "stopped", "--resume")
    assert resumed.code == 0
    assert resumed.err.startswith(f"splitnn: {done + 25} exchanges after exchange {done}\n")
    assert run("train", "credit.toml", "--out", "straight").code == 0
    ours, theirs = weights(place / "stopped"), weights(place / "straight")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# Measuring


def test_bench_writes_its_rows(run: Run, tmp_path: Path) -> None:
    shown = run("bench", "step", "--fast", "--json", str(tmp_path / "step.json"))
    assert shown.code == 0
    outcome: dict[str, Any] = read_json(tmp_path / "step.json")
    assert outcome["machine"]
    assert outcome["revision"]
    assert [row["case"] for row in outcome["rows"]] == ["K=2", "K=4", "K=8", "K=16"]
    for row in outcome["rows"]:
        assert {"case", "ratio", "unit", "against", "runs"} <= row.keys()
        assert row["ratio"] > 0


# Mistakes


TRAIN = ("train", "credit.toml")
PREDICT = ("predict", "done", "--out", "new.csv", "--block")
# What to change in credit.toml, the command, and what its one line says.
MISTAKES: list[tuple[tuple[str, str], tuple[str, ...], str]] = [
    (("", ""), ("train", "nowhere.toml"), "nowhere.toml: no such file"),
    (("name", "name ="), TRAIN, "credit.toml: not readable"),
    (("[stop]", "[stopp]"), TRAIN, "stopp: unknown key; did you mean 'stop'?"),
    (("[data]", "[method]\nname = 'splitn'\n[data]"), TRAIN, "did you mean 'splitnn'?"),
    (('"defaulted"', '"default"'), TRAIN, "no column ['default']; it has: "),
    (("telco.csv", "telko.csv"), TRAIN, "telko.csv: no such file"),
    (("exchanges = 12", "exchanges = 0"), TRAIN, "stop.exchanges: must be at least 1"),
    (("exchanges = 12", 'exchanges = "12"'), TRAIN, "expected a whole number, got '12'"),
    (("", ""), ("train", "dataset.toml"), "did you mean 'digits'?"),
    (("", ""), (*TRAIN, "--out", "new", "--resume"), "new: nothing to resume here"),
    (("", ""), (*TRAIN, "--out", "bank.csv"), "bank.csv: can't be a run directory"),
    (("", ""), ("evaluate", "nowhere"), "nowhere: no such directory"),
    (("", ""), ("evaluate", "."), "is this a run directory?"),
    (("", ""), ("evaluate", "done", "--part", "tset"), "no part 'tset'"),
    (("", ""), ("report", "nowhere"), "nowhere: is not a directory"),
    (("", ""), (*PREDICT, "bank"), "--block bank: write it as PARTY=FILE"),
    (("", ""), (*PREDICT, "bnak=bank.csv"), "no party 'bnak'; did you mean 'bank'"),
    (("", ""), (*PREDICT, "bank=bank.csv"), "no block of ['telco']"),
    (("", ""), (*PREDICT, "bank=none.csv"), "none.csv: no such file"),
    (("", ""), ("bench", "stp"), "did you mean 'step'?"),
    (("", ""), ("reproduce", "thesis-baseline"), "did you mean 'thesis-baselines'?"),
]


@pytest.mark.parametrize(("change", "arguments", "said"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_one_clear_line(
    run: Run, place: Path, change: tuple[str, str], arguments: tuple[str, ...], said: str
) -> None:
    (place / "dataset.toml").write_text('[data]\ndataset = "digit"')
    if "done" in arguments:
        assert run(*TRAIN, "--out", "done").code == 0
    if change[0]:
        (place / "credit.toml").write_text(SETTINGS.replace(*change))
    before = sorted(place.rglob("*"))
    assert_one_line(run(*arguments), said)
    assert sorted(place.rglob("*")) == before  # nothing was begun


@pytest.mark.parametrize("at_the_end", [True, False])
def test_debug_shows_the_traceback(run: Run, tmp_path: Path, at_the_end: bool) -> None:
    command = ["train", str(tmp_path / "nowhere.toml")]
    shown = run(*([*command, "--debug"] if at_the_end else ["--debug", *command]))
    assert shown.code == 1
    assert shown.err.startswith("Traceback")
    assert shown.err.splitlines()[-1].startswith("colonnade.core.errors.ConfigError: ")


def test_the_nearest_command_and_option_are_suggested(run: Run) -> None:
    for arguments, nearest in ((["trian"], "'train'"), (["methods", "--jsno"], "--json")):
        shown = run(*arguments)
        assert shown.code == 2
        assert nearest in shown.err
        assert "Traceback" not in shown.err


def test_ledger_is_shown_and_verified(run: Run, place: Path) -> None:
    assert run("train", "credit.toml", "--out", "run").code == 0
    shown = run("ledger", "show", "run", "--party", "telco")
    assert shown.code == 0
    assert shown.out.count("verb embed") == 12
    assert run("ledger", "verify", "run").code == 0
    file = place / "run" / "parties" / "telco" / "ledger.jsonl"
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"verb":"embed"', b'"verb":"enbed"', 1))
    damaged = run("ledger", "verify", "run")
    assert damaged.code == 1
    assert "telco: entry 1: the hash does not fit" in damaged.out
    file.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    assert "the end is missing" in run("ledger", "verify", "run").out
    assert_one_line(run("ledger", "show", "run", "--party", "tello"), "did you mean 'telco'")
    assert_one_line(run("ledger", "verify", "nothing"), "no party's files are here")
