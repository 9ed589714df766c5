"""``colonnade runs``: the runs in a directory, side by side; tags, and deletion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from colonnade.cli.console import AsJson, say

__all__ = ["runs"]

runs = typer.Typer(help="Runs in a directory: list, compare, tag, delete.", no_args_is_help=True)

Root = Annotated[Path, typer.Argument(help="The directory that holds the runs.")]
Name = Annotated[str, typer.Argument(help="A run's name in it, or a tag.", show_default=False)]


@runs.command("list")
def listed(root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """List the runs in a directory: what each reached, its tags and where it comes from.

    Example:  colonnade runs list runs
    """
    from colonnade.run.run_shelf import RunShelf

    entries = RunShelf(root).entries()
    if as_json:
        say(json.dumps([item.plain() for item in entries], indent=2))
        return
    table = Table("run", "method", "quality", "exchanges", "tags", "from", "alignment")
    for item in entries:
        lineage = item.summary.get("lineage") or {}
        quality = item.quality
        name = item.summary.get("quality_name", "")
        table.add_row(
            item.name,
            item.summary.get("method", "(under way)"),
            "" if quality is None else f"{quality[1]:.4f} {name} ({quality[0]})",
            str(item.summary.get("exchanges", "")),
            ", ".join(item.tags),
            (lineage.get("parent") or {}).get("run", ""),
            (lineage.get("alignment") or "")[:12],
        )
    Console().print(table)


@runs.command("compare")
def compare(root: Root, first: Name, second: Name, as_json: AsJson = False) -> None:
    """Show where two runs differ: settings, data, alignment and quality.

    Example:  colonnade runs compare runs credit credit_with_shop
    """
    from colonnade.run.run_shelf import RunShelf

    found = RunShelf(root).compare(first, second)
    if as_json:
        say(json.dumps(found, indent=2))
        return
    table = Table("", first, second)
    for key, (left, right) in found.items():
        table.add_row(key, _shown(left), _shown(right))
    Console().print(table)


def _shown(value: object) -> str:
    """A value of a summary in a table; ``--json`` has all of its digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@runs.command("tag")
def tag(
    root: Root, run: Name, tag: Annotated[str, typer.Argument(help="Such as candidate.")]
) -> None:
    """Give a run a tag; a tag is at one run at a time.

    Example:  colonnade runs tag runs credit candidate
    """
    _tag(root, run, tag)


@runs.command("promote")
def promote(root: Root, run: Name) -> None:
    """Give a run the tag production.

    Example:  colonnade runs promote runs credit
    """
    from colonnade.run.run_shelf import PROMOTED

    _tag(root, run, PROMOTED)


@runs.command("untag")
def untag(root: Root, tag: Annotated[str, typer.Argument(help="The tag.")]) -> None:
    """Take a tag away.

    Example:  colonnade runs untag runs candidate
    """
    from colonnade.run.run_shelf import RunShelf

    RunShelf(root).untag(tag)
    say(f"no run in {root} is tagged {tag} any more")


@runs.command("delete")
def delete(root: Root, run: Name) -> None:
    """Delete a run's directory at this machine; parties keep their own (colonnade party prune).

    A run that is tagged, in use, or that another one started from, is refused.

    Example:  colonnade runs delete runs credit
    """
    from colonnade.run.run_shelf import RunShelf

    say(f"{RunShelf(root).delete(run)} is deleted")


def _tag(root: Path, run: str, tag: str) -> None:
    from colonnade.run.run_shelf import RunShelf

    before = RunShelf(root).tag(run, tag)
    then = f"; before it was {before}" if before and before != run else ""
    say(f"{run} is {tag}{then}")
