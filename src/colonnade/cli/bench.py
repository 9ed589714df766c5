"""``colonnade bench``: measure speed and memory, as ratios within one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from colonnade.bench import BENCHES, bench_pages, draw_curves, fill_bench_page, run_bench
from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.files import write_atomically

__all__ = ["bench"]


def bench(
    name: Annotated[str, typer.Argument(help=f"What to measure: {', '.join(BENCHES)}.")],
    as_json: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write the rows here; curves beside it, as .svg."
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer repetitions.")] = False,
    case: Annotated[
        list[str] | None,
        typer.Option(metavar="CASE", help="Only this case of 'serve' or 'slow'; may be repeated."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="A docs page to write the table into, or a directory of them."),
    ] = None,
) -> None:
    """Measure speed or memory against something else in the same run.

    Example:  colonnade bench step --json step.json
    """
    if name not in BENCHES:
        raise ConfigError(f"bench '{name}': unknown{nearest(name, list(BENCHES))}")
    if page is not None and case:
        raise ConfigError("--page: needs every case; leave out --case")
    pages = [] if page is None else bench_pages(page, name)
    outcome = run_bench(name, fast=fast, cases=case or ())
    # First of all: nothing that follows may lose what took so long.
    if as_json is not None:
        from colonnade.run.storage import write_json

        write_json(as_json, outcome)
        if (drawn := draw_curves(outcome)) is not None:
            write_atomically(as_json.with_suffix(".svg"), drawn)
    for item in pages:
        filled = fill_bench_page(item.read_text(encoding="utf-8"), outcome)
        write_atomically(item, filled.encode())
    table = Table("case", "ratio", "goal", "unit", "against", "runs")
    for row in outcome["rows"]:
        goal = row.get("goal", "") + ("" if row.get("met", True) else ", missed")
        cells = (f"{row['ratio']:.3f}", goal, row["unit"], row["against"], str(row["runs"]))
        table.add_row(row["case"], *cells)
    console = Console()
    console.print(table)
    console.print(f"revision {outcome['revision']}, {outcome['machine']}", highlight=False)
