"""Respondent: a participant that answers calls from the label holder, by a closed set of verbs.

Both directions are checked here: arguments before a verb runs, and answers before anybody uses
them. Neither side trusts the other to send what the verb declares.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from colonnade.core.doors import Door
from colonnade.core.errors import ColonnadeError, Diverged, ProtocolError, Refused
from colonnade.core.fabric import Clock, RealClock, isolated
from colonnade.core.messages import Call, Failure, Reply, Value
from colonnade.core.protection import Encoding
from colonnade.core.releases import Declared, Kind
from colonnade.core.step_rules import StepRules
from colonnade.core.verbs import RUNTIME_TYPES, Verb, VerbSet, members_of

__all__ = [
    "LARGEST",
    "Agreed",
    "Awaited",
    "Fault",
    "Respondent",
    "check_arguments",
    "fault_in_answer",
]

# No tensor that crosses has a larger norm: its square is still finite in float32.
LARGEST = 1e15
# No count that crosses is larger: a float64 still tells it from the next one.
_MOST = 1 << 53
# Rows of numbers that networks make and take: finite, and of the federation's own dtype.
_OF_NETWORKS = frozenset(
    {
        *(Kind.EMBEDDING, Kind.OWN_OUTPUT, Kind.OUTPUT),
        *(Kind.DERIVATIVE, Kind.AVERAGE, Kind.LOSS),
    }
)
_OF_OUTPUTS = (Kind.OWN_OUTPUT, Kind.OUTPUT)
_WORDS: Mapping[Any, str] = {
    Kind.EMBEDDING: "an embedding",
    Kind.OWN_OUTPUT: "a prediction",
    Kind.OUTPUT: "a prediction",
    Kind.DERIVATIVE: "a gradient",
    Kind.LOSS: "a loss",
}
_BY_ROW = frozenset({Kind.EMBEDDING, Kind.OWN_OUTPUT, Kind.OUTPUT, Kind.DERIVATIVE})


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """Agreed between label holder and parties before the first exchange.

    Attributes:
        dtype: Of all that networks make.
        num_outputs: The width of an output.
        widths: The width of each party's embedding.
    """

    dtype: torch.dtype
    num_outputs: int
    widths: Mapping[str, int] = field(default_factory=dict)


class Awaited(NamedTuple):
    """A call that waits for its answer.

    Attributes:
        party: Who was asked.
        exchange: In which exchange.
        verb: For what.
        rows: How many samples the answer is about, where that is known.
        copies: The length of the answer's first axis, if there is one before the rows.
        is_summand: Whether the answer is a part of a sum.
    """

    party: str
    exchange: int
    verb: str
    rows: int | None = None
    copies: int | None = None
    is_summand: bool = False


class Fault(NamedTuple):
    """Why a value is not what was declared: what was expected and what came, in words.

    Attributes:
        words: What was expected, and what came.
        wild: Where numbers are not finite or beyond all reason: what they are.
    """

    words: str
    wild: str = ""


class Respondent(VerbSet):
    """The far end of a link: it has a name, a door, and answers its own verbs and nothing else.

    The verbs of its door, of the protections at its door and of ``aids`` are its own too.
    """

    def __init__(
        self,
        *,
        name: str,
        clock: Clock | None = None,
        door: Door | None = None,
        aids: tuple[VerbSet, ...] = (),
        label_holder: str = "",
    ) -> None:
        self.name = name
        self.clock: Clock = clock or RealClock()
        self.exchange = 0
        self.door = door or Door(owner=name)
        # Called before rows are read and between two steps; raises if the work is to end there.
        self.watch: Callable[[], None] = _go_on
        # Of a party that somebody else asks for steps.
        self.step_rules: StepRules | None = None
        # Of the numbers that it takes; any if not set.
        self.dtype: torch.dtype | None = None
        self._label_holder = label_holder
        # The encodings made for the call under way.
        self._made: list[Encoding] = []
        # The batches whose rows were read for it.
        self._read: list[Encoding] = []
        # Verbs of its own have no owner here: a copy of a respondent answers for itself.
        self._answering: dict[str, tuple[VerbSet | None, Verb]] = {
            known.name: (None if item is self else item, known)
            for item in (*aids, *self.door.protections, self.door, self)
            for known in item.verbs.values()
        }

    def execute(self, call: Call) -> Reply:
        """Run one call of the closed set of verbs; a failure is an answer too."""
        try:
            value = isolated(self._run(call))
        except ColonnadeError as error:
            if isinstance(error, Refused):
                self.door.refused(call, error)
            failure = Failure(type(error).__name__, str(error), error)
            return Reply(call.id, call.party, call.exchange, failure=failure)
        except Exception as error:
            # Another library's message may quote data; only its type may leave the party.
            failure = Failure(type(error).__name__, f"in verb '{call.verb}'; see its log", error)
            return Reply(call.id, call.party, call.exchange, failure=failure)
        return Reply(call.id, call.party, call.exchange, value)

    def answer_or_raise(self, call: Call) -> Value:
        """Run one call for a respondent that this one belongs to; a failure is raised.

        The answer is as it may leave, but shares memory with this respondent until the other one
        has replied with it.
        """
        try:
            return self._run(call)
        except Refused as error:
            self.door.refused(call, error)
            raise

    def _run(self, call: Call) -> Value:
        owner, known = self._answering.get(call.verb, (None, None))
        self._made, self._read = [], []
        if self.step_rules is not None:
            self.step_rules.begin(call)
        if known is None:
            raise ProtocolError(
                f"unknown verb '{call.verb}'; party '{self.name}' has {sorted(self._answering)}"
            )
        self.exchange = max(call.exchange, 0)
        check_arguments(known, call.arguments)
        door = self.door
        arguments = call.arguments
        if not door.is_open or call.summand is not None:
            arguments = door.entering(call, known, self._label_holder)
        self._check_values(known, arguments)
        value: Value = known.function(self if owner is None else owner, *arguments)
        if not door.is_open:
            value = door.answer(call, known, value, self._made, self._read)
        if value is not None and self.step_rules is not None:
            self.step_rules.release()
        return value

    def _check_values(self, known: Verb, arguments: tuple[Any, ...]) -> None:
        """Refuse a tensor that can't be what the verb declares; the label holder sent it."""
        for place, kinds in enumerate(known.takes):
            if kinds is None:
                continue
            for key, item, kind in _tensors_of(arguments[place], kinds):
                fault = _fault_in_numbers(item, kind, self.dtype)
                if fault is None:
                    continue
                sent = (
                    f"label holder '{self._label_holder}' sent '{known.parameters[place][0]}'{key} "
                    f"of '{known.name}' that does not fit: expected {fault.words}"
                )
                if fault.wild:
                    raise Diverged(
                        f"exchange {self.exchange + 1}: {sent}; lower the learning rate of the "
                        "fusion model",
                        exchange=self.exchange + 1,
                        party=self._label_holder,
                    )
                raise ProtocolError(f"{sent}; ask it which version and which method it runs")


def _go_on() -> None:
    """Nobody wants the work to end."""


def check_arguments(known: Verb, arguments: tuple[Any, ...]) -> None:
    """Raise ProtocolError unless the arguments have the declared number and types."""
    if len(arguments) != len(known.parameters):
        raise ProtocolError(
            f"verb '{known.name}' takes {len(known.parameters)} arguments, got {len(arguments)}"
        )
    for (name, kind), value in zip(known.parameters, arguments, strict=True):
        # Nearly always a value of the very type that is declared.
        if type(value) is not kind and not _admits(kind, value):
            raise ProtocolError(
                f"verb '{known.name}': argument '{name}' should be {kind}, "
                f"got {type(value).__name__}"
            )


def fault_in_answer(
    known: Verb, value: Any, awaited: Awaited, agreed: Agreed | None
) -> Fault | None:
    """Compare an answer with what its verb declares.

    Args:
        known: The verb that was asked for.
        value: The answer, after the label holder's door has read it.
        awaited: The call.
        agreed: Types and widths, where they are known.

    Returns:
        None if the answer is as declared.
    """
    kinds = known.releases
    if known.returns is Tensor:
        if not isinstance(value, Tensor):
            return Fault(f"a tensor, got {_described(value)}")
        return _fault_in_tensor(value, kinds, awaited, agreed)
    if isinstance(kinds, Mapping):
        if not isinstance(value, Mapping) or not value.keys() <= kinds.keys():
            return Fault(f"a table with {sorted(kinds)}, got {_described(value)}")
        if not all(isinstance(item, Tensor) for item in value.values()):
            return Fault(f"a table of tensors, got {_described(value)}")
    elif known.returns not in (Any, object) and not _admits(known.returns, value):
        return Fault(f"{_type_name(known.returns)}, got {_described(value)}")
    if isinstance(value, int) and not 0 <= value <= _MOST:
        return Fault(f"a count from 0 to {_MOST}, got {value}")
    if isinstance(value, float) and not abs(value) <= LARGEST:
        return Fault(f"at most {LARGEST:g}, got {value}", wild="a number")
    if kinds is None:
        return None
    for key, item, kind in _tensors_of(value, kinds):
        fault = _fault_in_tensor(item, kind, awaited, agreed)
        if fault is not None:
            return fault._replace(words=f"{key.strip() or 'it'} to be {fault.words}")
    return None


def _fault_in_tensor(
    value: Tensor, kind: Declared, awaited: Awaited, agreed: Agreed | None
) -> Fault | None:
    width = None
    if agreed is not None and kind in _BY_ROW:
        width = agreed.num_outputs if kind in _OF_OUTPUTS else agreed.widths.get(awaited.party)
    shape, rows, copies = value.shape, awaited.rows, awaited.copies
    if kind in _BY_ROW and (rows is not None or width is not None):
        leading = () if copies is None else (copies,)
        if (
            len(shape) != len(leading) + 2
            or shape[:-2] != leading
            or (rows is not None and shape[-2] != rows)
            or (width is not None and shape[-1] != width)
        ):
            sizes = (*leading, *("any" if item is None else item for item in (rows, width)))
            return Fault(f"of shape ({', '.join(map(str, sizes))}), got {tuple(shape)}")
    if awaited.is_summand and not value.is_floating_point():
        return None  # numbers of a ring: any of them may be part of a sum
    return _fault_in_numbers(value, kind, None if agreed is None else agreed.dtype)


def _fault_in_numbers(value: Tensor, kind: Any, dtype: torch.dtype | None) -> Fault | None:
    if kind in _OF_NETWORKS:
        if not value.is_floating_point() or (dtype is not None and value.dtype != dtype):
            return Fault(f"{dtype or 'floating point'}, got {value.dtype}")
        if kind is Kind.LOSS and value.numel() != 1:
            return Fault(f"one number, got shape {tuple(value.shape)}")
    elif kind is Kind.COUNT and value.is_floating_point():
        return Fault(f"whole numbers, got {value.dtype}")
    if value.is_floating_point() and value.numel():
        plain = value.detach() if value.requires_grad else value
        # One quick operation. A value that is no number makes the comparison false too.
        if not torch.linalg.vector_norm(plain).item() <= LARGEST:
            largest = plain.abs().max().item()
            words = f"finite and of a norm of at most {LARGEST:g}, got values up to {largest:g}"
            return Fault(words, wild=_WORDS.get(kind, "values"))
    return None


def _tensors_of(value: Any, kinds: Declared) -> list[tuple[str, Tensor, Declared]]:
    """Every tensor of a value with its place in words and its kind."""
    if isinstance(value, Tensor):
        return [("", value, kinds)]
    if not isinstance(value, Mapping):
        return []
    return [
        (f" '{key}'", item, kinds.get(key) if isinstance(kinds, Mapping) else kinds)
        for key, item in value.items()
        if isinstance(item, Tensor)
    ]


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a table with {sorted(value)[:5]}"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _type_name(kind: Any) -> str:
    return "nothing" if kind in (None, type(None)) else getattr(kind, "__name__", str(kind))


def _admits(kind: Any, value: Any) -> bool:
    # Most are of these: first, since it is quick.
    if kind in RUNTIME_TYPES:
        if isinstance(value, bool) and kind is not bool:
            return False
        return isinstance(value, RUNTIME_TYPES[kind])
    if typing.get_origin(kind) is Mapping:
        _, item = typing.get_args(kind)
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _admits(item, entry) for key, entry in value.items()
        )
    if kind is type(None):
        return value is None
    members = members_of(kind)
    return members != (kind,) and any(_admits(member, value) for member in members)
