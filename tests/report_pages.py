"""A page as its reader gets it, and a run directory as a run writes it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

PARTIES = ("bank", "telco", "shop")
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """What a reader of a page gets: its text, tables, ids, links, and which tags there are."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(source)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        elif tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.scripts.append(data)
        if "style" in self.open or "script" in self.open:
            return
        self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.cells[-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def rows(self, first: str) -> list[list[str]]:
        return [row for row in self.cells if row and row[0] == first]

    def values(self, name: str) -> list[str]:
        return [value for _, found, value in self.attributes if found == name]


def run_directory(
    place: Path,
    *,
    parties: tuple[str, ...] = PARTIES,
    num_exchanges: int = 60,
    finished: bool = True,
    tail: str = "",
    **changed: Any,
) -> Path:
    """A run directory as a run writes it; ``changed`` keys of the summary."""
    place.mkdir(parents=True)
    holder = parties[0]
    config = {
        "method": {"name": "splitnn"},
        "label_holder": {"name": holder},
        "fabric": {"name": "simulated"},
        "secret<b>": "&",
    }
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    lines: list[dict[str, Any]] = []
    for exchange in range(1, num_exchanges + 1):
        sent = {name: 0 if name == holder else 1000 * exchange for name in parties}
        lines.append(
            {
                "kind": "exchange",
                "exchange": exchange,
                "loss": 1.5 / exchange,
                "elapsed": exchange / 4,
                "bytes_up": sent,
                "bytes_down": {name: 2 * amount for name, amount in sent.items()},
                "computing": dict.fromkeys(parties, exchange / 8),
            }
        )
        if exchange % 10 == 0:
            lines.append(
                {
                    "kind": "evaluation",
                    "exchange": exchange,
                    "part": "validation",
                    "elapsed": exchange / 4,
                    "metrics": {"loss": 0.25, "accuracy": 0.5 + exchange / 1000, "f1": None},
                }
            )
    text = "".join(json.dumps(line) + "\n" for line in lines) + tail
    (place / "metrics.jsonl").write_text(text, encoding="utf-8")
    if finished:
        total = {name: 0 if name == holder else 1000 * num_exchanges for name in parties}
        summary = {
            "method": "splitnn",
            "task": "multiclass",
            "quality_name": "accuracy",
            "quality": {
                "validation": {"accuracy": 0.9701, "f1": 0.9688},
                "test": {"accuracy": 0.9652, "f1": 0.9611},
            },
            "exchanges": num_exchanges,
            "best_exchange": 50,
            "epochs": 6.0,
            "stopped_by": "epochs",
            "local_steps": dict.fromkeys(parties, 321),
            "bytes_up": total,
            "bytes_down": {name: 2 * amount for name, amount in total.items()},
            "seconds": 3.21,
            "fabric": "simulated",
            "elapsed_seconds": 15.0,
            "seconds_computing": dict.fromkeys(parties, 7.5),
            "seconds_waiting": dict.fromkeys(parties, 6.25),
            "privacy": {
                name: {"epsilon": 2.5, "delta": 1e-5} if place == 1 else None
                for place, name in enumerate(parties)
            },
            "protections": {name: ["perturb"] * (place == 1) for place, name in enumerate(parties)},
            "refusal": None,
            "parties": list(parties),
            "label_holder": holder,
            "num_samples": {"train": 1280, "validation": 160, "test": 161},
            "seed": 7,
            "revision": "abc1234",
            "version": "0.1.0",
            **changed,
        }
        (place / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return place
