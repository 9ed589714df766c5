"""The page at ``/`` and the list of operations at ``/docs``: no scripts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from colonnade.serve.prediction_service import PredictionService

__all__ = ["operations_page", "serving_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --paper: #fbfbf9; --soft: #5b6375;
  --line: #d9dbe0; --bar: #2f6f8f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaef; --paper: #14171e; --soft: #a4abba;
  --line: #343a47; --bar: #6fb3d2; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
@media (max-width: 40rem) { table { font-size: .85rem; } th, td { padding-right: .5rem; } }
td.wide { width: 20%; min-width: 4rem; } .soft { color: var(--soft); }
.bar { background: var(--bar); height: .6rem; display: block; }
code { font-size: .95em; }
"""


def serving_page(service: PredictionService) -> str:
    """What answers, how much by which blocks, and how the parties do.

    Args:
        service: The service.

    Returns:
        A whole HTML page.
    """
    routing, model = service.versions.routing, service.model
    because = service.unready()
    state = "Ready." if because is None else f"Not ready: {because}."
    facts = [("Version", routing.current)]
    if routing.canary is not None:
        facts.append((f"Tried on {routing.share:.0%} of the ids", routing.canary))
    if routing.previous is not None:
        facts.append(("Version before", routing.previous))
    shares = [
        [
            _text(name),
            _number(f"{share:.1%}"),
            _bar(share),
        ]
        for name, share in service.watching.shares().items()
    ]
    numbers = service.watching.party_numbers()
    slowest = max((item.slow_seconds or 0.0 for item in numbers), default=0.0)
    parties = [
        [
            _text(item.name),
            _text(f"away: {item.away}" if item.away else item.breaker),
            _number(str(item.num_answers)),
            _number(str(item.num_silences)),
            _milliseconds(item.mean_seconds),
            _milliseconds(item.slow_seconds),
            _bar((item.slow_seconds or 0.0) / slowest if slowest else 0.0),
        ]
        for item in numbers
    ]
    moved = [
        [
            _text(item.name),
            _number(str(item.observed.rows)),
            _number("" if item.observed.far is None else str(item.observed.far)),
            _deviations(item.observed.input_drift),
            _deviations(item.observed.embedding_drift),
        ]
        for item in numbers
        if item.observed is not None
    ]
    body = [
        f"<h1>{escape(model.name)}</h1>",
        f'<p role="status">{escape(state)}</p>',
        _table("What answers", ("", ""), [[_text(name), _text(value)] for name, value in facts]),
        _table("Answers by the blocks used", ("blocks", "#share", ""), shares),
        _table(
            "Parties",
            ("party", "breaker", "#answers", "#silences", "#mean time", "#99 of 100", ""),
            parties,
        ),
        _table(
            "Drift",
            ("party", "#rows", "#far outside", "#inputs", "#embeddings"),
            moved,
        ),
        '<p class="soft">Drift is the distance of served rows from the training rows, in standard '
        "deviations, after a hundred rows. Parties elsewhere tell it only if their policies allow. "
        "Numbers count from the start of this process. "
        'Operations are listed at <a href="/docs">/docs</a>.</p>',
    ]
    return _page(f"{model.name}: predictions", "\n".join(body))


def operations_page(description: Mapping[str, Any]) -> str:
    """The operations of an OpenAPI description, as a table.

    Args:
        description: What ``/openapi.json`` gives.

    Returns:
        A whole HTML page.
    """
    rows = [
        [
            f"<td><code>{escape(method.upper())}</code></td>",
            f"<td><code>{escape(path)}</code></td>",
            _text(str(operation.get("summary", ""))),
        ]
        for path, operations in sorted(description["paths"].items())
        for method, operation in operations.items()
    ]
    body = "<h1>Operations</h1>" + _table("Paths", ("method", "path", "what it does"), rows)
    return _page(
        "Operations", body + '<p>Described in full by <a href="/openapi.json">openapi.json</a>.</p>'
    )


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A section with a table; a head that begins with # is of a column of numbers."""
    if not rows:
        return f'<h2>{escape(caption)}</h2><p class="soft">Nothing yet.</p>'
    cells = "".join(
        f'<th scope="col" class="number">{escape(head[1:])}</th>'
        if head.startswith("#")
        else (f'<th scope="col">{escape(head)}</th>' if head else "<td></td>")
        for head in heads
    )
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells}</tr></thead>" if any(heads) else ""
    named = escape(caption)
    return (
        f'<h2>{named}</h2><div class="scroll" role="region" tabindex="0" aria-label="{named}">'
        f"<table>{head}<tbody>{lines}</tbody></table></div>"
    )


def _bar(share: float) -> str:
    return f'<td class="wide"><span class="bar" style="width:{share:.0%}"></span></td>'


def _milliseconds(seconds: float | None) -> str:
    return _number("" if seconds is None else f"{seconds * 1000:.2f} ms")


def _deviations(moved: float | None) -> str:
    return _number("" if moved is None else f"{moved:.2f}")


def _text(value: str) -> str:
    return f"<td>{escape(value)}</td>"


def _number(value: str) -> str:
    return f'<td class="number">{escape(value)}</td>'
