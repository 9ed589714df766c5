"""From settings to guards: who protects what, and what can't go together, before the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from colonnade.core.config import parse
from colonnade.core.errors import ConfigError
from colonnade.core.protection import Guard, Reader
from colonnade.core.sums import Sums
from colonnade.protect.adding import RingSums
from colonnade.protect.compression import unpack_value
from colonnade.protect.guard import PartyGuard, check_chain
from colonnade.protect.identity import Ed25519Signer, PinnedVerifier, Signer, Verifier
from colonnade.protect.ledger import Ledger
from colonnade.protect.policy import Policy, Terms, read_policy
from colonnade.protect.specs import Blind, Budget, Compression, Fixed, ProtectionSpec, Ring
from colonnade.run.spec import CHOICES, RunSpec

__all__ = ["Guarding", "MakeLedger"]

MakeLedger = Callable[[str], Ledger]

_BY_ITSELF = (
    "blinding needs a sum over parties; set fusion combine = 'mean' and a method that takes sums"
)


@dataclass(frozen=True, kw_only=True)
class Guarding:
    """Every party's protections in one run, checked against each other and the policies."""

    spec: RunSpec
    participants: tuple[str, ...]
    label_holder: str
    make_ledger: MakeLedger | None = None

    def __post_init__(self) -> None:
        method = self.spec.method
        for name in self.participants:
            try:
                check_chain(self._own(name))
            except ConfigError as error:
                raise ConfigError(f"party.{name}.{error}") from error
        wanted = [self.spec.defaults.protect, *(item.protect for item in self.spec.party.values())]
        if method.pools_blocks and any(wanted):
            raise ConfigError(
                f"method.name: '{method.info.name}' brings all columns to one place, where no "
                "protection holds; leave out protect, or use another method"
            )
        if not method.can_be_protected and any(wanted):
            raise ConfigError(
                f"method.name: what parties send in '{method.info.name}' does not go through the "
                "one encoder that protections are for; leave out protect, or use another method"
            )
        if self._ring is not None:
            self._check_ring(self._ring)

    @property
    def chains(self) -> dict[str, tuple[ProtectionSpec, ...]]:
        """What each party does to its embeddings, in order."""
        return {name: self._chain_of(name) for name in self.participants}

    def _own(self, name: str) -> tuple[ProtectionSpec, ...]:
        """A party's own protections, and the packing that the method asks for."""
        own = self.spec.protect_of(name, self.label_holder)
        wanted = self.spec.method.wants_packed
        if (
            wanted is None
            or name == self.label_holder
            or any(isinstance(item, Compression) for item in own)
        ):
            return own
        packing: ProtectionSpec = parse(
            ProtectionSpec,
            wanted,
            choices=CHOICES,
            path="method",
        )
        return (*own, packing)

    def _chain_of(self, name: str) -> tuple[ProtectionSpec, ...]:
        """A party's protections; of the label holder's own block nothing is masked."""
        chain = self._own(name)
        if name != self.label_holder:
            return chain
        ring = self._ring
        others = tuple(item for item in chain if not isinstance(item, Ring))
        if ring is None:
            return others
        plain = Fixed(range=ring.range, fraction_bits=ring.fraction_bits, ring_bits=ring.ring_bits)
        return (*others, plain)

    @property
    def _ring(self) -> Ring | None:
        """The ring of the first party across a link that has one."""
        for name in self.participants:
            if name != self.label_holder:
                for item in self._own(name):
                    if isinstance(item, Ring):
                        return item
        return None

    def _check_ring(self, ring: Ring) -> None:
        others = [name for name in self.participants if name != self.label_holder]
        for name in others:
            if ring not in self._own(name):
                raise ConfigError(
                    f"party.{name}.protect: a sum needs the same '{ring.kind}' at every party but "
                    "the label holder; set it in defaults.protect"
                )
        combine = getattr(self.spec.label_holder.fusion, "combine", "concat")
        reason = self.spec.method.refuses_sums(combine)
        if reason:
            raise ConfigError(f"protect: '{ring.kind}' can't be: {reason}; {_BY_ITSELF}")
        if isinstance(ring, Blind) and len(others) < ring.least:
            raise ConfigError(
                f"protect: 'blind' needs at least {ring.least} parties besides the label holder's "
                f"own block, there are {len(others)}; with fewer there is nothing to hide behind: "
                "the sum less what is known is the embedding"
            )
        if len(self.participants) > ring.most_parties:
            raise ConfigError(
                f"protect: a sum of {len(self.participants)} parties within ±{ring.range:g} at "
                f"{ring.fraction_bits} fraction_bits may not fit into {ring.ring_bits} bits (at "
                f"most {ring.most_parties} parties); lower range or fraction_bits, or set "
                "ring_bits = 64"
            )

    @property
    def sums(self) -> Sums | None:
        """How the label holder adds up; none if every party sends its embedding by itself."""
        if self._ring is None:
            return None
        masked = {
            name
            for name, chain in self.chains.items()
            if any(isinstance(item, Blind) for item in chain)
        }
        dtype = getattr(torch, self.spec.dtype)
        return RingSums(self._ring, dtype=dtype, masked=frozenset(masked))

    @property
    def read(self) -> Reader | None:
        """How the label holder reads what was packed; none if nothing is."""
        chains = self.chains.values()
        packs = any(isinstance(item, Compression) for chain in chains for item in chain)
        return unpack_value if packs else None

    def check_policies(
        self,
        columns: Mapping[str, tuple[str, ...]],
        num_rows: Mapping[str, int],
        num_rows_used: int,
    ) -> None:
        """Raise Refused if what is asked of a party is against its policy."""
        method = self.spec.method
        for name, own in columns.items():
            policy = self._policy_of(name)
            if policy is None:
                continue
            terms = Terms(
                method=method.info.name,
                shares_labels=method.shares_labels,
                columns=own,
                protections=() if method.pools_blocks else self._chain_of(name),
                num_rows=num_rows[name],
                num_rows_used=num_rows_used,
            )
            policy.check(name, terms)

    def guards(self, encoders: Mapping[str, nn.Module]) -> dict[str, Guard | None]:
        """A guard for every party that needs one."""
        blinding = [
            name
            for name, chain in self.chains.items()
            if any(isinstance(item, Blind) for item in chain)
        ]
        # In one process every party knows every other's key from the start.
        signers = {name: Ed25519Signer() for name in blinding}
        pinned = {name: signer.public for name, signer in signers.items()}
        guards: dict[str, Guard | None] = {}
        for name, encoder in encoders.items():
            chain, policy = self._chain_of(name), self._policy_of(name)
            if not chain and policy is None and self.make_ledger is None:
                guards[name] = None
                continue
            guards[name] = self.guard(
                name,
                encoder,
                ledger=None if self.make_ledger is None else self.make_ledger(name),
                budget=None if policy is None else policy.budget,
                signer=signers.get(name),
                verifier=PinnedVerifier(name, pinned) if name in signers else None,
            )
        return guards

    def guard(
        self,
        name: str,
        encoder: nn.Module,
        *,
        ledger: Ledger | None,
        budget: Budget | None,
        signer: Signer | None,
        verifier: Verifier | None,
    ) -> Guard:
        """The guard of one party."""
        return PartyGuard(
            party=name,
            encoder=encoder,
            protections=self._chain_of(name),
            budget=budget,
            ledger=ledger,
            seed=self.spec.seed,
            signer=signer,
            verifier=verifier,
        )

    def _policy_of(self, name: str) -> Policy | None:
        own = self.spec.party.get(name)
        if own is None or own.policy is None:
            return None
        try:
            return read_policy(own.policy)
        except ConfigError as error:
            raise ConfigError(f"party.{name}.policy: {error}") from error
