"""Random orthogonal matrices by seed."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["orthogonal"]


@lru_cache(maxsize=16)
def orthogonal(size: int, seed: int) -> Tensor:
    """A random orthogonal matrix in float64: the same for everybody who knows the seed.

    The last ones are remembered, since making one costs more than multiplying by it.
    """
    draw = torch.Generator().manual_seed(seed)
    raw = torch.randn(size, size, generator=draw, dtype=torch.float64)
    rotation, triangle = torch.linalg.qr(raw)
    # With this choice of signs it is uniform among all of them.
    turned: Tensor = rotation * torch.sign(torch.diagonal(triangle))
    return turned
