"""The public face is documented: parameters, results and errors of everything in ``__all__``.

An API reference is generated from these docstrings. A class's docstring names the parameters of
its constructor; a docstring that is inherited counts.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

PUBLIC = (
    "colonnade.data.blocks",
    "colonnade.data.datasets",
    "colonnade.estimator",
    "colonnade.fabrics",
    "colonnade.method",
    "colonnade.models",
    "colonnade.protect",
    "colonnade.report",
    "colonnade.reproduce",
    "colonnade.run.fit",
)


def public_names() -> Iterator[tuple[str, Any]]:
    """Every function and class of the public modules, and every public method of those classes."""
    for module in PUBLIC:
        found = importlib.import_module(module)
        for name in found.__all__:
            item = getattr(found, name)
            if inspect.isfunction(item):
                yield f"{module}.{name}", item
            elif inspect.isclass(item) and item.__module__.startswith("colonnade."):
                yield f"{module}.{name}", item
                for method, value in vars(item).items():
                    if not method.startswith("_"):
                        yield f"{module}.{name}.{method}", bound(item, method, value)


def bound(owner: type, name: str, value: Any) -> Any:
    """A property as it is, a method of our own as its class gives it; None for anything else."""
    if isinstance(value, property):
        return value
    found = getattr(owner, name)
    is_ours = inspect.isroutine(found) and found.__module__.startswith("colonnade.")
    return found if is_ours else None


CASES = dict(public_names())


def documentation(item: Any) -> str:
    if inspect.isclass(item):
        ours = [base for base in item.__mro__ if base.__module__.startswith("colonnade.")]
        return "\n".join(vars(base).get("__doc__") or "" for base in ours)
    return inspect.getdoc(item) or ""


def raises(function: Callable[..., Any]) -> bool:
    """Whether the body itself has a ``raise``; functions inside it don't count."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    waiting: list[ast.AST] = list(ast.iter_child_nodes(found))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return False


@pytest.mark.parametrize("name", [name for name, item in CASES.items() if item is not None])
def test_the_public_face_is_documented(name: str) -> None:
    item, text = CASES[name], documentation(CASES[name])
    assert text.strip(), "no docstring"
    if isinstance(item, property):
        return
    parameters = parameters_of(item) - {"self", "args", "kwargs"}
    unnamed = {parameter for parameter in parameters if not re.search(rf"\b{parameter}\b", text)}
    assert not unnamed, f"parameters that the docstring does not name: {sorted(unnamed)}"
    if inspect.isclass(item):
        makers = (vars(item).get(method) for method in ("__init__", "__post_init__"))
        bodies = [maker for maker in makers if inspect.isfunction(maker) and has_source(maker)]
    else:
        bodies = [item]
        gives = inspect.signature(item).return_annotation
        assert gives in (None, "None", inspect.Signature.empty) or "Returns:" in text, "no Returns:"
    assert not any(map(raises, bodies)) or "Raises:" in text, "no Raises:"


def parameters_of(item: Any) -> set[str]:
    """An enumeration has none; nor, for Python, an exception without a constructor of its own."""
    if inspect.isclass(item) and (
        issubclass(item, Enum)
        or (issubclass(item, Exception) and not inspect.isfunction(item.__init__))
    ):
        return set()
    return set(inspect.signature(item).parameters)


def has_source(function: Callable[..., Any]) -> bool:
    """Not so for the constructor that a dataclass makes."""
    return function.__code__.co_filename != "<string>"


def test_every_public_module_has_a_docstring_and_an_exact_list() -> None:
    for module in PUBLIC:
        found = importlib.import_module(module)
        assert found.__doc__
        assert len(set(found.__all__)) == len(found.__all__)
        assert [name for name in found.__all__ if not hasattr(found, name)] == []
