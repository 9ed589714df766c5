"""A run's settings: what a TOML file says, as frozen dataclasses, checked before the start."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from colonnade.align.terms import AlignSpec
from colonnade.core.config import Choice, dump, parse
from colonnade.core.devices import Placement, Precision, check_device, placement
from colonnade.core.errors import ConfigError
from colonnade.core.federation import Stop
from colonnade.core.method import Method
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.own_code import OwnCode
from colonnade.core.parties import Patience
from colonnade.core.schedules import SCHEDULES, Schedule
from colonnade.core.task import TaskKind
from colonnade.data.dependent_presence import DRAWINGS
from colonnade.data.drawn_presence import Drawing, PresenceSpec
from colonnade.data.prepare import PrepareSpec
from colonnade.data.splits import SplitSpec
from colonnade.data.table_files import CsvSpec
from colonnade.fabrics import FABRICS, FabricSpec, InProcessSpec
from colonnade.fabrics.durations import DURATIONS, Duration
from colonnade.fabrics.sleeps import SLEEPS, Sleep
from colonnade.methods import METHODS
from colonnade.methods.laser import Laser
from colonnade.methods.splitnn import SplitNN
from colonnade.models import (
    ENCODERS,
    FUSIONS,
    EncoderSpec,
    FactoryHeadSpec,
    FusionSpec,
    HeadSpec,
)
from colonnade.protect import PROTECTIONS, ProtectionSpec
from colonnade.run.defaults import (
    BATCH_SIZE,
    ENCODER,
    ENCODERS_BY_METHOD,
    FUSION,
    HEADS,
    OPTIMIZER,
    STOP,
)

__all__ = [
    "CHOICES",
    "DataSpec",
    "DefaultsSpec",
    "LabelHolderSpec",
    "PartySpec",
    "RecordSpec",
    "RunSpec",
    "StartSpec",
    "as_begun",
    "parse_spec",
    "plain_spec",
    "read_spec",
    "stored_spec",
]

CHOICES: Mapping[type, Choice] = {
    Method: Choice(tag="name", options=METHODS),
    FabricSpec: Choice(tag="name", options=FABRICS),
    EncoderSpec: Choice(tag="kind", options=ENCODERS),
    FusionSpec: Choice(tag="kind", options=FUSIONS),
    Duration: DURATIONS,
    Sleep: SLEEPS,
    ProtectionSpec: Choice(tag="kind", options=PROTECTIONS),
    Drawing: DRAWINGS,
    Schedule: SCHEDULES,
}


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A named data set (or none: then every party names its file), split and batches."""

    dataset: str | None = None
    num_parties: int | None = None
    split: SplitSpec = field(default_factory=SplitSpec)
    batch_size: int = BATCH_SIZE
    # A directory that ``colonnade align`` wrote; without it ids are compared openly.
    alignment: Path | None = None
    presence: PresenceSpec = field(default_factory=PresenceSpec)
    # What a method that needs every block does with samples that lack one.
    incomplete: Literal["refuse", "drop"] = "refuse"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size: must be at least 1, got {self.batch_size}")
        if self.num_parties is not None and self.dataset is None:
            raise ConfigError("num_parties: splits a named data set; set dataset too")


@dataclass(frozen=True, kw_only=True)
class LabelHolderSpec:
    """Who has the labels, where they are, and the fusion model."""

    name: str | None = None
    file: Path | None = None
    id: str | None = None
    csv: CsvSpec | None = None
    label: str | None = None
    task: TaskKind | None = None
    loss: OwnCode | str | None = None
    # Metrics of the caller's own, of true and predicted labels; only from Python.
    metrics: Mapping[str, OwnCode] = field(default_factory=dict)
    # Whether every class counts alike in the loss, however many samples it has; or what some count.
    class_weights: Mapping[str, float] | Literal["none", "balanced"] = "none"
    # The column of the label holder's table that says what each sample counts in the loss.
    sample_weight: str | None = None
    fusion: FusionSpec = FUSION
    optimizer: OptimizerSpec = field(default_factory=lambda: OPTIMIZER)
    # What stands at the label holder's own door: gradients, averages and the like pass it.
    protect: tuple[ProtectionSpec, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PartySpec:
    """One party: its file, its columns, its network; what is not given comes from defaults."""

    file: Path | None = None
    id: str | None = None
    csv: CsvSpec | None = None
    columns: tuple[str, ...] | None = None
    prepare: PrepareSpec | None = None
    encoder: EncoderSpec | None = None
    head: FactoryHeadSpec | HeadSpec | None = None
    optimizer: OptimizerSpec | None = None
    protect: tuple[ProtectionSpec, ...] | None = None
    policy: Path | None = None


@dataclass(frozen=True, kw_only=True)
class DefaultsSpec:
    """What a party has that does not say otherwise."""

    csv: CsvSpec = field(default_factory=CsvSpec)
    prepare: PrepareSpec = field(default_factory=PrepareSpec)
    encoder: EncoderSpec = ENCODER
    head: FactoryHeadSpec | HeadSpec = field(default_factory=HeadSpec)
    optimizer: OptimizerSpec = field(default_factory=lambda: OPTIMIZER)
    protect: tuple[ProtectionSpec, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordSpec:
    """How often to write metrics and checkpoints, in exchanges; once per epoch if not given.

    ``timeline`` is how many intervals of who did what to keep; 0 for none. ``trackers`` get the
    metrics too.
    """

    log_every: int = 10
    checkpoint_every: int | None = None
    timeline: int = 20_000
    trackers: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ()

    def __post_init__(self) -> None:
        for name in ("log_every", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: must be at least 1, got {value}")
        if not 0 <= self.timeline <= 1_000_000:
            raise ConfigError(f"timeline: from 0 to 1000000, got {self.timeline}")


@dataclass(frozen=True, kw_only=True)
class StartSpec:
    """Weights to begin with: those of an earlier run, whose parties go on as they are.

    Parties that it did not have begin anew. ``bound`` is how much the quality without them may
    fall by training them in; ``freeze`` names parties that no longer learn.
    """

    run: Path | None = None
    freeze: tuple[str, ...] = ()
    freeze_fusion: bool = False
    bound: float = 0.02

    def __post_init__(self) -> None:
        if self.run is None and (self.freeze or self.freeze_fusion):
            key = "freeze" if self.freeze else "freeze_fusion"
            raise ConfigError(f"{key}: keeps an earlier run's weights; name it in run")
        if not 0 <= self.bound <= 1:
            raise ConfigError(f"bound: from 0 to 1, got {self.bound}")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that decides how a run goes."""

    method: Method = field(default_factory=SplitNN)
    data: DataSpec = field(default_factory=DataSpec)
    align: AlignSpec | None = None
    label_holder: LabelHolderSpec = field(default_factory=LabelHolderSpec)
    party: Mapping[str, PartySpec] = field(default_factory=dict)
    defaults: DefaultsSpec = field(default_factory=DefaultsSpec)
    fabric: FabricSpec = field(default_factory=InProcessSpec)
    stop: Stop = STOP
    patience: Patience = field(default_factory=Patience)
    record: RecordSpec = field(default_factory=RecordSpec)
    start: StartSpec = field(default_factory=StartSpec)
    dtype: Literal["float32", "float64"] = "float32"
    # Where networks compute: cpu, cuda, cuda:1, mps or auto. A party elsewhere has its own.
    device: str = "cpu"
    # Whether large operations are in bfloat16; weights and whatever leaves are not.
    precision: Precision = "full"
    # Threads per operation; torch's own choice if not given. One is best for small networks.
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads: must be at least 1, got {self.threads}")
        check_device(self.device, self.precision, self.dtype)
        if self.data.alignment is not None and self.align is None:
            raise ConfigError(
                "data.alignment: needs the table [align] with which it was made, to check that "
                "the ids are still the same"
            )

    @property
    def placement(self) -> Placement | None:
        """Where networks compute on this machine; None for the CPU in full precision."""
        return placement(self.device, self.precision, self.dtype)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Columns of the label holder's table that are no features unless asked for."""
        holder = self.label_holder
        named = (holder.label, holder.sample_weight, self.data.split.time)
        return tuple(name for name in named if name is not None)

    def csv_of(self, party: str) -> CsvSpec:
        """How a party's CSV file is written."""
        own = self.party.get(party, _NOTHING_OWN).csv
        return self.defaults.csv if own is None else own

    def prepare_of(self, party: str) -> PrepareSpec:
        """How a party prepares its columns."""
        own = self.party.get(party, _NOTHING_OWN).prepare
        return self.defaults.prepare if own is None else own

    def encoder_of(self, party: str) -> EncoderSpec:
        """A party's network."""
        own = self.party.get(party, _NOTHING_OWN).encoder
        return self.defaults.encoder if own is None else own

    def head_of(self, party: str) -> FactoryHeadSpec | HeadSpec:
        """A party's network from an embedding to the outputs, for methods that give it one."""
        own = self.party.get(party, _NOTHING_OWN).head
        return self.defaults.head if own is None else own

    def optimizer_of(self, party: str) -> OptimizerSpec:
        """A party's optimizer."""
        own = self.party.get(party, _NOTHING_OWN).optimizer
        return self.defaults.optimizer if own is None else own

    def protect_of(self, party: str, label_holder: str) -> tuple[ProtectionSpec, ...]:
        """What a party does to its embeddings before they leave.

        The label holder's own block is at its side: nothing leaves, so defaults don't hold there.
        """
        own = self.party.get(party, _NOTHING_OWN).protect
        if own is None:
            return () if party == label_holder else self.defaults.protect
        return own


_NOTHING_OWN = PartySpec()
# Stands in a run's settings for the salt, which the run itself does not need.
_WITHHELD = "(withheld from the run)"


def parse_spec(values: Mapping[str, Any]) -> RunSpec:
    """Settings from a plain mapping; every mistake is named by its path.

    A table ``stop`` that does not say how long training may last has the defaults for the rest.
    Where no encoder or no head is given, the method decides which is the default.
    """
    stop = values.get("stop")
    if isinstance(stop, Mapping) and not {"exchanges", "epochs"} & stop.keys():
        values = {**values, "stop": {**dump(STOP), **stop}}
    spec: RunSpec = parse(RunSpec, values, choices=CHOICES)
    name, given = spec.method.info.name, values.get("defaults", {})
    by_method = {"encoder": ENCODERS_BY_METHOD.get(name), "head": HEADS.get(name)}
    own: dict[str, Any] = {
        key: item for key, item in by_method.items() if item is not None and key not in given
    }
    return replace(spec, defaults=replace(spec.defaults, **own)) if own else spec


def stored_spec(values: Mapping[str, Any]) -> RunSpec:
    """Settings of a run that began earlier: keys that are new since are as runs were before."""
    data = values.get("data", {})
    split = {"stratified": False, **data.get("split", {})}
    defaults = {"head": {}, **values.get("defaults", {})}
    return parse_spec({**values, "data": {**data, "split": split}, "defaults": defaults})


def as_begun(spec: RunSpec, begun: RunSpec) -> RunSpec:
    """Settings for a run that goes on: defaults are those of the time when it began.

    Args:
        spec: The settings as they are read today.
        begun: Those that the run keeps.

    Returns:
        Settings with the run's own where it had an earlier default and ``spec`` has today's.
    """
    defaults, holder, method = spec.defaults, spec.label_holder, spec.method
    name, was = method.info.name, begun.defaults
    if (defaults.encoder, was.encoder) == (ENCODERS_BY_METHOD.get(name), ENCODER):
        defaults = replace(defaults, encoder=ENCODER)
    if (defaults.head, was.head) == (HEADS.get(name), HeadSpec()):
        defaults = replace(defaults, head=HeadSpec())
    if isinstance(method, Laser) and isinstance(begun.method, Laser):
        weighed = begun.method.weights
        if (method.weights, weighed) == (Laser.weights, "normalised"):
            method = replace(method, weights=weighed)
    if (defaults.optimizer, was.optimizer) == (OPTIMIZER, OptimizerSpec()):
        defaults = replace(defaults, optimizer=OptimizerSpec())
    if (holder.optimizer, begun.label_holder.optimizer) == (OPTIMIZER, OptimizerSpec()):
        holder = replace(holder, optimizer=OptimizerSpec())
    stop = begun.stop if (spec.stop, begun.stop) == (STOP, Stop(epochs=20)) else spec.stop
    split = spec.data.split
    if split.stratified:
        split = replace(split, stratified=begun.data.split.stratified)
    data = replace(spec.data, split=split)
    return replace(
        spec, method=method, defaults=defaults, label_holder=holder, stop=stop, data=data
    )


def plain_spec(spec: RunSpec) -> dict[str, Any]:
    """Settings as JSON's types; ``parse_spec`` takes them back, without the alignment's salt."""
    if spec.align is not None:
        spec = replace(spec, align=replace(spec.align, salt=_WITHHELD))
    plain: dict[str, Any] = dump(spec, choices=CHOICES)
    return plain


def read_spec(path: Path) -> RunSpec:
    """Settings from a TOML file, or from a run's own config.json.

    File names in it are relative to it.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give the path of a run's TOML file")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from error
    try:
        spec = parse_spec(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return _with_absolute_files(spec, path.parent)


def _with_absolute_files(spec: RunSpec, base: Path) -> RunSpec:
    def absolute(file: Path | None) -> Path | None:
        return None if file is None else (base / file.expanduser()).resolve()

    holder = replace(spec.label_holder, file=absolute(spec.label_holder.file))
    party = {
        name: replace(item, file=absolute(item.file), policy=absolute(item.policy))
        for name, item in spec.party.items()
    }
    start = replace(spec.start, run=absolute(spec.start.run))
    data = replace(spec.data, alignment=absolute(spec.data.alignment))
    align = spec.align and replace(spec.align, counts=absolute(spec.align.counts))
    return replace(spec, data=data, align=align, label_holder=holder, party=party, start=start)
