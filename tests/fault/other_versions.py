"""``make compatibility``: agents of other versions, each from a wheel of its own, at today's hub.

Every wheel is installed without dependencies into an environment of its own, which shares those of
this one. The party joins by an invitation and runs its agent, as users do; what happens has to be
what docs/compatibility.md says: equal frames train together, other frames are refused.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colonnade.fabrics.grpc.frames import RELEASE, VERSION
from colonnade.fabrics.grpc.hub import Hub
from colonnade.federate.federation_directory import FederationDirectory, FederationSettings
from colonnade.federate.invitations import invite
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.training import train_over
from colonnade.run.spec import read_spec
from e2e.organisations import free_port

ROOT = Path(__file__).parents[2]
# The last revision whose frames have another version, and which is part of every copy's history.
EARLIER = "fc54316664"
FRAMES = Path("src/colonnade/fabrics/grpc/frames.py")
SECONDS = 180.0
# Nobody finds this revision's sources in place of a wheel's.
ENVIRONMENT = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
CONFIG = """
seed = 1
method = "splitnn"
align = { salt = "0123456789abcdef-of-tests" }
label_holder = { name = "bank", label = "owes", file = "bank.csv", id = "id" }
data = { batch_size = 8 }
stop = { exchanges = 3 }
[party.telco]
"""


def main() -> int:
    """Try every version; 1 if one of them does not do what the rule says."""
    outcome: dict[str, Any] = {"hub": {"release": RELEASE, "frames": VERSION}}
    with tempfile.TemporaryDirectory() as directory:
        for name, tree, frames in trees(Path(directory)):
            outcome[name] = tried(Path(directory) / f"{name} world", wheel_of(tree), frames)
    sys.stdout.write(json.dumps(outcome, indent=2) + "\n")
    return 0 if all(item.get("as_the_rule_says", True) for item in outcome.values()) else 1


def trees(directory: Path) -> Iterator[tuple[str, Path, int]]:
    """Names, sources, and the version of their frames."""
    later = _copied(directory / "later release")
    project = later / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^version = ".*"$', 'version = "0.99.0"', project.read_text()))
    yield "later release", later, VERSION
    other = _copied(directory / "other frames")
    text = (other / FRAMES).read_text()
    (other / FRAMES).write_text(
        text.replace(f"VERSION = {VERSION}\n", f"VERSION = {VERSION + 1}\n")
    )
    yield "other frames", other, VERSION + 1
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", EARLIER], capture_output=True, check=False
    )
    if archive.returncode:
        sys.stderr.write(f"no revision {EARLIER} here (no git history?): it is not tried\n")
        return
    earlier = directory / "earlier"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as file:
        file.extractall(earlier, filter="data")
    found = re.search(r"(?m)^VERSION = (\d+)$", (earlier / FRAMES).read_text())
    assert found is not None
    yield f"revision {EARLIER}", earlier, int(found[1])


def _copied(place: Path) -> Path:
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            shutil.copy(source, place / name)
    return place


def wheel_of(tree: Path) -> Path:
    """The interpreter of an environment in which a wheel of these sources is installed."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels = tree / "wheels"
    _done([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(tree)])
    place = tree / "environment"
    venv.create(place, with_pip=False, symlinks=True)
    packages = next((place / "lib").glob("python*/site-packages"))
    (wheel,) = wheels.glob("*.whl")
    _done([*pip, "install", "--no-deps", "--target", str(packages), str(wheel)])
    shared = [item for item in sys.path if item.endswith("site-packages")]
    shared = shared or [sysconfig.get_path("purelib")]
    (packages / "shared.pth").write_text("\n".join(shared) + "\n")
    return place / "bin" / "python"


def tried(world: Path, python: Path, frames: int) -> dict[str, Any]:
    """Have a party of another version join and run; what came of it."""
    world.mkdir()
    write_tables(world)
    address, enrolment = (f"127.0.0.1:{free_port()}" for _ in range(2))
    settings = FederationSettings(name="bank", address=address, enrolment=enrolment)
    made = FederationDirectory.create(world / "federation", settings)
    invite(made, "telco", world / "telco.invitation")
    words = [str(python), "-m", "colonnade", "party"]
    release = _done([str(python), "-m", "colonnade", "--version"]).split()[-1]
    with open_hub(world / "federation") as hub:
        join = [*words, "join", "telco.invitation", "--data", "telco.csv", "--id", "id"]
        if "--allow-unprotected" in _done([*words, "join", "--help"]):
            join.append("--allow-unprotected")
        # It joins, and runs the agent.
        with running(join, world) as log:
            found = outcome_of(hub, world, log)
    expected = "trained" if frames == VERSION else "refused"
    return {
        "release": release,
        "frames": frames,
        "outcome": found,
        "as_the_rule_says": found.partition(":")[0] == expected,
    }


def outcome_of(hub: Hub, world: Path, log: Path) -> str:
    """Whether the agent is refused at its first frame, or trains to the end."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if not hub.wait_for(["telco"], timeout=0.5):
            summary = train_over(hub, read_spec(world / "run.toml"), "bank", world / "run")
            return f"trained: {summary['exchanges']} exchanges"
        said = re.search(r"frame header: version[^\"\\]*", log.read_text())
        if said is not None:
            return f"refused: {said[0]}"
    return f"neither in {SECONDS:g} s: {log.read_text()[-500:]}"


def write_tables(world: Path) -> None:
    """A bank's table and a telco's, of the same people."""
    ids = [f"c{number:02d}" for number in range(40)]
    rows = [f"{name},{number % 7},{number % 3}" for number, name in enumerate(ids)]
    (world / "telco.csv").write_text("\n".join(["id,calls,bills", *rows]) + "\n")
    rows = [f"{name},{'yes' if number % 3 else 'no'}" for number, name in enumerate(ids)]
    (world / "bank.csv").write_text("\n".join(["id,owes", *rows]) + "\n")
    (world / "run.toml").write_text(CONFIG)


@contextmanager
def running(words: list[str], world: Path) -> Iterator[Path]:
    """An agent while it runs; gives its log."""
    log = world / "telco.log"
    with log.open("wb") as file:
        agent = subprocess.Popen(words, cwd=world, stdout=file, stderr=file, env=ENVIRONMENT)
        try:
            yield log
        finally:
            agent.kill()
            agent.wait()


def _done(words: list[str]) -> str:
    ended = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    if ended.returncode:
        raise AssertionError(f"{words}: {ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
