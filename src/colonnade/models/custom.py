"""Encoders of the user's own, named by import path and checked when they are built."""

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from colonnade.core.errors import ConfigError
from colonnade.core.seeds import drawing_from
from colonnade.models.registry import EncoderSpec, check_shape, register_encoder

__all__ = ["CustomSpec", "check_output"]

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_GIVEN_BY_COLONNADE = ("input_shape", "embedding")
_PROBE_BATCH = 2


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class CustomSpec(EncoderSpec):
    """A `torch.nn.Module` class of the user's own, imported where the party runs.

    Importing a module runs its code. The path therefore comes only from the party's own
    configuration, which its owner wrote; it is never taken from a message of another party.

    Args:
        module: The import path, such as "my_package.my_module:MyEncoder". The class is called
            with `input_shape=`, `embedding=` and the options, all as keyword arguments. It must
            map a float tensor ``(batch, *input_shape)`` to (batch, embedding).
        options: Further keyword arguments: numbers, texts, true or false.
    """

    kind: ClassVar[str] = "custom"

    module: str
    # A dict has no hash: it is left out of the spec's own.
    options: dict[str, int | float | str | bool] = field(default_factory=dict, hash=False)

    def check(self) -> None:
        if not isinstance(self.module, str) or not _PATH.fullmatch(self.module):
            raise self._wrong(
                "expected an import path of the form 'package.module:ClassName'; write the module, "
                "a colon, then the class"
            )
        for name, value in self.options.items():
            if not isinstance(name, str) or not isinstance(value, int | float | str | bool):
                raise ConfigError(
                    f"options.{name} = {value!r}: expected a number, a string, true or false; "
                    "let the class derive anything richer from those"
                )
            if name in _GIVEN_BY_COLONNADE:
                raise ConfigError(
                    f"options.{name} = {value!r}: {name} is passed to the class already; "
                    "remove it from options"
                )

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        check_shape(self.kind, input_shape, None, "give the party a block with at least one column")
        module_class = self._find_class()
        try:
            encoder = module_class(
                input_shape=input_shape, embedding=self.embedding, **self.options
            )
        except Exception as error:
            raise self._wrong(
                f"could not be made with input_shape={input_shape}, embedding={self.embedding}, "
                f"options={self.options!r}: {_told(error)}; it must take these as keyword arguments"
            ) from error
        check_output(encoder, input_shape, self.embedding, self._wrong)
        return encoder

    def _find_class(self) -> type[nn.Module]:
        module_name, _, attribute_path = self.module.partition(":")
        try:
            found: object = importlib.import_module(module_name)
        except Exception as error:  # an imported module may raise anything at all
            raise self._wrong(
                f"cannot import {module_name!r}: {_told(error)}; install it where this party runs, "
                "or put its directory on PYTHONPATH"
            ) from error
        for attribute in attribute_path.split("."):
            try:
                found = getattr(found, attribute)
            except AttributeError as error:
                raise self._wrong(
                    f"{module_name!r} has no {attribute_path!r}; check the name after the colon"
                ) from error
        if not isinstance(found, type) or not issubclass(found, nn.Module):
            raise self._wrong(
                f"expected a subclass of torch.nn.Module, got {found!r}; name the class itself"
            )
        return found

    def _wrong(self, problem: str) -> ConfigError:
        return ConfigError(f"module = {self.module!r}: {problem}")


def check_output(
    module: nn.Module,
    input_shape: tuple[int, ...],
    width: int,
    wrong: Callable[[str], ConfigError],
) -> None:
    """Try a network of the user's own on zeros.

    Args:
        module: The network; it is left as it was.
        input_shape: The shape of one sample.
        width: How wide its output must be.
        wrong: Makes the error of a problem.

    Raises:
        ConfigError: Its forward fails, or gives another shape.
    """
    if any(is_lazy(parameter) for parameter in module.parameters()):
        raise wrong("has lazy parameters without a size yet; make its layers from the input_shape")
    dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
    sample = torch.zeros(_PROBE_BATCH, *input_shape, dtype=next(dtypes, None))
    with _undisturbed(module):
        try:
            output: object = module(sample)
        except Exception as error:
            raise wrong(
                f"its forward failed on a float tensor of shape {tuple(sample.shape)}: "
                f"{_told(error)}; it must take (batch, *input_shape)"
            ) from error
    expected = (_PROBE_BATCH, width)
    if not isinstance(output, Tensor) or tuple(output.shape) != expected:
        came = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise wrong(
            f"expected output of shape {expected} for a batch of {_PROBE_BATCH}, got {came}; "
            "make its last layer `embedding` wide, or set embedding to its output size"
        )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    """Run in eval mode without gradients, then put modes, buffers and random state back."""
    modes = [(part, part.training) for part in module.modules()]
    # A forward may change a buffer in place or put another tensor in its stead: undo both.
    buffers = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    module.eval()
    try:
        with drawing_from(0), torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode
        with torch.no_grad():
            for part, name, buffer, value in buffers:
                buffer.copy_(value)
                setattr(part, name, buffer)
