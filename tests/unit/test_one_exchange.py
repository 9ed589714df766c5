"""One exchange in process is short enough to be read: so many files, and no more."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

import colonnade
from colonnade.core.federation import Federation
from colonnade.core.messages import Batch
from colonnade.run.fitting import fit_blueprint
from colonnade.run.samples import arrange
from colonnade.run.sources import load_sources
from colonnade.run.spec import parse_spec

SOURCE = Path(colonnade.__file__).parent
MOST = 10


def make_federation() -> Federation:
    """An unprotected SplitNN federation, as a run makes it."""
    spec = parse_spec({"data": {"dataset": "wine"}, "stop": {"epochs": 1}})
    sources = load_sources(spec)
    arrangement = arrange(spec, sources)
    blueprint = fit_blueprint(spec, sources, arrangement)
    return blueprint.build(blueprint.training_data(arrangement))


def files_of_one_exchange(federation: Federation, number: int) -> list[str]:
    """The files of Colonnade whose functions run, in the order in which they are first entered."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCE):
            found[str(file.relative_to(SOURCE))] = None

    batch = Batch("train", number)
    sys.setprofile(note)
    try:
        federation.fabric.run(
            federation.method.exchange(federation.holder, federation.parties, batch)
        )
    finally:
        sys.setprofile(None)
    return list(found)


@pytest.fixture(scope="module")
def walked() -> list[str]:
    """Of the second exchange: the first one also draws the order of its epoch."""
    federation = make_federation()
    files_of_one_exchange(federation, 0)
    return files_of_one_exchange(federation, 1)


def test_an_exchange_of_splitnn_walks_through_few_files(walked: list[str]) -> None:
    assert len(walked) <= MOST, walked


def test_the_page_on_architecture_lists_them_in_order(walked: list[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
    listed = page.partition("<!-- files of one exchange -->")[2].split("```")[1]
    assert listed.splitlines()[1:] == walked
