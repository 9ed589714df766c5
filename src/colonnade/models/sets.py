"""Networks for every set of parties: encoders of one party, and fusions at the label holder."""

from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor, nn

from colonnade.core.errors import MissingBlock
from colonnade.core.party_sets import members, number_of
from colonnade.models.registry import deterministic

__all__ = ["SetEncoders", "SetFusions"]


@deterministic
@final
class SetEncoders(nn.Module):
    """One party's encoders, by the number of the set of parties that each is for.

    Called as it is, it is the encoder for the largest set: everybody.
    """

    def __init__(self, by_number: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.sets = nn.ModuleDict({str(number): item for number, item in by_number.items()})
        self.everybody = str(max(by_number))

    def for_set(self, number: int) -> nn.Module | None:
        """The encoder for one set; None if the party is not in it."""
        known = str(number) in self.sets
        return self.sets[str(number)] if known else None

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.sets[self.everybody](rows)
        return out


@deterministic
@final
class SetFusions(nn.Module):
    """A fusion for every set of parties; whose embeddings come decides which one is used."""

    def __init__(self, parties: Sequence[str], by_number: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.parties = tuple(parties)
        self.sets = nn.ModuleDict({str(number): item for number, item in by_number.items()})

    def forward(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        number = str(number_of(tuple(embeddings), self.parties))
        if number not in self.sets:
            known = [members(int(item), self.parties) for item in self.sets]
            raise MissingBlock(
                f"there is no predictor for the parties {sorted(embeddings)}; there are those for "
                f"{known}"
            )
        out: Tensor = self.sets[number](embeddings)
        return out
