"""Randomness that every organisation derives alike, whatever versions it has installed.

Parties never exchange row numbers: they derive splits and batches from a shared seed. A different
permutation at one party would silently pair wrong rows, so nothing here depends on a library's
choice of sampling algorithm: seeds come from SHA-256 and orders from sorting the raw stream of
Philox, a bit generator that is fixed by its definition (docs/decisions/0003).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["derive_seed", "drawing_from", "shuffled"]

# Held while an operation that takes no generator borrows the global one.
_DRAWING = threading.Lock()
# Of each thread the one that draws, where one stands within another.
_INNERMOST = threading.local()


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


class _OwnGenerators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has every operation of this thread that draws take its numbers from own generators.

    One per device, all from the same seed. The bits are those of torch's global generator, seeded
    alike.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no to torch: nothing here is compiled, and loading its compiler takes seconds."""
        return False

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._by_device: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_mine = getattr(_INNERMOST, "drawing", None) is self
        if not is_mine or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        device = _device_of(args, kwargs)
        if device.type == "meta" or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        own = self._own(device)
        taking = _with_generator(func)
        if taking is not None:
            return taking(*args, **{**kwargs, "generator": own})
        return _through_global(own, device, func, args, kwargs)

    def _own(self, device: torch.device) -> torch.Generator:
        if device not in self._by_device:
            self._by_device[device] = torch.Generator(device).manual_seed(self._seed)
        return self._by_device[device]


def _device_of(args: Any, kwargs: Mapping[str, Any]) -> torch.device:
    """Where an operation draws: its first tensor's device, or the one that it was told."""
    for item in args:
        if isinstance(item, Tensor):
            return item.device
    return torch.device(kwargs.get("device") or "cpu")


def _with_generator(func: Any) -> Any:
    """The same operation with an argument for a generator, or none if there is no such."""
    if any(item.name == "generator" for item in func._schema.arguments):
        return func
    overloads = func.overloadpacket
    return overloads.generator if "generator" in overloads.overloads() else None


def _through_global(
    own: torch.Generator, device: torch.device, func: Any, args: Any, kwargs: Any
) -> Any:
    """An operation that takes no generator: lend it the global one for its own draw alone."""
    with _DRAWING:
        # Apple's device is alone and has no index.
        of = torch if device.type == "cpu" else getattr(torch, device.type)
        which = (device,) if device.type == "cuda" else ()
        before = of.get_rng_state(*which)
        of.set_rng_state(own.get_state(), *which)
        try:
            return func(*args, **kwargs)
        finally:
            own.set_state(of.get_rng_state(*which))
            of.set_rng_state(before, *which)


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Within it this thread's operations of torch draw from ``seed``, and from nothing else.

    So neither other participants nor the fabric nor a resume change what one of them draws, and
    torch's global generator is left alone: another thread may draw from it meanwhile.
    """
    before = getattr(_INNERMOST, "drawing", None)
    own = _INNERMOST.drawing = _OwnGenerators(seed)
    try:
        with own:
            yield
    finally:
        _INNERMOST.drawing = before
