"""The docs say what the code does: keys and defaults, methods, data sets, links, commands."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from colonnade.cli.main import app
from colonnade.core import errors
from colonnade.core.config import dump
from colonnade.core.fabric import Fabric
from colonnade.core.optimizers import OPTIMIZERS
from colonnade.core.own_code import OwnCode
from colonnade.data.datasets import DATASETS, TRACES
from colonnade.fabrics.grpc.frames import VERSION
from colonnade.federate.party_limits import Limits
from colonnade.federate.party_policy import PartyPolicy
from colonnade.methods import METHODS
from colonnade.protect.policy import Policy
from colonnade.run.spec import CHOICES, RunSpec, parse_spec

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG"))])
PAGES.append(ROOT / "CONTRIBUTING.md")
METHOD_PAGES = {
    name: DOCS / "methods" / f"{method.__module__.rpartition('.')[2]}.md"
    for name, method in METHODS.items()
}
NOTHING: Any = object()

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


# Every setting, its default, and nothing else.


def settings_classes() -> Iterator[type]:
    """Every dataclass that a run's TOML file may fill."""
    waiting: list[Any] = [RunSpec]
    seen: set[type] = set()
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if kind in CHOICES:
            waiting += CHOICES[kind].options.values()
        elif dataclasses.is_dataclass(kind) and kind not in seen:
            seen.add(typing.cast(type, kind))
            hints = typing.get_type_hints(kind)
            if OwnCode in (kind, *hints.values()):
                continue  # functions of a caller's own: no key of a file
            waiting += [hints[field.name] for field in dataclasses.fields(kind)]
            if dataclasses.fields(kind):
                yield typing.cast(type, kind)


@cache
def documented_keys() -> dict[str, dict[str, str]]:
    """By class: each documented key and what the page gives as its default."""
    found: dict[str, dict[str, str]] = {}
    for page in [DOCS / "configuration.md", *sorted((DOCS / "methods").glob("*.md"))]:
        pieces = re.split(r"^<!-- keys: (.*?) -->$", page.read_text("utf-8"), flags=re.M)
        for names, text in zip(pieces[1::2], pieces[2::2], strict=True):
            table = re.match(r"\s*((?:\|.*\n)+)", text)
            assert table, f"{page.name}: no table after the keys of {names}"
            rows = [row.strip("| ").split(" | ") for row in table[1].splitlines()[2:]]
            for name in names.split():
                assert name not in found, f"{page.name}: {name} is documented twice"
                found[name] = {row[0].strip("`"): row[2] for row in rows}
    return found


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return NOTHING


def shown_default(value: Any) -> set[str]:
    """How a page may write a default."""
    if value is NOTHING:
        return {"required"}
    if value is None:
        return {"none"}
    plain = dump(value, choices=CHOICES)
    if isinstance(plain, list) and any(isinstance(item, dict) for item in plain):
        return {"list of tables"}
    if not dataclasses.is_dataclass(value):
        return {_toml(plain)}
    shown = {"table"}
    for choice in CHOICES.values():
        tag = next((name for name, item in choice.options.items() if type(value) is item), None)
        if tag is not None and value == choice.options[tag]():
            shown = {_toml(tag)}
        if tag is not None and choice.number is not None and tag == choice.number[0]:
            shown = {_toml(plain[choice.number[1]])}
    return shown


def _toml(plain: Any) -> str:
    if isinstance(plain, bool):
        return f"`{str(plain).lower()}`"
    if isinstance(plain, str):
        return f'`"{plain}"`'
    return f"`{plain}`"


@pytest.mark.parametrize("cls", list(settings_classes()), ids=lambda cls: cls.__name__)
def test_every_key_is_documented_with_its_default(cls: type) -> None:
    documented = documented_keys().get(cls.__name__)
    assert documented is not None, f"no table '<!-- keys: {cls.__name__} -->' in the docs"
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    assert documented.keys() == fields.keys()
    for name, field in fields.items():
        assert documented[name] in shown_default(default_of(field)), name


def test_no_key_is_documented_that_does_not_exist() -> None:
    assert documented_keys().keys() == {cls.__name__ for cls in settings_classes()}


def test_every_choice_by_name_is_mentioned() -> None:
    text = (DOCS / "configuration.md").read_text("utf-8")
    names = {name for choice in CHOICES.values() for name in choice.options} - METHODS.keys()
    absent = [name for name in sorted(names | OPTIMIZERS.keys()) if f"`{name}`" not in text]
    assert not [name for name in absent if f'`"{name}"`' not in text]


@by_name
def test_every_toml_example_is_a_valid_configuration(page: Path) -> None:
    for block in code_blocks(page, "toml"):
        spec = parse_spec(tomllib.loads(block))
        assert spec.data.dataset is None or spec.data.dataset in DATASETS


# Methods, data sets, errors, fields of a summary.


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name: str) -> None:
    page = METHOD_PAGES[name]
    assert page.is_file(), f"method '{name}' needs {page.relative_to(ROOT)}"
    text = page.read_text("utf-8")
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert {"Who learns what", "Departures", "Settings"} <= set(headings)
    assert f"`{name}`" in text or f'"{name}"' in text
    assert "## Messages" in text
    assert f"(methods/{page.name})" in (DOCS / "choose-a-method.md").read_text("utf-8")


def test_the_table_of_methods_says_what_they_say_of_themselves() -> None:
    text = (DOCS / "choose-a-method.md").read_text("utf-8")
    table = text.split("<!-- methods -->")[1].split("\n\n")[1].splitlines()[2:]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table]
    shown = {re.findall(r"`(\w+)`", row[0])[0]: (row[2], row[3]) for row in rows}
    words = {True: "yes", False: "no"}
    assert shown == {
        name: (words[method.info.tolerates_slow], words[method.info.tolerates_missing])
        for name, method in METHODS.items()
    }


def test_the_table_of_data_sets_is_that_of_the_registry() -> None:
    expected = [
        f"| `{entry.name}` | {entry.task} | {entry.num_samples} | {', '.join(entry.parties)} | "
        f"{entry.label_holder} | {'files' if entry.needs_files else 'built in'} | {entry.summary} |"
        for entry in DATASETS.values()
    ]
    text = (DOCS / "datasets.md").read_text("utf-8")
    table = text.split("<!-- data sets")[1].split("\n\n")[1].splitlines()
    assert table[2:] == expected
    for entry in DATASETS.values():
        assert entry.source in text
    for trace in TRACES.values():
        assert f"| `{trace.name}` | {trace.num_machines} | {trace.num_steps} |" in text


def test_every_rule_of_a_policy_is_in_a_table() -> None:
    of_all = {field.name for field in dataclasses.fields(Policy)}
    of_agents = {field.name for field in dataclasses.fields(PartyPolicy)} - of_all
    for page, names in (("protection.md", of_all), ("network.md", of_agents)):
        section = (DOCS / page).read_text("utf-8").partition("\n## Polic")[2].partition("\n## ")[0]
        first = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section, re.M)
        assert names <= {name for cell in first for name in re.findall(r"\w+", cell)}, page


def test_the_limits_of_an_agent_are_in_a_table_with_their_defaults() -> None:
    text = (DOCS / "network.md").read_text("utf-8")
    found = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (`\d+`(?:, `\d+`)*) \|", text, re.M)
    shown = {}
    for names, values in found:
        pairs = zip(re.findall(r"\w+", names), re.findall(r"\d+", values), strict=True)
        shown |= {name: int(value) for name, value in pairs}
    assert vars(Limits()).items() <= shown.items()


def test_the_frame_that_is_documented_is_the_one_that_is_spoken() -> None:
    assert f"| 1 | version, {VERSION};" in (DOCS / "network.md").read_text("utf-8")


def test_every_error_is_explained() -> None:
    text = (DOCS / "errors.md").read_text("utf-8")
    assert [name for name in errors.__all__ if name not in text] == []


def test_the_summary_has_the_documented_fields(tmp_path: Path) -> None:
    from colonnade.run.engine import train

    small = {"data": {"dataset": "wine"}, "stop": {"exchanges": 1}}
    fields = train(parse_spec(small)).summary.keys()
    text = (DOCS / "run-directory.md").read_text("utf-8")
    table = text.split("<!-- fields of summary.json -->")[1].split("\n\n")[1].splitlines()[2:]
    assert {name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])} == fields


# Links, paths, commands.


@by_name
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.is_file(), f"{target} in {page.name}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.M)
            assert anchor in {slug(heading) for heading in headings}, f"{target} in {page.name}"


def slug(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


@by_name
def test_no_path_of_some_machine(page: Path) -> None:
    found = re.findall(
        r"(?<![\w.`~-])/(?:home|root|work|Users|opt|tmp|mnt|srv)/\S*", page.read_text("utf-8")
    )
    assert found == []


def test_the_layers_are_those_that_are_checked() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = [item["layers"] for item in linter["contracts"] if item["type"] == "layers"]
    shown = "\n".join(layers).replace("colonnade.", "") + "\n"
    places = ("CONTRIBUTING.md", "docs/decisions/0002-layers.md", "docs/architecture.md")
    assert [page for page in places if shown not in code_blocks(ROOT / page, "text")] == []


def test_every_package_is_on_the_map() -> None:
    section = (DOCS / "architecture.md").read_text("utf-8").partition("\n## One exchange")[0]
    source = ROOT / "src" / "colonnade"
    packages = {item.stem for item in source.iterdir() if item.suffix == ".py" or item.is_dir()}
    listed = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert sorted(listed) == sorted(name for name in packages if not name.startswith("__"))


def test_a_fabric_must_have_as_much_as_its_decision_says() -> None:
    page = (DOCS / "decisions" / "0004-a-fabric-is-small.md").read_text("utf-8")
    needed = page.partition("must have four things.")[2].partition("Everything else")[0]
    assert set(re.findall(r"`(\w+)`", needed)) == Fabric.__abstractmethods__


def test_the_paths_on_the_map_exist() -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    source = ROOT / "src" / "colonnade"
    paths = re.findall(
        r"\b(?:core|parts|methods|fabrics|run|federate|models|data|cli)/[\w/]*\.py", page
    )
    named = [path for path in paths if "NAME" not in path]
    assert [path for path in named if not (source / path).is_file()] == []


def test_every_page_is_in_the_navigation() -> None:
    """Lists of pages are the blocks ``{toctree}`` of the pages above them."""
    listed = ["index.md"]
    for page in DOCS.rglob("*.md"):
        for block in code_blocks(page, r"\{toctree\}"):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            found = [path for entry in entries for path in page.parent.glob(f"{entry}.md")]
            assert len(found) >= len(entries), f"{page.name} lists a page that is not there"
            listed += [str(path.relative_to(DOCS)) for path in found]
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(pages), "add new pages to a {toctree}, once"


def commands() -> set[str]:
    """Every command as it is typed, those of a group with the group's name."""
    found = {str(command.name) for command in app.registered_commands}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        inner = group.typer_instance.registered_commands
        found |= {f"{group.name} {command.name}" for command in inner}
    return found


def test_the_readme_trains_between_organisations_as_the_walk_does() -> None:
    """The walk is executed (tests/e2e/test_predictions_walk.py); the README shows its commands."""
    walk = (DOCS / "predictions.md").read_text("utf-8").split("## A walk")[1].split("\n## ")[0]
    commands = re.findall(r"^colonnade .*$", walk, re.M)
    assert len(commands) > 5
    shown = re.findall(r"^colonnade .*$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert [line for line in shown if line.split()[1] in ("federation", "party")] == commands


@by_name
def test_commands_in_examples_exist(page: Path) -> None:
    groups = {group.name for group in app.registered_groups}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    for block in code_blocks(page, "bash"):
        for first, second in re.findall(r"^(?:\S*/)?colonnade (\w+)(?: (\w+))?", block, re.M):
            assert (f"{first} {second}" if first in groups else first) in commands()
        assert set(re.findall(r"^make ([\w-]+)", block, re.M)) <= targets


# Examples in Python run as they stand, one block after the other.


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize(
    "name", ["README.md", "docs/index.md", "docs/python-api.md", "docs/own-method.md"]
)
def test_python_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    for block in code_blocks(ROOT / name, "python"):
        exec(compile(block, name, "exec", dont_inherit=True), names)
    assert "splitnn" in capsys.readouterr().out
