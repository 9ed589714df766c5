"""``make release-check``: build the wheel and the sdist, and use them as somebody else would.

For every interpreter and every extra a fresh environment is made outside the checkout, the wheel is
installed in it, and a short program trains, predicts, lists methods and finds the experiments. The
sdist is installed once. The newest torch beyond the upper bound in pyproject.toml is installed in
one more environment, to see whether the bound can be raised.

A torch that brings CUDA has gigabytes: an interpreter for which there is no other torch is skipped,
and so is a newest torch with CUDA, unless ``--cuda`` is given. Whatever is skipped is said, with
the reason. What was done goes to a JSON file. Downloads hundreds of megabytes for each environment;
an hour on two cores.
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
from collections.abc import Mapping
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


def resolved(python: Path, requirement: str, place: Path) -> dict[str, str]:
    """The packages that an installation would bring, with their versions; nothing is installed.

    Raises:
        LookupError: If pip finds no such release for this interpreter, with pip's last line.
    """
    report = place / "resolved.json"
    asked = [python, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"]
    asked += ["--only-binary", ":all:", "--report", report, requirement]
    done = subprocess.run([str(part) for part in asked], cwd=place, capture_output=True, text=True)
    if done.returncode != 0:
        raise LookupError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    found = [item["metadata"] for item in json.loads(report.read_text("utf-8"))["install"]]
    return {item["name"].lower(): item["version"] for item in found}


def unfit(brought: Mapping[str, str], *, cuda: bool) -> str | None:
    """Why these packages are not installed; None if they are."""
    heavy = [name for name in brought if name.startswith(("nvidia-", "cuda-"))]
    if cuda or not heavy:
        return None
    return f"torch {brought['torch']} comes only with CUDA ({len(heavy)} packages); see --cuda"


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


def fitting(
    pythons: Mapping[str, Path], place: Path, *, cuda: bool
) -> tuple[dict[str, Path], dict[str, str]]:
    """The interpreters whose torch is installable, and why the others are skipped, by version."""
    (bounded,) = [item for item in PROJECT["dependencies"] if re.match(r"torch\b", item)]
    kept, skipped = {}, {}
    for version, path in pythons.items():
        try:
            why = unfit(resolved(path, bounded, place), cuda=cuda)
        except LookupError as error:
            why = str(error)
        if why is None:
            kept[version] = path
        else:
            skipped[version] = why
    return kept, skipped


def beyond_the_bound(python: Path, wheel: Path, place: Path, asked: str | None, cuda: bool) -> str:
    """Install a torch in spite of the bound, the newest unless one is asked for; train with it.

    Returns:
        What was found, in words.
    """
    try:
        brought = resolved(python, f"torch=={asked}" if asked else "torch", place)
    except LookupError as error:
        return f"not tried: {error}"
    why = unfit(brought, cuda=cuda or asked is not None)
    if why is not None:
        return f"not tried: {why}"
    with tempfile.TemporaryDirectory(dir=place) as inner:
        own = fresh(python, Path(inner) / "venv")
        install(own, f"torch=={brought['torch']}", cwd=place)
        others = [item for item in PROJECT["dependencies"] if not re.match(r"torch\b", item)]
        install(own, *others, cwd=place)
        install(own, "--no-deps", wheel, cwd=place)
        run(own, "-c", SMOKE, cwd=place)
    return f"{brought['torch']} installs, trains and predicts"


def main() -> None:
    """Build, install, use, and write down what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/release.json"))
    parser.add_argument("--quick", action="store_true", help="one interpreter, no extras, no sdist")
    parser.add_argument("--torch", help="beyond the bound, try this version and not the newest")
    parser.add_argument("--cuda", action="store_true", help="also a torch that brings CUDA")
    parser.add_argument("--python", action="append", choices=VERSIONS, help="only this version")
    options = parser.parse_args()
    pythons = interpreters()
    wanted = options.python or VERSIONS
    skipped = {version: "no interpreter here" for version in VERSIONS if version not in pythons}
    skipped |= {version: "not asked for" for version in VERSIONS if version not in wanted}
    pythons = {version: path for version, path in pythons.items() if version not in skipped}
    report: dict[str, object] = {"version": PROJECT["version"]}
    installed: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="release") as name:
        place = Path(name)
        pythons, without = fitting(pythons, place, cuda=options.cuda)
        skipped |= without
        for version, why in skipped.items():
            print(f"release-check: Python {version} is not checked: {why}", flush=True)
        if not pythons:
            sys.exit("release-check: no interpreter is left")
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
        newest = beyond_the_bound(pythons[first], wheel, place, options.torch, options.cuda)
        print(f"release-check: torch beyond the bound: {newest}")
    report |= {"skipped": skipped, "installed": installed, "torch beyond the bound": newest}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"release-check: {len(installed)} environments work")


if __name__ == "__main__":
    main()
