"""``colonnade reproduce``: measure a paper's table again."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from colonnade.core.errors import ConfigError
from colonnade.files import write_atomically

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="The experiment, e.g. thesis-baselines.")
    ] = None,
    as_json: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Results; runs/results/NAME.json if not given."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds.", min=1)] = None,
    fast: Annotated[bool, typer.Option("--fast", help="One seed, less training.")] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="A docs page to write the table into.")
    ] = None,
    experiments: Annotated[
        Path | None,
        typer.Option(help="Where the experiments are; the installed ones if not given."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="List results that are stale, and fail if any is.")
    ] = False,
    mark: Annotated[
        bool,
        typer.Option("--mark", help="Write all tables into the pages again: stale ones say so."),
    ] = False,
    docs: Annotated[
        Path | None,
        typer.Option(help="The pages, with files in results; the checkout's if not given."),
    ] = None,
) -> None:
    """Measure a paper's table again and put ours beside the paper's.

    Stopped with Ctrl-C, the same command goes on where it was; with more seeds, it adds them.
    Results are stale if they were measured with other numerics than those of today.

    Example:  colonnade reproduce thesis-baselines --seeds 3 --json baselines.json
    """
    if check or mark:
        _look_after(docs or Path(__file__).parents[3] / "docs", check=check, mark=mark)
        return
    if name is None:
        raise ConfigError("reproduce: name an experiment, or use --check or --mark")
    from colonnade.reproduce import (
        check_page,
        fill_page,
        load_experiment,
        markdown_table,
        plot,
        run_experiment,
    )

    directory = experiments or _experiments()
    if not directory.is_dir():
        raise ConfigError(
            f"experiments: {directory} is not there; install Colonnade from its wheel, run this in "
            "a checkout, or name their directory with --experiments"
        )
    experiment = load_experiment(name, directory)
    if page is not None:
        check_page(page, name)
    out = as_json or Path("runs/results") / f"{name}.json"
    console = Console(file=sys.stderr)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(name, total=None)

        def show(where: str, done: int, total: int) -> None:
            if console.is_terminal:
                bar.update(task, description=where, completed=done - 1, total=total)
            else:
                console.print(f"{name}: {done}/{total} {where}", highlight=False, soft_wrap=True)

        outcome = run_experiment(experiment, out=out, seeds=seeds, fast=fast, progress=show)
    plot(outcome, out.with_suffix(".svg"))
    if page is not None:
        filled = fill_page(page.read_text(encoding="utf-8"), outcome)
        write_atomically(page, filled.encode())
    Console().print(Markdown(markdown_table(outcome)))
    Console().print(f"results in {out}", highlight=False, soft_wrap=True)


def _experiments() -> Path:
    """The checkout's, or those that a wheel brought along."""
    in_checkout = Path(__file__).parents[3] / "experiments"
    installed = Path(sysconfig.get_path("data")) / "share" / "colonnade" / "experiments"
    return in_checkout if in_checkout.is_dir() else installed


def _look_after(docs: Path, *, check: bool, mark: bool) -> None:
    """Write tables again, list stale results; leave with code 1 if there are any."""
    from colonnade.reproduce import mark_pages, stale_results

    console = Console()
    if mark:
        for page in mark_pages(docs):
            console.print(f"written: {page}", highlight=False, soft_wrap=True)
    if not check:
        return
    found = stale_results(docs / "results")
    for item in found:
        console.print(f"{item.name}: stale: {item.reason}", highlight=False, soft_wrap=True)
    if found:
        console.print(
            f"{len(found)} results are stale; measure one again with: colonnade reproduce "
            f"{found[0].name} --json docs/results/{found[0].name}.json --page PAGE",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)
    console.print("all results stand", highlight=False)
