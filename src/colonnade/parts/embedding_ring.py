"""Embeddings in a ring: every party gets all but its own, and gets back what its own did.

Party k's others are the parties that follow it in party order, without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from colonnade.core.presence import Observed

__all__ = ["EmbeddingRing", "PartialRing"]


class _Ring:
    """What both kinds have in common: everybody's place."""

    def __init__(self, embeddings: Mapping[str, Tensor]) -> None:
        self.embeddings = embeddings
        self.places = {name: place for place, name in enumerate(embeddings)}

    def __len__(self) -> int:
        return len(self.places)

    def turned(self, values: Mapping[str, float]) -> dict[str, Tensor]:
        """A number per party, in the order in which each party sees them: itself first."""
        dtype = next(iter(self.embeddings.values())).dtype
        found = torch.tensor([values[name] for name in self.embeddings], dtype=dtype)
        return {name: found.roll(-place) for name, place in self.places.items()}

    def _add(self, total: Tensor, name: str, found: Tensor, rows: Tensor | slice) -> None:
        """Add what one party gave for the embeddings that follow its own."""
        place = self.places[name]
        behind = len(self) - place - 1
        total[place + 1 :, rows] += found[:behind]
        total[:place, rows] += found[behind:]


class EmbeddingRing(_Ring):
    """The ring of a batch that everybody has: each gets one tensor (parties, samples, width).

    It is a view until it crosses the link.
    """

    def __init__(self, embeddings: Mapping[str, Tensor]) -> None:
        super().__init__(embeddings)
        blocks = list(embeddings.values())
        self._twice = torch.stack(blocks + blocks[:-1])

    def others(self) -> dict[str, Tensor]:
        """What each party gets."""
        return {
            name: self._twice[place + 1 : place + len(self)] for name, place in self.places.items()
        }

    def shapes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For ``Parties.ask``: copies of the samples in a head's outputs, and in ``others``."""
        return {"copies": len(self)}, {"copies": len(self) - 1}

    def sums(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For each party the sum of what the others' heads gave for its embedding."""
        total = torch.zeros_like(self._twice[: len(self)])
        for name, found in gradients.items():
            self._add(total, name, found, slice(None))
        return {name: total[place] for name, place in self.places.items()}


class PartialRing(_Ring):
    """The ring of a batch of which not everybody has every sample.

    Each party gets rows that are there, of samples that it has, and no others: those of the party
    after it first, and whether each is there: (other parties, own samples).
    """

    def __init__(self, embeddings: Mapping[str, Tensor], here: Observed) -> None:
        super().__init__(embeddings)
        assert here.table is not None
        self.here = here
        blocks = [here.spread(name, item) for name, item in embeddings.items()]
        self._twice = torch.stack(blocks + blocks[:-1])
        table = here.table.t()
        self._there_twice = torch.cat([table, table[:-1]])

    def there(self) -> dict[str, Tensor]:
        """Which of the others have each of a party's samples."""
        return {
            name: self._there_twice[place + 1 : place + len(self), self.here.rows[name]]
            for name, place in self.places.items()
        }

    def others(self) -> dict[str, Tensor]:
        """What each party gets."""
        there = self.there()
        return {
            name: self._twice[place + 1 : place + len(self), self.here.rows[name]][there[name]]
            for name, place in self.places.items()
        }

    def shapes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For ``Parties.ask``: rows of a head's outputs, and of ``others``."""
        pairs = {name: int(item.sum()) for name, item in self.there().items()}
        tasks = {name: count + len(self.here.rows[name]) for name, count in pairs.items()}
        return {"num_rows": tasks}, {"num_rows": pairs}

    def sums(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For each party the sum of what the others' heads gave for its embedding."""
        total = torch.zeros_like(self._twice[: len(self)])
        there = self.there()
        for name, found in gradients.items():
            full = found.new_zeros(*there[name].shape, found.shape[-1])
            full[there[name]] = found
            self._add(total, name, full, self.here.rows[name])
        return {name: total[place, self.here.rows[name]] for name, place in self.places.items()}
