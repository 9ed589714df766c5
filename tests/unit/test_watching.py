"""``train --live`` says where its page is, before it trains; ``watch`` wants a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.cli.watch import live_page
from colonnade.core.errors import StorageError
from live_runs import PARTIES, lines_of, trained_run


def test_train_live_serves_a_page_and_ends_with_it(tmp_path: Path) -> None:
    trained_run(tmp_path)
    tables = "".join(f'[party.{name}]\nfile = "{name}.csv"\nid = "id"\n' for name in PARTIES)
    config = tmp_path / "short.toml"
    config.write_text(
        f'[label_holder]\nname = "bank"\nlabel = "late"\n[stop]\nepochs = 1\n{tables}'
    )
    run = tmp_path / "short"
    said = CliRunner().invoke(
        app, ["train", str(config), "--out", str(run), "--live", "--no-alone"]
    )
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("live page: http://127.0.0.1:")
    assert lines_of(run, "start", "timeline.jsonl")[0]["exchanges"] == 7


def test_watch_refuses_what_is_no_directory(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["watch", str(tmp_path / "nowhere")])
    assert isinstance(found.exception, StorageError)


def test_no_page_unless_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live_page(tmp_path, wanted=False):
        pass
    assert capsys.readouterr().out == ""
