"""A second device on a machine that has only the CPU: torch's ``meta``, made to compute.

Within ``SecondDevice`` a tensor that is moved to ``meta`` keeps its numbers. As on a real device,
an operation on tensors of two devices fails, and numpy can't look into one that is elsewhere.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
_CPU = torch.device("cpu")
_ACROSS = frozenset(
    {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default, torch.ops.aten.to.device}
)


class _There(Tensor):
    """A tensor on the second device; its numbers are on the CPU, out of everybody's reach."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> _There:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
            requires_grad=numbers.requires_grad,
        )
        made.numbers = numbers
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.numbers!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Has tensors that are made on, or moved to, the second device keep their numbers.

    ``num_operations`` counts what was computed there.
    """

    num_operations: ClassVar[int] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
    there = [item for item in tensors if isinstance(item, _There)]
    target = kwargs.get("device")
    target = None if target is None else torch.device(target)
    if not there and target != DEVICE:
        return func(*args, **kwargs)
    # As on CUDA: a single number of the CPU may take part, and rows may be named from the CPU.
    named = args[1] if func.overloadpacket is torch.ops.aten.index else ()
    here = [
        item
        for item in tensors
        if not isinstance(item, _There) and item.dim() and not any(item is one for one in named)
    ]
    if there and here and func not in _ACROSS:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found two")
    SecondDevice.num_operations += 1
    stays = isinstance(args[0], _There) if func in _ACROSS and args else bool(there)
    inner = {key: _CPU if key == "device" else item for key, item in kwargs.items()}
    plain_args, plain_kwargs = tree_map(_plain, args), tree_map(_plain, inner)
    result = func(*plain_args, **plain_kwargs)
    # What was changed in place is the tensor that was given.
    for given, plain in zip(args, plain_args, strict=True):
        if isinstance(given, Tensor) and result is plain:
            return given
    goes = target == DEVICE if target is not None else stays
    return tree_map(_there, result) if goes else result


def _plain(item: Any) -> Any:
    return item.numbers if isinstance(item, _There) else item


def _there(item: Any) -> Any:
    return _There(item) if isinstance(item, Tensor) else item
