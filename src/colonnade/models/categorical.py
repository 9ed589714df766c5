"""Learned vectors for categorical columns, put in front of any encoder.

width = embedded_width(num_numeric, cardinalities)
encoder = MLPSpec().build((width,))
model = CategoricalEmbedding(encoder, num_numeric, cardinalities)
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
    """Choose the length of the vectors for a feature with this many values.

    Half the number of values, rounded up, and never more than 50: two values get one number, ten
    get five, a hundred or more get fifty.
    """
    check_count("cardinality", cardinality)
    return min(_MAX_DIM, (cardinality + 1) // 2)


def embedded_width(num_numeric: int, cardinalities: Sequence[int], dim: int | None = None) -> int:
    """Count the columns the wrapped encoder sees: the numeric ones and every feature's vector."""
    check_count("num_numeric", num_numeric, minimum=0)
    return num_numeric + sum(_dims(cardinalities, dim))


@deterministic
@final
class CategoricalEmbedding(nn.Module):
    """Looks up the categorical columns and passes them on beside the numeric ones.

    Input columns: first `num_numeric` floats, then one column per categorical feature, holding
    the codes 0 to cardinality - 1 as floats. Codes must be whole: a fraction is cut off. Each
    feature has vectors of length `dim`, or of `embedding_dim_for` its cardinality if dim is None.
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
