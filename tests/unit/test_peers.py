"""What the benchmark against peers computes and writes, without any peer."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from colonnade.bench.subjects import Shape

ROOT = Path(__file__).parents[2]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize("in_one_process", [True, False])
def test_halves_have_the_losses_of_colonnade(
    programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_process: bool
) -> None:
    case_files, halves = programs("case_files"), programs("halves")
    shape, num_steps = Shape(num_parties=3, num_samples=96, batch_size=32, embedding=8), 7
    case_files.write_case(shape, tmp_path, num_steps)
    monkeypatch.setenv("COLONNADE_PEERS_CASE", str(tmp_path))
    parties = {name: halves.PartyHalf(name) for name in halves.party_names()}
    holder = halves.HolderHalf()
    losses, gradients = [], {}
    for number in range(num_steps):
        if not in_one_process:
            for party in parties.values():
                party.forget()
        embeddings = {
            name: party.answer(number, gradients.get(name)) for name, party in parties.items()
        }
        loss, gradients = holder.learn(number, embeddings)
        losses.append(loss)
    assert losses == pytest.approx(case_files.reference_losses(shape, num_steps), rel=1e-6)
    assert len(set(losses)) == num_steps


def test_page_shows_what_was_measured(programs: Any) -> None:
    docs = ROOT / "docs"
    outcome = json.loads((docs / "results" / "bench" / "peers.json").read_text(encoding="utf-8"))
    page = (docs / "network.md").read_text(encoding="utf-8")
    assert programs("page").fill_page(page, outcome) == page


def test_a_factor_is_our_rate_over_theirs(programs: Any) -> None:
    row = {"against": "a peer", "versions": {"peer": "1.2"}, "load": 0.25}
    rows = [
        {**row, "per_second": 50.0, "per_second_against": 0.1, "ratio": 500.0},
        {**row, "per_second": 50.0, "per_second_against": 80.0, "ratio": 0.625, "load": 3.0},
    ]
    table = programs("page").markdown_table({"rows": rows, "revision": "abc", "machine": "one"})
    assert "| a peer | peer 1.2 | 10000 | 20 | 500 |" in table
    assert "| a peer | peer 1.2 | 12.5 | 20 | 0.625 |" in table
    assert "wanted a core before each measurement: 0.2 to 3.0." in table
