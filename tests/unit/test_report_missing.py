"""The report on missing blocks: the heat map, warnings, and what a summary may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from colonnade.core.errors import StorageError
from colonnade.report import write_report
from colonnade.report.heat_map import Column, heat_map
from messages import says
from report_pages import Page, run_directory

SETS = [
    (["bank"], 10, 0.5, {"bank": 0.5}),
    (["shop", "telco"], 20, 0.75, {"shop": 0.7, "telco": None}),
    (["bank", "shop", "telco"], 30, 1.0, {"bank": 0.9, "shop": 1.0, "telco": 0.8}),
]


def by_set(sets: Any = SETS) -> list[dict[str, Any]]:
    return [
        {
            "parties": parties,
            "size": len(parties),
            "num_samples": num,
            "quality": quality,
            "each": each,
        }
        for parties, num, quality, each in sets
    ]


def presence(**more: Any) -> dict[str, Any]:
    sizes = [{**item, "parties": []} for item in by_set()]
    found = {"associations": [], "part": "test", "num_sets": 3, "by_set": by_set()}
    return {**found, "by_size": sizes, **more}


def page_of(place: Path, **changed: Any) -> Page:
    run = run_directory(place / "run", **changed)
    return Page(write_report(run).read_text("utf-8"))


def test_every_number_of_the_picture_is_in_the_table(tmp_path: Path) -> None:
    page = page_of(tmp_path, presence=presence())
    assert "Quality by observed set" in page.text
    assert page.rows("bank")[0] == ["bank", "10", "0.5", "0.5", "not in it", "not in it"]
    (row,) = page.rows("shop, telco")
    assert row == ["shop, telco", "20", "0.75", "not in it", "not a number", "0.7"]
    assert any(label.startswith("Heat map: accuracy") for label in page.values("aria-label"))


def test_a_run_that_misses_nothing_says_nothing_of_it(tmp_path: Path) -> None:
    for changed in ({}, {"presence": None, "calibration": None, "start": None, "warnings": []}):
        page = page_of(tmp_path / str(len(changed)), **changed)
        for title in ("observed set", "Calibration", "Presence and label", "earlier run"):
            assert title not in page.text


def test_warnings_come_first_and_are_escaped(tmp_path: Path) -> None:
    page = page_of(tmp_path, warnings=["party '<script>' & co"])
    assert "Warning: party '<script>' & co." in page.text
    assert page.tags.count("script") == 1  # the page's own
    assert page.text.index("Warning:") < page.text.index("Exchanges")


def test_too_many_sets_are_drawn_by_size(tmp_path: Path) -> None:
    many = [([f"p{n}"], 5, 0.5, {}) for n in range(41)]
    page = page_of(tmp_path, presence=presence(by_set=by_set(many)))
    assert "There are too many sets to draw" in page.text
    assert len(page.rows("p40")) == 1


def test_calibration_association_and_start_are_told(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        presence=presence(
            associations=[
                {
                    "party": "telco",
                    "measure": "cramers_v",
                    "value": 0.5,
                    "p_value": 1e-9,
                    "is_strong": True,
                }
            ]
        ),
        calibration={
            "temperatures": {"1": 2.5, "2": 1.25},
            "spreads": {},
            "otherwise": 1.5,
            "errors": {"test": {"before": 0.2, "after": 0.05, "by_size": {}}},
        },
        start={
            "run": "runs/old",
            "stayed": ["bank", "shop"],
            "joined": ["telco"],
            "frozen": [],
            "bound": 0.02,
            "part": "test",
            "quality_before": 0.9,
            "quality_after": 0.85,
            "fall": 0.05,
            "within_bound": False,
        },
    )
    assert page.rows("1 block") == [["1 block", "2.5"]]
    assert ["test", "0.2", "0.05"] in page.rows("test")
    assert page.rows("telco")[0] == ["telco", "Cramér's V", "0.5", "1e-09", "strong"]
    assert page.rows("bound") == [["bound", "0.02, not kept"]]


def test_who_left_is_said(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run")
    (run / "left.json").write_text(json.dumps({"left": ["telco"]}), "utf-8")
    assert "telco left this federation after training" in write_report(run).read_text("utf-8")
    (run / "left.json").write_text("[]", "utf-8")
    with pytest.raises(StorageError, match=says("left.json", "object")):
        write_report(run)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"by_set": 3}, says("summary.json", "'by_set'", "list", 3)),
        ({"by_set": [{"parties": ["a"]}]}, says("'by_set'", "place 0", "'size'")),
        ({"associations": [{"party": 1}]}, says("'associations'", "place 0", "'party'", "text", 1)),
    ],
)
def test_damage_is_refused(tmp_path: Path, damage: dict[str, Any], message: str) -> None:
    with pytest.raises(StorageError, match=message):
        page_of(tmp_path, presence=presence(**damage))


def test_the_picture_is_whole_and_names_are_kept_out_of_its_markup() -> None:
    column = Column(
        group="1 block",
        parties=frozenset({"a<b>"}),
        num_samples=7,
        quality=float("nan"),
        each={},
    )
    drawn = heat_map([column, column], parties=["a<b>", "x" * 50], together="all", label="a & b")
    root = ElementTree.fromstring(drawn)
    texts = [item.text for item in root.iter("text")]
    assert "a<b>" in texts
    assert f"{'x' * 19}…" in texts
    assert texts.count("none") == 2
    assert len(list(root.iter("circle"))) == 2
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "a & b"
