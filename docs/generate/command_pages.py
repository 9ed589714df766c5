"""The reference of the command line, written from the commands themselves.

A page asks for it by the line ``<!-- every command -->``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import typer

from colonnade.cli.main import app as commands

__all__ = ["MARK", "every_command", "setup"]

MARK = "<!-- every command -->"


def every_command() -> str:
    """Markdown: one section a command, those of a group under the group's name."""
    root = typer.main.get_command(commands)
    return "\n".join(_sections(root, "colonnade", click.Context(root, info_name="colonnade")))


def _sections(command: Any, name: str, context: click.Context) -> Iterator[str]:
    if hasattr(command, "commands"):
        for short, inner in command.commands.items():
            under = click.Context(inner, info_name=short, parent=context)
            yield from _sections(inner, f"{name} {short}", under)
        return
    text, example = _split(inspect.cleandoc(command.help or ""))
    yield f"## `{name}`\n\n{text}\n"
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```\n"
    rows = [_row(item, context) for item in command.params]
    if any(rows):
        yield "| option | meaning |\n|---|---|"
        yield "\n".join(row for row in rows if row) + "\n"
    if example:
        yield f"```bash\n{example}\n```\n"


def _split(text: str) -> tuple[str, str]:
    """The explanation, and the lines after ``Example:``."""
    before, _, after = text.replace("\b", "").partition("Example:")
    # A long example goes on in the next line of the docstring.
    return before.strip(), re.sub(r"\s*\n\s*(?!colonnade )", " ", after.strip())


def _row(item: Any, context: click.Context) -> str | None:
    found = item.get_help_record(context)
    if found is None:
        return None
    option, meaning = (re.sub(r"\s+", " ", cell).replace("|", r"\|") for cell in found)
    return f"| `{option}` | {meaning} |"


def _fill_in(app: Any, page: str, source: list[str]) -> None:
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, every_command())


def setup(app: Any) -> dict[str, Any]:
    """Fill in the mark wherever a page has it."""
    app.connect("source-read", _fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
