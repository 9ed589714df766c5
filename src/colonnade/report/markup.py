"""HTML: escaped text, numbers, tables, figures, and the page around them.

A page loads nothing: its charts and its one script are inline, and its content policy allows that
script alone, by its hash, and forbids the rest. Which sections a page has is in ``sections`` and
``page``.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from colonnade.core.printable import printable
from colonnade.files import write_atomically
from colonnade.report.readable import format_number, format_seconds

__all__ = [
    "NOT_RECORDED",
    "count",
    "figure",
    "folded_table",
    "in_two_sizes",
    "number",
    "seconds",
    "table",
    "text",
    "write_page",
]

NOT_RECORDED = "not recorded"

_CSS = """
:root{color-scheme:light dark;--paper:#fff;--panel:#f5f6f8;--ink:#1b2330;--muted:#586273;
--line:#d5dae1;--accent:#5636b8;--warn:#fdf0d5;--edge:#c77d00;
--run-0:#0069a6;--run-1:#b35900;--run-2:#00795a;--run-3:#a63d78;--run-4:#5636b8;--run-5:#c62f2f;
--run-6:#6b6b00;--run-7:#4a5568}
@media (prefers-color-scheme:dark){:root{--paper:#12161c;--panel:#1b2129;--ink:#e8ebf0;
--muted:#a3adbb;--line:#39424f;--accent:#b9a4ff;--warn:#3a2c10;--edge:#e0a030;
--run-0:#56b4e9;--run-1:#f0a13a;--run-2:#3fcf9f;--run-3:#e79bc4;--run-4:#b9a4ff;--run-5:#ff8a75;
--run-6:#e0d95a;--run-7:#b5bdc9}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.5;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:62rem;margin:0 auto;padding:1.5rem 1.25rem 4rem}
h1{font-size:1.8rem;line-height:1.2;margin:.4rem 0}h2{font-size:1.3rem;margin:2.4rem 0 .5rem}
h3{font-size:1.08rem;margin:1.8rem 0 .4rem}p{margin:.4rem 0;max-width:46rem}
a{color:var(--accent)}.soft,figcaption,caption{color:var(--muted);font-size:.9rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(12rem,1fr));gap:.75rem;
margin:1.2rem 0}
.tiles div{background:var(--panel);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem .9rem}
dt{color:var(--muted);font-size:.85rem}dd{margin:0;font-size:1.5rem;font-weight:600}
dd small{display:block;font-size:.82rem;font-weight:400;color:var(--muted)}
.warn{background:var(--warn);border-left:.3rem solid var(--edge);padding:.6rem .9rem;
border-radius:.25rem;max-width:none}
.verdict{font-size:1.15rem;max-width:none;padding:.9rem 1.1rem;border-radius:.5rem;
background:var(--panel);border-left:.3rem solid var(--edge)}
.verdict.good{border-color:var(--accent)}
figure{margin:.6rem 0}.pair{display:grid;grid-template-columns:1fr 1fr;gap:1rem}
.scroll{overflow-x:auto}svg.chart{display:block;width:100%;height:auto;overflow:visible}
svg.chart *{stroke-linejoin:round;stroke-linecap:butt}
table{border-collapse:collapse;font-size:.9rem;margin:.6rem 0;font-variant-numeric:tabular-nums}
caption{text-align:left;padding-bottom:.3rem}
th,td{padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--line);text-align:left;
vertical-align:top;overflow-wrap:break-word}
thead th{color:var(--muted);font-weight:600;vertical-align:bottom}th{font-weight:500}
.num{text-align:right;white-space:nowrap}thead .num{white-space:normal}
tbody th{min-width:6.5rem}td:not(.num){min-width:9rem}
.dot{display:inline-block;width:.75em;height:.75em;border-radius:.15em;margin-right:.45em;
border:1px solid var(--muted)}
.reader{cursor:crosshair}.reader:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.reading{color:var(--muted);font-size:.85rem;min-height:1.5em;font-variant-numeric:tabular-nums}
.reading-marks line{stroke:var(--muted);stroke-width:.8}
.reading-marks circle{fill:none;stroke:var(--ink);stroke-width:1.2}
.keys{display:flex;flex-wrap:wrap;gap:.4rem}
.keys button{font:inherit;font-size:.85rem;color:inherit;background:none;
border:1px solid var(--line);border-radius:1rem;padding:.15rem .7rem;cursor:pointer;
min-height:1.7rem}
.keys button[aria-pressed=false]{color:var(--muted);text-decoration:line-through}
.keys svg{width:1.8em;height:.6em;margin-right:.45em;vertical-align:middle}
details{margin:.6rem 0}summary{cursor:pointer;color:var(--muted)}
pre{background:var(--panel);border:1px solid var(--line);border-radius:.5rem;padding:.8rem;
overflow-x:auto;font-size:.82rem;line-height:1.4}
section.run{border-top:2px solid var(--line);margin-top:3rem}
.narrow{display:none}
@media (max-width:44rem){.pair{grid-template-columns:1fr}.wide{display:none}.narrow{display:block}}
@media print{details,figure,tr{break-inside:avoid}}
"""


def text(value: str) -> str:
    """Text from a run, made safe for a page."""
    # A direction mark makes a line read as another; half of a surrogate pair has no UTF-8.
    return html.escape(printable(value, most=1_000_000, keep="\n\t"))


def number(value: float | None) -> str:
    """A metric, or the words for one that was not recorded."""
    return NOT_RECORDED if value is None else format_number(value)


def seconds(value: float | None) -> str:
    """A duration, or the words for one that was not recorded."""
    return NOT_RECORDED if value is None or math.isnan(value) else format_seconds(value)


def count(value: int | None) -> str:
    """A whole number with thousands apart, or the words for one that was not recorded."""
    return NOT_RECORDED if value is None else f"{value:,}"


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int]
) -> str:
    """A table with a caption; cells are HTML, the first of a row names it.

    ``numeric`` are the columns that hold numbers.
    """

    def cell(tag: str, column: int, content: str, scope: str = "") -> str:
        kind = ' class="num"' if column in numeric else ""
        return f"<{tag}{scope}{kind}>{content}</{tag}>"

    heads = "".join(
        cell("th", n, _breakable(title), ' scope="col"') for n, title in enumerate(head)
    )
    lines = [
        cell("th", 0, row[0], ' scope="row"')
        + "".join(cell("td", n, content) for n, content in enumerate(row[1:], start=1))
        for row in rows
    ]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f"{_scrolling(caption)}<table><caption>{text(caption)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _breakable(title: str) -> str:
    """A heading that may break after an underscore: names of metrics are longer than numbers."""
    return text(title).replace("_", "_<wbr>")


def folded_table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Sequence[int],
    num_all: int,
) -> str:
    """A long table that a click unfolds; its caption says how many of all rows it has."""
    shown = f"{len(rows)} of {num_all:,} rows, evenly apart" if len(rows) < num_all else "all rows"
    return (
        f"<details><summary>{text(caption)} ({shown})</summary>\n"
        f"{table(caption, head, rows, numeric=numeric)}</details>\n"
    )


def figure(charts: Sequence[str], caption: str) -> str:
    """One chart, or several side by side, with a caption."""
    inner = "\n".join(f"{_scrolling(caption)}{chart}</div>" for chart in charts)
    held = f'<div class="pair">\n{inner}\n</div>' if len(charts) > 1 else inner
    return f"<figure>\n{held}\n<figcaption>{text(caption)}</figcaption>\n</figure>\n"


def in_two_sizes(draw: Callable[..., str], key: str) -> str:
    """A chart for a wide window and again for a narrow one, of which a page shows one.

    ``draw`` takes ``key`` and ``size``.
    """
    wide, narrow = draw(key=key, size="wide"), draw(key=f"{key}-narrow", size="half")
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _scrolling(label: str) -> str:
    """The beginning of a box that a narrow window scrolls, also by keyboard."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{text(label)}">'


def write_page(title: str, body: str, out: Path) -> Path:
    """Write a page atomically: a reader sees the old one or the new one, never a part."""
    script = (files("colonnade.report") / "assets" / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{_CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )
    write_atomically(out, page.encode("utf-8"))
    return out
