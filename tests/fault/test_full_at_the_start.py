"""A disk without room for one more file, from any moment of a run's start on: it is told."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colonnade.core.errors import StorageError
from colonnade.protect.ledger import Ledger
from colonnade.run.engine import train
from colonnade.run.spec import RunSpec, parse_spec
from golden.test_protected_runs import PERTURB, settings, sources, with_policy


@contextmanager
def no_room(root: Path, after: int) -> Iterator[list[str]]:
    """Let so many files and directories be made under a root, and no more."""
    made: list[str] = []
    patch = pytest.MonkeyPatch()

    def full(path: Any) -> None:
        if Path(os.fspath(path)).is_relative_to(root) and not Path(path).exists():
            if len(made) >= after:
                raise OSError(28, "No space left on device", os.fspath(path))
            made.append(os.fspath(path))

    def guarded(call: Callable[..., Any], makes: Callable[..., bool]) -> Callable[..., Any]:
        def instead(path: Any, *more: Any, **named: Any) -> Any:
            if not isinstance(path, int) and makes(*more, **named):
                full(path)
            return call(path, *more, **named)

        return instead

    def creates(mode: str = "r", *_: Any, **__: Any) -> bool:
        return mode[0] in "wax"

    opened = guarded(builtins.open, creates)
    patch.setattr(os, "open", guarded(os.open, lambda flags, *_, **__: bool(flags & os.O_CREAT)))
    patch.setattr(os, "mkdir", guarded(os.mkdir, lambda *_, **__: True))
    patch.setattr(builtins, "open", opened)
    patch.setattr(io, "open", opened)
    try:
        yield made
    finally:
        patch.undo()


def test_a_run_tells_that_there_is_no_room(tmp_path: Path) -> None:
    short = settings([PERTURB], stop={"exchanges": 2, "evaluate_every": 100})
    spec = parse_spec(with_policy(tmp_path, "[budget]\nmu = 9.0", short))
    with no_room(tmp_path / "whole", 10_000) as made:
        train(spec, sources=sources(), directory=tmp_path / "whole")
    assert len(made) > 10
    for after in [*range(12), *range(12, len(made), 6)]:
        told = start_without_room(spec, tmp_path / f"run-{after}", after)
        # Only the picture of the run's time may be missing without a word.
        assert "No space left" in told or "timeline" in made[after], (made[after], told)


def start_without_room(spec: RunSpec, root: Path, after: int) -> str:
    """What is told; nothing if the run went well."""
    with no_room(root, after):
        try:
            train(spec, sources=sources(), directory=root)
        except StorageError as error:
            return str(error)
    return ""


def test_a_ledger_tells_that_there_is_no_room(tmp_path: Path) -> None:
    for after in (0, 1):
        with (
            no_room(tmp_path / str(after), after),
            pytest.raises(StorageError, match=r"ledger\.jsonl: can't be written: No space left"),
        ):
            Ledger(tmp_path / str(after), run="run")
