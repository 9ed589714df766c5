"""Arguments of one verb for several parties, where they differ by party."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from colonnade.core.failures import no_value
from colonnade.core.messages import Each

__all__ = ["each", "own_arguments"]


def each(by_party: Mapping[str, Any]) -> Each:
    """Give every party a value of its own: ``tell("descend", batch, each(gradients))``.

    Args:
        by_party: The values, by party.

    Returns:
        An argument for ``ask`` and ``tell``.
    """
    return Each(by_party)


def own_arguments(
    parties: Iterable[str], verb: str, arguments: tuple[Any, ...]
) -> Iterator[tuple[Any, ...]]:
    """Everybody's own arguments, in the parties' order.

    Raises:
        ProtocolError: An argument that differs by party has no value for one of them.
    """
    differs = any(type(item) is Each for item in arguments)
    for name in parties:
        try:
            yield (
                tuple(x.by_party[name] if type(x) is Each else x for x in arguments)
                if differs
                else arguments
            )
        except KeyError as error:
            raise no_value(name, verb) from error
