"""A party's half of a run, rebuilt from what the party kept of it; it can only predict."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from colonnade.core.errors import ProtocolError
from colonnade.core.party import Party
from colonnade.federate.own_settings import on_own_device, own_seed
from colonnade.federate.party_home import PartySettings
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.peers import own_signer, peers_of
from colonnade.federate.run_at_party import AgreedRun
from colonnade.protect.ledger import Ledger
from colonnade.protect.lifetime_account import LifetimeAccount
from colonnade.run.door_building import Doors, OwnTerms
from colonnade.run.party_building import build_party
from colonnade.run.samples import Roll
from colonnade.run.storage import DirectoryVault

__all__ = ["rebuilt_party"]


def rebuilt_party(
    home: Path,
    settings: PartySettings,
    policy: PartyPolicy,
    agreed: AgreedRun,
    doors: Doors,
    place: Path,
    account: LifetimeAccount,
    *,
    told: bytes,
    ledger: Path | None = None,
) -> Party:
    """Make a party of a run without samples and without weights; both come later.

    Args:
        home: The party's directory.
        settings: Its settings.
        policy: Its policy of today.
        agreed: The run as it was agreed.
        doors: The doors of that run.
        place: The run in the party's directory.
        account: Where releases are charged.
        told: The same at all parties whose answers are added up.
        ledger: Where releases are written down, if not in the run's own ledger.

    Returns:
        A party that charges the account, writes the run's ledger, and learns nothing.
    """
    spec = on_own_device(agreed.spec, settings.own)
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    party = build_party(
        spec,
        settings.name,
        preparation=agreed.preparation,
        data=None,
        roll=Roll(names=agreed.names, samples={}, presence={}),
        plans={},
        everyone=agreed.names,
        num_outputs=agreed.num_outputs,
        doors=doors,
        own=OwnTerms(
            budget=policy.budget,
            account=account,
            largest_gradient=policy.largest_gradient,
            signer=lambda: own_signer(home),
            verifier=lambda: peers_of(settings.name, home, policy.peers),
            sums=policy.sum_rules(doors.masked, told),
            seed=None if settings.common_seed else own_seed(home, place.name),
        ),
    )
    # A cheating label holder may ask for steps of training: without gradients there are none.
    party.model.requires_grad_(False)
    # For good: switching to evaluation and back costs more than an embedding of one sample.
    party.model.eval()
    most = policy.limits.max_ledger_megabytes * 1_000_000
    notes = Ledger(ledger or place, run=place.name, party=settings.name, most_bytes=most)
    party.settle_in(_Reading(place), notes)
    return party


class _Reading(DirectoryVault):
    """A run's checkpoints for whoever only reads them."""

    def keep(self, tag: str, state: Mapping[str, Any]) -> None:
        """Refuse: nothing was learned."""
        raise ProtocolError("a session for predictions keeps no weights")

    def retain(self, tags: Collection[str]) -> None:
        """Refuse: nothing is to be deleted."""
        raise ProtocolError("a session for predictions deletes no weights")
