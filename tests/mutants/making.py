"""Makes mutants: every small change that mutmut's operators know, each with a name that lasts.

mutmut itself leaves out decorated functions, so every verb and every property: its operators are
used here, not its runner. Left out because no test should hold them: type annotations, decorators,
imports, assertions, ``cast``, log entries, strings inside ``raise`` and, as in mutmut, ``len`` and
``isinstance``; outside of functions everything but numbers and truth values.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

__all__ = ["Mutant", "mutants_of", "sample"]

_LEFT_OUT = m.OneOf(
    m.Annotation(),
    m.Decorator(),
    m.Assert(),
    m.Import(),
    m.ImportFrom(),
    m.Assign(targets=[m.AssignTarget(m.Name("__all__"))]),
    m.Call(func=m.OneOf(*map(m.Name, ("len", "isinstance", "cast")))),
    m.Call(func=m.Attribute(value=m.Name("_LOG"))),
)
_EVERYWHERE = ("operator_number", "operator_name")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change: ``id`` stays the same as long as the code around it does, wherever it stands.

    ``lines`` are those from the beginning of its statement to the change, or, for a parameter's
    default, to the end of the function: defaults run on import. None outside functions.
    """

    id: str
    file: str
    line: int
    lines: range
    function: str
    operator: str
    module: cst.Module = field(repr=False, compare=False)
    change: tuple[cst.CSTNode, cst.CSTNode] = field(repr=False, compare=False)

    def source(self) -> str:
        """The whole module with the change."""
        changed = self.module.deep_replace(*self.change)
        assert isinstance(changed, cst.Module)
        return changed.code

    def diff(self) -> list[str]:
        """The lines that differ, without and with the change."""
        before, after = self.module.code.splitlines(), self.source().splitlines()
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        return [line for line in lines if not line.startswith("@@")]


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module(path.read_text("utf-8")), unsafe_skip_copy=True)
    visitor = _Visitor(wrapper.module, path.relative_to(root).as_posix())
    wrapper.visit(visitor)
    return visitor.found


def sample(mutants: Iterable[Mutant], seed: int, size: int) -> list[Mutant]:
    """So many of them, drawn by seed: a mutant that is in stays in when others come or go."""

    def drawn(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.id}".encode()).digest()

    return sorted(mutants, key=drawn)[:size]


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, module: cst.Module, file: str) -> None:
        super().__init__()
        self.found: list[Mutant] = []
        self._module, self._file = module, file
        self._around: list[cst.CSTNode] = []
        self._line = self._statement = 1
        self._seen: Counter[str] = Counter()

    def on_visit(self, node: cst.CSTNode) -> bool:
        position = self.get_metadata(PositionProvider, node, None)
        if position is not None and not isinstance(node, cst.Module):
            self._line = position.start.line
            if isinstance(node, cst.BaseCompoundStatement | cst.SimpleStatementLine):
                self._statement = self._line
        is_left_out = m.matches(node, _LEFT_OUT)
        is_inside = any(isinstance(item, cst.FunctionDef) for item in self._around)
        is_raised = any(isinstance(item, cst.Raise) for item in self._around)
        for kind, operator in () if is_left_out else mutation_operators:
            name = operator.__name__
            is_wanted = is_inside if name not in _EVERYWHERE else True
            if isinstance(node, kind) and is_wanted and not (is_raised and "string" in name):
                for other in operator(node):
                    self._add(name.removeprefix("operator_"), node, other, is_inside)
        self._around.append(node)
        return not is_left_out

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._around.pop()

    def _add(self, operator: str, node: cst.CSTNode, other: cst.CSTNode, is_inside: bool) -> None:
        scopes = [x for x in self._around if isinstance(x, cst.FunctionDef | cst.ClassDef)]
        function = ".".join(item.name.value for item in scopes)
        code = self._module.code_for_node
        name = "\n".join([self._file, function, operator, code(node), code(other)])
        self._seen[name] += 1
        last = self._line
        if any(isinstance(item, cst.Parameters) for item in self._around):
            last = self.get_metadata(PositionProvider, scopes[-1]).end.line
        self.found.append(
            Mutant(
                id=hashlib.sha256(f"{name}\n{self._seen[name]}".encode()).hexdigest()[:12],
                file=self._file,
                line=self._line,
                lines=range(self._statement, last + 1) if is_inside else range(0),
                function=function,
                operator=operator,
                module=self._module,
                change=(node, other),
            )
        )
