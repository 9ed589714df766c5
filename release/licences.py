"""``make licences``: the licence of every package in this environment, and a no to unknown ones.

Reads the metadata that packages bring (PEP 639's expression, else classifiers, else the text).
A package whose licence has none of the names below ends the command with exit code 1.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from importlib.metadata import Distribution, distributions

# Words that name licences under which Colonnade (Apache-2.0) can be used together with a package.
FINE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|Unlicense|HPND|CC0|Zlib|"
    r"0BSD|LGPL|Historical Permission|CMU License|Intel|BSL-1.0|PostgreSQL)",
    re.IGNORECASE,
)


def licence(package: Distribution) -> str:
    """A package's licence, in its own words."""
    found = package.metadata.get("License-Expression")
    if found:
        return found
    classifiers = package.metadata.get_all("Classifier") or []
    named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    named = [name for name in named if name != "OSI Approved"]
    if named:
        return " AND ".join(sorted(named))
    files = [file for file in package.files or () if file.name.upper().startswith("LICEN")]
    texts = [package.metadata.get("License") or "", *(file.read_text() for file in files)]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    return lines[0][:60] if lines else "unknown"


def main() -> int:
    """Print a table, licence by licence."""
    by_licence: dict[str, set[str]] = defaultdict(set)
    for package in distributions():
        name = package.metadata["Name"]
        if name and name.lower() != "colonnade":
            by_licence[licence(package)].add(f"{name} {package.version}")
    doubtful = [name for name in by_licence if not FINE.search(name)]
    for name in sorted(by_licence):
        mark = "?" if name in doubtful else " "
        print(f"{mark} {name}: {', '.join(sorted(by_licence[name], key=str.lower))}")
    if doubtful:
        print(f"look at these by hand: {', '.join(sorted(doubtful))}", file=sys.stderr)
    return 1 if doubtful else 0


if __name__ == "__main__":
    sys.exit(main())
