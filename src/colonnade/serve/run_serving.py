"""From a run's directory and parties' files to a service that listens."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.run.result import Result
from colonnade.run.run_shelf import RunShelf
from colonnade.run.spec import read_spec
from colonnade.run.storage import RunInUse, read_json
from colonnade.serve.admittance import Admittance
from colonnade.serve.api_keys import KeyFile
from colonnade.serve.http_routes import make_application
from colonnade.serve.in_process_predictor import InProcessPredictor
from colonnade.serve.kept_embeddings import KeptEmbeddings
from colonnade.serve.listening import Listening, TlsFiles, loopback_hosts, stopped_by_signals
from colonnade.serve.live_tables import LiveTables, TableFile
from colonnade.serve.prediction_service import PredictionService, ServiceLimits
from colonnade.serve.predictor import Predictor, ServedModel

__all__ = [
    "RunLoader",
    "ServeSettings",
    "model_digest",
    "run_beside",
    "serve_run",
    "serve_with",
]


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How to serve.

    Attributes:
        host: The address to listen at.
        port: The port; 0 for any that is free.
        grpc_port: The port of the Open Inference Protocol over gRPC; none unless given.
        keys: A file of API keys.
        tls: Certificates.
        cache_seconds: How long a released embedding may be used again; 0 keeps none.
        cache_size: The most embeddings kept.
        limits: Bounds on what callers may ask.
        id_column: The files' column of ids, if not as in training.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    keys: Path | None = None
    tls: TlsFiles | None = None
    cache_seconds: float = 0.0
    cache_size: int = 100_000
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    id_column: str | None = None

    def __post_init__(self) -> None:
        is_mutual = self.tls is not None and self.tls.authority is not None
        if loopback_hosts(self.host) is None and self.keys is None and not is_mutual:
            raise ConfigError(
                f"--host {self.host}: anybody who reaches this address could ask; give --keys, or "
                "certificates with --tls-authority"
            )


def model_digest(root: Path) -> str:
    """Twelve letters that change with a run's weights or settings."""
    tag = read_json(root / "checkpoint.json")["model"]
    digest = hashlib.sha256()
    files = [root / "config.json", *sorted(root.rglob(f"{tag}.safetensors"))]
    for file in files:
        digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def run_beside(root: Path, run: str) -> Path:
    """The directory of a run beside another one, by its plain name or by a tag.

    Raises:
        ConfigError: The name leads elsewhere, or there is no run of it.
    """
    directory = root.parent / RunShelf(root.parent).tags().get(run, run)
    if run in ("", ".", "..") or Path(run).name != run or not directory.is_dir():
        raise ConfigError(f"run '{run[:60]}': not beside the served one")
    if not (directory / "config.json").exists():
        raise ConfigError(f"run '{run[:60]}': holds no run")
    return directory


class RunLoader:
    """Loads runs that stand side by side in one directory, over the same parties' tables.

    Args:
        root: The first run's directory.
        files: Each party's file.
        settings: How to serve.
    """

    def __init__(self, root: Path, files: Mapping[str, Path], settings: ServeSettings) -> None:
        self._root, self._settings = root.resolve(), settings
        self._files = dict(files)
        self.tables = LiveTables(self._table_files())
        self.tables.read_all()

    def __call__(self, run: str) -> Predictor:
        """Load a run by the name of its directory, or by a tag.

        Raises:
            ConfigError: The name is not a plain one, or there is no such run.
        """
        directory = run_beside(self._root, run)
        result = Result.load(directory)
        model = self._described(directory, result)
        kept = KeptEmbeddings(
            most=0 if model.is_blinded else self._settings.cache_size,
            longest_seconds=self._settings.cache_seconds,
            clock=time.monotonic,
        )
        return InProcessPredictor(result, model, self.tables, kept, RunInUse(directory))

    def first(self) -> Predictor:
        """The run that the service begins with."""
        return self(self._root.name)

    def _described(self, directory: Path, result: Result) -> ServedModel:
        return ServedModel(
            name=self._root.name,
            version=f"{directory.name}@{model_digest(directory)}",
            kind=result.kind,
            label=result.label_name,
            classes=result.classes,
            parties=result.parties,
            tolerates_missing=result.tolerates_missing,
            is_blinded=result.is_blinded,
        )

    def _table_files(self) -> dict[str, TableFile]:
        spec = read_spec(self._root / "config.json")
        parties = Result.load(self._root).parties
        for name in self._files:
            if name not in parties:
                raise ConfigError(
                    f"--features {name}: there is no such party{nearest(name, list(parties))}"
                )
        absent = [name for name in parties if name not in self._files]
        if absent and not spec.method.info.tolerates_missing:
            raise ConfigError(
                f"--features: none of {', '.join(absent)}, and method '{spec.method.info.name}' "
                "needs everybody's"
            )
        found = {}
        for name, path in self._files.items():
            known = spec.party.get(name)
            ids = self._settings.id_column or (known.id if known else None)
            if ids is None:
                raise ConfigError(f"--id: missing; say which column of {path} has the sample ids")
            found[name] = TableFile(path=path, id_column=ids)
        return found


def serve_run(
    root: Path,
    files: Mapping[str, Path],
    settings: ServeSettings,
    *,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a run in this process until SIGTERM or SIGINT.

    Args:
        root: The run's directory.
        files: Each party's file of columns by id; read again when it changes.
        settings: How to serve.
        started: Called with the address when requests are accepted.

    Raises:
        ConfigError: A setting is wrong.
        DataError: A file can't be used.
        RunError: The address can't be listened at.
    """
    loader = RunLoader(root, files, settings)
    loader.tables.start()
    try:
        asyncio.run(serve_with(loader, loader.first(), settings, started))
    finally:
        loader.tables.close()


async def serve_with(
    load: Callable[[str], Predictor],
    first: Predictor,
    settings: ServeSettings,
    started: Callable[[str], None],
    stopping: Callable[[Callable[[], None]], None] = stopped_by_signals,
) -> None:
    """Serve with whatever predictor is loaded, until SIGTERM or SIGINT.

    Args:
        load: Loads a version by the name of its run.
        first: The version that the service begins with.
        settings: How to serve.
        started: Called with the address when requests are accepted.
        stopping: Told before that what stops the service.
    """
    service = PredictionService(load, limits=settings.limits)
    service.begin(first)
    # What is loaded by now stays: a collection that went through it all would hold up answers.
    gc.collect()
    gc.freeze()
    keys = None if settings.keys is None else KeyFile(settings.keys, time.monotonic)
    is_open = keys is None and settings.tls is None
    admittance = Admittance(keys)
    application = make_application(
        service, admittance, hosts=loopback_hosts(settings.host) if is_open else None
    )
    face = None
    if settings.grpc_port is not None:
        # Only whoever wants gRPC needs its packages.
        from colonnade.serve.grpc_face import GrpcFace

        face = GrpcFace(
            service, admittance, host=settings.host, port=settings.grpc_port, tls=settings.tls
        )
        await face.start()

    async def stop_face() -> None:
        if face is not None:
            await face.stop()

    listening = Listening(
        application,
        host=settings.host,
        port=settings.port,
        limits=settings.limits,
        tls=settings.tls,
        drain=service.drain,
        stop_beside=stop_face,
    )
    scheme = "http" if settings.tls is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    beside = "" if face is None else f", gRPC at {host}:{face.port}"
    stopping(listening.stop)
    await listening.serve(lambda: started(f"{scheme}://{host}:{listening.port}{beside}"))
