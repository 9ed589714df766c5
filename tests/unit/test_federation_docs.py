"""The page about federations says what the code does: keys, defaults, reasons, metrics, files."""

from __future__ import annotations

import configparser
import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from colonnade.fabrics.grpc.execution import AgentStatus
from colonnade.federate.certificates import Reason
from colonnade.federate.federation_directory import FederationSettings
from colonnade.federate.party_home import PartySettings
from colonnade.federate.party_service import Service
from colonnade.federate.served_rows import RowsWatched
from membership import SetClock, make_federation

PAGE = (Path(__file__).parents[2] / "docs" / "federation.md").read_text("utf-8")


def rows(after: str) -> list[list[str]]:
    """The rows of the first table after some words."""
    table = re.search(r"((?:^\|.*\n)+)", PAGE[PAGE.index(after) :], re.M)
    assert table is not None
    return [row.strip("| ").split(" | ") for row in table[1].splitlines()[2:]]


@pytest.mark.parametrize(
    ("after", "cls"),
    [("\n`federation.toml`:", FederationSettings), ("\n`party.toml`:", PartySettings)],
)
def test_every_key_with_its_default(after: str, cls: type) -> None:
    documented = {name: row[1] for row in rows(after) for name in re.findall(r"`(\w+)`", row[0])}
    fields = {field.name: field.default for field in dataclasses.fields(cls)}
    assert documented.keys() == fields.keys()
    for name, default in fields.items():
        if cls is PartySettings and name in ("link", "own", "features"):
            assert documented[name] == "table"
            continue
        shown = {dataclasses.MISSING: "required", None: "none"}.get(default)
        if shown is None:
            shown = f'`"{default}"`' if isinstance(default, str) else f"`{json.dumps(default)}`"
        assert documented[name] == shown, name


def test_every_reason() -> None:
    listed = " ".join(row[0] for row in rows("## Refusals"))
    short = {reason.removeprefix("invitation ") for reason in Reason} - {Reason.UNREADABLE}
    assert [reason for reason in sorted(short) if reason not in listed] == []


def test_every_metric() -> None:
    service = Service(AgentStatus, stop=lambda: None)
    service.expiry = 0.0
    service.watched = RowsWatched()
    service.watched.inputs.see(torch.zeros(100, 1))
    collected = {sample.name for family in service.collect() for sample in family.samples}
    assert set(re.findall(r"`(colonnade_\w+)`", PAGE)) == collected


def test_every_file_of_a_federation(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "fed", SetClock())
    listed = {
        name for row in rows("At the label holder, in") for name in re.findall("`(.*?)`", row[0])
    }
    assert listed == {path.name for path in federation.directory.iterdir()}
    for name, *_, secret in rows("At the label holder, in"):
        mode = (federation.directory / name.strip("`")).stat().st_mode & 0o777
        assert (mode == 0o600) == (secret == "yes"), name


def test_the_unit_can_be_read() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    found = re.search(r"```ini\n(.*?)```", PAGE, re.S)
    assert found is not None
    unit.read_string(found[1])
    assert unit["Service"]["ExecStart"].split()[1:3] == ["party", "run"]
    assert "HUP" in unit["Service"]["ExecReload"]
