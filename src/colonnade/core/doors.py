"""Doors: everything that leaves a participant passes its door and is declared there.

A party and the label holder each have one. A door chains protections (``core.protection``),
refuses what is undeclared where one stands, and writes the ledger. Methods know nothing of it. A
door without protections, far ends and ledger is open: nobody asks it anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from colonnade.core.charging import charge, take_up
from colonnade.core.declared_values import (
    has_tensors,
    is_empty,
    kind_of,
    named_kinds,
    shapes_of,
    size_of,
)
from colonnade.core.errors import ProtocolError, Refused
from colonnade.core.fabric import num_payload_bytes
from colonnade.core.incoming import bounded
from colonnade.core.messages import Call, Value
from colonnade.core.protection import (
    Encoding,
    Leaving,
    Notes,
    PeopleAccount,
    Protection,
    Reading,
)
from colonnade.core.releases import ABOUT_COLUMNS, Bytes, Count, Declared, Kind
from colonnade.core.verbs import Verb, VerbSet, verb

__all__ = ["Door", "Seal"]

# More numbers than this are no count, whatever a verb declares.
_MOST_COUNTS = 64


class Seal(TypedDict, total=False):
    """How long a ledger is, and its last hash; and a seal of the account."""

    entries: Count
    head: Bytes
    # Of the account, readable for its owner alone.
    account: Bytes


class Door(VerbSet):
    """One participant's door: protections in order, and the ledger.

    Safe to use from several threads: predictions share it.
    """

    def __init__(
        self,
        *,
        owner: str,
        protections: Sequence[Protection] = (),
        readers: Mapping[str, Sequence[Reading]] | None = None,
        opening: Mapping[str, Any] | None = None,
        account: PeopleAccount | None = None,
        largest_gradient: float | None = None,
    ) -> None:
        self.owner = owner
        self.protections = tuple(protections)
        self._ledger: Notes | None = None
        self.account = account
        self._largest_gradient = largest_gradient
        # What makes the gradients of local steps, if not plain back-propagation.
        self.on_steps = next((item for item in self.protections if item.acts_on_steps), None)
        self._opening = dict(opening or {})
        # By sender: the far ends of what stands at its door, first to last.
        self._readers = {name: tuple(chain) for name, chain in (readers or {}).items() if chain}
        self._num_inferences = 0
        self._lock = threading.Lock()
        self._makers = [item for item in self.protections if item.acts_when_made]
        # Most doors stand open: then nothing is looked at.
        is_free = account is None and largest_gradient is None
        self.is_open = is_free and not self.protections and not self._readers

    def write_to(self, ledger: Notes) -> None:
        """Write everything that leaves from here on to a ledger; take up what it knows already."""
        for item in self.protections:
            item.recall(ledger.entries())
        chain = "+".join(item.kind for item in self.protections) or "none"
        entry = {"event": "opened", "party": self.owner, "protection": chain, **self._opening}
        ledger.append(entry)
        self._ledger, self.is_open = ledger, False

    def take_up(self, name: bytes, encoding: Encoding) -> None:
        """Charge what a ledger says has left under a name, unless the account knows of it."""
        if self.account is not None:
            take_up(self.account, self.protections, name, encoding, self.owner)

    # What is made and what leaves

    def number_inference(self) -> int:
        """The number of the next embedding made for a prediction: none is used twice."""
        with self._lock:
            self._num_inferences += 1
            return self._num_inferences

    def encoded(self, embedding: Tensor, encoding: Encoding) -> Tensor:
        """An embedding as it may be used from here on."""
        if not self._makers:
            return embedding
        with self._lock:
            for item in self._makers:
                embedding = item.encoded(embedding, encoding)
        return embedding

    def entering(self, call: Call, known: Verb, sender: str) -> tuple[Value, ...]:
        """Have every protection look at a call before it runs.

        Returns:
            Its arguments as the verb expects them: the sender's protections are read.
        """
        if call.summand is not None and not any(item.adds_up for item in self.protections):
            raise ProtocolError(f"'{self.owner}' sends no parts of a sum")
        for item in self.protections:
            item.entering(call)
        arguments, most = call.arguments, self._largest_gradient
        if sender in self._readers:
            pairs = zip(arguments, known.takes, strict=True)
            arguments = tuple(self.read(sender, item, kind) for item, kind in pairs)
        if most is not None:
            pairs = zip(arguments, known.takes, strict=True)
            arguments = tuple(bounded(item, kind, most) for item, kind in pairs)
        return arguments

    def answer(
        self,
        call: Call,
        known: Verb,
        value: Value,
        made: Sequence[Encoding],
        read: Sequence[Encoding] = (),
    ) -> Value:
        """What leaves in place of an answer; charged, and written down.

        ``made`` are the encodings that it was made of, ``read`` batches whose rows were read.
        """
        if value is None and call.summand is None:
            return value
        with self._lock:
            return self._answer(call, known, value, made, read)

    def _answer(
        self,
        call: Call,
        known: Verb,
        value: Value,
        made: Sequence[Encoding],
        read: Sequence[Encoding],
    ) -> Value:
        tensors = has_tensors(value, known.releases)
        if self.account is not None and tensors:
            charge(self.account, self.protections, value, known.releases, made, read, self.owner)
        applied = {item.kind for item in self._makers} if tensors and made else set()
        released = []
        if self.protections:
            charged = made if tensors else ()
            released = [note for item in self.protections for note in item.account(charged)]
            encodings = iter(_paired(value, known.releases, made))
            value = self._transformed(call, value, known.releases, encodings, applied)
        if call.summand is not None and not any(
            item.adds_up and item.kind in applied for item in self.protections
        ):
            raise ProtocolError(f"'{call.verb}' gives nothing that could be added up")
        # A seal is not an entry: it would come after the entry that it seals.
        if self._ledger is not None and call.verb != "seal" and not is_empty(value):
            self._write(call, value, applied, {"released": released} if released else {})
        return value

    def arguments(self, calls: Sequence[Call], known: Verb | None) -> Sequence[Call]:
        """Calls of one verb as they leave the label holder; written down if they carry tensors.

        Without protections, tensors of the same shapes for several parties are one entry.
        """
        if not calls:
            return calls
        takes = known.takes if known else (Kind.UNDECLARED,) * len(calls[0].arguments)
        if not any(any(map(has_tensors, call.arguments, takes)) for call in calls):
            return calls
        with self._lock:
            if self.protections:
                return [self._protected(call, known, takes) for call in calls]
            # By shapes and bytes: all that an entry says of what leaves.
            alike: dict[str, list[Call]] = {}
            for call in calls if self._ledger is not None else ():
                if any(map(has_tensors, call.arguments, takes)):
                    alike.setdefault(repr(size_of(call.arguments)), []).append(call)
            for some in alike.values():
                self._note_leaving(some, known, takes, some[0].arguments, set())
        return calls

    def _protected(self, call: Call, known: Verb | None, takes: Sequence[Declared]) -> Call:
        if not any(map(has_tensors, call.arguments, takes)):
            return call
        applied: set[str] = set()
        arguments = tuple(
            self._transformed(call, item, kind, iter(()), applied)
            for item, kind in zip(call.arguments, takes, strict=True)
        )
        if self._ledger is not None:
            self._note_leaving([call], known, takes, arguments, applied)
        return replace(call, arguments=arguments)

    def _note_leaving(
        self,
        calls: Sequence[Call],
        known: Verb | None,
        takes: Sequence[Declared],
        arguments: tuple[Value, ...],
        applied: set[str],
    ) -> None:
        names = [name for name, _ in known.parameters] if known else [""] * len(takes)
        kinds = {name: named_kinds(kind) for name, kind in zip(names, takes, strict=True)}
        kinds = {name: kind for name, kind in kinds.items() if kind}
        parties = [call.party for call in calls]
        to: str | list[str] = parties[0] if len(parties) == 1 else parties
        self._write(calls[0], arguments, applied, {"to": to, "kinds": kinds})

    def _transformed(
        self,
        call: Call,
        value: Value,
        kinds: Declared,
        encodings: Iterator[Encoding | None],
        applied: set[str],
    ) -> Value:
        if isinstance(value, Mapping):
            return {
                key: self._transformed(call, item, kind_of(kinds, key), encodings, applied)
                for key, item in value.items()
            }  # type: ignore[return-value]
        if not isinstance(value, Tensor) or not self.protections:
            return value
        kind = kinds if isinstance(kinds, Kind) else Kind.UNDECLARED
        if not _fits(kind, value):
            raise Refused(
                f"'{self.owner}' refuses, rule 'declared': '{call.verb}' sends a tensor of shape "
                f"{tuple(value.shape)} declared as '{kind.value}'; declare in the verb's "
                "annotations what it tells of samples",
                party=self.owner,
            )
        encoding = next(encodings, None) if kind in ABOUT_COLUMNS else None
        for item in self.protections:
            if kind in item.covers:
                before = value
                value = item.leaving(Leaving(kind, value, call, encoding))
                if value is not before:
                    applied.add(item.kind)
        return value

    def _write(self, call: Call, value: Any, applied: set[str], further: Mapping[str, Any]) -> None:
        assert self._ledger is not None
        kinds = [item.kind for item in self.protections if item.kind in applied]
        self._ledger.append(
            {
                "event": "left",
                "exchange": max(call.exchange, 0),
                "verb": call.verb,
                "shape": shapes_of(value),
                "bytes": sum(map(num_payload_bytes, value if type(value) is tuple else (value,))),
                "protection": "+".join(kinds) or "none",
                "spent": dict(self.spent()) or None,
                **further,
            }
        )

    def refused(self, call: Call, error: Refused) -> None:
        """Write down that a call was refused."""
        if self._ledger is not None:
            self._ledger.append(
                {
                    "event": "refused",
                    "exchange": max(call.exchange, 0),
                    "verb": call.verb,
                    "rule": type(error).__name__,
                    "reason": str(error),
                }
            )

    # What arrives

    def read(self, sender: str, value: Value, kinds: Declared) -> Value:
        """A value from behind another door, as a method expects it."""
        readers = self._readers.get(sender)
        return value if readers is None else _read(value, kinds, readers)

    # Account and ledger

    def spent(self) -> Mapping[str, float]:
        """The privacy that the releases so far cost; empty without a guarantee."""
        return {key: number for item in self.protections for key, number in item.spent().items()}

    @verb
    def privacy_spent(self) -> Mapping[str, float]:
        """Tell the privacy spent so far; empty without a guarantee."""
        return self.spent()

    @verb
    def seal(self) -> Seal:
        """Make the ledger last; tell how many entries it has, and the last one's hash."""
        sealed = {} if self._ledger is None else self._ledger.seal()
        if not sealed:
            return {}
        found: Seal = {
            "entries": torch.tensor(sealed["entries"]),
            "head": _as_tensor(bytes.fromhex(sealed["head"])),
        }
        if self.account is not None:
            found["account"] = _as_tensor(self.account.seal())
        return found

    @verb
    def confirm(self, entries: int, head: Bytes, account: Bytes) -> None:
        """Refuse to go on with a ledger or an account that is older than a seal which was given.

        Args:
            entries: How many entries the ledger had.
            head: The hash of the last of them.
            account: The account's seal; empty if there is none.
        """
        if self._ledger is not None:
            self._ledger.confirm(entries, bytes(head.numpy()).hex(), party=self.owner)
        if self.account is not None and len(account):
            self.account.confirm(bytes(account.numpy()))

    def state(self) -> dict[str, Any]:
        """The state of every protection, for the participant's own checkpoint."""
        return {
            "num_inferences": self._num_inferences,
            "protections": {item.kind: item.state() for item in self.protections},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self._num_inferences = state["num_inferences"]
        for item in self.protections:
            if item.kind in state["protections"]:
                item.restore(state["protections"][item.kind])


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _read(value: Value, kinds: Declared, readers: Sequence[Reading]) -> Value:
    if isinstance(value, Mapping):
        return {key: _read(item, kind_of(kinds, key), readers) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, Tensor):
        for item in reversed(readers):
            if kinds in item.covers:
                value = item.read(value)
    return value


def _paired(value: Value, kinds: Declared, made: Sequence[Encoding]) -> Sequence[Encoding | None]:
    """The encoding of every tensor made of columns, in order; None where it can't be told."""
    items = value.items() if isinstance(value, Mapping) else [("", value)]
    count = sum(kind_of(kinds, key) in ABOUT_COLUMNS for key, _ in items)
    if count == 1:
        return made[-1:]
    return made if count == len(made) else [None] * count


def _fits(kind: Kind, value: Tensor) -> bool:
    """Whether a tensor can be what it is declared to be: rows of numbers are no count."""
    if kind is Kind.COUNT:
        return not value.is_floating_point() and value.numel() <= _MOST_COUNTS
    if kind is Kind.LOSS:
        return value.numel() == 1
    if kind is Kind.BYTES:
        return value.dtype == torch.uint8
    return kind is not Kind.UNDECLARED
