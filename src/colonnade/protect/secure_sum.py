"""Sums in a ring, the label holder's side: it learns the sum and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from colonnade.core.errors import BadReply, NoAnswer, ProtocolError
from colonnade.core.messages import Summand
from colonnade.core.parties import Parties
from colonnade.core.sums import Total
from colonnade.protect.ring import Ring, sum_of, wire_type

__all__ = ["RingSums"]


class RingSums:
    """Adds up what parties send in fixed point; ``masked`` are those whose masks must cancel.

    If one of those does not answer, the masks of the others don't cancel: the exchange is done
    again among those who did, under a fresh serial.
    """

    def __init__(self, ring: Ring, *, dtype: torch.dtype, masked: frozenset[str]) -> None:
        self._ring = ring
        self._dtype = dtype
        self._masked = masked
        self._agreed: frozenset[str] = frozenset()
        self._serial = -1
        self.num_repeated = 0
        # Serials rise from sum to sum, whatever thread asks. Sums of one thread may be in flight
        # together: each takes its serial and sends its calls at one go.
        self._lock = threading.RLock()

    async def total(
        self,
        parties: Parties,
        verb: str,
        arguments: tuple[Any, ...],
        among: Iterable[str] | None,
        deadline: int | None,
    ) -> Total:
        """The sum of the parties' answers to a verb."""
        with self._lock:
            chosen = tuple(parties.names if among is None else sorted(set(among)))
            timeout = None if deadline is None else deadline - parties.now()
            chosen = await self._agree(parties, chosen)
            while True:
                masked = tuple(name for name in chosen if name in self._masked)
                if not chosen or len(masked) == 1:
                    raise NoAnswer(
                        f"exchange {parties.exchange + 1}: of the parties whose sum is asked for "
                        f"('{verb}') only {list(chosen)} answered; a sum of one blinded party is "
                        "its embedding",
                        parties=tuple(sorted(self._masked - set(masked))),
                    )
                self._serial += 1
                limit = None if timeout is None else parties.now() + timeout
                answers = await parties.ask(
                    verb,
                    *arguments,
                    among=chosen,
                    deadline=limit,
                    summand=Summand(self._serial, masked),
                )
                if answers and all(name in answers for name in masked):
                    return self._sum(answers, verb)
                chosen = tuple(answers)
                self.num_repeated += 1

    def forget(self, party: str) -> None:
        """Agree again before the next sum: a party came back without its keys."""
        with self._lock:
            self._agreed -= {party}

    async def _agree(self, parties: Parties, chosen: tuple[str, ...]) -> tuple[str, ...]:
        """Make sure that the masked ones share keys; without those who don't answer."""
        masked = frozenset(name for name in chosen if name in self._masked)
        if masked <= self._agreed:
            return chosen
        # Whoever makes an offer forgets its earlier keys, whatever becomes of the others'.
        self._agreed = frozenset()
        answers = await parties.ask("offer_key", among=masked)
        offers = {name: item["offer"] for name, item in answers.items()}
        accepted = await parties.ask("accept_keys", offers, among=offers)
        self._agreed = frozenset(accepted)
        self._serial = -1
        return tuple(name for name in chosen if name not in masked or name in accepted)

    def _sum(self, answers: dict[str, Tensor], verb: str) -> Total:
        total = sum_of(tuple(answers.values()), self._ring, self._dtype)
        if total is None:
            kind = wire_type(self._ring)
            for name, item in answers.items():
                if item.dtype != kind:
                    raise BadReply(
                        f"party '{name}' sent an answer to '{verb}' that is no part of a sum: "
                        f"expected {kind}, got {item.dtype}",
                        party=name,
                    )
            listed = ", ".join(
                f"{name} {tuple(item.shape)} {item.dtype}" for name, item in answers.items()
            )
            raise ProtocolError(f"'{verb}': these answers have no sum in the ring: {listed}")
        return Total(total, tuple(answers))
