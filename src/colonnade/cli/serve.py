"""``colonnade serve``: predictions of a run over HTTP, from one process."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.console import RunDirectory, say
from colonnade.core.errors import ConfigError
from colonnade.core.extras import missing_package

if TYPE_CHECKING:
    from colonnade.serve.listening import TlsFiles

__all__ = [
    "CacheSeconds",
    "CacheSize",
    "GrpcPort",
    "Host",
    "IdColumn",
    "Keys",
    "Port",
    "TlsAuthority",
    "TlsCertificate",
    "TlsKey",
    "checked_grpc",
    "require_serving",
    "serve",
    "tls_files",
]

# Options of every command that serves.
IdColumn = Annotated[
    str | None, typer.Option("--id", help="Id column of the files, if not as in training.")
]
Host = Annotated[str, typer.Option(help="The address to listen at.")]
Port = Annotated[int, typer.Option(help="The port; 0 for any that is free.")]
GrpcPort = Annotated[
    int | None, typer.Option(help="Serve the Open Inference Protocol over gRPC at this port too.")
]
Keys = Annotated[Path | None, typer.Option(help="Callers' API keys (colonnade keys make).")]
TlsCertificate = Annotated[Path | None, typer.Option(help="Certificate, PEM.")]
TlsKey = Annotated[Path | None, typer.Option(help="The certificate's key, PEM.")]
TlsAuthority = Annotated[
    Path | None, typer.Option(help="Callers need a certificate of this authority, PEM.")
]
CacheSeconds = Annotated[
    float, typer.Option(help="How long an embedding may be used again; 0: never.")
]
CacheSize = Annotated[int, typer.Option(help="The most embeddings kept.")]


def tls_files(
    certificate: Path | None, key: Path | None, authority: Path | None
) -> TlsFiles | None:
    """The certificates of a command's options, if there are any.

    Raises:
        ConfigError: One without the other.
    """
    from colonnade.serve.listening import TlsFiles

    if (certificate is None) != (key is None):
        raise ConfigError("--tls-certificate and --tls-key: give both, or neither")
    if certificate is None or key is None:
        if authority is not None:
            raise ConfigError("--tls-authority: needs --tls-certificate and --tls-key")
        return None
    return TlsFiles(certificate=certificate, key=key, authority=authority)


def require_serving() -> None:
    """Refuse a command whose packages are not installed, with the remedy."""
    for name in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        if not importlib.util.find_spec(name):
            raise missing_package("colonnade serve", name, "serve")


def checked_grpc(port: int | None) -> int | None:
    """The port of gRPC, if its packages are there.

    Raises:
        ConfigError: They are not.
    """
    for name in ("grpc", "google.protobuf") if port is not None else ():
        if not importlib.util.find_spec(name):
            raise missing_package("--grpc-port", name, "serve")
    return port


def serve(
    run: RunDirectory,
    features: Annotated[
        list[str],
        typer.Option(
            help="A party's columns by id, read again when they change; once per party.",
            metavar="PARTY=FILE",
        ),
    ],
    id_column: IdColumn = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    grpc_port: GrpcPort = None,
    keys: Keys = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_authority: TlsAuthority = None,
    cache_seconds: CacheSeconds = 0.0,
    cache_size: CacheSize = 100_000,
) -> None:
    """Serve a run's predictions over HTTP, with every party's columns in this process.

    Example:  colonnade serve runs/credit --features bank=bank.csv --features telco=telco.csv
    """
    require_serving()
    from colonnade.serve.run_serving import ServeSettings, serve_run

    files = {}
    for item in features:
        name, separator, file = item.partition("=")
        if not separator:
            raise ConfigError(f"--features {item}: write it as PARTY=FILE")
        files[name] = Path(file)
    settings = ServeSettings(
        host=host,
        port=port,
        grpc_port=checked_grpc(grpc_port),
        keys=keys,
        tls=tls_files(tls_certificate, tls_key, tls_authority),
        cache_seconds=cache_seconds,
        cache_size=cache_size,
        id_column=id_column,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve_run(run, files, settings, started=lambda address: say(f"serving at {address}"))
