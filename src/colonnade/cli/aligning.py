"""The command that aligns: who has which sample, found out privately."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from colonnade.align.files import DirectoryPlace, PointLists, load_record, save_record
from colonnade.align.ids import PreparedIds, prepare_ids
from colonnade.align.matching import Overlap, match
from colonnade.align.participant import AlignParty
from colonnade.align.terms import AlignSpec
from colonnade.core.config import parse
from colonnade.core.errors import ConfigError
from colonnade.core.fabric import Fabric
from colonnade.core.parties import Parties
from colonnade.data.blocks import read_table
from colonnade.data.datasets import load_dataset
from colonnade.methods import METHODS
from colonnade.report.markup import figure, table, text, write_page
from colonnade.run.directory import party_directory
from colonnade.run.spec import RunSpec, parse_spec

__all__ = ["align"]

# More combinations than these are in the table only.
_MOST_SHOWN = 24
# What a label holder's list is called when its labels are not those of its block.
_LABELS_APART = " (labels)"


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find out privately which sample is at which party.

    Every participant's own rows go to its own directory, and a page shows the overlap.

    Example:  colonnade align credit.toml --out alignments/credit
    """
    spec, terms = _read(config)
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
    source = _load(spec, terms)
    fabric, own = _participants(source, spec, terms, directory)
    with _closing(fabric), _showing(config.stem) as progress:
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
    page = _write_page(overlap, source, directory / "alignment.html")
    if as_json:
        _say(json.dumps(_plain(overlap, source), indent=2))
        return
    _print(overlap, source)
    _say(f"alignment {overlap.digest[:12]} in {directory}; picture in {page}")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Everybody's ids; ``labels`` is apart where they are not those of a party's block."""

    blocks: Mapping[str, PreparedIds]
    label_holder: str
    labels: tuple[str, PreparedIds] | None

    @property
    def everyone(self) -> dict[str, PreparedIds]:
        """Ids by participant."""
        return dict(self.blocks) | ({self.labels[0]: self.labels[1]} if self.labels else {})


def _read(config: Path) -> tuple[RunSpec, AlignSpec]:
    """The run's settings and how to align; files in them are relative to the file."""
    if not config.is_file():
        raise ConfigError(f"{config}: no such file; give the path of a run's TOML file")
    try:
        values = tomllib.loads(config.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{config}: not readable: {error}") from error
    own = values.pop("align", None)
    if own is None:
        raise ConfigError(f"{config}: align: missing; add a table [align] with at least a salt")
    try:
        terms, spec = parse(AlignSpec, own, path="align"), parse_spec(values)
    except ConfigError as error:
        raise ConfigError(f"{config}: {error}") from error

    def found(file: Path | None) -> Path | None:
        return None if file is None else (config.parent / file).resolve()

    holder = replace(spec.label_holder, file=found(spec.label_holder.file))
    party = {name: replace(item, file=found(item.file)) for name, item in spec.party.items()}
    return replace(spec, label_holder=holder, party=party), terms


def _load(spec: RunSpec, terms: AlignSpec) -> _Source:
    """Read and normalise everybody's ids; duplicates are found here, before anything is sent."""

    def prepared(columns: Sequence[Any], where: str) -> PreparedIds:
        return prepare_ids(columns, terms.key, where=where, duplicates=terms.duplicates)

    def from_file(name: str, file: Path | None, column: str | None, key: str) -> PreparedIds:
        columns = terms.columns.get(name) or ((column,) if column else ())
        if file is None or not columns:
            raise ConfigError(f"{key}.{'id' if file else 'file'}: missing; it has no default")
        content = read_table(file, text_columns=columns)
        absent = [item for item in columns if item not in content.columns]
        if absent:
            raise ConfigError(f"{key}.id: no column {absent} in {file.name}")
        return prepared([content[item] for item in columns], f"ids of '{name}'")

    if spec.data.dataset is not None:
        dataset = load_dataset(spec.data.dataset, num_parties=spec.data.num_parties)
        blocks = {
            name: prepared([block.ids], f"ids of '{name}'")
            for name, block in dataset.blocks.items()
        }
        holder = spec.label_holder.name or dataset.label_holder
        return _with_labels(blocks, holder, prepared([dataset.labels.ids], "ids of the labels"))
    name = spec.label_holder.name
    if name is None:
        raise ConfigError("label_holder.name: missing; say who has the labels")
    blocks = {
        party: from_file(party, item.file, item.id, f"party.{party}")
        for party, item in spec.party.items()
    }
    if spec.label_holder.file is None and name in blocks:
        return _Source(blocks=blocks, label_holder=name, labels=None)
    holder_spec = spec.label_holder
    labels = from_file(name, holder_spec.file, holder_spec.id, "label_holder")
    return _with_labels(blocks, name, labels)


def _with_labels(blocks: Mapping[str, PreparedIds], holder: str, labels: PreparedIds) -> _Source:
    """Labels go with the label holder's block if it has the same ids, else by themselves."""
    block = blocks.get(holder)
    if block is not None and set(block.ids) == set(labels.ids):
        return _Source(blocks=blocks, label_holder=holder, labels=None)
    name = holder if block is None else f"{holder}{_LABELS_APART}"
    return _Source(blocks=blocks, label_holder=name, labels=(name, labels))


def _participants(
    source: _Source, spec: RunSpec, terms: AlignSpec, directory: Path
) -> tuple[Fabric, AlignParty | None]:
    def make(name: str, ids: PreparedIds) -> AlignParty:
        place = DirectoryPlace(party_directory(directory, name))
        return AlignParty(name=name, ids=ids, spec=terms, place=place)

    parties = {name: make(name, ids) for name, ids in source.blocks.items()}
    own = make(*source.labels) if source.labels is not None else None
    local = frozenset({source.label_holder} & parties.keys())
    return spec.fabric.build(parties, local=local, seed=spec.seed), own


@contextmanager
def _closing(fabric: Fabric) -> Iterator[None]:
    """Close a fabric in the end."""
    try:
        yield
    finally:
        fabric.close()


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


def _usable(overlap: Overlap) -> dict[str, int]:
    """How many labelled samples of the alignment each method could train on."""
    holder = overlap.label_holder
    blocks = tuple(name for name in overlap.names if not name.endswith(_LABELS_APART))
    counts = {}
    for name, method in METHODS.items():
        needed = {holder, *method().participants(blocks, holder)}
        if overlap.mode == "intersection" or method.pools_blocks:
            needed |= set(blocks)
        elif method.info.tolerates_missing:
            needed = {holder}
        counts[name] = sum(
            count
            for who, count in overlap.combinations.items()
            if needed <= set(who) and set(blocks) & set(who)
        )
    return counts


def _plain(overlap: Overlap, source: _Source) -> dict[str, Any]:
    return {
        "mode": overlap.mode,
        "label_holder": overlap.label_holder,
        "participants": {
            name: {
                "rows": source.everyone[name].num_rows,
                "ids": overlap.sizes[name],
                "duplicates": source.everyone[name].num_duplicates,
            }
            for name in overlap.names
        },
        "num_samples": overlap.num_samples,
        "num_complete": overlap.num_complete,
        "combinations": [
            {"participants": list(who), "samples": count} for who, count in _ranked(overlap)
        ],
        "methods": _usable(overlap),
        "digest": overlap.digest,
    }


def _ranked(overlap: Overlap) -> list[tuple[tuple[str, ...], int]]:
    return sorted(overlap.combinations.items(), key=lambda item: (-item[1], item[0]))


def _print(overlap: Overlap, source: _Source) -> None:
    console = Console()
    sizes = Table("participant", "rows", "ids", "duplicates left out")
    for name in overlap.names:
        ids = source.everyone[name]
        counts = (ids.num_rows, overlap.sizes[name], ids.num_duplicates)
        sizes.add_row(name, *(f"{count:,}" for count in counts))
    console.print(sizes)
    combinations = Table("at", "samples")
    for who, count in _ranked(overlap)[:_MOST_SHOWN]:
        combinations.add_row(", ".join(who), f"{count:,}")
    console.print(combinations)
    methods = Table("method", "samples it could use")
    for name, count in _usable(overlap).items():
        methods.add_row(name, f"{count:,}")
    console.print(methods)
    _say(
        f"{overlap.num_samples:,} samples in the alignment ({overlap.mode}), "
        f"{overlap.num_complete:,} of them complete; labels are at '{overlap.label_holder}'"
    )


def _write_page(overlap: Overlap, source: _Source, out: Path) -> Path:
    ranked = _ranked(overlap)
    shown = ranked[:_MOST_SHOWN]
    left = len(ranked) - len(shown)
    caption = "How many samples each combination of participants has" + (
        f"; {left} smaller combinations are not drawn." if left else "."
    )
    body = (
        f'<h1>Alignment</h1>\n<p class="soft">{text(overlap.digest)}</p>\n'
        f"<p>Mode {text(overlap.mode)}: {overlap.num_samples:,} samples, "
        f"{overlap.num_complete:,} of them complete. Labels are at "
        f"{text(overlap.label_holder)}.</p>\n"
    )
    body += figure([_upset(overlap, shown)], caption)
    body += table(
        "Combinations",
        ["participants", "samples"],
        [[text(", ".join(who)), f"{count:,}"] for who, count in ranked],
        numeric=[1],
    )
    body += table(
        "Participants",
        ["participant", "rows", "ids", "duplicates left out"],
        [
            [
                text(name),
                f"{source.everyone[name].num_rows:,}",
                f"{overlap.sizes[name]:,}",
                f"{source.everyone[name].num_duplicates:,}",
            ]
            for name in overlap.names
        ],
        numeric=[1, 2, 3],
    )
    body += table(
        "Methods",
        ["method", "samples it could use"],
        [[text(name), f"{count:,}"] for name, count in _usable(overlap).items()],
        numeric=[1],
    )
    return write_page("Alignment", body, out)


def _upset(overlap: Overlap, shown: Sequence[tuple[tuple[str, ...], int]]) -> str:
    """An UpSet picture: a bar per combination, and below it who is in it."""
    left, top, step, line = 170, 150, 34, 24
    most = max((count for _, count in shown), default=1)
    width, height = left + step * max(len(shown), 1) + 20, top + line * len(overlap.names) + 20
    parts = [
        f'<svg viewBox="0 0 {width} {height}" class="chart" role="img" '
        f'aria-label="Samples of {len(shown)} combinations of participants. The numbers are in '
        'the table.">'
    ]
    for place, name in enumerate(overlap.names):
        y = top + line * place + 22
        label = name if len(name) <= 22 else f"{name[:21]}…"
        parts.append(
            f'<text x="{left - 12}" y="{y + 4}" text-anchor="end" font-size="12" '
            f'fill="var(--ink)">{text(label)}</text>'
        )
    for column, (who, count) in enumerate(shown):
        x = left + step * column + step // 2
        tall = (top - 30) * count / most
        parts.append(
            f'<rect x="{x - 10}" y="{top - tall:.1f}" width="20" height="{tall:.1f}" '
            'fill="var(--accent)"/>'
            f'<text x="{x}" y="{top - tall - 5:.1f}" text-anchor="middle" font-size="10" '
            f'fill="var(--muted)">{count:,}</text>'
        )
        rows = [top + line * place + 22 for place, name in enumerate(overlap.names) if name in who]
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="{min(rows)}" y2="{max(rows)}" stroke="var(--ink)" '
            'stroke-width="2"/>'
        )
        for place, name in enumerate(overlap.names):
            colour = "var(--ink)" if name in who else "var(--line)"
            y = top + line * place + 22
            parts.append(f'<circle cx="{x}" cy="{y}" r="6" fill="{colour}"/>')
    return "".join([*parts, "</svg>"])


def _say(line: str) -> None:
    Console(soft_wrap=True, highlight=False, markup=False).print(line)
