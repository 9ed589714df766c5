"""Where networks compute, and with which numbers: the CPU in full precision unless said otherwise.

A *placed* network has its weights on a device. What it is called with goes there; what it gives is
on the CPU again, as the run's own kind of number. Its ``state_dict`` is on the CPU too. So only
networks and their optimizers know of devices: batches, losses, doors, links and checkpoints don't.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError

__all__ = [
    "Placement",
    "Precision",
    "check_device",
    "find_device",
    "is_placed",
    "on_cpu",
    "place",
    "place_beside",
    "placement",
    "require_device",
]

Precision: TypeAlias = Literal["full", "mixed"]

_CPU = torch.device("cpu")
_NAME = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")
_Network = TypeVar("_Network", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a network computes.

    Attributes:
        device: Where its weights are.
        is_mixed: Whether large operations are in bfloat16.
    """

    device: torch.device
    is_mixed: bool

    def numbers(self) -> AbstractContextManager[Any]:
        """Within it, operations compute with the placement's numbers."""
        if not self.is_mixed:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def check_device(name: str, precision: Precision, dtype: str) -> None:
    """Check the settings, on whatever machine.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``auto``.
        precision: ``full`` or ``mixed``.
        dtype: The run's kind of number.

    Raises:
        ConfigError: There is no such device, or it does not compute with such numbers.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"device: 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto', got '{name}'")
    if name == "mps" and dtype == "float64":
        raise ConfigError("device: 'mps' has no float64; set dtype = \"float32\"")
    if precision == "mixed" and dtype != "float32":
        raise ConfigError(
            f'precision: "mixed" is bfloat16 within float32, got dtype = "{dtype}"; set '
            'dtype = "float32", or precision = "full"'
        )


def find_device(name: str, dtype: str = "float32") -> torch.device | None:
    """The device of a name on this machine.

    Args:
        name: As in settings. ``auto`` is the first CUDA device, else Apple's, else the CPU.
        dtype: The run's kind of number; ``auto`` takes no device that lacks it.

    Returns:
        The device; None if this machine does not have it.
    """
    if name == "auto":
        found = find_device("cuda")
        if found is None and dtype != "float64":
            found = find_device("mps")
        return found or _CPU
    device = torch.device(name)
    if device.type == "cuda":
        is_here = torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
        return torch.device("cuda", device.index or 0) if is_here else None
    if device.type == "mps":
        return device if torch.backends.mps.is_available() else None
    return device


def require_device(name: str, precision: Precision, path: str = "") -> None:
    """Refuse to train on a device that this machine does not have.

    Args:
        name: The device.
        precision: The numbers that it has to compute with.
        path: Where the settings are, such as ``own.``.

    Raises:
        ConfigError: It is not here, or has no bfloat16 for mixed precision.
    """
    device = find_device(name)
    if device is None:
        built = (
            f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices and "
            f"{'an' if torch.backends.mps.is_available() else 'no'} Apple one"
        )
        raise ConfigError(
            f"{path}device: this machine has no '{name}' ({built}); install a torch for it and its "
            'driver, or set device = "auto" or "cpu"'
        )
    if precision == "mixed" and not _has_bfloat16(device):
        raise ConfigError(f"{path}precision: '{device}' has no bfloat16; set precision = \"full\"")


def placement(name: str, precision: Precision, dtype: str) -> Placement | None:
    """Where networks compute on this machine.

    A model that was trained on a device predicts on the CPU where there is no such device.
    Training is refused there before (``require_device``).

    Args:
        name: The device, as in settings.
        precision: ``full`` or ``mixed``.
        dtype: The run's kind of number.

    Returns:
        The placement; None for the CPU in full precision, where a network stays as it is.
    """
    device = find_device(name, dtype) or _CPU
    is_mixed = precision == "mixed" and _has_bfloat16(device)
    if device == _CPU and not is_mixed:
        return None
    return Placement(device=device, is_mixed=is_mixed)


def place(network: _Network, where: Placement | None) -> _Network:
    """Move a network to where it computes.

    A collection of networks (with ``sets``) has each of them placed, since each may be called.

    Args:
        network: With its first weights, which are drawn on the CPU: the same on every device.
        where: The placement; None leaves it as it is.

    Returns:
        The same network.
    """
    if where is None:
        return network
    sets = getattr(network, "sets", None)
    if isinstance(sets, nn.ModuleDict):
        for item in sets.values():
            place(item, where)
        return network
    network.to(where.device)
    network.register_state_dict_post_hook(_bring_home)  # type: ignore[no-untyped-call]
    network.forward = _Placed(network, where)
    return network


def is_placed(network: nn.Module) -> bool:
    """Whether a network takes what it is called with to a device of its own."""
    return isinstance(vars(network).get("forward"), _Placed)


def place_beside(network: _Network, other: nn.Module) -> _Network:
    """Move a network to where another one computes, if that is placed."""
    return place(network, vars(other)["forward"].where) if is_placed(other) else network


def on_cpu(value: Any) -> Any:
    """The same nested tables, lists and values with every tensor on the CPU."""
    return _moved(value, _CPU)


class _Placed:
    """The ``forward`` of a placed network: there with its inputs, back with its outputs."""

    def __init__(self, network: nn.Module, where: Placement) -> None:
        self.network = network
        self.where = where

    def __call__(self, *inputs: Any) -> Any:
        weight = next(self.network.parameters(), None)
        with self.where.numbers():
            moved = (_moved(item, self.where.device) for item in inputs)
            outputs = type(self.network).forward(self.network, *moved)
        # What leaves is as long as in full precision, so that nobody else need know.
        return outputs.to(_CPU, outputs.dtype if weight is None else weight.dtype)


def _bring_home(
    network: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Mapping[str, Any]
) -> None:
    """Have a network's state leave it on the CPU."""
    for name, item in state.items():
        if name.startswith(prefix) and isinstance(item, Tensor):
            state[name] = item.to(_CPU)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(item, device) for item in value)
    return value


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    return True
