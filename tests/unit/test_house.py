"""The house itself: short files, one meaning a name, protections known by their interface only."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import colonnade
from colonnade.protect import PROTECTIONS

SOURCE = Path(colonnade.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MOST_LINES = 400


def test_no_file_is_long() -> None:
    lengths = {str(file.relative_to(SOURCE)): len(file.read_text().splitlines()) for file in FILES}
    assert not {file: length for file, length in lengths.items() if length > MOST_LINES}


def test_no_two_modules_of_one_name_mean_different_things() -> None:
    """A command is named like the thing that it is for, a face like what it shows."""
    homes = defaultdict(list)
    for file in FILES:
        place = file.relative_to(SOURCE)
        if file.name != "__init__.py" and place.parts[0] != "cli" and len(place.parts) > 1:
            homes[file.name].append(str(place))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_no_two_classes_have_one_name() -> None:
    """The report's records are named like what they record."""
    homes = defaultdict(list)
    for file in (item for item in FILES if item.parent.name != "report"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(file.relative_to(SOURCE)))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_nobody_asks_which_protection_it_is() -> None:
    kinds = {item.__name__ for item in PROTECTIONS.values()}
    kinds |= {base.__name__ for item in PROTECTIONS.values() for base in item.__mro__[1:-2]}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                named = {item.id for item in ast.walk(node.args[1]) if isinstance(item, ast.Name)}
                assert not named & kinds, (file.relative_to(SOURCE), node.lineno)


def test_no_protection_reaches_inside_a_network() -> None:
    for file in SOURCE.glob("protect/*.py"):
        assert "forward_hook" not in file.read_text(), file.name
        assert "forward_pre_hook" not in file.read_text(), file.name
