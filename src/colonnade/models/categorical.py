"""Learned vectors for categorical columns, in front of any encoder.

    width = embedded_width(num_numeric, cardinalities)
    encoder = MLPSpec().build((width,))
    model = CategoricalEmbedding(encoder, num_numeric, cardinalities)

The codes of the columns are made by ``colonnade.data.prepare``.
"""

from collections.abc import Sequence
from typing import NoReturn, final

import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError, DataError
from colonnade.models.registry import check_count, deterministic

__all__ = ["CategoricalEmbedding", "embedded_width", "embedding_dim_for"]

_MAX_DIM = 50
# Codes arrive as floats, and float32 counts without gaps only this far.
_MAX_CARDINALITY = 2**24


def embedding_dim_for(cardinality: int) -> int:
    """Choose the length of the vectors of one categorical column.

    Args:
        cardinality: The number of values of the column.

    Returns:
        Half the number of values, rounded up, at most 50.

    Raises:
        ConfigError: ``cardinality`` is not a positive whole number.
    """
    check_count("cardinality", cardinality)
    return min(_MAX_DIM, (cardinality + 1) // 2)


def embedded_width(num_numeric: int, cardinalities: Sequence[int], dim: int | None = None) -> int:
    """Count the columns that the encoder behind a ``CategoricalEmbedding`` gets.

    Args:
        num_numeric: The number of numeric columns.
        cardinalities: The number of values of each categorical column.
        dim: The length of every vector; None chooses by ``embedding_dim_for``.

    Returns:
        The numeric columns and the lengths of all vectors together.

    Raises:
        ConfigError: A number is out of range.
    """
    check_count("num_numeric", num_numeric, minimum=0)
    return num_numeric + sum(_dims(cardinalities, dim))


@deterministic
@final
class CategoricalEmbedding(nn.Module):
    """An encoder with a table of vectors for each categorical column in front of it.

    Args:
        encoder: The module behind, for inputs that are `embedded_width` wide.
        num_numeric: The number of numeric columns; they come first.
        cardinalities: The number of values of each categorical column; their codes 0 to
            cardinality - 1 come as floats, and a fraction is cut off.
        dim: The length of every vector; None chooses by `embedding_dim_for`.

    Raises:
        ConfigError: A number is out of range.
    """

    def __init__(
        self,
        encoder: nn.Module,
        num_numeric: int,
        cardinalities: Sequence[int],
        dim: int | None = None,
    ) -> None:
        super().__init__()
        check_count("num_numeric", num_numeric, minimum=0)
        self.num_numeric = num_numeric
        self.cardinalities = tuple(cardinalities)
        self.tables = nn.ModuleList(
            nn.Embedding(cardinality, size)
            for cardinality, size in zip(cardinalities, _dims(cardinalities, dim), strict=True)
        )
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """Encode a batch.

        Args:
            x: (batch, columns): the numeric columns, then the codes.

        Returns:
            The output of the encoder.

        Raises:
            DataError: The number of columns is wrong, or a code has no vector.
        """
        num_columns = self.num_numeric + len(self.cardinalities)
        if x.dim() != 2 or x.shape[1] != num_columns:
            raise DataError(
                f"categorical embedding: expected input of shape (batch, {num_columns}), that is "
                f"{self.num_numeric} numeric and {len(self.cardinalities)} categorical columns, "
                f"got {tuple(x.shape)}; give the party's block those columns in that order"
            )
        codes = x[:, self.num_numeric :].long().unbind(1)
        blocks = [x[:, : self.num_numeric]]
        try:
            blocks += [table(code) for table, code in zip(self.tables, codes, strict=True)]
        except IndexError:
            self._explain(codes)
        out: Tensor = self.encoder(torch.cat(blocks, dim=1))
        return out

    def _explain(self, codes: Sequence[Tensor]) -> NoReturn:
        """Find the code that has no vector, after a lookup failed."""
        for index, (column, cardinality) in enumerate(zip(codes, self.cardinalities, strict=True)):
            low, high = int(column.min()), int(column.max())
            if low < 0 or high >= cardinality:
                raise DataError(
                    f"categorical feature {index} (column {self.num_numeric + index}): expected "
                    f"codes from 0 to {cardinality - 1}, got codes from {low} to {high}; encode "
                    "values unseen in training as a code of their own, or raise the cardinality"
                ) from None
        raise AssertionError("a lookup failed though every code is in range")


def _dims(cardinalities: Sequence[int], dim: int | None) -> list[int]:
    for index, cardinality in enumerate(cardinalities):
        check_count(f"cardinalities[{index}]", cardinality)
        if cardinality > _MAX_CARDINALITY:
            raise ConfigError(
                f"cardinalities[{index}] = {cardinality}: codes above {_MAX_CARDINALITY} are not "
                "exact as floats; group rare values so that fewer remain"
            )
    if dim is None:
        return [embedding_dim_for(cardinality) for cardinality in cardinalities]
    check_count("dim", dim)
    return [dim] * len(cardinalities)
