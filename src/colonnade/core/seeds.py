"""Randomness that every organisation derives alike, whatever versions it has installed.

Parties never exchange row numbers: they derive splits and batches from a shared seed. A different
permutation at one party would silently pair wrong rows, so nothing here depends on a library's
choice of sampling algorithm: seeds come from SHA-256 and orders from sorting the raw stream of
Philox, a bit generator that is fixed by its definition (docs/decisions/0003).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["derive_seed", "drawing_from", "shuffled"]

_DRAWING = threading.RLock()


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose; different purposes give unrelated seeds.

    Args:
        seed: The run's seed, or a participant's own.
        purpose: Words and numbers that name the purpose.

    Returns:
        63 bits.
    """
    text = "\x1f".join(["colonnade", str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def shuffled(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers 0 to ``count - 1`` in an order that depends on ``seed`` alone."""
    raw = np.random.Philox(key=seed).random_raw(count)
    return np.argsort(np.atleast_1d(raw), kind="stable").astype(np.int64)


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Within it torch's global generator draws from ``seed``; afterwards it goes on as before.

    So neither other participants nor the fabric nor a resume change what one of them draws. The
    generator is one for all threads, and a label holder behind a network works on its own block in
    another: only one at a time draws.
    """
    with _DRAWING:
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)
