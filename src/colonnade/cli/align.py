"""``colonnade align``: find out privately which sample is at which party."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from colonnade.cli.console import AsJson, say
from colonnade.core.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.align.ids import PreparedIds
    from colonnade.align.participant import AlignParty
    from colonnade.align.terms import AlignSpec
    from colonnade.cli.align_source import Source
    from colonnade.core.fabric import Fabric
    from colonnade.run.spec import RunSpec

__all__ = ["align"]


def align(
    config: Annotated[Path, typer.Argument(help="A TOML file with a table named align.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to keep it; alignments/NAME_OF_CONFIG if not given.")
    ] = None,
    extend: Annotated[
        bool, typer.Option("--extend", help="Add new ids to the alignment that is there.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with one that was interrupted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find out privately which sample is at which party.

    Every participant's own rows go to its own directory, and a page shows the overlap.

    Example:  colonnade align credit.toml --out alignments/credit
    """
    from colonnade.align.matching import match
    from colonnade.align.point_lists import PointLists
    from colonnade.align.record import load_record, save_record
    from colonnade.cli.align_source import load_ids, read_settings
    from colonnade.cli.overlap import plain_overlap, print_overlap, write_overlap
    from colonnade.core.parties import Parties

    spec, terms = read_settings(config)
    directory = out or Path("alignments") / config.stem
    lists = PointLists(directory / "matching" / "lists")
    record = directory / "matching" / "record.npz"
    if record.exists() and not (extend or resume):
        raise ConfigError(
            f"--out: {directory} holds an alignment; --extend adds new ids to it, or name another "
            "directory"
        )
    if extend and not record.exists():
        raise ConfigError(f"--extend: {directory} holds no alignment yet; leave it out")
    source = load_ids(spec, terms)
    fabric, own = _participants(source, spec, terms, directory)
    with closing(fabric), _showing(config.stem) as progress:
        overlap = fabric.run(
            match(
                Parties(fabric, spec.patience),
                spec=terms,
                own=own,
                label_holder=source.label_holder,
                extend=load_record(record) if record.exists() else None,
                lists=lists,
                resume=resume,
                progress=progress,
            )
        )
    save_record(overlap.record, record)
    lists.clear()
    page = write_overlap(overlap, source, directory / "alignment.html")
    if as_json:
        say(json.dumps(plain_overlap(overlap, source), indent=2))
        return
    print_overlap(overlap, source)
    say(f"alignment {overlap.digest[:12]} in {directory}; picture in {page}")


def _participants(
    source: Source, spec: RunSpec, terms: AlignSpec, directory: Path
) -> tuple[Fabric, AlignParty | None]:
    from colonnade.align.participant import AlignParty
    from colonnade.align.participant_files import DirectoryStore
    from colonnade.cli.align_source import count_of
    from colonnade.run.storage import party_directory

    def make(name: str, ids: PreparedIds) -> AlignParty:
        store = DirectoryStore(party_directory(directory, name))
        count = count_of(name, source, spec, terms)
        return AlignParty(name=name, ids=ids, spec=terms, store=store, count=count)

    parties = {name: make(name, ids) for name, ids in source.blocks.items()}
    own = make(*source.labels) if source.labels is not None else None
    local = frozenset({source.label_holder} & parties.keys())
    return spec.fabric.build(parties, local=local, seed=spec.seed), own


@contextmanager
def _showing(label: str) -> Iterator[Any]:
    """A bar on a terminal; a line for every quarter of the way elsewhere."""
    console = Console(file=sys.stderr)
    quarters = 0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(f"{label}: blinding", total=None)

        def show(done: int, total: int) -> None:
            nonlocal quarters
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and total and 4 * done // total > quarters:
                quarters = 4 * done // total
                line = f"{label}: {25 * quarters} % of {total} blindings"
                console.print(line, highlight=False, markup=False, soft_wrap=True)

        yield show
