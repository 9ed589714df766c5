"""What a method remembers between exchanges: dataclasses of its own, part of every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["Memory"]

M = TypeVar("M")


class Memory:
    """Typed memories of one participant, one of each class.

    A memory is a dataclass whose fields all have defaults and hold tensors, plain values, or
    tables of these under text keys.
    """

    def __init__(self) -> None:
        self._typed: dict[str, Any] = {}
        # From a checkpoint, until somebody asks for it by its class.
        self._stored: dict[str, Mapping[str, Any]] = {}

    def recall(self, kind: type[M]) -> M:
        """The memory of this class; a new one, with its defaults, if there is none yet.

        Args:
            kind: The dataclass.

        Returns:
            The one instance of it; changes to its fields are remembered.
        """
        name = kind.__name__
        if name not in self._typed:
            self._typed[name] = kind(**self._stored.pop(name, {}))
        found: M = self._typed[name]
        return found

    def state(self) -> dict[str, Any]:
        """The content of every memory, for a checkpoint.

        Returns:
            By class name, the fields of the memory.
        """
        return {**self._stored, **{name: dict(vars(item)) for name, item in self._typed.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back a checkpoint's memories.

        Args:
            state: What ``state`` gave.
        """
        self._typed, self._stored = {}, dict(state)
