"""How an overlap is shown: tables, JSON, and a page with an UpSet picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from colonnade.align.matching import Overlap
from colonnade.cli.align_source import LABELS_APART, Source
from colonnade.methods import METHODS
from colonnade.report.markup import figure, table, text, write_page

__all__ = ["plain_overlap", "print_overlap", "say", "write_overlap"]

# More combinations than these are in the table only.
_MOST_SHOWN = 24


def _usable(overlap: Overlap) -> dict[str, int]:
    """How many labelled samples of the alignment each method could train on."""
    holder = overlap.label_holder
    blocks = tuple(name for name in overlap.names if not name.endswith(LABELS_APART))
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


def plain_overlap(overlap: Overlap, source: Source) -> dict[str, Any]:
    """Everything as JSON may hold it."""
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


def print_overlap(overlap: Overlap, source: Source) -> None:
    """Tables for the terminal."""
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
    say(
        f"{overlap.num_samples:,} samples in the alignment ({overlap.mode}), "
        f"{overlap.num_complete:,} of them complete; labels are at '{overlap.label_holder}'"
    )


def write_overlap(overlap: Overlap, source: Source, out: Path) -> Path:
    """The page with the picture."""
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


def say(line: str) -> None:
    """One line, as it is."""
    Console(soft_wrap=True, highlight=False, markup=False).print(line)
