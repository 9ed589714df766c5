"""``make lock``: write the versions of this development environment to release/constraints.txt.

The file pins every package that the extras for work on a checkout need, with what those need. It
names no registry, so it works with any: ``pip install -c release/constraints.txt -e '.[dev]'``.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TARGET = Path(__file__).with_name("constraints.txt")
PROJECT = Path(__file__).parents[1] / "pyproject.toml"
EXTRAS = ("dev", "docs", "release", "bench")


def closure() -> dict[str, str]:
    """Every package that is needed, with the version that is installed.

    Raises:
        SystemExit: If one is not installed.
    """
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [("colonnade", extra) for extra in ("", *EXTRAS)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name == "colonnade":
            waiting += [part for line in _own(extra) for part in _parts(Requirement(line))]
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            sys.exit(
                f"lock: {name} is not installed; first: pip install -e '.[{','.join(EXTRAS)}]'"
            )
        found[name] = package.version
        for line in package.requires or ():
            item = Requirement(line)
            if item.marker is None or item.marker.evaluate({"extra": extra}):
                waiting += _parts(item)
    return found


def _own(extra: str) -> list[str]:
    """What this checkout needs; the metadata of an earlier install may lack some of it."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    own: list[str] = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return own


def _parts(item: Requirement) -> list[tuple[str, str]]:
    return [(canonicalize_name(item.name), part) for part in ("", *item.extras)]


def main() -> None:
    """Write the file."""
    # A build's label (torch's +cpu) is the registry's business.
    pins = {name: re.sub(r"\+.*", "", version) for name, version in closure().items()}
    python = ".".join(map(str, sys.version_info[:2]))
    lines = [f"# Written by `make lock`, with Python {python} on {sys.platform}."]
    lines += [f"{name}=={version}" for name, version in sorted(pins.items())]
    TARGET.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
