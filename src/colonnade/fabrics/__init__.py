"""The settings of the fabrics by name. A fabric carries calls from the label holder to parties.

The fabrics themselves are in ``in_process``, ``simulated`` and ``grpc``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from colonnade.core.errors import ConfigError
from colonnade.core.fabric import Fabric
from colonnade.core.respondent import Respondent
from colonnade.fabrics.durations import Constant, Duration
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.fabrics.in_process import InProcess
from colonnade.fabrics.simulated import Engine, Profile, Simulated

__all__ = ["FABRICS", "FabricSpec", "GrpcSpec", "InProcessSpec", "SimulatedSpec"]

Respondents = Mapping[str, Respondent]


class FabricSpec(ABC):
    """The settings of a fabric."""

    @abstractmethod
    def build(self, parties: Respondents, *, local: frozenset[str], seed: int) -> Fabric:
        """Make the fabric over parties in this process.

        Args:
            parties: The parties by name.
            local: The label holder's own name if it has a block: no link is between them.
            seed: The run's seed.

        Returns:
            The fabric.

        Raises:
            ConfigError: The settings don't fit these parties.
        """


@dataclass(frozen=True, kw_only=True)
class InProcessSpec(FabricSpec):
    """All parties in this process, one call after the other.

    Args:
        step: The ticks that one step counts, for methods that take as many as fit into a timeout.

    Raises:
        ConfigError: A step would take no time.
    """

    step: int = 4

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ConfigError(f"step: must be at least 1, got {self.step}")

    def build(self, parties: Respondents, *, local: frozenset[str], seed: int) -> Fabric:
        return InProcess(parties, local=local, ticks_per_unit=self.step)


@dataclass(frozen=True, kw_only=True)
class SimulatedSpec(FabricSpec):
    """All parties in this process, with time and links on a virtual clock.

    Args:
        default: The profile of every party without one of its own.
        party: Profiles of single parties, by name.
        fuse: The ticks of one update at the label holder.
        engine: The ticks of what else the label holder does.
        parts_per_tick: How many units of all these durations make a tick; 1000 makes them
            microseconds.

    Raises:
        ConfigError: A tick would have no parts.
    """

    default: Profile = field(default_factory=Profile)
    party: Mapping[str, Profile] = field(default_factory=dict)
    fuse: Duration = field(default_factory=Constant)
    engine: Engine = field(default_factory=Engine)
    parts_per_tick: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.parts_per_tick <= 1_000_000:
            raise ConfigError(f"parts_per_tick: from 1 to 1000000, got {self.parts_per_tick}")

    def build(self, parties: Respondents, *, local: frozenset[str], seed: int) -> Fabric:
        return Simulated(
            parties,
            # A run with some of the parties may use a file with profiles for all.
            profiles={name: item for name, item in self.party.items() if name in parties},
            default=self.default,
            fuse=self.fuse,
            engine=self.engine,
            parts_per_tick=self.parts_per_tick,
            local=local,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class GrpcSpec(FabricSpec):
    """Parties on other machines, each with its own agent; for ``colonnade federation train`` only.

    Args:
        link: The behaviour of the hub's links.
    """

    link: LinkSpec = field(default_factory=LinkSpec)

    def build(self, parties: Respondents, *, local: frozenset[str], seed: int) -> Fabric:
        raise ConfigError(
            "fabric.name: 'grpc' needs a federation and its parties' agents; run: colonnade "
            "federation train"
        )


FABRICS: Mapping[str, type[FabricSpec]] = {
    "in_process": InProcessSpec,
    "simulated": SimulatedSpec,
    "grpc": GrpcSpec,
}
