"""Collections of networks with one for each set of parties: encoders, and fusions.

Sets are numbered as in ``colonnade.parts.party_sets``.
"""

from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor, nn

from colonnade.core.errors import MissingBlock
from colonnade.models.registry import deterministic
from colonnade.parts.party_sets import members, number_of

__all__ = ["SetEncoders", "SetFusions"]


@deterministic
@final
class SetEncoders(nn.Module):
    """One party's encoders, each for one set of parties; called, it uses the largest set's.

    Args:
        by_number: The encoders, by the number of their set.
    """

    def __init__(self, by_number: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.sets = nn.ModuleDict({str(number): item for number, item in by_number.items()})
        self.everybody = str(max(by_number))

    def for_set(self, number: int) -> nn.Module | None:
        """Find the encoder for one set.

        Args:
            number: The number of the set.

        Returns:
            The encoder; None if the party is not in the set.
        """
        known = str(number) in self.sets
        return self.sets[str(number)] if known else None

    def forward(self, rows: Tensor) -> Tensor:
        """Encode a batch with the encoder for the largest set.

        Args:
            rows: (batch, columns).

        Returns:
            (batch, embedding).
        """
        out: Tensor = self.sets[self.everybody](rows)
        return out


@deterministic
@final
class SetFusions(nn.Module):
    """A fusion for every set of parties; the parties of the embeddings decide which one is used.

    Args:
        parties: The names of all parties.
        by_number: The fusions, by the number of their set.
    """

    def __init__(self, parties: Sequence[str], by_number: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.parties = tuple(parties)
        self.sets = nn.ModuleDict({str(number): item for number, item in by_number.items()})

    def forward(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Fuse one batch.

        Args:
            embeddings: (batch, embedding) by party.

        Returns:
            (batch, outputs) logits.

        Raises:
            MissingBlock: There is no fusion for exactly these parties.
        """
        number = str(number_of(tuple(embeddings), self.parties))
        if number not in self.sets:
            known = [members(int(item), self.parties) for item in self.sets]
            raise MissingBlock(
                f"there is no predictor for the parties {sorted(embeddings)}; there are those for "
                f"{known}"
            )
        out: Tensor = self.sets[number](embeddings)
        return out
