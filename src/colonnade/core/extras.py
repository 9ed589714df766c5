"""What a package of an extra that is not installed says: who needs it, and how to get it today."""

from __future__ import annotations

from colonnade.core.errors import ConfigError

__all__ = ["missing_package"]


def missing_package(purpose: str, package: str, extra: str) -> ConfigError:
    """The error of a package that is not installed.

    Args:
        purpose: The setting, option or command that needs the package.
        package: The package's name.
        extra: The extra, or extras with commas between, that bring it.

    Returns:
        An error to raise. It names a command that works in a clone, as nothing is published yet.
    """
    return ConfigError(
        f"{purpose} needs the package {package}, which is not installed; "
        f"in the clone of Colonnade: pip install '.[{extra}]'"
    )
