"""Fabrics by name: what carries a call. A fabric's settings build it over the parties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from colonnade.core.errors import ConfigError
from colonnade.core.fabric import Fabric
from colonnade.core.respondent import Respondent
from colonnade.fabrics.durations import Constant, Duration
from colonnade.fabrics.grpc.settings import LinkSpec
from colonnade.fabrics.local import InProcess
from colonnade.fabrics.simulated import Profile, Simulated

__all__ = ["FABRICS", "FabricSpec", "GrpcSpec", "InProcessSpec", "SimulatedSpec"]


class FabricSpec(ABC):
    """A fabric's settings."""

    @abstractmethod
    def build(
        self, parties: Mapping[str, Respondent], *, local: frozenset[str], seed: int
    ) -> Fabric:
        """Make the fabric; ``local`` names the label holder's own block, if it has one."""


@dataclass(frozen=True, kw_only=True)
class InProcessSpec(FabricSpec):
    """Everything in this process, one call after the other."""

    def build(
        self, parties: Mapping[str, Respondent], *, local: frozenset[str], seed: int
    ) -> Fabric:
        """Make the fabric."""
        return InProcess(parties, local=local)


@dataclass(frozen=True, kw_only=True)
class SimulatedSpec(FabricSpec):
    """A virtual clock: ``default`` is every party's profile, ``party.NAME`` one party's own.

    ``fuse`` is what one update of the label holder costs.
    """

    default: Profile = field(default_factory=Profile)
    party: Mapping[str, Profile] = field(default_factory=dict)
    fuse: Duration = field(default_factory=Constant)

    def build(
        self, parties: Mapping[str, Respondent], *, local: frozenset[str], seed: int
    ) -> Fabric:
        """Make the fabric."""
        return Simulated(
            parties,
            # One party alone still runs under a file that has profiles for all.
            profiles={name: item for name, item in self.party.items() if name in parties},
            default=self.default,
            fuse=self.fuse,
            local=local,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True)
class GrpcSpec(FabricSpec):
    """Parties elsewhere, each with its own agent; only ``colonnade federation train`` drives them.

    ``link`` is how the hub's links behave.
    """

    link: LinkSpec = field(default_factory=LinkSpec)

    def build(
        self, parties: Mapping[str, Respondent], *, local: frozenset[str], seed: int
    ) -> Fabric:
        """Refuse: nobody's party is in this process."""
        raise ConfigError(
            "fabric.name: 'grpc' needs a federation and its parties' agents; run: colonnade "
            "federation train"
        )


FABRICS: Mapping[str, type[FabricSpec]] = {
    "in_process": InProcessSpec,
    "simulated": SimulatedSpec,
    "grpc": GrpcSpec,
}
