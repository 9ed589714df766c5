"""From settings to doors: who protects what, and what does not fit together, before the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from colonnade.core.config import dump, parse
from colonnade.core.doors import Door
from colonnade.core.errors import ConfigError
from colonnade.core.protection import PeopleAccount
from colonnade.core.sums import Sums
from colonnade.protect.budget import Budget
from colonnade.protect.policy import Policy, Terms, read_policy
from colonnade.protect.protection_spec import (
    Place,
    ProtectionSpec,
    Setting,
    Side,
    SumRules,
    check_chain,
)
from colonnade.protect.signatures import Ed25519Signer, PinnedVerifier, Signer, Verifier
from colonnade.run.run_account import RunAccount
from colonnade.run.spec import CHOICES, RunSpec

__all__ = ["Doors", "OwnTerms"]

Chain = tuple[ProtectionSpec, ...]


@dataclass(frozen=True, kw_only=True)
class OwnTerms:
    """What a party brings to a run: its budget, identity and conditions for sums.

    ``seed`` is where its first weights and dropout come from; None is the run's own, known to all.
    """

    budget: Budget | None = None
    account: PeopleAccount | None = None
    largest_gradient: float | None = None
    signer: Callable[[], Signer] | None = None
    verifier: Callable[[], Verifier] | None = None
    sums: SumRules = field(default_factory=SumRules)
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Doors:
    """Every participant's door in one run, checked against each other and the method."""

    spec: RunSpec
    participants: tuple[str, ...]
    label_holder: str

    def __post_init__(self) -> None:
        for name in self.participants:
            self._check(self._own(name), "party", f"party.{name}.")
        self._check(self._holder_chain, "label_holder", "label_holder.")
        self._check_method()
        combine = getattr(self.spec.label_holder.fusion, "combine", "concat")
        setting = Setting(
            method=self.spec.method.info.name,
            needs=self.spec.method.needs,
            combine=combine,
            label_holder=self.label_holder,
            chains=self.chains,
        )
        for item in {spec: None for chain in self.chains.values() for spec in chain}:
            if item == self._common or not item.is_common:
                item.check(setting)

    @cached_property
    def chains(self) -> dict[str, Chain]:
        """What each party does to what leaves it, in order."""
        return {name: self._chain_of(name) for name in self.participants}

    @property
    def sums(self) -> Sums | None:
        """How the label holder adds up; none if every party sends its embedding by itself."""
        if self._common is None:
            return None
        return self._common.sums(getattr(torch, self.spec.dtype), self.masked)

    @property
    def masked(self) -> frozenset[str]:
        """The parties whose tensors can be read in sums alone."""
        return frozenset(
            name
            for name, chain in self.chains.items()
            if any(item.needs_identity for item in chain)
        )

    @property
    def accounting(self) -> tuple[str, ...]:
        """The parties with a protection that keeps an account."""
        return tuple(
            name for name, chain in self.chains.items() if any(item.keeps_account for item in chain)
        )

    def holder_door(self) -> Door:
        """The label holder's door: what stands there, and how it reads what parties send."""
        place = Place(owner=self.label_holder, seed=self.spec.seed)
        return Door(
            owner=self.label_holder,
            protections=[item.stand_at(place) for item in self._holder_chain],
            readers=self.chains,
        )

    def party_door(self, name: str, encoder: nn.Module, own: OwnTerms) -> Door:
        """One party's door."""
        place = Place(
            owner=name,
            encoder=encoder,
            seed=self.spec.seed,
            budget=own.budget,
            account=own.account,
            signer=own.signer,
            verifier=own.verifier,
            sums=own.sums,
        )
        return Door(
            owner=name,
            protections=[item.stand_at(place) for item in self.chains[name]],
            readers={self.label_holder: self._holder_chain},
            opening={"budget": None if own.budget is None else dump(own.budget)},
            account=own.account,
            largest_gradient=own.largest_gradient,
        )

    @cached_property
    def in_one_process(self) -> Mapping[str, OwnTerms]:
        """Budgets by the settings' policies; every party knows every other's key from the start."""
        signers = {name: Ed25519Signer() for name in self.chains if name in self.masked}
        pinned = {name: signer.public for name, signer in signers.items()}

        def terms(name: str) -> OwnTerms:
            policy = self._policy_of(name)
            budget = None if policy is None else policy.budget
            sums = SumRules() if policy is None else policy.sum_rules(self.masked)
            account = None
            if budget is not None and name in self.counting:
                account = RunAccount(name, budget)
            if name not in signers:
                return OwnTerms(budget=budget, account=account)
            return OwnTerms(
                budget=budget,
                account=account,
                signer=lambda: signers[name],
                verifier=lambda: PinnedVerifier(name, pinned),
                sums=sums,
            )

        return {name: terms(name) for name in self.participants}

    @property
    def budgets(self) -> dict[str, Budget]:
        """Budgets of the parties whose policies the settings name."""
        policies = {name: self._policy_of(name) for name in self.participants}
        return {name: item.budget for name, item in policies.items() if item and item.budget}

    @property
    def counting(self) -> frozenset[str]:
        """The parties that keep account of people in one process.

        What the label holder's own block tells it is charged to nobody.
        """
        return frozenset(self.budgets) - {self.label_holder}

    def check_policies(
        self,
        columns: Mapping[str, tuple[str, ...]],
        num_rows: Mapping[str, int],
        num_rows_used: int,
    ) -> None:
        """Raise Refused if what is asked of a party is against its policy."""
        for name, own in columns.items():
            policy = self._policy_of(name)
            if policy is not None:
                terms = replace(
                    self.terms_of(name),
                    columns=own,
                    num_rows=num_rows[name],
                    num_rows_used=num_rows_used,
                )
                policy.check(name, terms)

    def terms_of(self, name: str) -> Terms:
        """What the settings ask of one party, whatever its columns and samples."""
        spec = self.spec
        encoder, optimizer = spec.encoder_of(name), spec.optimizer_of(name)
        return Terms(
            method=spec.method.info.name,
            shares_labels=spec.method.needs.labels == "shared",
            protections=self.chains.get(name, ()),
            participants=tuple(sorted({*self.participants, self.label_holder} - {""})),
            encoder="linear" if encoder.is_linear else encoder.kind,
            width=encoder.embedding,
            lr=optimizer.lr,
            shrinkage=optimizer.shrinkage,
            scaled=spec.prepare_of(name).scale,
            dtype=spec.dtype,
            local_steps=spec.method.most_local_steps,
        )

    @property
    def _holder_chain(self) -> Chain:
        return self.spec.label_holder.protect

    def _own(self, name: str) -> Chain:
        """A party's own protections, and the packing that the method asks for."""
        own = self.spec.protect_of(name, self.label_holder)
        wanted = self.spec.method.needs.packing
        # Packed already, or to be added up: then the check says that both can't be.
        is_packed = any(item.changes_form and not item.is_common for item in own)
        if wanted is None or name == self.label_holder or is_packed:
            return own
        packing: ProtectionSpec = parse(ProtectionSpec, wanted, choices=CHOICES, path="method")  # type: ignore[type-abstract]
        return (*own, packing)

    def _chain_of(self, name: str) -> Chain:
        chain = self._own(name)
        if name != self.label_holder:
            return chain
        # The label holder's own block is no secret from it, but has to fit the others' form.
        beside = None if self._common is None else self._common.beside_labels()
        others = tuple(item for item in chain if not item.is_common)
        return others if beside is None else (*others, beside)

    @cached_property
    def _common(self) -> ProtectionSpec | None:
        """The protection that all parties across a link must have: the first that one has."""
        across = [name for name in self.participants if name != self.label_holder]
        return next((item for name in across for item in self._own(name) if item.is_common), None)

    def _check(self, chain: Chain, side: Side, where: str) -> None:
        try:
            check_chain(chain)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from error
        for item in chain:
            if side not in item.sides:
                raise ConfigError(
                    f"{where}protect: '{item.kind}' stands at the door of: "
                    f"{', '.join(sorted(item.sides))}; leave it out here"
                )

    def _check_method(self) -> None:
        """Refuse protections that the method does not admit."""
        method, parties = self.spec.method, self.spec.party.values()
        wanted = [self.spec.defaults.protect, *(item.protect for item in parties)]
        if not any(wanted) and not self._holder_chain:
            return
        if method.needs.pooled:
            raise ConfigError(
                f"method.name: '{method.info.name}' brings all columns to one place, where no "
                "protection holds; leave out protect, or use another method"
            )
        if any(wanted) and not method.needs.protectable:
            raise ConfigError(
                f"method.name: what parties send in '{method.info.name}' does not go through the "
                "one encoder that protections are for; leave out protect, or use another method"
            )
        for known in method.party.verbs.values():
            if known.undeclared:
                raise ConfigError(
                    f"method.name: '{method.info.name}' does not declare what its verb "
                    f"'{known.name}' tells of samples ({', '.join(known.undeclared)}), so nothing "
                    "can protect it; annotate it (Embedding, Derivative, ...), or leave out protect"
                )

    def _policy_of(self, name: str) -> Policy | None:
        own = self.spec.party.get(name)
        if own is None or own.policy is None:
            return None
        try:
            return read_policy(own.policy)
        except ConfigError as error:
            raise ConfigError(f"party.{name}.policy: {error}") from error
