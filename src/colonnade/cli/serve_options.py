"""Options of every command that serves, in one list."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.core.errors import ConfigError
from colonnade.core.extras import missing_package

if TYPE_CHECKING:
    from colonnade.serve.listening import TlsFiles

__all__ = ["ListeningOptions", "serving"]

# What a command gets in place of the options: keywords of ``ServeSettings``.
ListeningOptions = Mapping[str, Any]


def _options(
    *,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any that is free.")] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(help="Serve the Open Inference Protocol over gRPC at this port too."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="Callers' API keys (colonnade keys make).")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key, PEM.")] = None,
    tls_authority: Annotated[
        Path | None, typer.Option(help="Callers need a certificate of this authority, PEM.")
    ] = None,
) -> dict[str, Any]:
    return {
        "host": host,
        "port": port,
        "grpc_port": _checked_grpc(grpc_port),
        "keys": keys,
        "tls": _tls_files(tls_certificate, tls_key, tls_authority),
    }


def _options_with_cache(
    *,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Id column of the files, if not as in training.")
    ] = None,
    cache_seconds: Annotated[
        float, typer.Option(help="How long an embedding may be used again; 0: never.")
    ] = 0.0,
    cache_size: Annotated[int, typer.Option(help="The most embeddings kept.")] = 100_000,
) -> dict[str, Any]:
    return {"id_column": id_column, "cache_seconds": cache_seconds, "cache_size": cache_size}


def serving(*, caches: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of all that serve, in place of its parameter ``listening``.

    Args:
        caches: Whether it asks parties, so that ids come from files and embeddings are kept.

    Returns:
        A decorator. The packages that serving needs are there when the command's body runs.
    """
    lists = (_options_with_cache, _options) if caches else (_options,)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        shared = {one: inspect.signature(one, eval_str=True).parameters for one in lists}

        def run(**given: Any) -> None:
            _require_serving()
            listening: dict[str, Any] = {}
            for one, names in shared.items():
                listening |= one(**{name: given.pop(name) for name in names})
            command(**given, listening=listening)

        parameters = [item for name, item in own.items() if name != "listening"]
        parameters += [item for names in shared.values() for item in names.values()]
        keyword = inspect.Parameter.KEYWORD_ONLY
        every = [item.replace(kind=keyword) for item in parameters]
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in every}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _tls_files(
    certificate: Path | None, key: Path | None, authority: Path | None
) -> TlsFiles | None:
    from colonnade.serve.listening import TlsFiles

    if (certificate is None) != (key is None):
        raise ConfigError("--tls-certificate and --tls-key: give both, or neither")
    if certificate is None or key is None:
        if authority is not None:
            raise ConfigError("--tls-authority: needs --tls-certificate and --tls-key")
        return None
    return TlsFiles(certificate=certificate, key=key, authority=authority)


def _require_serving() -> None:
    for name in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        if not importlib.util.find_spec(name):
            raise missing_package("colonnade serve", name, "serve")


def _checked_grpc(port: int | None) -> int | None:
    for name in ("grpc", "google.protobuf") if port is not None else ():
        if not importlib.util.find_spec(name):
            raise missing_package("--grpc-port", name, "serve")
    return port
