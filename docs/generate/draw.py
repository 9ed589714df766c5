"""``make pictures``: write every picture of the docs from its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pictures_of_federations
import pictures_of_training
from colonnade.methods import METHODS
from message_diagrams import draw_messages

__all__ = ["drawn", "main"]

_TARGET = Path(__file__).parents[1] / "pictures"


def drawn() -> Iterator[tuple[Path, str]]:
    """Every file, and what belongs into it."""
    for module in (pictures_of_training, pictures_of_federations):
        for name in module.__all__:
            yield _TARGET / f"{name}.svg", getattr(module, name)().svg()
    for method in METHODS:
        yield _TARGET / "messages" / f"{method}.svg", draw_messages(method).svg()


def main() -> None:
    """Write them."""
    for path, content in drawn():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, "utf-8")


if __name__ == "__main__":
    main()
