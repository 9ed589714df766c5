"""``colonnade keys``: API keys of a prediction service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import say

__all__ = ["keys"]

keys = typer.Typer(name="keys", help="API keys of a prediction service.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The file of keys.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The caller's name.", show_default=False)]


@keys.command("make")
def make(
    file: File,
    name: Name,
    scope: Annotated[
        list[str] | None, typer.Option(help="predict, watch or manage; once per scope.")
    ] = None,
    ids_per_second: Annotated[float, typer.Option(help="How much it may ask for.")] = 1000.0,
) -> None:
    """Make a key and print it: the file keeps a hash of it only.

    Example:  colonnade keys make keys.json shop --scope predict
    """
    from colonnade.serve.api_keys import make_key

    say(make_key(file, name, scopes=scope or ["predict"], ids_per_second=ids_per_second))


@keys.command("revoke")
def revoke(file: File, name: Name) -> None:
    """Revoke a key; a running service refuses it from the next request on.

    Example:  colonnade keys revoke keys.json shop
    """
    from colonnade.serve.api_keys import revoke_key

    revoke_key(file, name)
    say(f"key '{name}' is revoked")


@keys.command("list")
def list_keys(file: File) -> None:
    """List keys by name, with their scopes.

    Example:  colonnade keys list keys.json
    """
    from colonnade.serve.api_keys import read_keys

    for name, key in sorted(read_keys(file).items()):
        state = "revoked" if key.is_revoked else f"{key.ids_per_second:g} ids a second"
        say(f"{name}: {', '.join(key.scopes)}; {state}")
