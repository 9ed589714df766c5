"""How each peer is started, and how many steps it is given."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from case_files import write_certificates
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
    _cells(processes, "tcp", parties)


def _nvflare_tls(processes: PeerProcesses, directory: Path, parties: list[str]) -> None:
    write_certificates(directory / "tls", len(parties))
    _cells(processes, "grpc", parties)


def _cells(processes: PeerProcesses, scheme: str, parties: list[str]) -> None:
    program, url = str(_HERE / "nvflare_cells.py"), f"{scheme}://127.0.0.1:{free_port()}"
    processes.start("python", program, url)
    for name in parties:
        processes.start("python", program, url, name)


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
        says="NVFlare's cells over TCP, without TLS",
        environment="nvflare",
        steps_per_turn=50,
        turns=10,
        start=_nvflare,
    ),
    "nvflare-tls": Program(
        says="NVFlare's cells over gRPC with mutual TLS",
        environment="nvflare",
        steps_per_turn=50,
        turns=10,
        start=_nvflare_tls,
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
