"""Output of ``colonnade align``: tables, JSON, and a page with an UpSet picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from colonnade.align.matching import Overlap
from colonnade.cli.align_source import LABELS_APART, Source
from colonnade.cli.console import say
from colonnade.methods import METHODS
from colonnade.report.markup import figure, table, text, write_page

__all__ = ["plain_overlap", "print_overlap", "write_overlap"]

# So many combinations are drawn and printed; the page's table has all.
_MOST_SHOWN = 24


def _usable(overlap: Overlap) -> dict[str, int]:
    """How many labelled samples of the alignment each method could train on."""
    holder = overlap.label_holder
    blocks = tuple(name for name in overlap.names if not name.endswith(LABELS_APART))
    counts = {}
    for name, method in METHODS.items():
        default = method()
        needed = {holder, *default.participants(blocks, holder)}
        if overlap.mode == "intersection" or default.needs.pooled:
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
    """The overlap as plain values, for JSON."""
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


def _tables(
    overlap: Overlap, source: Source, ranked: Sequence[tuple[tuple[str, ...], int]]
) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Headers and rows by title; the first cell of a row is text, the others are numbers."""
    sizes = []
    for name in overlap.names:
        ids = source.everyone[name]
        counts = (ids.num_rows, overlap.sizes[name], ids.num_duplicates)
        sizes.append([name, *(f"{count:,}" for count in counts)])
    combinations = [[", ".join(who), f"{count:,}"] for who, count in ranked]
    usable = [[name, f"{count:,}"] for name, count in _usable(overlap).items()]
    return {
        "Participants": (["participant", "rows", "ids", "duplicates left out"], sizes),
        "Combinations": (["participants", "samples"], combinations),
        "Methods": (["method", "samples it could use"], usable),
    }


def print_overlap(overlap: Overlap, source: Source) -> None:
    """Print tables to the terminal."""
    for header, rows in _tables(overlap, source, _ranked(overlap)[:_MOST_SHOWN]).values():
        shown = Table(*header)
        for row in rows:
            shown.add_row(*row)
        Console().print(shown)
    say(
        f"{overlap.num_samples:,} samples in the alignment ({overlap.mode}), "
        f"{overlap.num_complete:,} of them complete; labels are at '{overlap.label_holder}'"
    )


def write_overlap(overlap: Overlap, source: Source, out: Path) -> Path:
    """Write the page with the picture."""
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
    for title, (header, rows) in _tables(overlap, source, ranked).items():
        cells = [[text(name), *numbers] for name, *numbers in rows]
        body += table(title, header, cells, numeric=range(1, len(header)))
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
