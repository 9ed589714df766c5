"""Gradients that arrive at a party: none pulls at a sample more than the party lets it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from colonnade.core.messages import Value
from colonnade.core.releases import Declared, Kind

__all__ = ["bounded"]


def bounded(value: Value, kinds: Declared, most: float) -> Value:
    """A value that arrived, with every sample's derivative shortened to a norm.

    Args:
        value: An argument of a call.
        kinds: What it is declared to be.
        most: The largest norm.

    Returns:
        The value; derivatives that are short enough as they came.
    """
    if isinstance(value, Mapping):
        of = kinds if isinstance(kinds, Mapping) else dict.fromkeys(value, kinds)
        return {key: bounded(item, of.get(key), most) for key, item in value.items()}  # type: ignore[return-value]
    if kinds is not Kind.DERIVATIVE or not isinstance(value, Tensor) or not value.numel():
        return value
    # In float64: the square of a large number is no number in float32.
    norms = value.double().norm(dim=-1, keepdim=True) if value.dim() else value.double().abs()
    if float(norms.max()) <= most:
        return value
    return (value.double() * (most / norms).clamp(max=1.0)).to(value.dtype)
