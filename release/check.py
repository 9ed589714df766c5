"""``make release-check``: build the wheel and the sdist, and use them as somebody else would.

For every interpreter and every extra a fresh environment is made outside the checkout, the wheel is
installed in it, and a short program trains, predicts, lists methods and finds the experiments. The
sdist is installed once. With ``--torch VERSION`` one environment gets that torch in spite of the
upper bound in pyproject.toml, to see whether the bound can be raised. What was done goes to a JSON
file. Downloads hundreds of megabytes for each environment; an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
# Those that an installation is for; the rest is for work on a checkout.
EXTRAS = tuple(sorted(PROJECT["optional-dependencies"].keys() - {"dev", "docs", "release"}))

SMOKE = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("error")
import numpy, pandas, colonnade
assert str(Path(colonnade.__file__)).startswith(sys.prefix), colonnade.__file__
draw = numpy.random.default_rng(0)
table = pandas.DataFrame(draw.normal(size=(80, 4)), columns=list("abcd"),
                         index=[f"s{n}" for n in range(80)])
label = (table["a"] + table["c"] > 0).astype(int).rename("yes")
blocks = {"one": table[["a", "b"]], "two": table[["c", "d"]]}
result = colonnade.fit(blocks, label, label_holder="one", epochs=2, task="binary")
assert len(result.predict(blocks)) == 80
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; its output, or an end with its error.

    Raises:
        SystemExit: If the command fails.
    """
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"release-check: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def interpreters() -> dict[str, Path]:
    """Every supported Python on this machine, by version; pyenv's are found too."""
    found = {}
    for version in VERSIONS:
        candidates = [shutil.which(f"python{version}"), *sorted(
            (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
        )]  # fmt: skip
        for candidate in filter(None, candidates):
            asked = [str(candidate), "-c", "import sys, venv; print(sys.version_info[:2])"]
            said = subprocess.run(asked, capture_output=True, text=True)
            if said.stdout.strip() == f"({version.replace('.', ', ')})":
                found[version] = Path(candidate)
                break
    return found


def fresh(python: Path, place: Path) -> Path:
    """A new environment; gives its python."""
    run(python, "-m", "venv", place, cwd=place.parent)
    return place / "bin" / "python"


def install(python: Path, *what: str | Path, cwd: Path) -> None:
    """Install into an environment that is used once: compiling every module would cost more."""
    run(python, "-m", "pip", "install", "-q", "--no-compile", *what, cwd=cwd)


def smoke(python: Path, place: Path) -> None:
    """Use what was installed, outside the checkout."""
    run(python, "-m", "pip", "check", cwd=place)
    run(python, "-c", SMOKE, cwd=place)
    command = python.with_name("colonnade")
    assert PROJECT["version"] in run(command, "--version", cwd=place)
    assert "splitnn" in run(command, "methods", "--json", cwd=place)
    found = subprocess.run(
        [str(command), "reproduce", "no-such-table"], cwd=place, capture_output=True, text=True
    )
    assert "experiment 'no-such-table': unknown" in found.stderr, found.stderr


def main() -> None:
    """Build, install, use, and write down what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/release.json"))
    parser.add_argument("--quick", action="store_true", help="one interpreter, no extras, no sdist")
    parser.add_argument("--torch", help="try this version of torch, whatever the bound says")
    parser.add_argument("--python", action="append", choices=VERSIONS, help="only this version")
    options = parser.parse_args()
    pythons = interpreters()
    missing = [version for version in VERSIONS if version not in pythons]
    left_out = [version for version in pythons if version not in (options.python or VERSIONS)]
    pythons = {version: path for version, path in pythons.items() if version not in left_out}
    if not pythons:
        sys.exit(f"release-check: none of {', '.join(options.python or VERSIONS)} is here")
    report: dict[str, object] = {
        "version": PROJECT["version"],
        "not here": missing,
        "left out": left_out,
        "installed": [],
    }
    installed: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="release") as name:
        place = Path(name)
        run(sys.executable, "-m", "build", "--outdir", place / "dist", ROOT, cwd=place)
        (wheel,), (sdist,) = (list((place / "dist").glob(end)) for end in ("*.whl", "*.tar.gz"))
        report["files"] = {file.name: file.stat().st_size for file in (wheel, sdist)}
        first = next(iter(pythons))
        cases = [(version, wheel, "") for version in pythons]
        if options.quick:
            cases = cases[:1]
        else:
            cases += [(first, wheel, extra) for extra in EXTRAS] + [(first, sdist, "")]
        for version, file, extra in cases:
            target = f"{file}[{extra}]" if extra else str(file)
            print(
                f"release-check: Python {version}, {file.name}, extra {extra or 'none'}", flush=True
            )
            with tempfile.TemporaryDirectory(dir=place) as inner:
                python = fresh(pythons[version], Path(inner) / "venv")
                install(python, target, cwd=place)
                smoke(python, Path(inner))
                torch = run(python, "-c", "import torch; print(torch.__version__)", cwd=place)
            row = {"python": version, "file": file.name, "extra": extra, "torch": torch.strip()}
            installed.append(row)
        if options.torch:
            with tempfile.TemporaryDirectory(dir=place) as inner:
                python = fresh(pythons[first], Path(inner) / "venv")
                install(python, f"torch=={options.torch}", cwd=place)
                others = [
                    item for item in PROJECT["dependencies"] if not re.match(r"torch\b", item)
                ]
                install(python, *others, cwd=place)
                install(python, "--no-deps", wheel, cwd=place)
                run(python, "-c", SMOKE, cwd=place)
            report["torch beyond the bound"] = options.torch
    report["installed"] = installed
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"release-check: {len(installed)} environments work")
    for why, versions in (("not here", missing), ("left out", left_out)):
        if versions:
            print(f"release-check: Python {', '.join(versions)}: {why}, not checked")


if __name__ == "__main__":
    main()
