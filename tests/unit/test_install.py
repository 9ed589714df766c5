"""The README names both commands of a fresh machine; installing brings what its commands import."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# Only what `colonnade bench align` compares with; the command names the extra that has it.
COMPARED_WITH = "private_set_intersection"


def readme_commands() -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


def test_the_readme_names_both_commands_and_the_makefile_has_them() -> None:
    commands = readme_commands()
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.M))
    for target in ("demo", "test", "install"):
        assert f"make {target}" in commands
        assert target in targets


def requirements(extras: list[str]) -> set[str]:
    """Names of everything that the project and these extras require."""
    found: set[str] = set()
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in extras)]
    for item in (item for some in lists for item in some):
        name, inner = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", item).groups()  # type: ignore[union-attr]
        found |= requirements(inner.split(",")) if name == "colonnade" else {name}
    return {name.lower().replace("_", "-") for name in found}


def imported() -> dict[str, str]:
    """Every module from outside that the source imports, and one file that does."""
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [item.name for item in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "needed":
                names = [item.value for item in node.args[:1] if isinstance(item, ast.Constant)]
            found |= {str(name).partition(".")[0]: str(path) for name in names}
    own = {*sys.stdlib_module_names, "colonnade", COMPARED_WITH}
    return {name: path for name, path in found.items() if name not in own}


def test_make_install_brings_what_the_source_imports() -> None:
    (extras,) = re.findall(
        r"^\t\$\(PIP\) install -e '\.\[([\w,]+)\]'\n\ttouch \$@$", MAKEFILE, re.M
    )[:1]
    assert extras != "dev"
    there = requirements(extras.split(","))
    distributions = packages_distributions()
    modules = imported()
    assert {"torch", "grpc", "rbcl", "dp_accounting", "cryptography"} <= modules.keys()
    for module, path in modules.items():
        names = {name.lower().replace("_", "-") for name in distributions[module]}
        assert names & there, f"{path} imports {module}"
    # A federation's commands align and protect as well.
    assert requirements(["align", "protect"]) <= requirements(["network"])
