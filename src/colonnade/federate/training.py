"""Training over the network, driven from the label holder: settings out, embeddings in.

Whatever happens to a party or to this process, there is a checkpoint that everybody has: when a
party comes back without what it knew, everybody goes back to it and the run goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from colonnade.core.errors import (
    ColonnadeError,
    ConfigError,
    NoAnswer,
    PartyRestarted,
    StorageError,
)
from colonnade.core.federation import Federation, LoopState
from colonnade.core.parties import Parties
from colonnade.fabrics import GrpcSpec
from colonnade.fabrics.grpc.hub import Hub
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.network_fabric import GrpcFabric
from colonnade.federate.alignment import (
    HolderTable,
    Progress,
    aligned,
    preparing,
    read_holder_table,
)
from colonnade.federate.alignments import HolderAlignments, name_alignment, named_alignment
from colonnade.federate.attempts import attempted, newest_checkpoint, wait_for_parties
from colonnade.federate.party_agent import TRAIN
from colonnade.federate.remote_run import RemoteRun, settings_for
from colonnade.federate.train_session import TrainSession
from colonnade.files import write_atomically
from colonnade.run.blueprint_files import (
    refuse_other_run,
    resumed_spec,
    write_blueprint,
    write_calibration,
)
from colonnade.run.directory import RunDirectory
from colonnade.run.engine import Watcher, train_federation
from colonnade.run.kept_seals import KeptSeals
from colonnade.run.records import settle_in
from colonnade.run.spec import RunSpec
from colonnade.run.storage import party_directory
from colonnade.run.trackers import require_trackers
from colonnade.run.warm_start import freeze

__all__ = ["train_over"]

Say = Callable[[str], None]


def train_over(
    hub: Hub,
    spec: RunSpec,
    label_holder: str,
    directory: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    say: Say = lambda line: None,
    progress: Progress | None = None,
    alignments: Path | None = None,
    seals: Path | None = None,
) -> dict[str, Any]:
    """Align if need be, train with the agents of all parties that the settings name; the summary.

    The label holder waits for parties that are not there yet. ``alignments`` is where it keeps its
    alignments, by default in the run's directory: an alignment of the same ids with the same
    parties that everybody still has is used again.
    """
    spec = _for_the_network(spec, label_holder)
    require_trackers(spec.record.trackers)
    if resume:
        spec = resumed_spec(directory, spec)
    holder = read_holder_table(spec, label_holder)
    away = tuple(sorted(set(spec.party) - {label_holder}))
    run = RunDirectory(directory, resume=resume)
    if seals is not None:
        run.seals = KeptSeals(seals)
    try:
        wait_for_parties(hub, away, say)
        kept = HolderAlignments(root=alignments or directory / "alignments", holder=label_holder)
        place = _alignment_of(spec, directory, kept)
        if place is None:
            place = _aligned(hub, spec, holder, away, kept, run, say=say, progress=progress)
            name_alignment(directory, place.name)
        remote = RemoteRun.prepare(spec, holder, away, place, run_name(directory))
        return _train(hub, remote, run, resume=resume, watcher=watcher, say=say)
    except ColonnadeError as error:
        run.log(f"{type(error).__name__}: {error}")
        raise
    finally:
        run.close()


def _aligned(
    hub: Hub,
    spec: RunSpec,
    holder: HolderTable,
    away: tuple[str, ...],
    kept: HolderAlignments,
    run: RunDirectory,
    *,
    say: Say,
    progress: Progress | None,
) -> Path:
    """Show everybody the settings, then align; from the beginning if a party crashed meanwhile."""

    def attempt() -> Path:
        _consider(hub, spec, away, run_name(run.root))
        return aligned(hub, spec, holder, away, kept, say=say, progress=progress)

    def go_back(error: PartyRestarted) -> None:
        run.log(str(error))
        say(f"'{error.party}' came back without what it knew: aligning from the beginning")
        wait_for_parties(hub, away, say)

    return attempted(
        attempt,
        progress=lambda: None,
        go_back=go_back,
        remedy="look into its log, then give the command again",
    )


def _alignment_of(spec: RunSpec, run: Path, kept: HolderAlignments) -> Path | None:
    """Where the alignment is that the settings or an earlier start of this run name."""
    if spec.data.alignment is not None:
        return spec.data.alignment
    digest = named_alignment(run)
    if digest is not None:
        return kept.place(digest)
    # A run of an earlier Colonnade has its alignment in its own directory.
    earlier = run / "alignment"
    return earlier if party_directory(earlier, kept.holder).is_dir() else None


def _for_the_network(spec: RunSpec, label_holder: str) -> RunSpec:
    """The settings with the gRPC fabric; refuse what can't be between organisations."""
    name = spec.label_holder.name
    if name not in (None, label_holder):
        raise ConfigError(
            f"label_holder.name: the federation's is '{label_holder}', the settings say '{name}'"
        )
    method = spec.method
    if not method.stays_home:
        is_shared = method.needs.labels == "shared"
        what = "shares labels" if is_shared else "brings columns to one place"
        raise ConfigError(
            f"method.name: '{method.info.name}' {what}; between organisations columns and labels "
            "stay where they are"
        )
    if spec.data.dataset is not None:
        raise ConfigError("data.dataset: over a network every party has its own table")
    away = sorted(set(spec.party) - {label_holder})
    if not away:
        raise ConfigError(
            "party: no party but the label holder; give each one a table [party.NAME], empty if "
            "the defaults will do"
        )
    for party in away:
        if spec.party[party].file is not None or spec.party[party].id is not None:
            raise ConfigError(f"party.{party}.file: where its table is, a party says itself")
        if spec.party[party].policy is not None:
            raise ConfigError(f"party.{party}.policy: a party has its policy at home")
    fabric = spec.fabric if isinstance(spec.fabric, GrpcSpec) else GrpcSpec()
    return replace(spec, fabric=fabric, label_holder=replace(spec.label_holder, name=label_holder))


def run_name(directory: Path) -> str:
    """The run's name among the parties: drawn once, and kept in its directory."""
    path = directory / "run_name"
    if not path.exists():
        write_atomically(path, secrets.token_hex(16).encode())
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: can't be read") from error


def _consider(hub: Hub, spec: RunSpec, away: tuple[str, ...], run: str) -> None:
    """Show every party the settings before any of them spends an alignment on the run."""
    holder = spec.label_holder.name or ""
    taking_part = away if holder not in spec.party else (*away, holder)
    names = spec.method.participants(tuple(sorted(taking_part)), holder)
    session = Session(hub, away, purpose=TRAIN, at_side={}, patience=preparing(spec.patience))
    fabric = GrpcFabric(session)
    try:
        parties = Parties(fabric, preparing(spec.patience), verbs=TrainSession.verbs)
        for name in away:
            settings = settings_for(spec, name, names)
            fabric.run(parties.ask("consider", run, settings, among=[name]))
    finally:
        fabric.close()


def _train(
    hub: Hub,
    remote: RemoteRun,
    run: RunDirectory,
    *,
    resume: bool,
    watcher: Watcher | None,
    say: Say,
) -> dict[str, Any]:
    blueprint = remote.blueprint
    if resume:
        refuse_other_run(run.root, blueprint)
    write_blueprint(run.root, blueprint)
    if blueprint.spec.threads is not None:
        torch.set_num_threads(blueprint.spec.threads)

    # Importing what measures takes seconds: not while parties wait for the first evaluation.
    import_module("sklearn.metrics")

    def go_back(error: PartyRestarted) -> None:
        run.log(str(error))
        say(f"'{error.party}' came back without what it knew: back to the last checkpoint")
        wait_for_parties(hub, blueprint.elsewhere, say)

    return attempted(
        lambda: _attempt(hub, remote, run, watcher),
        progress=lambda: newest_checkpoint(run.root),
        go_back=go_back,
    )


def _attempt(
    hub: Hub, remote: RemoteRun, run: RunDirectory, watcher: Watcher | None
) -> dict[str, Any]:
    """Train from the last checkpoint to the end, or until a party has lost what it knew."""
    blueprint = remote.blueprint
    spec = blueprint.spec
    doors = blueprint.doors()
    holder = blueprint.build_holder(remote.data, remote.plans)
    own = blueprint.build_parties(remote.data, remote.plans, doors, holder)
    session = Session(
        hub,
        blueprint.elsewhere,
        purpose=TRAIN,
        at_side=own,
        patience=spec.patience,
    )
    fabric = GrpcFabric(session)
    try:
        federation = blueprint.assemble(fabric, holder, doors)
        settle_in(federation, run, own)
        _assemble(federation, remote)
        is_new = not (run.root / "checkpoint.json").exists()
        # Going back to a checkpoint has the time that preparing has, and so has the first one.
        federation.patience = preparing(spec.patience)
        run.confirm(federation, {})
        freeze(federation, spec)
        loop = run.resume(federation, keeps_best=spec.stop.patience is not None)
        if loop.exchange:
            run.log(f"resumed after exchange {loop.exchange}")
        else:
            if is_new and remote.parent is not None:
                remote.parent.joining.give_weights(federation, own)
            run.checkpoint(federation, LoopState(), federation.patience)
        federation.patience = spec.patience
        goes_on = spec.patience.then == "continue" or federation.waits_for_nobody
        records: Any = _Lenient(run) if goes_on else run
        result = train_federation(blueprint, remote.data, federation, loop, records, watcher)
        write_calibration(run.root, result.calibration)
        return result.summary
    finally:
        fabric.close()


def _assemble(federation: Federation, remote: RemoteRun) -> None:
    """Have every party make its half; nobody can be left out of that."""
    blueprint = remote.blueprint
    aside = federation.fabric.aside()
    patience = preparing(blueprint.spec.patience)
    parties = Parties(aside, patience, door=federation.door, verbs=TrainSession.verbs)
    samples, presence = remote.roll_call()
    for name in blueprint.elsewhere:
        parties.start(
            name,
            "assemble",
            remote.name,
            remote.settings_for(name),
            remote.samples.digest,
            blueprint.task.num_outputs,
            samples,
            presence,
        )
    for _ in blueprint.elsewhere:
        aside.run(parties.arrival())


class _Lenient:
    """Records of a run that goes on without some: a checkpoint needs all, so it may be missed."""

    is_lasting = True

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def checkpoint(self, federation: Federation, loop: LoopState) -> None:
        """Keep everybody's state, if everybody is there."""
        try:
            self._run.checkpoint(federation, loop)
        except NoAnswer as error:
            self._run.log(f"exchange {loop.exchange}: no checkpoint: {error}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)
