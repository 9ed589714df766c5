"""How each peer is started, and how many steps it is given."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from processes import PeerProcesses, free_port

__all__ = ["PROGRAMS", "Program"]

_HERE = Path(__file__).parent.absolute()
_APP = """\
[project]
name = "splitnn"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "flower_app:holder_app"
clientapp = "flower_app:party_app"
"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """SplitNN over a peer's messages."""

    says: str
    environment: str
    steps_per_turn: int
    turns: int
    start: Callable[[PeerProcesses, Path, list[str]], None]


def _nvflare(processes: PeerProcesses, directory: Path, parties: list[str]) -> None:
    program, port = str(_HERE / "nvflare_cells.py"), str(free_port())
    processes.start("python", program, port)
    for name in parties:
        processes.start("python", program, port, name)


def _flower_simulation(processes: PeerProcesses, directory: Path, parties: list[str]) -> None:
    processes.start("python", str(_HERE / "flower_simulation.py"))


def _flower_deployment(processes: PeerProcesses, directory: Path, parties: list[str]) -> None:
    app = directory / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(_APP, encoding="utf-8")
    for name in ("halves.py", "flower_app.py"):
        shutil.copy(_HERE / name, app)
    port = free_port()
    home = directory / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n",
        encoding="utf-8",
    )
    processes.start(
        "flower-superlink",
        "--insecure",
        "--disable-runtime-dependency-installation",
        *("--host", "127.0.0.1", "--port", str(port)),
    )
    processes.await_port(port)
    for number in range(len(parties)):
        processes.start(
            "flower-supernode",
            "--insecure",
            *("--superlink", f"127.0.0.1:{port}"),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f"partition-id={number}"),
        )
    processes.start("flwr", "run", str(app), "bench")


PROGRAMS = {
    "nvflare": Program(
        says="NVFlare's cells over TCP, without TLS; raw bytes",
        environment="nvflare",
        steps_per_turn=50,
        turns=20,
        start=_nvflare,
    ),
    "flower-simulation": Program(
        says="Flower's simulation, parties as Ray actors; no network",
        environment="flower",
        steps_per_turn=5,
        turns=5,
        start=_flower_simulation,
    ),
    "flower-deployment": Program(
        says="Flower's deployment: a SuperLink and 4 SuperNodes, without TLS",
        environment="flower",
        steps_per_turn=1,
        turns=5,
        start=_flower_deployment,
    ),
}
