"""Work that goes on beside other work: a coroutine that is looked after, not waited for."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import coroutine as awaitable_generator
from typing import Any, Generic, TypeVar

from colonnade.core.fabric import NotYet

__all__ = ["Beside"]

T = TypeVar("T")


class Beside(Generic[T]):
    """A coroutine that goes on beside other work: it never waits, it is looked after."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._result: list[T] = []
        self.advance()

    @property
    def is_done(self) -> bool:
        """Whether ``result`` is there."""
        return bool(self._result)

    @property
    def result(self) -> T:
        """What the coroutine returned."""
        (found,) = self._result
        return found

    def advance(self) -> bool:
        """Go on as far as the answers that are here allow; whether it is done."""
        if not self.is_done:
            try:
                self._coroutine.send(None)
            except StopIteration as stop:
                self._result.append(stop.value)
        return self.is_done

    @awaitable_generator
    def end(self) -> Generator[NotYet, None, T]:
        """The rest of it, for somebody who waits for it after all."""
        while not self.is_done:
            try:
                pause = self._coroutine.send(None)
            except StopIteration as stop:
                self._result.append(stop.value)
                break
            yield pause
        return self.result

    def give_up(self) -> None:
        """Leave it: answers that come later are dropped."""
        self._coroutine.close()
