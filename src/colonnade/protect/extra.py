"""What comes with ``colonnade[protect]`` only, imported when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

from colonnade.core.extras import missing_package

__all__ = ["needed"]


def needed(module: str, purpose: str) -> Any:
    """Import a module of the extra, or say which extra has it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise missing_package(f"protect: {purpose}", package, "protect") from error
