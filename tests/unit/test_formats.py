"""Formats of directories: written, checked, migrated or refused; runs of format 1 go on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from colonnade import formats
from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, StorageError
from colonnade.data.blocks import Labels, make_block
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.identities import save_identity
from colonnade.federate.party_home import PartySettings, make_home, read_party, write_party
from colonnade.formats import FORMAT, KINDS, RUN, DirectoryKind, format_of
from colonnade.protect import perturb
from colonnade.report import write_report
from colonnade.run import migration
from colonnade.run.engine import reopen, train
from colonnade.run.leaving import remove_party
from colonnade.run.migration import STEPS, migrate
from colonnade.run.result import Result
from colonnade.run.sources import Sources
from colonnade.run.spec import parse_spec
from colonnade.run.storage import lock_or_refuse, read_json, read_state, write_json
from format1_runs import FIXTURES, SETTINGS, tables
from membership import SetClock, make_federation, make_member

RUNS = sorted(SETTINGS)


def sources() -> Sources:
    blocks, labels = tables()
    return Sources(
        blocks={name: make_block(name, table) for name, table in blocks.items()},
        labels=Labels(ids=labels.index.to_numpy(object), values=labels.to_numpy(), name="risk"),
        label_holder="bank",
    )


def trained(name: str, root: Path, *, epochs: int, resume: bool = False, **more: Any) -> Result:
    values = {**SETTINGS[name], "seed": 3, "data": {"batch_size": 16}, "stop": {"epochs": epochs}}
    spec = parse_spec({**values, **more})
    return train(spec, sources=sources(), directory=root, resume=resume)


@pytest.fixture
def old_run(tmp_path: Path) -> Callable[[str], Path]:
    def copied(name: str) -> Path:
        return Path(shutil.copytree(FIXTURES / name, tmp_path / name))

    return copied


def a_home(root: Path) -> Path:
    federation = make_federation(root / "hub", SetClock())
    home = root / "telco"
    make_home(home)
    save_identity(home, make_member(federation, "telco"))
    write_party(
        home,
        PartySettings(
            name="telco", label_holder="bank", hub="127.0.0.1:7443", data=home / "t.csv", id="id"
        ),
    )
    return home


def a_federation(root: Path) -> Path:
    return make_federation(root / "federation", SetClock()).directory


def a_run(root: Path) -> Path:
    trained("format1-run", root / "run", epochs=1)
    return root / "run"


def names_in(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()
    )


MAKERS: dict[str, Callable[[Path], Path]] = {
    "run": a_run,
    "party": a_home,
    "federation": a_federation,
}
READERS: dict[str, Callable[[Path], Any]] = {
    "run": Result.load,
    "party": read_party,
    "federation": FederationDirectory,
}
# What revision fc54316664 wrote, which had format 1.
FORMAT_1 = {
    "party": ["identity.pem", "party.toml"],
    "federation": [
        *("authority.key.pem", "authority.pem", "federation.toml", "identity.pem", "register.json"),
    ],
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_directory_says_its_format(kind: DirectoryKind, tmp_path: Path) -> None:
    directory = MAKERS[kind.name](tmp_path)
    said = read_json(directory / FORMAT)
    assert said == {"kind": kind.name, "format": 2, "written_by": said["written_by"]}
    assert said["written_by"].count(".") == 2
    READERS[kind.name](directory)
    shown = CliRunner().invoke(app, ["migrate", str(directory)])
    assert "nothing to do" in shown.output
    assert read_json(directory / FORMAT) == said


def test_a_saved_model_says_its_format(tmp_path: Path) -> None:
    result = trained("format1-run", tmp_path / "run", epochs=1)
    assert read_json(result.save(tmp_path / "model") / FORMAT)["format"] == RUN.newest


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_older_format_has_a_step(kind: DirectoryKind) -> None:
    assert sorted(STEPS[kind.name]) == list(range(1, kind.newest))
    assert 1 <= kind.oldest <= kind.newest


# Format 1


@pytest.mark.parametrize("name", ["party", "federation"])
def test_homes_and_federations_of_format_1_are_migrated(name: str, tmp_path: Path) -> None:
    directory = MAKERS[name](tmp_path)
    said, modes = (directory / FORMAT).read_bytes(), (directory / FORMAT).stat().st_mode
    (directory / FORMAT).unlink()
    assert names_in(directory) == FORMAT_1[name]
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    if name == "federation":
        FederationDirectory(directory)  # is read as it is
    else:
        with pytest.raises(StorageError) as caught:
            read_party(directory)
        for fact in (str(directory), "format 1", "format 2", f"colonnade migrate {directory}"):
            assert fact in str(caught.value)
    shown = CliRunner().invoke(app, ["migrate", str(directory)])
    assert "format 1" in shown.output
    assert "written: format.json" in shown.output
    assert (directory / FORMAT).read_bytes() == said
    assert (directory / FORMAT).stat().st_mode == modes
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        **before,
        FORMAT: said,
    }
    READERS[name](directory)


def test_a_home_of_format_1_is_not_taken_for_a_newer_one(tmp_path: Path) -> None:
    """Its settings are written again when it joins again; its runs stay what they are."""
    home = a_home(tmp_path)
    settings = read_party(home)
    (home / FORMAT).unlink()
    write_party(home, settings)
    assert not (home / FORMAT).exists()


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_format_1_are_refused_with_the_remedy(
    name: str, old_run: Callable[[str], Path]
) -> None:
    run = old_run(name)
    readers: list[Callable[[], Any]] = [
        lambda: Result.load(run),
        lambda: reopen(run),
        lambda: remove_party(run, "telco"),
        lambda: trained(name, run, epochs=4, resume=True),
        lambda: trained(name, run.parent / "other", epochs=1, start={"run": str(run)}),
    ]
    before = {path: (run / path).read_bytes() for path in names_in(run)}
    for read in readers:
        with pytest.raises(StorageError) as caught:
            read()
        for fact in (str(run), "format 1", "format 2", f"colonnade migrate {run}"):
            assert fact in str(caught.value)
    assert {path: (run / path).read_bytes() for path in before} == before
    # A report reads only what has not changed.
    assert write_report(run, None).exists()


def test_a_migrated_run_predicts_what_it_predicted(old_run: Callable[[str], Path]) -> None:
    run = old_run("format1-run")
    kind, before, written = migrate(run)
    assert (kind, before) == (RUN, 1)
    assert written[-1] == run / FORMAT
    outputs = Result.load(run).outputs(tables()[0]).iloc[:4, 0]
    # By the old revision, on another machine perhaps.
    expected = [0.2301192432641983, 0.2317216843366623, 0.22098489105701447, 0.23117563128471375]
    assert np.allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    assert migrate(run) == (RUN, 2, [])


@pytest.mark.parametrize("name", RUNS)
def test_a_migrated_run_goes_on_like_one_of_today(
    name: str, old_run: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Noise decides what is learned. Unlucky noise lets nothing be learned: what is then sent twice
    # counts once. The count of releases below is certain only if the noise is.
    monkeypatch.setattr(perturb.secrets, "token_bytes", lambda size: bytes(range(size)))
    run = old_run(name)
    migrate(run)
    today = tmp_path / "today"
    # As defaults were then; whoever goes on with a run need not say so.
    then = {"data": {"batch_size": 16, "split": {"stratified": False}}}
    trained(name, today, epochs=2, **then, label_holder={"optimizer": {"name": "adam"}})
    old, new = (trained(name, root, epochs=4, resume=True) for root in (run, today))
    assert old.summary["exchanges"] == new.summary["exchanges"] == 8
    assert old.summary["privacy"] == new.summary["privacy"]
    if new.summary["protections"]["telco"]:
        return  # its noise is never drawn twice
    tag = read_json(run / "checkpoint.json")["tag"]
    for party in ("bank", "telco"):
        place = Path("parties") / party / f"{tag}.safetensors"
        ours, theirs = (read_state(root / place)["model"] for root in (run, today))
        assert ours.keys() == theirs.keys()
        # The first two epochs may have been on another machine.
        for key in ours:
            assert torch.allclose(ours[key], theirs[key], rtol=1e-4, atol=1e-6), key


# Migration itself


def three_steps(monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> None:
    """A format 3 of runs, whose steps rename a key and then give it another value."""
    newest = replace(RUN, newest=3, oldest=3)

    def renamed(root: Path) -> dict[Path, bytes]:
        plain = read_json(root / "summary.json")
        if "seed" in plain:
            plain["first_seed"] = plain.pop("seed")
        return {root / "summary.json": json.dumps(plain).encode()}

    def raised(root: Path) -> dict[Path, bytes]:
        if fails:
            raise StorageError("killed here")
        plain = read_json(root / "summary.json")
        return {root / "summary.json": json.dumps({**plain, "first_seed": 4}).encode()}

    monkeypatch.setattr(formats, "KINDS", (newest,))
    monkeypatch.setattr(migration, "RUN", newest)
    monkeypatch.setattr(migration, "STEPS", {"run": {1: renamed, 2: raised}})


def test_steps_follow_each_other(
    old_run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = old_run("format1-run")
    three_steps(monkeypatch, fails=True)
    with pytest.raises(StorageError, match="killed here"):
        migrate(run)
    assert not (run / FORMAT).exists()
    three_steps(monkeypatch)
    _, before, written = migrate(run)
    assert (before, written) == (1, [run / "summary.json", run / FORMAT])
    assert read_json(run / "summary.json")["first_seed"] == 4
    assert read_json(run / FORMAT)["format"] == 3


def test_a_run_in_use_is_not_migrated(old_run: Callable[[str], Path]) -> None:
    run = old_run("format1-run")
    lock = lock_or_refuse(run)
    try:
        with pytest.raises(StorageError, match="in use"):
            migrate(run)
    finally:
        os.close(lock)
    assert not (run / FORMAT).exists()


def test_what_has_no_format_is_not_migrated(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StorageError, match=r"config\.json, party\.toml, federation\.toml"):
            migrate(directory)


# Newer, damaged, of another kind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (
            {"kind": None, "format": 7, "written_by": "9.1.0"},
            ("newer Colonnade", "9.1.0", "format 7", "knows 2", "upgrade"),
        ),
        ({"kind": "house", "format": 2, "written_by": "0.1.0"}, ("'house'", "expected")),
        ({"kind": None, "format": 0, "written_by": "0.1.0"}, ("damaged", "0")),
        ({"kind": None, "format": True, "written_by": "0.1.0"}, ("damaged", "True")),
        ({"kind": None, "format": 2}, ("damaged", "written_by")),
        ([2], ("damaged",)),
        (None, ("damaged",)),
    ],
    ids=["newer", "another kind", "zero", "no number", "no key", "a list", "no JSON"],
)
def test_other_formats_are_refused(
    kind: DirectoryKind, content: Any, facts: tuple[str, ...], tmp_path: Path
) -> None:
    directory = tmp_path / kind.name
    directory.mkdir()
    (directory / kind.mark).write_text("{}" if kind is RUN else "")
    if isinstance(content, dict) and content["kind"] is None:
        content = {**content, "kind": kind.name}
    text = "{" if content is None else json.dumps(content)
    (directory / FORMAT).write_text(text)
    readers = [
        READERS[kind.name],
        migrate,
        *([lambda root: write_report(root, None)] if kind is RUN else []),
    ]
    for read in readers:
        with pytest.raises(StorageError) as caught:
            read(directory)
        for fact in (str(directory), *facts):
            assert fact in str(caught.value)
    assert (directory / FORMAT).read_text() == text


# Settings on resume


def test_training_ranges_that_an_earlier_version_did_not_keep_are_no_difference(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    trained("format1-run", run, epochs=1)
    for file in run.rglob("preparation.json"):
        plain = read_json(file)
        assert plain.pop("ranges")
        write_json(file, plain)
    trained("format1-run", run, epochs=2, resume=True)


def test_a_key_that_is_new_since_then_has_its_default(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained("format1-run", run, epochs=1)
    config = read_json(run / "config.json")
    assert config["data"].pop("incomplete") == "refuse"
    del config["label_holder"]["class_weights"], config["start"]
    write_json(run / "config.json", config)
    trained("format1-run", run, epochs=2, resume=True)
    # What was left out is now there.
    assert read_json(run / "config.json")["data"]["incomplete"] == "refuse"


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda config: config["data"].update(batch_size=8), "data.batch_size"),
        (lambda config: config["data"].pop("batch_size"), "data.batch_size"),
        (lambda config: config["data"].update(colour="red"), "data.colour"),
    ],
    ids=["changed", "not the default", "unknown"],
)
def test_settings_that_differ_are_refused_by_their_path(
    change: Callable[[Any], Any], fact: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained("format1-run", run, epochs=1)
    config = read_json(run / "config.json")
    change(config)
    write_json(run / "config.json", config)
    with pytest.raises(ConfigError) as caught:
        trained("format1-run", run, epochs=2, resume=True)
    assert fact in str(caught.value)


def test_fixtures_are_those_of_the_old_revision() -> None:
    """They hold neither a newer file nor a path of the machine that wrote them."""
    for name in RUNS:
        run = FIXTURES / name
        assert read_json(run / "summary.json")["revision"] == "fc54316664"
        assert format_of(run, RUN) == 1
        for path in run.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not any(place in content for place in (b"/home/", b"/root/", b"/tmp/"))
