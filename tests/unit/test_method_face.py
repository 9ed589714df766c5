"""``colonnade.method``: one import for people who write methods, and nothing of its own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import colonnade.method as face

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "colonnade"


def imported_from(file: Path) -> set[str]:
    """The modules that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
    return found


def test_its_list_is_exact_and_nothing_in_it_is_its_own() -> None:
    tree = ast.parse((SOURCE / "method.py").read_text("utf-8"))
    docstring, *imports, listed = tree.body
    assert all(isinstance(item, ast.ImportFrom) for item in imports)
    names = {
        alias.asname or alias.name
        for item in imports
        if isinstance(item, ast.ImportFrom) and item.module != "__future__"
        for alias in item.names
    }
    assert sorted(names) == sorted(face.__all__)
    assert isinstance(docstring, ast.Expr)
    assert isinstance(listed, ast.Assign)


def test_nothing_in_the_package_imports_from_it() -> None:
    users = [
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        if "colonnade.method" in imported_from(file)
    ]
    assert users == []


def test_every_method_of_the_house_could_be_written_with_it() -> None:
    """What two or more methods import from core is in it."""
    users: dict[str, set[str]] = {}
    for file in (SOURCE / "methods").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("colonnade.core"):
                for alias in node.names:
                    users.setdefault(alias.name, set()).add(file.name)
    shared = {name for name, files in users.items() if len(files) > 1}
    assert sorted(shared - set(face.__all__)) == []


def test_the_page_on_own_methods_needs_no_other_import() -> None:
    page = (ROOT / "docs" / "own-method.md").read_text("utf-8")
    assert set(re.findall(r"^from (colonnade[\w.]*) import", page, re.M)) == {"colonnade.method"}
