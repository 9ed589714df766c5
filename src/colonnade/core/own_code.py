"""Functions of a caller's own among the settings of a run: called here, never written down.

A run directory holds settings and weights, and no code: nothing in it is ever executed. So a run
with such a function stays in the memory of its process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, final

from colonnade.core.errors import ConfigError, StorageError

__all__ = ["OwnCode"]


@final
@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """A function that a caller gave as a setting.

    Args:
        function: The function.
        setting: The argument that it was given as.
        instead: A setting that can be written down and does the same, for the refusal.

    Raises:
        ConfigError: It can't be called.
    """

    function: Callable[..., Any]
    setting: str
    instead: str

    def __post_init__(self) -> None:
        if not callable(self.function):
            kind = type(self.function).__name__
            raise ConfigError(f"{self.setting}: expected a function, got {kind}")

    def refuse_writing(self) -> NoReturn:
        """Raise StorageError: a function can't be kept in files."""
        raise StorageError(
            f"{self.setting}: a function of your own can't be written down, so this run stays in "
            f"memory; to keep it, {self.instead}"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled, with the remedy."""
        self.refuse_writing()

    def __copy__(self) -> OwnCode:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnCode:
        return self
