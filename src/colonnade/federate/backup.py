"""Backups of a federation's directory: keys, register, record, seals, alignments, and runs.

A backup is one tar file, for its owner only. Its first member, ``manifest.json``, names every file
with its SHA-256. A backup holds the federation's keys: whoever has it can be the hub.

``restore`` puts a backup into an empty place, or into a federation's directory that has lost files
or is older. It never goes back: the longer of two records stays, revocations of both count, and
what is newer in the directory is left alone. In an empty place nobody knows of revocations since
the backup, so the label holder has to say who was revoked.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, StorageError
from colonnade.federate.certificates import Now, now
from colonnade.federate.federation_directory import AUTHORITY, SETTINGS, FederationDirectory
from colonnade.federate.invitations import revoke
from colonnade.federate.register import REGISTER, RegisterFile
from colonnade.files import writing_atomically
from colonnade.protect.ledger import ledger_hashes, verify_ledger
from colonnade.run.kept_seals import KeptSeals

__all__ = ["Manifest", "Restored", "back_up", "restore"]

_MANIFEST = "manifest.json"
_MOST_MANIFEST_BYTES = 64_000_000
_RECORD = "audit"
_SEALS = "account_seals.json"
_RUNS = "runs"
_FEDERATION = "federation"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a backup holds.

    Attributes:
        federation: The label holder's name.
        made: When, ISO 8601.
        entries: How long the hub's record was.
        head: The hash of its last entry.
        files: SHA-256 by path in the backup.
    """

    version: int = 1
    federation: str
    made: str
    entries: int
    head: str
    files: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version != 1:
            raise ConfigError(
                f"version: this Colonnade reads backups of version 1, not {self.version}"
            )


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a restoration did.

    Attributes:
        manifest: The backup's.
        is_whole: Whether the place was empty before.
        kept: Whether the record that was there is as long or longer, and stayed.
        runs: The runs that were put back.
        runs_there: Runs that were there already, and stayed as they were.
        revoked: Parties that were revoked while restoring.
    """

    manifest: Manifest
    is_whole: bool
    kept: bool
    runs: tuple[str, ...]
    runs_there: tuple[str, ...]
    revoked: tuple[str, ...]


def back_up(directory: Path, out: Path, *, runs: Sequence[Path] = (), now: Now = now) -> Manifest:
    """Write a backup; the hub may run meanwhile.

    Args:
        directory: The federation's directory.
        out: The file to write; owner only. An existing one is replaced when the new one is whole.
        runs: Run directories to put in too.
        now: The clock.

    Returns:
        What is in it.

    Raises:
        ConfigError: Not a federation, or not a run.
        StorageError: Something can't be read or written, or the record is damaged.
    """
    federation = FederationDirectory(directory, now=now)
    for run in runs:
        if not (run / "config.json").exists():
            raise ConfigError(f"{run}: holds no run")
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError("two runs of one name; back them up apart")
    _, fault = federation.record.verify()
    if fault is not None:
        raise StorageError(
            f"{directory / _RECORD}: entry {fault.entry}: {fault.what}; a backup would hide that"
        )
    # While both are held nobody is invited, enrolled, renewed, revoked or admitted.
    with federation.register.changing(), federation.record.held():
        hashes = ledger_hashes(directory / _RECORD)
        content = {
            **_read_all(directory, _FEDERATION),
            **{
                key: item
                for run in runs
                for key, item in _read_all(run, f"{_RUNS}/{run.name}").items()
            },
        }
        manifest = Manifest(
            federation=federation.settings.name,
            made=now().isoformat(timespec="seconds"),
            entries=len(hashes),
            head=hashes[-1] if hashes else "",
            files={key: hashlib.sha256(item).hexdigest() for key, item in content.items()},
        )
        with (
            writing_atomically(out, owner_only=True) as file,
            tarfile.open(fileobj=file, mode="w") as archive,
        ):
            _add(archive, _MANIFEST, json.dumps(dump(manifest), indent=1).encode())
            for key, item in content.items():
                _add(archive, key, item)
    return manifest


def _read_all(root: Path, under: str) -> dict[str, bytes]:
    """Every file but locks, by its path in a backup."""
    found = {}
    try:
        for path in sorted(root.rglob("*")):
            is_lock = path.suffix == ".lock" or path.name == "lock"
            if path.is_symlink() or not path.is_file() or is_lock:
                continue
            found[f"{under}/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{error.filename}: can't be read: {error.strerror}") from error
    return found


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    archive.addfile(entry, io.BytesIO(content))


def restore(
    backup: Path,
    directory: Path,
    *,
    runs: Path | None = None,
    revoked: Collection[str] = (),
    nobody_revoked: bool = False,
    now: Now = now,
) -> Restored:
    """Put a backup back.

    Args:
        backup: The file.
        directory: A federation's directory, or where to make one.
        runs: Where the runs go; they stay in the backup if it is not given.
        revoked: Parties that were revoked since the backup.
        nobody_revoked: That there are none.
        now: The clock.

    Returns:
        What was done.

    Raises:
        ConfigError: It is another federation's, or nobody said who was revoked since.
        StorageError: The backup is damaged, or both records went on apart.
    """
    is_whole = not (directory / SETTINGS).exists()
    if is_whole and directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory}: exists, is not empty, and is no federation's")
    with _unpacked(backup, directory.parent) as (manifest, place):
        source = place / _FEDERATION
        if is_whole:
            members = RegisterFile(source).read().members
            if members and not revoked and not nobody_revoked:
                raise ConfigError(
                    f"the backup is of {manifest.made[:16]}; whoever was revoked since would be a "
                    f"member again ({', '.join(sorted(members))}): say --revoked NAME for each, or "
                    "--nobody-revoked"
                )
            kept = False
            directory.parent.mkdir(parents=True, exist_ok=True)
            if directory.exists():
                directory.rmdir()
            source.chmod(0o700)
            source.replace(directory)
        else:
            kept = _bring_forward(source, directory, now)
        federation = FederationDirectory(directory, now=now)
        federation.record.note(
            "restored", made=manifest.made, entries=manifest.entries, whole=is_whole
        )
        for name in sorted(set(revoked)):
            revoke(federation, name)
        put, there = _put_runs(place / _RUNS, runs)
    return Restored(
        manifest=manifest,
        is_whole=is_whole,
        kept=kept,
        runs=put,
        runs_there=there,
        revoked=tuple(sorted(set(revoked))),
    )


def _bring_forward(source: Path, directory: Path, now: Now) -> bool:
    """Take from a backup what a directory lacks; True if the directory's own record stays."""
    if (source / AUTHORITY).read_bytes() != (directory / AUTHORITY).read_bytes():
        raise ConfigError(f"{directory}: another federation than the backup's")
    there, saved = ledger_hashes(directory / _RECORD), ledger_hashes(source / _RECORD)
    kept = saved == there[: len(saved)]
    if not kept and there != saved[: len(there)]:
        raise StorageError(
            f"{directory}: its record and the backup's went on apart after entry "
            f"{_num_common(there, saved)}; restore into an empty directory, and revoke anew "
            "whoever either of them revoked"
        )
    older, newer = (source, directory) if kept else (directory, source)
    revocations = RegisterFile(older).read().revoked
    seals = KeptSeals(older / _SEALS).read() | KeptSeals(newer / _SEALS).read()
    for path in sorted(source.rglob("*")):
        target = directory / path.relative_to(source)
        if path.is_file() and (not kept or not target.exists()):
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy2(path, target)
    with FederationDirectory(directory, now=now).register.changing() as register:
        for serial, item in revocations.items():
            register.revoked.setdefault(serial, item)
            member = register.members.get(item.party)
            if member is not None and serial in (member.serial, member.successor):
                del register.members[item.party]
    KeptSeals(directory / _SEALS).keep(seals)
    return kept


def _num_common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many entries two records share that went on apart."""
    pairs = enumerate(zip(one, other, strict=False))
    return next(place for place, (mine, theirs) in pairs if mine != theirs)


def _put_runs(source: Path, target: Path | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Put runs back beside those that are there; a run that is there stays as it is."""
    if target is None or not source.exists():
        return (), ()
    put, there = [], []
    for run in sorted(source.iterdir()):
        if (target / run.name).exists():
            there.append(run.name)
            continue
        target.mkdir(parents=True, exist_ok=True)
        shutil.copytree(run, target / run.name)
        put.append(run.name)
    return tuple(put), tuple(there)


@contextmanager
def _unpacked(backup: Path, beside: Path) -> Iterator[tuple[Manifest, Path]]:
    """The backup's files in a directory of their own, every one checked; it goes at the end."""
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".restoring-", dir=beside) as name:
        place = Path(name)
        try:
            with tarfile.open(backup, mode="r:") as archive:
                manifest = _manifest(archive, backup)
                _unpack(archive, manifest.files, place, backup)
        except (OSError, tarfile.TarError) as error:
            raise StorageError(f"{backup}: can't be read as a backup: {error}") from error
        record = place / _FEDERATION / _RECORD
        num, fault = verify_ledger(record) if record.exists() else (0, None)
        hashes = ledger_hashes(record)
        if fault is not None or (num, hashes[-1:]) != (manifest.entries, [manifest.head][:num]):
            raise StorageError(f"{backup}: its record does not hold, or is not the manifest's")
        yield manifest, place


def _manifest(archive: tarfile.TarFile, backup: Path) -> Manifest:
    first = archive.next()
    if first is None or first.name != _MANIFEST or not first.isreg():
        raise StorageError(f"{backup}: not a backup: it does not begin with {_MANIFEST}")
    if first.size > _MOST_MANIFEST_BYTES:
        raise StorageError(f"{backup}: a manifest of {first.size} bytes")
    file = archive.extractfile(first)
    assert file is not None
    try:
        return parse(Manifest, json.loads(file.read()))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{backup}: a damaged manifest: {error}") from error


def _unpack(archive: tarfile.TarFile, files: Mapping[str, str], place: Path, backup: Path) -> None:
    """Write the files that the manifest names and no others; no link, no path that leads out."""
    seen = set()
    for entry in archive:
        if entry.name == _MANIFEST:
            continue
        parts = PurePosixPath(entry.name).parts
        is_plain = entry.isreg() and ".." not in parts and not entry.name.startswith("/")
        if not is_plain or entry.name not in files or entry.name in seen or "\\" in entry.name:
            raise StorageError(f"{backup}: '{entry.name[:100]}' is not in its manifest")
        if parts[0] not in (_FEDERATION, _RUNS):
            raise StorageError(f"{backup}: '{entry.name[:100]}' has no place")
        file = archive.extractfile(entry)
        assert file is not None
        content = file.read()
        if hashlib.sha256(content).hexdigest() != files[entry.name]:
            raise StorageError(f"{backup}: '{entry.name[:100]}' is damaged")
        target = place.joinpath(*parts)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        seen.add(entry.name)
    missing = sorted(set(files) - seen)
    if missing:
        raise StorageError(f"{backup}: cut off: {len(missing)} files are missing, '{missing[0]}'")
    for name in (REGISTER, SETTINGS, AUTHORITY):
        if f"{_FEDERATION}/{name}" not in files:
            raise StorageError(f"{backup}: lacks {name}")
