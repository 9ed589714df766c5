"""The case that everybody computes, as files without Colonnade, and the losses it must give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from colonnade.bench.network import identities_of
from colonnade.bench.subjects import Shape, exchange, make_federation
from colonnade.core.batches import BatchPlan
from colonnade.run.directory import local_parties

__all__ = ["reference_losses", "write_case", "write_certificates"]

Arrays = dict[str, np.ndarray[Any, Any]]


def write_case(shape: Shape, directory: Path, num_steps: int) -> None:
    """A file per party and one of the label holder: first weights, data, order of batches."""
    federation = make_federation(shape)
    for name, party in local_parties(federation).items():
        part = party.parts["train"]
        content = {
            **_weights(party.encoder),
            "features": part.features.numpy(),
            "positions": _positions(part.plan, num_steps),
        }
        np.savez(directory / f"{name}.npz", **content)
    labels = federation.holder.parts["train"]
    content = {
        **_weights(federation.holder.fusion),
        "targets": labels.targets.numpy(),
        "positions": _positions(labels.plan, num_steps),
    }
    np.savez(directory / "label_holder.npz", **content)


def reference_losses(shape: Shape, num_steps: int) -> list[float]:
    """The loss of every step, all in one process."""
    federation = make_federation(shape)
    losses = []
    for number in range(num_steps):
        exchange(federation, number)
        losses.append(federation.holder.last_loss)
    return losses


def write_certificates(directory: Path, num_parties: int) -> None:
    """Certificates and keys for one measurement, of the kind that our own side uses."""
    directory.mkdir(mode=0o700)
    hub, parties = identities_of(Shape(num_parties=num_parties))
    (directory / "authority.pem").write_bytes(hub.authority)
    for identity in (hub, *parties):
        (directory / f"{identity.name}.pem").write_bytes(identity.certificate)
        (directory / f"{identity.name}.key").write_bytes(identity.key)


def _weights(network: nn.Module) -> Arrays:
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    found: Arrays = {}
    for at, layer in enumerate(layers):
        found[f"weight{at}"] = layer.weight.detach().numpy()
        found[f"bias{at}"] = layer.bias.detach().numpy()
    return found


def _positions(plan: BatchPlan, num_steps: int) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(plan.positions(number)) for number in range(num_steps)])
