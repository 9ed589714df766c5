"""Backups of a federation: whole, checked, and never a way back."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.core.errors import ConfigError, StorageError
from colonnade.federate.backup import back_up, restore
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.invitations import revoke
from colonnade.run.kept_seals import KeptSeals
from membership import SetClock, make_federation, make_member


@pytest.fixture
def federation(tmp_path: Path) -> FederationDirectory:
    made = make_federation(tmp_path / "bank", SetClock())
    make_member(made, "telco")
    make_member(made, "shop")
    KeptSeals(made.directory / "account_seals.json").keep({"telco": b"first"})
    return made


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def test_everything_comes_back_in_an_empty_place(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "credit"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    out = tmp_path / "bank.backup"
    made = back_up(federation.directory, out, runs=[run])
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    done = restore(out, tmp_path / "again", runs=tmp_path / "put", nobody_revoked=True)
    assert (done.is_whole, done.runs, done.manifest) == (True, ("credit",), made)
    before, after = files_of(federation.directory), files_of(tmp_path / "again")
    grown = {"audit/ledger.jsonl", "audit/ledger.seal.json"}
    assert {key: item for key, item in after.items() if key not in grown} == {
        key: item for key, item in before.items() if key not in grown
    }
    assert after["audit/ledger.jsonl"].startswith(before["audit/ledger.jsonl"])
    opened = FederationDirectory(tmp_path / "again")
    *_, last = opened.record.entries()
    assert last["event"] == "restored"
    assert (last["made"], last["entries"], last["whole"]) == (made.made, made.entries, True)
    assert opened.record.verify()[1] is None
    assert stat.S_IMODE((tmp_path / "again" / "authority.key.pem").stat().st_mode) == 0o600
    # A second time the run is there and stays.
    (tmp_path / "put" / "credit" / "config.json").write_text('{"newer": 1}')
    assert restore(out, tmp_path / "again", runs=tmp_path / "put").runs_there == ("credit",)
    assert "newer" in (tmp_path / "put" / "credit" / "config.json").read_text()


def test_nobody_is_a_member_again_by_oversight(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "bank.backup"
    back_up(federation.directory, out)
    revoke(federation, "telco")
    with pytest.raises(ConfigError, match="--nobody-revoked"):
        restore(out, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    done = restore(out, tmp_path / "again", revoked=["telco"])
    assert done.revoked == ("telco",)
    register = FederationDirectory(tmp_path / "again").register.read()
    assert set(register.members) == {"shop"}
    assert {item.party for item in register.revoked.values()} == {"telco"}


def test_an_older_backup_takes_nothing_back(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "bank.backup"
    back_up(federation.directory, out)
    revoke(federation, "telco")
    seals = KeptSeals(federation.directory / "account_seals.json")
    seals.keep({"telco": b"second"})
    (federation.directory / "authority.pem").chmod(0o644)
    (federation.directory / "identity.pem").unlink()
    done = restore(out, federation.directory)
    assert done.kept
    register = federation.register.read()
    assert set(register.members) == {"shop"}
    assert {item.party for item in register.revoked.values()} == {"telco"}
    assert seals.read() == {"telco": b"second"}
    assert (federation.directory / "identity.pem").exists()


def test_a_newer_backup_brings_an_older_directory_forward(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    older = tmp_path / "older.backup"
    back_up(federation.directory, older)
    revoke(federation, "telco")
    KeptSeals(federation.directory / "account_seals.json").keep({"telco": b"second"})
    newer = tmp_path / "newer.backup"
    back_up(federation.directory, newer)
    # A directory as it was, without the note that it was restored.
    with tarfile.open(older) as archive:
        for entry in archive.getmembers()[1:]:
            target = tmp_path / "old" / entry.name.removeprefix("federation/")
            target.parent.mkdir(parents=True, exist_ok=True)
            found = archive.extractfile(entry)
            assert found is not None
            target.write_bytes(found.read())
            target.chmod(0o600)
    assert not restore(newer, tmp_path / "old").kept
    opened = FederationDirectory(tmp_path / "old")
    assert set(opened.register.read().members) == {"shop"}
    assert KeptSeals(tmp_path / "old" / "account_seals.json").read() == {"telco": b"second"}
    assert opened.record.verify()[1] is None


def test_records_that_went_on_apart_are_not_mixed(
    federation: FederationDirectory, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.backup", tmp_path / "second.backup"
    back_up(federation.directory, first)
    restore(first, tmp_path / "other", nobody_revoked=True)
    revoke(FederationDirectory(tmp_path / "other"), "shop")
    back_up(tmp_path / "other", second)
    revoke(federation, "telco")
    with pytest.raises(StorageError, match="went on apart"):
        restore(second, federation.directory)
    assert set(federation.register.read().members) == {"shop"}


def test_another_federation_is_left_alone(federation: FederationDirectory, tmp_path: Path) -> None:
    out = tmp_path / "bank.backup"
    back_up(federation.directory, out)
    other = make_federation(tmp_path / "other", SetClock())
    before = files_of(other.directory)
    with pytest.raises(ConfigError, match="another federation"):
        restore(out, other.directory)
    assert files_of(other.directory) == before


def test_a_damaged_record_is_not_backed_up(federation: FederationDirectory, tmp_path: Path) -> None:
    path = federation.directory / "audit" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"enrolled", b"enrollXX"))
    with pytest.raises(StorageError, match="would hide that"):
        back_up(federation.directory, tmp_path / "bank.backup")


def forged(out: Path, change: Any) -> Path:
    """A backup with one thing changed."""
    with tarfile.open(out) as archive:
        entries = []
        for item in archive.getmembers():
            found = archive.extractfile(item)
            assert found is not None
            entries.append((item, found.read()))
    path = out.with_suffix(".forged")
    with tarfile.open(path, "w") as archive:
        for item, content in change(entries):
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    return path


def with_entry(name: str, kind: bytes = tarfile.REGTYPE) -> Any:
    def change(entries: list[Any]) -> list[Any]:
        extra = tarfile.TarInfo(name)
        extra.type, extra.linkname = kind, "/etc/passwd"
        manifest = json.loads(entries[0][1])
        empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        manifest["files"][name] = empty
        entries[0] = (entries[0][0], json.dumps(manifest).encode())
        return [*entries, (extra, b"")]

    return change


def one_byte(entries: list[Any]) -> list[Any]:
    return [
        (item, content.replace(b"telco", b"telcO") if "register" in item.name else content)
        for item, content in entries
    ]


@pytest.mark.attack(
    what="A forged backup: paths, links, changed or missing files",
    has="a backup that the label holder restores",
    before="(found with the command)",
    now="refused before anything is put in place",
)
@pytest.mark.parametrize(
    "change",
    [
        with_entry("federation/../../outside"),
        with_entry("/outside"),
        with_entry("elsewhere/outside"),
        with_entry("federation/link", tarfile.SYMTYPE),
        with_entry("federation/hard", tarfile.LNKTYPE),
        with_entry("federation/device", tarfile.CHRTYPE),
        one_byte,
        lambda entries: entries[:-1],
        lambda entries: entries[1:],
        lambda entries: [*entries, entries[-1]],
    ],
)
def test_a_forged_backup_changes_nothing(
    federation: FederationDirectory, tmp_path: Path, change: Any
) -> None:
    out = tmp_path / "bank.backup"
    back_up(federation.directory, out)
    with pytest.raises(StorageError):
        restore(forged(out, change), tmp_path / "place" / "again", nobody_revoked=True)
    assert list((tmp_path / "place").iterdir()) == []
    assert not (tmp_path / "outside").exists()


def test_the_commands(federation: FederationDirectory, tmp_path: Path) -> None:
    out = str(tmp_path / "bank.backup")
    said = CliRunner().invoke(
        app, ["federation", "backup", str(federation.directory), "--out", out]
    )
    assert said.exit_code == 0, said.output
    again = str(tmp_path / "again")
    said = CliRunner().invoke(app, ["federation", "restore", out, again, "--revoked", "telco"])
    assert said.exit_code == 0, said.output
    assert "'telco' is revoked" in said.output
    said = CliRunner().invoke(app, ["federation", "audit", again, "--acknowledge"])
    assert "no party has seen" in said.output
