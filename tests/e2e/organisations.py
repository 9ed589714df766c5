"""Organisations for tests: tables, a federation's directory, agents and hubs as real processes.

Run as a script it imports everything once and then forks a process for every job that comes as a
line of JSON: ``party HOME``, ``hub FEDERATION CONFIG RUN``, ``predict FEDERATION RUN IDS OUT``,
``certify FEDERATION`` (enrolment and renewal), ``join INVITATION DATA HOME`` or ``renew HOME``.
With ``die=N`` (``hang=N``) that process kills (stops) itself at the N-th moment at which something
crosses its end of a link; with ``torn=N`` it kills itself in its N-th write to a file; with
``full=N`` its disk is full from its N-th checkpoint on. Every process reads the wall clock through
a file, ``NAME.clock``, by whose seconds a test moves it. ``colonnade DIRECTORY ARGUMENTS`` is a
command of the command line, in a directory.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch

from colonnade.cli.main import main
from colonnade.core.config import dump
from colonnade.core.respondent import Respondent
from colonnade.fabrics import GrpcSpec
from colonnade.fabrics.grpc.link_session import Session
from colonnade.fabrics.grpc.link_settings import LinkSpec
from colonnade.federate.enrolment import enrolment_service
from colonnade.federate.federation_directory import FederationDirectory, FederationSettings
from colonnade.federate.identities import save_identity
from colonnade.federate.logs import log_to
from colonnade.federate.networked_runs import networked_links
from colonnade.federate.opened_hub import open_hub
from colonnade.federate.own_settings import own_seed
from colonnade.federate.party_agent import run_agent
from colonnade.federate.party_enrolment import join, renew_if_due
from colonnade.federate.party_home import PartySettings, make_home, write_party
from colonnade.federate.prediction_files import predict_over
from colonnade.federate.renewal import renewal_service
from colonnade.federate.training import train_over
from colonnade.files import write_atomically
from colonnade.run.directory import RunDirectory
from colonnade.run.door_building import Doors, OwnTerms
from colonnade.run.engine import train
from colonnade.run.spec import read_spec
from colonnade.run.storage import party_directory, read_json, read_state
from fault.clocks import read_wall_clock_through
from fault.disks import fill, make_room
from fault.proxy import Proxy
from membership import make_member
from networks import QUICK

TESTS = Path(__file__).parents[1]
HOLDER = "bank"
PARTIES = ("shop", "telco")
NUM_SAMPLES = 60

CONFIG = """
seed = 3
threads = 1
method = {method}

[data]
incomplete = "drop"
batch_size = 8
{alignment}

[align]
salt = "0123456789abcdef-of-tests"

[label_holder]
name = "bank"
label = "defaulted"
fusion = {{ kind = "mlp", combine = "{combine}", hidden = [5], dropout = 0.2 }}

[defaults]
# tanh: six units of ReLU can be at rest for all rows of a batch, and a blinded party refuses that.
encoder = {{ kind = "mlp", hidden = [6], embedding = 4, activation = "tanh", dropout = 0.3 }}
optimizer = {{ name = "adam", lr = 0.02{rates} }}
{protect}

[party.bank]
file = "bank.csv"
id = "id"

[party.shop]
{shop}
optimizer = {{ name = "sgd", lr = 0.1, options = {{ momentum = 0.9 }}{rates} }}

[party.telco]
{telco}

[stop]
exchanges = {exchanges}
{evaluations}

[record]
log_every = 1
{checkpoints}

[patience]
{patience}

{fabric}
"""
# Far too little for a checkpoint.
FULL_BYTES = 400


# Below the ports of outgoing connections, one of which might have it before the process that is to
# listen there; processes that run tests beside each other begin at different ones.
_PORTS = (20_000 + number % 12_000 for number in itertools.count(os.getpid() * 1009))


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("ports never end")


class Process:
    """A process that the nursery forked."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._code: int | None = None

    def wait(self, timeout: float) -> int | None:
        """Its exit code, negative for a signal; None if it still runs after that time."""
        if self._code is None:
            self._code = self._nursery.request({"wait": self.pid, "timeout": timeout})["code"]
        return self._code

    def signal(self, number: signal.Signals) -> None:
        if self._code is None:
            os.kill(self.pid, number)

    def wait_until_stopped(self, seconds: float) -> None:
        """Wait until the process stands still."""
        pause = threading.Event()
        for _ in range(int(seconds * 100)):
            if Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
                return
            pause.wait(0.01)
        raise AssertionError(f"process {self.pid} did not stop")

    def kill(self) -> None:
        if self.wait(0) is None:
            self.signal(signal.SIGKILL)
            self.wait(30)


class Nursery:
    """A process that has imported everything, and forks."""

    def __init__(self) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def request(self, job: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(self, words: list[str], log: Path) -> Process:
        return Process(self, self.request({"start": words, "log": str(log)})["pid"])

    def close(self) -> None:
        self._process.communicate(timeout=30)


class Organisations:
    """A bank with labels, a shop and a telco, each with its own directory."""

    def __init__(
        self,
        root: Path,
        nursery: Nursery,
        *,
        exchanges: int = 12,
        method: str = "splitnn",
        patience: str = "",
        combine: str = "concat",
        protect: str = "",
        evaluations: str = "evaluate_every = 5",
        checkpoints: str = "checkpoint_every = 3",
        rates: str = "",
        policies: Mapping[str, str] | None = None,
        proxied: bool = False,
        link: LinkSpec = QUICK,
        common_seed: bool = True,
        allow_unprotected: bool = True,
        serves: bool = False,
    ) -> None:
        self.root = root
        self.common_seed = common_seed
        self.port = free_port()
        self.federation = root / "federation"
        self.run = root / "run"
        self._settings = {
            "exchanges": exchanges,
            "method": method if method.startswith("{") else f'"{method}"',
            "patience": patience,
            "combine": combine,
            "protect": protect,
            "evaluations": evaluations,
            "checkpoints": checkpoints,
            "rates": rates,
        }
        fields = "".join(f"{key} = {value}\n" for key, value in dump(link).items())
        self._fabric = f'[fabric]\nname = "grpc"\n[fabric.link]\n{fields}'
        self._nursery = nursery
        self._processes: list[Process] = []
        root.mkdir(parents=True, exist_ok=True)
        self._write_tables()
        address = f"127.0.0.1:{self.port}"
        serving = f"127.0.0.1:{free_port()}" if serves else None
        settings = FederationSettings(
            name=HOLDER,
            address=address,
            enrolment=f"127.0.0.1:{free_port()}",
            serving=serving,
        )
        made = FederationDirectory.create(self.federation, settings)
        self.proxies = {name: Proxy(self.port) for name in PARTIES} if proxied else {}
        for name in PARTIES:
            make_home(self.home(name))
            save_identity(self.home(name), make_member(made, name))
            write_party(
                self.home(name),
                PartySettings(
                    name=name,
                    label_holder=HOLDER,
                    hub=self.proxies[name].address if proxied else address,
                    serving=serving,
                    data=root / f"{name}.csv",
                    id="id",
                    policy=root / f"{name}.policy.toml" if policies is not None else None,
                    link=link,
                    # So that bits can be compared with those of one process.
                    common_seed=common_seed,
                    allow_unprotected=allow_unprotected,
                ),
            )
            if policies is not None:
                (root / f"{name}.policy.toml").write_text(policies[name])
        self.config = self._write_config(
            "network.toml", alignment="", shop="", telco="", fabric=self._fabric
        )

    def home(self, name: str) -> Path:
        return self.root / "homes" / name

    def _write_tables(self) -> None:
        draw = np.random.default_rng(5)
        ids = [f"c{number:03d}" for number in range(NUM_SAMPLES)]
        numbers = {name: draw.normal(size=(NUM_SAMPLES, 3)) for name in (HOLDER, *PARTIES)}
        risk = sum(item[:, 0] for item in numbers.values()) + draw.normal(size=NUM_SAMPLES)
        for name, values in numbers.items():
            table = pd.DataFrame(values, columns=[f"{name}_{at}" for at in range(3)])
            table.insert(0, "id", ids)
            if name == HOLDER:
                table["defaulted"] = np.where(risk > 0, "yes", "no")
            # Everybody lacks a few, and has the others in an order of its own.
            order = draw.permutation(NUM_SAMPLES)[: NUM_SAMPLES - 4]
            table.iloc[order].to_csv(self.root / f"{name}.csv", index=False)

    def _write_config(self, file: str, **changes: str) -> Path:
        path = self.root / file
        path.write_text(CONFIG.format(**self._settings | changes))
        return path

    # Processes

    def start_party(self, name: str, **moments: int | None) -> Process:
        return self._start(name, "party", self.home(name), **moments)

    def start_hub(self, **moments: int | None) -> Process:
        return self._start("hub", "hub", self.federation, self.config, self.run, **moments)

    def start_training(self, *options: str) -> Process:
        """The hub as ``colonnade federation train`` starts it."""
        words = ["colonnade", self.root, "federation", "train", self.federation, self.config]
        return self._fork("hub", *words, "--out", self.run, *options)

    def start_prediction(self, ids: Path, out: Path, **moments: int | None) -> Process:
        """The hub, which predicts the samples of a file and ends."""
        return self._start("hub", "predict", self.federation, self.run, ids, out, **moments)

    def _start(self, name: str, *arguments: Any, **moments: int | None) -> Process:
        words = [*map(str, arguments), f"clock={self._clock_of(name)}"]
        words += [f"{key}={number}" for key, number in moments.items() if number is not None]
        return self._fork(name, *words)

    def _fork(self, name: str, *words: Any) -> Process:
        self.log_of(name).touch()
        process = self._nursery.start([str(word) for word in words], self.log_of(name))
        self._processes.append(process)
        return process

    def _clock_of(self, name: str) -> Path:
        return self.root / f"{name}.clock"

    def move_clock(self, name: str, **by: float) -> None:
        """From now on a process's wall clock is so far off."""
        seconds = datetime.timedelta(**by).total_seconds()
        write_atomically(self._clock_of(name), str(seconds).encode())

    def log_of(self, name: str) -> Path:
        """The log of a party, or of the hub."""
        return self.root / f"{name}.log"

    def wait_for_log(self, name: str, words: str, seconds: float, *, after: int = 0) -> int:
        """Wait until a log says something, after so many bytes; how long the log is then."""
        pause = threading.Event()
        for _ in range(int(seconds * 50)):
            log = self.log_of(name).read_text()
            if words in log[after:]:
                return len(log)
            pause.wait(0.02)
        raise AssertionError(f"'{words}' is not in the log of {name}\n{self.logs()}")

    def wait_for_file(self, path: Path, before: bytes, seconds: float) -> bytes:
        """Wait until a file is another than before; what it is then."""
        pause = threading.Event()
        for _ in range(int(seconds * 50)):
            if (content := path.read_bytes()) != before:
                return content
            pause.wait(0.02)
        raise AssertionError(f"{path} is as it was\n{self.logs()}")

    def exchanges(self) -> list[int]:
        """The exchanges that are recorded so far."""
        path = self.run / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        records = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [record["exchange"] for record in records if record["kind"] == "exchange"]

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3000:]}" for path in self.root.glob("*.log")
        )

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for proxy in self.proxies.values():
            proxy.close()

    # What came of it

    @property
    def aligned(self) -> Path:
        """Where the label holder keeps the alignment of the run."""
        digest = read_json(self.run / "alignment.json")["digest"]
        places = [item / "alignments" / digest for item in (self.run, self.federation)]
        return next(place for place in places if place.is_dir())

    def weights(self) -> dict[str, torch.Tensor]:
        """Everybody's weights as their own checkpoints have them at the end of the run."""
        tag = read_json(self.run / "checkpoint.json")["tag"]
        name = (self.run / "run_name").read_text()
        places = {party: self.home(party) / "runs" / name for party in PARTIES}
        return _weights(self.run, tag, places)

    def in_process(
        self, *, with_secrets: bool = True
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The same run in one process, on the very same alignment: weights and summary.

        Parties that have seeds of their own bring them, unless ``with_secrets`` is off.
        """
        together = self.root / "together"
        source = party_directory(self.aligned, HOLDER)
        shutil.copytree(source, party_directory(together, HOLDER), dirs_exist_ok=True)
        for name in PARTIES:
            shutil.copytree(
                self.home(name) / "alignment", party_directory(together, name), dirs_exist_ok=True
            )
        files = {name: f'file = "{name}.csv"\nid = "id"' for name in PARTIES}
        config = self._write_config(
            "local.toml", alignment='alignment = "together"', fabric="", **files
        )
        local = self.root / "local"
        shutil.rmtree(local, ignore_errors=True)
        run = (self.run / "run_name").read_text()
        seeds = {}
        if with_secrets and not self.common_seed:
            seeds = {name: own_seed(self.home(name), run) for name in PARTIES}
        with _own_seeds(seeds):
            summary = train(read_spec(config), directory=local).summary
        tag = read_json(local / "checkpoint.json")["tag"]
        places = {party: party_directory(local, party) for party in PARTIES}
        return _weights(local, tag, places), summary


@contextmanager
def _own_seeds(seeds: Mapping[str, int]) -> Iterator[None]:
    """Within it parties in one process draw their first weights from these seeds."""
    known = Doors.in_one_process

    def with_seeds(doors: Doors) -> Mapping[str, OwnTerms]:
        return {
            name: replace(terms, seed=seeds.get(name)) for name, terms in known.func(doors).items()
        }

    changed = cached_property(with_seeds)
    changed.__set_name__(Doors, "in_one_process")
    with mock.patch.object(Doors, "in_one_process", changed):
        yield


def _weights(run: Path, tag: str, places: Mapping[str, Path]) -> dict[str, torch.Tensor]:
    found = {}
    own = {**places, HOLDER: party_directory(run, HOLDER)}
    for name, place in own.items():
        state = read_state(place / f"{tag}.safetensors")
        found |= {f"{name}.{key}": item for key, item in state["model"].items()}
    holder = read_state(run / "label_holder" / f"{tag}.safetensors")["federation"]["holder"]
    return found | {f"fusion.{key}": item for key, item in holder["fusion"].items()}


# One of the processes


class _Moments:
    """Counts, and kills or stops this process, or fills its disk, at the chosen moment."""

    def __init__(self, **at: int) -> None:
        self._num_passed = self._num_kept = self._num_written = 0
        self._die, self._hang, self._full = at.get("die"), at.get("hang"), at.get("full")
        self._torn = at.get("torn")
        if self._torn is not None:
            self._around_files()

    def pass_by(self) -> None:
        self._num_passed += 1
        if self._num_passed == self._die:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._num_passed == self._hang:
            os.kill(os.getpid(), signal.SIGSTOP)

    def keep(self) -> None:
        self._num_kept += 1
        if self._num_kept == self._full:
            fill(FULL_BYTES)

    def _write(self) -> bool:
        """Whether this write is the one that is not finished."""
        self._num_written += 1
        return self._num_written == self._torn

    def _around_files(self) -> None:
        """A moment in the middle of every write, and before and after a file gets its name."""
        write, sync, rename = os.write, os.fsync, Path.replace

        def torn_write(handle: int, content: bytes) -> int:
            if self._write():
                write(handle, content[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return write(handle, content)

        def torn_sync(handle: int) -> None:
            if self._write():
                os.kill(os.getpid(), signal.SIGKILL)
            sync(handle)

        def torn_rename(path: Path, target: Path) -> Path:
            if self._write():
                os.kill(os.getpid(), signal.SIGKILL)
            found = rename(path, target)
            if self._write():
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        os.write, os.fsync = torn_write, torn_sync  # type: ignore[assignment]
        Path.replace = torn_rename  # type: ignore[method-assign, assignment]

    def around_execution(self) -> None:
        """A moment before and after every call that a party executes."""
        execute = Respondent.execute

        def counted(respondent: Respondent, call: Any) -> Any:
            self.pass_by()
            if call.verb == "keep":
                self.keep()
            reply = execute(respondent, call)
            self.pass_by()
            return reply

        Respondent.execute = counted  # type: ignore[method-assign]

    def around_links(self) -> None:
        """A moment before every call that the hub sends and after everything that arrives."""
        send, pull, checkpoint = Session.send, Session.pull, RunDirectory.checkpoint

        def counted_checkpoint(run: RunDirectory, *arguments: Any) -> None:
            self.keep()
            checkpoint(run, *arguments)

        def counted_send(session: Session, *arguments: Any) -> bool:
            self.pass_by()
            return send(session, *arguments)

        def counted_pull(session: Session, *arguments: Any) -> bool:
            came = pull(session, *arguments)
            self.pass_by()
            return came

        Session.send = counted_send  # type: ignore[method-assign, assignment]
        Session.pull = counted_pull  # type: ignore[method-assign, assignment]
        RunDirectory.checkpoint = counted_checkpoint  # type: ignore[method-assign]


def be(role: str, *arguments: str) -> None:
    """Be a party or the hub, or a command as users type it."""
    torch.set_num_threads(1)
    if role == "colonnade":
        os.chdir(arguments[0])
        sys.argv = [role, *arguments[1:]]
        # As at a terminal: a line is there when it is said.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        main()
        return
    places = [Path(item) for item in arguments if "=" not in item]
    chosen = dict(item.split("=", 1) for item in arguments if "=" in item)
    read_wall_clock_through(Path(chosen.pop("clock")))
    moments = _Moments(**{key: int(number) for key, number in chosen.items()})
    log_to()
    _ROLES[role](moments, *places)


def _be_party(moments: _Moments, home: Path) -> None:
    moments.around_execution()
    run_agent(home)


def _be_hub(moments: _Moments, federation: Path, config: Path, run: Path) -> None:
    moments.around_links()
    resume = (run / "config.json").exists()
    spec = read_spec(config)
    assert isinstance(spec.fabric, GrpcSpec)
    with open_hub(federation, links=spec.fabric.link, enrols=False, check_seconds=0.5) as hub:
        train_over(hub, spec, HOLDER, run, resume=resume)


def _predict(moments: _Moments, federation: Path, run: Path, ids: Path, out: Path) -> None:
    moments.around_links()
    with open_hub(federation, links=networked_links(run), enrols=False) as hub:
        predict_over(hub, federation, run, ids, out, wait_seconds=60.0)


def _certify(_: _Moments, federation: Path) -> None:
    for service in (enrolment_service(federation), renewal_service(federation)):
        service.start()
    print("listening", flush=True)  # noqa: T201
    signal.pause()


def _join(_: _Moments, invitation: Path, data: Path, home: Path) -> None:
    join(invitation, data=data, id_column="id", home=home)


def _renew(_: _Moments, home: Path) -> None:
    assert renew_if_due(home), "not renewed"


_ROLES: Mapping[str, Callable[..., None]] = {
    "party": _be_party,
    "hub": _be_hub,
    "predict": _predict,
    "certify": _certify,
    "join": _join,
    "renew": _renew,
}


def _forked(words: list[str], log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with Path(log).open("ab") as file, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        be(*words)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        # Whoever reads what went wrong does not read it from the full disk.
        make_room(os.getpid())
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(pid: int, timeout: float) -> int | None:
    handle = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([handle], [], [], timeout)
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if ended else None


def serve_jobs() -> None:
    """Fork and wait as told, line by line."""
    for line in sys.stdin:
        job = json.loads(line)
        if "start" in job:
            answer: dict[str, Any] = {"pid": _forked(job["start"], job["log"])}
        else:
            answer = {"code": _waited(job["wait"], job["timeout"])}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve_jobs()
