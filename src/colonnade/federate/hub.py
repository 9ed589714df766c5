"""Training over the network, driven from the label holder: settings out, embeddings in.

Whatever happens to a party or to this process, there is a checkpoint that everybody has: when a
party comes back without what it knew, everybody goes back to it and the run goes on.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import (
    ColonnadeError,
    ConfigError,
    NoAnswer,
    PartyRestarted,
    StorageError,
)
from colonnade.core.federation import Federation, LoopState
from colonnade.core.parties import Parties
from colonnade.core.party import Party
from colonnade.core.task import Task, infer_kind
from colonnade.fabrics import GrpcSpec
from colonnade.fabrics.grpc.fabric import GrpcFabric, Session
from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.agent import TRAIN
from colonnade.federate.alignment import (
    HolderTable,
    Progress,
    Samples,
    align_over,
    known_samples,
    preparing,
    read_holder_table,
)
from colonnade.files import write_atomically
from colonnade.run.arrangement import Roll, draw_roll, narrowed, usable_samples
from colonnade.run.assembly import Blueprint, TrainingData
from colonnade.run.directory import (
    RunDirectory,
    refuse_other_run,
    write_blueprint,
    write_calibration,
)
from colonnade.run.engine import Watcher, train_federation
from colonnade.run.protecting import Guarding
from colonnade.run.silo import fit_preparation, make_encoder, make_parts, make_party, make_plans
from colonnade.run.spec import DataSpec, LabelHolderSpec, PartySpec, RunSpec, plain_spec
from colonnade.run.storage import party_directory

__all__ = ["RemoteRun", "train_over"]

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
) -> dict[str, Any]:
    """Align if need be, train with the agents of all parties that the settings name; the summary.

    The label holder waits for parties that are not there yet.
    """
    spec = _for_the_network(spec, label_holder)
    holder = read_holder_table(spec, label_holder)
    away = tuple(sorted(set(spec.party) - {label_holder}))
    run = RunDirectory(directory, resume=resume)
    try:
        _wait_for(hub, away, say)
        place = spec.data.alignment or directory / "alignment"
        if not (party_directory(place, label_holder) / "alignment.npz").exists():
            say(f"aligning with {', '.join(away)}")
            align_over(hub, spec, holder, away, place, progress=progress)
        remote = RemoteRun.prepare(spec, holder, away, place, run_name(directory))
        return _train(hub, remote, run, resume=resume, watcher=watcher, say=say)
    except ColonnadeError as error:
        run.log(f"{type(error).__name__}: {error}")
        raise
    finally:
        run.close()


def _for_the_network(spec: RunSpec, label_holder: str) -> RunSpec:
    """The settings with the gRPC fabric; refuse what can't be between organisations."""
    name = spec.label_holder.name
    if name not in (None, label_holder):
        raise ConfigError(
            f"label_holder.name: the federation's is '{label_holder}', the settings say '{name}'"
        )
    method = spec.method
    if method.pools_blocks or method.shows_columns or method.shares_labels:
        shows = method.pools_blocks or method.shows_columns
        what = "brings all columns to one place" if shows else "shares labels"
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


def _wait_for(hub: Hub, names: tuple[str, ...], say: Say) -> None:
    absent = hub.wait_for(names, timeout=0.2)
    if absent:
        say(f"waiting for {', '.join(absent)}")
        while hub.wait_for(names, timeout=1.0):
            pass  # a wait with an end lets signals in between


def run_name(directory: Path) -> str:
    """The run's name among the parties: drawn once, and kept in its directory."""
    path = directory / "run_name"
    if not path.exists():
        write_atomically(path, secrets.token_hex(16).encode())
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: can't be read") from error


@dataclass(frozen=True, kw_only=True)
class RemoteRun:
    """Everything that the label holder has of a run: its own data, the roll, the blueprint."""

    name: str
    holder: HolderTable
    samples: Samples
    # In positions among the samples of this run, as in one process.
    roll: Roll
    data: TrainingData
    plans: Mapping[str, BatchPlan]
    blueprint: Blueprint

    @classmethod
    def prepare(
        cls,
        spec: RunSpec,
        holder: HolderTable,
        away: tuple[str, ...],
        alignment: Path,
        name: str,
    ) -> RemoteRun:
        """Split the samples and fit what the label holder fits."""
        taking_part = away if holder.block is None else (*away, holder.name)
        owners = spec.method.participants(tuple(sorted(taking_part)), holder.name)
        samples = known_samples(holder, owners, alignment)
        kept = usable_samples(spec, owners, samples.table)
        samples = replace(
            samples,
            numbers=samples.numbers[kept],
            rows=samples.rows[kept],
            table=samples.table[kept],
        )
        roll = draw_roll(spec, owners, samples.table)
        for key in ("patience", "target"):
            if getattr(spec.stop, key) is not None and "validation" not in roll.samples:
                raise ConfigError(
                    f"stop.{key}: needs a validation part; set data.split.validation above 0"
                )
        values = holder.labels[samples.rows]
        kind = spec.label_holder.task or infer_kind(values)
        spec = replace(spec, label_holder=replace(spec.label_holder, task=kind))
        data = TrainingData(
            features={},
            rows={},
            labels={part: values[numbers] for part, numbers in roll.samples.items()},
            roll=roll,
        )
        preparations = {}
        if holder.block is not None and holder.name in owners:
            block, rows = narrowed(holder.block, samples.rows)
            preparations[holder.name] = fit_preparation(spec, holder.name, block, rows, roll)
        blueprint = Blueprint(
            spec=spec,
            label_holder=holder.name,
            label_name=holder.label_name,
            num_samples=roll.num_samples,
            num_complete=roll.num_complete,
            num_rows={"labels": holder.ids.num_rows},
            task=Task.fit(
                kind,
                data.labels["train"],
                loss=spec.label_holder.loss,
                balanced=spec.label_holder.class_weights == "balanced",
            ),
            preparations=preparations,
            elsewhere=tuple(owner for owner in owners if owner != holder.name),
        )
        return cls(
            name=name,
            holder=holder,
            samples=samples,
            roll=roll,
            data=data,
            plans=make_plans(spec, roll),
            blueprint=blueprint,
        )

    def own_party(self, run: RunDirectory, guarding: Guarding) -> dict[str, Party]:
        """The label holder's own party, with fresh weights; none if it has no block."""
        name, spec = self.holder.name, self.blueprint.spec
        if name not in self.blueprint.preparations:
            return {}
        assert self.holder.block is not None
        preparation = self.blueprint.preparations[name]
        block, rows = narrowed(self.holder.block, self.samples.rows)
        features = torch.as_tensor(preparation.apply(block), dtype=getattr(torch, spec.dtype))
        encoder = make_encoder(spec, name, preparation, names=self.roll.names)
        party = make_party(
            spec,
            name,
            encoder,
            make_parts(features, rows, name, self.roll, self.plans),
            num_outputs=self.blueprint.task.num_outputs,
            vault=run.vault(name),
            guard=guarding.guards({name: encoder})[name],
        )
        return {name: party}

    def settings_for(self, party: str) -> str:
        """What a party must know to make its half: no file, no label, nobody else's settings."""
        spec = self.blueprint.spec
        own = replace(spec.party.get(party, PartySpec()), file=None, id=None, policy=None)
        data = DataSpec(
            split=spec.data.split,
            batch_size=spec.data.batch_size,
            presence=spec.data.presence,
            incomplete=spec.data.incomplete,
        )
        agreed = RunSpec(
            method=spec.method,
            data=data,
            label_holder=LabelHolderSpec(
                name=spec.label_holder.name, fusion=spec.label_holder.fusion
            ),
            party={party: own},
            defaults=spec.defaults,
            stop=spec.stop,
            dtype=spec.dtype,
            threads=spec.threads,
            seed=spec.seed,
        )
        return json.dumps({**plain_spec(agreed), "names": list(self.roll.names)})

    def roll_call(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The roll in the alignment's numbers, which every party knows."""
        samples = {
            part: torch.from_numpy(self.samples.numbers[numbers])
            for part, numbers in self.roll.samples.items()
        }
        presence = {part: torch.from_numpy(table) for part, table in self.roll.presence.items()}
        return samples, presence


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
    if blueprint.spec.start.run is not None:
        raise ConfigError("start.run: parties behind a network can't start from another run yet")
    if resume:
        refuse_other_run(run.root, blueprint)
    write_blueprint(run.root, blueprint)
    if blueprint.spec.threads is not None:
        torch.set_num_threads(blueprint.spec.threads)
    while True:
        try:
            return _attempt(hub, remote, run, watcher)
        except PartyRestarted as error:
            run.log(str(error))
            say(f"'{error.party}' came back without what it knew: back to the last checkpoint")
            _wait_for(hub, blueprint.elsewhere, say)


def _attempt(
    hub: Hub, remote: RemoteRun, run: RunDirectory, watcher: Watcher | None
) -> dict[str, Any]:
    """Train from the last checkpoint to the end, or until a party has lost what it knew."""
    blueprint = remote.blueprint
    spec = blueprint.spec
    guarding = blueprint.guarding(run.ledger)
    session = Session(
        hub,
        blueprint.elsewhere,
        purpose=TRAIN,
        at_side=remote.own_party(run, guarding),
        patience=spec.patience,
    )
    fabric = GrpcFabric(session)
    try:
        _assemble(fabric, remote)
        holder = blueprint.build_holder(remote.data, remote.plans)
        holder.clock = fabric.clock
        federation = Federation(
            spec.method, holder, fabric, spec.patience, guarding.sums, guarding.read
        )
        loop = run.resume(federation, keeps_best=spec.stop.patience is not None)
        if loop.exchange:
            run.log(f"resumed after exchange {loop.exchange}")
        else:
            run.checkpoint(federation, LoopState())
        records: Any = _Lenient(run) if spec.patience.then == "continue" else run
        result = train_federation(blueprint, remote.data, federation, loop, records, watcher)
        write_calibration(run.root, result.calibration)
        return result.summary
    finally:
        fabric.close()


def _assemble(fabric: GrpcFabric, remote: RemoteRun) -> None:
    """Have every party make its half; nobody can be left out of that."""
    blueprint = remote.blueprint
    aside = fabric.aside()
    parties = Parties(aside, preparing(blueprint.spec.patience))
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
