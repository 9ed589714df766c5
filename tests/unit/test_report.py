"""Reports: what the pages say and show, what they never load, and which damage is refused."""

import base64
import errno
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from colonnade.core.errors import StorageError
from colonnade.report import ComparisonRow, read_run, write_comparison, write_report
from colonnade.report.charts import curves_chart, party_colours, ranking_chart
from colonnade.report.curves import Curve, smoothed, thinned
from colonnade.report.readable import format_bytes, format_number, format_seconds
from messages import says
from report_pages import PARTIES, Page, run_directory


def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def assert_self_contained(page: Page) -> None:
    """Nothing is loaded, no script but ours runs, ids are unique, references have targets."""
    assert not {"link", "img", "iframe", "object", "image"} & set(page.tags)
    script = (files("colonnade.report") / "assets" / "report.js").read_text("utf-8")
    assert page.scripts == [script]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy in page.values("content")
    assert "innerHTML" not in script
    assert not page.values("src")
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for link in [*page.values("href"), *page.values("xlink:href")]:
        assert link.startswith("#"), link
        assert link[1:] in ids, link
    for _, name, value in page.attributes:
        assert "http:" not in value, (name, value)
        assert "https:" not in value, (name, value)
        for target in re.findall(r"url\(([^)]*)\)", value):
            assert target[1:] in ids, target


def test_page_tells_the_run(tmp_path: Path) -> None:
    out = write_report(run_directory(tmp_path / "first"))
    assert out == tmp_path / "first" / "report.html"
    page = page_of(out)
    assert_self_contained(page)
    said = page.text
    for fact in ("splitnn", "Run: first", "0.9652", "accuracy on the test part", "6 epochs"):
        assert fact in said
    assert "3.21 s by the wall clock; 15 s on the simulated clock" in said
    assert "360 kB 120 kB up, 240 kB down" in said
    assert "It ended after the epochs that were set." in said
    assert "unfinished" not in said
    assert page.tags.count("svg") == 2 + 2 * 3  # the wide ones are there for narrow windows too
    labels = [v for tag, name, v in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(labels) == 8
    assert "secret<b>" in said


def test_tables_hold_what_charts_show(tmp_path: Path) -> None:
    page = page_of(write_report(run_directory(tmp_path / "run")))
    assert page.rows("telco") == [
        ["telco", "7.5 s", "6.25 s", "321"],
        ["telco", "60,000", "120,000", "over its link"],
        ["telco", "ε = 2.5 at δ = 1e-05"],
    ]
    assert page.rows("shop")[2] == ["shop", "none: embeddings left unprotected"]
    bank = page.rows("bank (label holder)")
    assert bank[1][:3] == ["bank (label holder)", "0", "0"]
    assert bank[1][3].startswith("local: ")
    assert bank[2][1].startswith("none needed: ")
    assert page.rows("samples")[0] == ["samples", "160", "161"]  # validation, test
    assert page.rows("accuracy")[0][2] == "0.9652"
    assert ["60", "validation", "15 s", "0.25", "0.56", "not a number"] in page.cells
    first_loss, last_loss = page.rows("1")[0], page.rows("60")[0]
    assert first_loss[:3] == ["1", "250 ms", "1.5"]
    assert last_loss[:3] == ["60", "15 s", "0.025"]
    assert len(page.rows("60")) == 2  # the last exchange is there however few rows are shown


def test_charts_name_every_party_and_mark_the_local_one(tmp_path: Path) -> None:
    source = write_report(run_directory(tmp_path / "run")).read_text(encoding="utf-8")
    charts = " ".join(re.findall(r"<svg.*?</svg>", source, flags=re.S))
    for name in ("telco", "shop", "bank (local)", "bank (label holder)"):
        assert charts.count(f">{name}<") >= 1, name
    for colour in party_colours(sorted(PARTIES)).values():
        assert colour in charts
        assert f"background:{colour}" in source
    assert "var(--ink)" in charts
    assert "#0a0b" not in charts  # every stand-in became a variable of the page
    assert "prefers-color-scheme:dark" in source


@pytest.mark.attack(
    what="Markup in names that a party chooses",
    has="a column, class or party name (cheating party)",
    before="nothing (held)",
    now="shown as text in every report",
)
def test_everything_from_the_run_is_escaped(tmp_path: Path) -> None:
    names = (
        "<script>alert(1)</script>",
        '"><img src="http://x/y">',
        "a$b$ _& \x00\x1b\ud800",
        "银行",
        "_hidden",
        "n" * 200,
    )
    place = run_directory(
        tmp_path / "run",
        parties=names,
        method="<b>m</b>",
        stopped_by="<i>why</i>",
        revision="<u>r</u>",
        quality={"<p>": {"accuracy": 1.0, "<q>": 2.0}},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = page_of(write_report(place))
    assert_self_contained(page)
    assert not {"b", "i", "u", "q"} & set(page.tags)
    for name in (names[0], names[1], "a$b$ _&", names[3], names[4], names[5]):
        assert name in page.text, name
    for said in ("<b>m</b>", "<i>why</i>", "<u>r</u>", "<q>"):
        assert said in page.text, said


def test_unfinished_run_says_so(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run", finished=False, tail='{"kind": "exch')
    page = page_of(write_report(place))
    assert_self_contained(page)
    for fact in (
        "This run is unfinished.",
        "as of exchange 60",
        "half written and was left out",
        "0.56 accuracy on the validation part, exchange 60",
        "on the simulated clock",
        "known once the run is over",
    ):
        assert fact in page.text, fact
    assert page.rows("telco")[0] == ["telco", "7.5 s", "not recorded", "not recorded"]
    assert page.rows("bank (label holder)")[1][3].startswith("local: ")


def test_colours_are_the_same_before_and_after_the_end(tmp_path: Path) -> None:
    def dots(path: Path) -> dict[str, str]:
        source = path.read_text(encoding="utf-8")
        return dict(re.findall(r"background:(#\w+)\"></span><bdi>(\w+)", source))

    going = write_report(run_directory(tmp_path / "going", finished=False))
    over = write_report(run_directory(tmp_path / "over"))
    assert dots(going) == dots(over)
    assert len(dots(over)) == len(PARTIES)


def test_nothing_recorded_yet(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run", num_exchanges=0, finished=False)
    page = page_of(write_report(place))
    assert_self_contained(page)
    assert "No exchange is recorded yet." in page.text
    assert "No evaluation is recorded" in page.text


def test_half_written_line_is_left_out_also_inside_a_letter(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run", finished=False)
    with (place / "metrics.jsonl").open("ab") as file:
        file.write('{"kind": "evaluation", "part": "é'.encode()[:-1])
    record = read_run(place)
    assert record.half_written
    assert len(record.exchanges) == 60
    assert len(record.evaluations) == 6


def test_whole_last_line_counts_without_its_newline(tmp_path: Path) -> None:
    line = '{"kind": "evaluation", "exchange": 61, "part": "test", "elapsed": 16, "metrics": {}}'
    record = read_run(run_directory(tmp_path / "run", tail=line))
    assert not record.half_written
    assert record.evaluations[-1].part == "test"


def test_unknown_kinds_are_counted(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run", tail='{"kind": "a"}\n{"kind": "b", "x": 1}\n')
    assert read_run(place).num_unknown == 2
    assert "Left out: 2 line(s)" in page_of(write_report(place)).text


@pytest.mark.parametrize("loss", ["null", "NaN", "Infinity"])
def test_loss_that_is_not_finite_is_a_gap(tmp_path: Path, loss: str) -> None:
    line = (
        f'{{"kind": "exchange", "exchange": 61, "loss": {loss}, "elapsed": 15.25, '
        '"bytes_up": {}, "bytes_down": {}, "computing": {}}\n'
    )
    place = run_directory(tmp_path / "run", tail=line, stopped_by="diverged")
    assert math.isnan(read_run(place).exchanges[-1].loss)
    page = page_of(write_report(place))
    assert "not a finite number 1 time(s), first at exchange 61" in page.text
    assert "Don't use this model." in page.text
    assert page.rows("61")[0][2:] == ["not a number", "not a number"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("summary.json", "{", "damaged"),
        ("summary.json", "[]", "JSON object"),
        ("summary.json", '{"method": "splitnn"}', "'task' should be text, it is missing"),
        ("config.json", "\xff", "damaged"),
        ("config.json", None, "is missing"),
        ("metrics.jsonl", None, "is missing"),
        ("metrics.jsonl", '{"kind": "x"}\n{"kind\n{"kind": "x"}\n', "line 2: is damaged"),
        ("metrics.jsonl", "3\n", "line 1: expected a JSON object"),
        ("metrics.jsonl", '{"kind": "exchange", "exchange": 1.5}\n', "'loss' should be a number"),
    ],
)
def test_damage_is_refused_with_a_remedy(
    tmp_path: Path, name: str, content: str | None, expected: str
) -> None:
    place = run_directory(tmp_path / "run")
    (place / name).unlink()
    if content is not None:
        (place / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(StorageError, match=re.escape(name)) as caught:
        write_report(place)
    assert expected in str(caught.value)
    assert "; " in str(caught.value)
    assert not (place / "report.html").exists()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"bytes_up": {"telco": "many"}}, "'telco' should be a number"),
        ({"bytes_up": {"telco": 1.5}}, "'telco' should be a whole number"),
        ({"bytes_up": 3}, "'bytes_up': expected a JSON object"),
        ({"parties": "bank"}, "'parties' should be a list of names"),
        ({"seconds": True}, "'seconds' should be a number"),
        ({"exchanges": 10**400}, "'exchanges' should be a number of ordinary size"),
        ({"privacy": {"telco": {}}}, "'epsilon' should be a number, it is missing"),
    ],
)
def test_wrong_values_in_a_summary_are_named(
    tmp_path: Path, changed: Mapping[str, Any], expected: str
) -> None:
    place = run_directory(tmp_path / "run")
    written = json.loads((place / "summary.json").read_text(encoding="utf-8"))
    (place / "summary.json").write_text(json.dumps({**written, **changed}), encoding="utf-8")
    with pytest.raises(StorageError, match=r"summary\.json") as caught:
        read_run(place)
    assert expected in str(caught.value)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=says("nowhere", "directory")):
        write_report(tmp_path / "nowhere")


def test_what_was_not_recorded_is_said(tmp_path: Path) -> None:
    place = run_directory(
        tmp_path / "run",
        privacy={"telco": {"epsilon": None, "delta": None}},
        seconds=None,
        seed=None,
        local_steps={},
        quality={"validation": {"accuracy": None}},
    )
    page = page_of(write_report(place))
    assert page.rows("telco")[2][1].startswith("no guarantee")
    assert page.rows("shop")[2][1] == "not recorded"
    assert page.rows("telco")[0][3] == "not recorded"
    assert page.rows("seed") == [["seed", "not recorded"]]
    assert "not a number accuracy on the validation part" in page.text


def test_protections_are_told_apart(tmp_path: Path) -> None:
    place = run_directory(
        tmp_path / "run",
        protections={"telco": ["perturb", "blind"], "shop": ["blind"]},
    )
    page = page_of(write_report(place))
    assert page.rows("telco")[2][1].startswith("ε = 2.5 at δ = 1e-05; blinded")
    assert page.rows("shop")[2][1].startswith("no ε: blinded")
    packed = run_directory(tmp_path / "packed", protections={"shop": ["top_k"]})
    page = page_of(write_report(packed))
    assert page.rows("shop")[2][1] == "none: embeddings left as 'top_k' makes them, " + (
        "which bounds nothing"
    )


def test_a_refusal_is_told_with_its_reason(tmp_path: Path) -> None:
    reason = "party 'shop' refuses by its policy, rule 'budget'"
    refusal = {"party": "shop", "reason": reason}
    place = run_directory(tmp_path / "run", stopped_by="refused", refusal=refusal)
    page = page_of(write_report(place))
    assert "A party's own rules ended it; the model is that of the last checkpoint" in page.text
    assert f"It said: {reason}." in page.text


def test_label_holder_without_a_block(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run", label_holder="clinic")
    page = page_of(write_report(place))
    assert page.rows("label holder") == [["label holder", "clinic"]]
    assert page.rows("bank")[1][3] == "over its link"
    assert "none: no protection was set" in page.rows("bank")[2][1]


def test_pooling_is_never_called_private(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run", parties=("bank",), method="centralized")
    assert "nothing is private between them" in page_of(write_report(place)).text


def test_same_input_same_page(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run")
    first = write_report(place, tmp_path / "a" / "first.html").read_bytes()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "x"}):
        second = write_report(place, tmp_path / "second.html").read_bytes()
    assert first == second
    code = (
        "from pathlib import Path; from colonnade.report import write_report; "
        f"write_report(Path({str(place)!r}), Path({str(tmp_path / 'third.html')!r}))"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "5"}
    )
    assert first == (tmp_path / "third.html").read_bytes()


def test_drawing_leaves_the_settings_alone(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    write_report(run_directory(tmp_path / "run"))
    assert dict(matplotlib.rcParams) == before


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run")
    out = write_report(place)
    assert sorted(file.name for file in place.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "report.html",
        "summary.json",
    ]
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError, match=says("taken", os.strerror(errno.EISDIR))):
        write_report(place, tmp_path / "taken")
    with pytest.raises(StorageError, match=says("a-file.html", os.strerror(errno.ENOTDIR))):
        write_report(place, out / "below" / "a-file.html")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "taken"]


def test_comparison_holds_rows_and_runs(tmp_path: Path) -> None:
    rows = [
        ComparisonRow(
            name="splitnn",
            summary="one step & exchange",
            quality=0.9652,
            metrics={"accuracy": 0.9652, "f1": 0.9611},
            bytes_total=13_200_000,
            seconds=83.0,
        ),
        ComparisonRow(
            name="alone <bank>",
            summary="one party",
            quality=-0.25,
            metrics={"auc": 0.5},
            bytes_total=0,
            seconds=0.5,
            note="for scale",
        ),
        ComparisonRow(
            name="broken", summary="", quality=math.nan, metrics={}, bytes_total=0, seconds=1.0
        ),
    ]
    runs = {
        "splitnn": run_directory(tmp_path / "one"),
        "other": run_directory(tmp_path / "two", parties=("shop", "aunt"), finished=False),
    }
    out = write_comparison(
        rows,
        title="Side <by> side",
        intro="What & why.",
        out=tmp_path / "out" / "comparison.html",
        quality_name="accuracy",
        runs=runs,
    )
    page = page_of(out)
    assert_self_contained(page)
    assert "Side <by> side" in page.text
    assert "What & why." in page.text
    assert page.rows("splitnn")[0] == [
        *("splitnn", "0.9652", "0.9611", "not recorded", "13.2 MB", "1 min 23 s"),
        *("one step & exchange", ""),
    ]
    assert page.rows("alone <bank>")[0][1:4] == ["-0.25", "not recorded", "0.5"]
    assert page.rows("broken")[0][1] == "not a number"
    assert "#run-1" in page.values("href")
    assert page.tags.count("svg") == 2 + 2 + 8 + 8
    source = out.read_text(encoding="utf-8")
    colours = set(re.findall(r"background:(#\w+)\"></span><bdi>shop", source))
    assert len(colours) == 1
    again = write_comparison(
        rows,
        title="Side <by> side",
        intro="What & why.",
        out=tmp_path / "again.html",
        quality_name="accuracy",
        runs=runs,
    )
    assert again.read_bytes() == out.read_bytes()


def test_comparison_of_nothing(tmp_path: Path) -> None:
    page = page_of(write_comparison([], title="t", intro="i", out=tmp_path / "c.html"))
    assert_self_contained(page)
    assert "nothing to compare" in page.text


def test_long_runs_give_small_pages(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run", num_exchanges=20_000)
    assert write_report(place).stat().st_size < 400_000


def test_chart_of_one_point_and_of_none() -> None:
    for xs, ys in (([], []), ([3.0], [0.5]), ([1.0, 2.0], [math.nan, math.nan])):
        chart = curves_chart(
            [Curve(name="_a", xs=xs, ys=ys)],
            key="k",
            label="l",
            x_label="x",
            y_label="y",
            size="half",
            x_is_seconds=True,
        )
        assert "<svg" in chart
        assert "_a" in chart
    assert ranking_chart([], key="k", label="l", x_label="x", size="wide").startswith("<svg")


def test_smoothed_keeps_level_and_gaps() -> None:
    assert smoothed([2.0] * 200) == [2.0] * 200
    assert smoothed([]) == []
    assert smoothed([1.0, 5.0]) == [1.0, 5.0]
    gaps = smoothed([math.nan, *[1.0] * 100])
    assert math.isnan(gaps[0])
    assert gaps[1:] == [1.0] * 100
    spike = smoothed([*[0.1] * 100, 1e20, *[0.1] * 100])
    assert spike[-1] == pytest.approx(0.1)


def test_thinned_keeps_both_ends() -> None:
    assert thinned(3, 5) == [0, 1, 2]
    places = thinned(1001, 11)
    assert places == [100 * step for step in range(11)]


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999_600, "1 MB"),
        (1_234_567, "1.23 MB"),
        (5e12, "5 TB"),
    ],
)
def test_bytes_in_words(amount: float, said: str) -> None:
    assert format_bytes(amount) == said


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0.0, "0 s"),
        (0.0123, "12.3 ms"),
        (12.34, "12.3 s"),
        (59.96, "1 min 0 s"),
        (200.0, "3 min 20 s"),
        (3599.7, "1 h 0 min"),
        (7500.0, "2 h 5 min"),
        (math.nan, "not recorded"),
    ],
)
def test_seconds_in_words(amount: float, said: str) -> None:
    assert format_seconds(amount) == said


def test_numbers_in_words() -> None:
    assert format_number(0.97123) == "0.9712"
    assert format_number(math.inf) == "not a number"


def test_who_held_the_others_up_is_shown(tmp_path: Path) -> None:
    parties = ("bank", "telco")
    attendance = {
        "late": {"bank": 0, "telco": 4},
        "left_out": {"bank": 0, "telco": 57},
        "starving": ["telco"],
        "held_up_seconds": {"bank": 0.0, "telco": 12.5},
    }
    times = {"training": 10.0, "evaluation": 3.0, "checkpoints": 1.5, "outages": 0.5}
    place = run_directory(tmp_path / "run", parties=parties, attendance=attendance, times=times)
    with (place / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "skipped", "what": "evaluation", "exchange": 9, "waits_for": []}\n')
    page = write_report(place).read_text("utf-8")
    assert "Held up by" in page
    assert "12.5 s" in page
    assert ">57<" in page
    assert page.count("always too late") == 1
    assert "Where the time went" in page
    assert "outages" in page
    assert read_run(place).num_unknown == 0


def test_where_nobody_waited_no_table_says_so(tmp_path: Path) -> None:
    place = run_directory(tmp_path / "run")
    page = write_report(place).read_text("utf-8")
    assert "Held up by" not in page
    assert "Where the time went" not in page
