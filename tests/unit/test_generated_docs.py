"""Generated parts of the docs: pictures come from their sources, commands from the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from colonnade.cli.main import app
from colonnade.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "generate"))


def test_every_picture_is_what_its_source_draws() -> None:
    from draw import drawn

    changed = [path.name for path, content in drawn() if path.read_text("utf-8") != content]
    assert not changed, "write them again: make pictures"


def test_a_diagram_shows_the_calls_of_a_real_run() -> None:
    from message_diagrams import record

    start, (asked, told) = record("splitnn")
    assert start == []
    assert (asked.verb, asked.down, asked.up) == ("embed", "batch number", "embedding")
    assert (told.verb, told.down, told.up) == ("descend", "derivative", None)
    assert {message.verb for message in record("async")[0]} == {"refresh"}


def test_words_that_do_not_fit_are_refused() -> None:
    from drawing import Drawing

    with pytest.raises(ValueError, match="no room"):
        Drawing(100, 50, title="", about="").box(10, 10, 30, 20, "much too long for it")


def test_the_reference_of_the_command_line_has_every_command() -> None:
    from command_pages import MARK, every_command

    text = every_command()
    assert MARK in (DOCS / "cli.md").read_text("utf-8")
    for name in ("train", "federation predict", "party join", "runs promote"):
        assert f"## `colonnade {name}`" in text
    assert "| `--resume` | Go on after the last checkpoint. |" in text
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    inner = sum(len(group.registered_commands) for group in groups.values() if group is not None)
    assert text.count("\n## `") + 1 == len(app.registered_commands) + inner


def test_every_method_has_a_diagram() -> None:
    shown = {path.stem for path in (DOCS / "pictures" / "messages").glob("*.svg")}
    assert shown == METHODS.keys()


def test_finished_pages_are_mended_once() -> None:
    from accessible_pages import mended

    once = mended('<aside class="toc-drawer"><p class="caption" role="heading"></p><pre>x</pre>')
    assert once.count("aria-label") == once.count("aria-level") == once.count("tabindex") == 1
    assert mended(once) == once
