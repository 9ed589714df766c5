"""The guard of one party: its chain of protections, its account and its ledger, put together."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, final

from torch import Tensor, nn

from colonnade.core.config import dump
from colonnade.core.errors import ConfigError, Diverged, ProtocolError, Refused
from colonnade.core.messages import Batch, Call, Summand, Value, num_payload_bytes
from colonnade.core.protection import Encoding, Guard
from colonnade.core.seeds import derive_seed
from colonnade.protect.accounting import Account
from colonnade.protect.blinding import Blinding
from colonnade.protect.compression import pack, unpack
from colonnade.protect.identity import Signer, Verifier
from colonnade.protect.ledger import Ledger
from colonnade.protect.noise import SecretNoise
from colonnade.protect.perturbation import Perturbation, refuse_mixing
from colonnade.protect.ring import into_ring, to_wire
from colonnade.protect.specs import Blind, Budget, Compression, Perturb, ProtectionSpec, Ring

__all__ = ["PartyGuard", "check_chain"]


def check_chain(protections: Sequence[ProtectionSpec]) -> None:
    """Raise ConfigError unless these protections can follow each other."""
    for family, name in ((Perturb, "perturb"), (Ring, "blind or fixed"), (Compression, "packing")):
        if sum(isinstance(item, family) for item in protections) > 1:
            raise ConfigError(f"protect: '{name}' more than once; once is enough")
    kinds = [type(item) for item in protections]
    if any(issubclass(kind, Ring) for kind in kinds):
        if any(issubclass(kind, Compression) for kind in kinds):
            raise ConfigError(
                "protect: packed embeddings can't be added up, so they can't be blinded; leave out "
                "one of the two"
            )
        if not issubclass(kinds[-1], Ring):
            raise ConfigError("protect: 'blind' or 'fixed' comes last; it changes the form")
    if Perturb in kinds[1:]:
        raise ConfigError("protect: 'perturb' comes first; its noise is inside the encoder")


@final
class PartyGuard(Guard):
    """Everything that one party does about what leaves it.

    ``secret`` is for tests; every party makes its own.
    """

    def __init__(
        self,
        *,
        party: str,
        encoder: nn.Module,
        protections: Sequence[ProtectionSpec] = (),
        budget: Budget | None = None,
        ledger: Ledger | None = None,
        seed: int = 0,
        signer: Signer | None = None,
        verifier: Verifier | None = None,
        secret: bytes | None = None,
    ) -> None:
        check_chain(protections)
        self._party = party
        self._seed = derive_seed(seed, "compress", party)
        self._ledger = ledger
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._chain = "+".join(item.kind for item in protections) or "none"
        self._perturbation: Perturbation | None = None
        self._account: Account | None = None
        self._compression: Compression | None = None
        self._ring: Ring | None = None
        self._blinding: Blinding | None = None
        for spec in protections:
            if isinstance(spec, Perturb):
                try:
                    refuse_mixing(encoder)
                except ConfigError as error:
                    raise ConfigError(f"party.{party}.protect: {error}") from error
                self._perturbation = Perturbation(spec, encoder, SecretNoise(self._secret))
                self._account = Account(
                    party=party, noise=spec.noise, delta=spec.delta, budget=budget
                )
            elif isinstance(spec, Compression):
                self._compression = spec
            elif isinstance(spec, Ring):
                self._ring = spec
                if isinstance(spec, Blind):
                    if signer is None or verifier is None:
                        raise ConfigError(f"protect: party '{party}' can't blind without identity")
                    self._blinding = Blinding(spec, party=party, signer=signer, verifier=verifier)
        if ledger is not None:
            if self._account is not None:
                self._account.recall(ledger.entries())
            ledger.append(
                {
                    "event": "opened",
                    "party": party,
                    "protection": self._chain,
                    "budget": None if budget is None else dump(budget),
                }
            )
        # What compression left out, by sample of the training part.
        self._left_out: Tensor | None = None

    # Inside the encoder

    def encoding(self, purpose: str, number: int, batch: Batch) -> None:
        """Label the noise that follows."""
        if self._perturbation is not None:
            self._perturbation.begin(purpose, number, batch)

    # At the door

    def leaving(self, call: Call, value: Value, made: Sequence[Encoding]) -> Value:
        """Charge, change the form, and write down what leaves."""
        if value is None:
            return value
        has_tensors = isinstance(value, Tensor)
        if not has_tensors and isinstance(value, Mapping):
            if not value:
                return value
            has_tensors = any(isinstance(item, Tensor) for item in value.values())
        released = self._charged(made) if has_tensors else []
        before = value
        if self._ring is not None:
            value = self._in_ring(call, value, made, self._ring)
        elif self._compression is not None and made:
            value = self._packed(value, made, self._compression)
        # A seal is not an entry: it would come after what it seals.
        if self._ledger is not None and call.verb != "seal":
            # Of this answer: not all that a method sends is an embedding.
            kinds = ["perturb"] if self._perturbation and has_tensors and made else []
            form = self._ring or self._compression
            if form is not None and _differs(before, value):
                kinds.append(form.kind)
            self._write(call, value, kinds, released)
        return value

    def refused(self, call: Call, error: Exception) -> None:
        """Write down that a call was refused."""
        if self._ledger is not None:
            self._ledger.append(
                {
                    "event": "refused",
                    "exchange": call.exchange,
                    "verb": call.verb,
                    "rule": type(error).__name__,
                    "reason": str(error),
                }
            )

    def spent(self) -> Mapping[str, float]:
        """What the releases so far amount to."""
        return {} if self._account is None else self._account.spent()

    def seal(self) -> Mapping[str, Any]:
        """Seal the ledger."""
        return {} if self._ledger is None else self._ledger.seal()

    # Blinding

    def offer_key(self) -> Mapping[str, Tensor]:
        """A fresh public key, signed."""
        return {"offer": self._own_blinding().offer()}

    def accept_keys(self, keys: Mapping[str, Tensor]) -> None:
        """Agree with the others."""
        self._own_blinding().accept(keys)

    def add_up(self, summand: Summand) -> None:
        """Check the parties and the serial of a sum."""
        if self._ring is None:
            raise ProtocolError(f"party '{self._party}' sends no fixed-point numbers")
        if self._blinding is not None:
            self._blinding.check(summand)

    # State

    def state(self) -> dict[str, Any]:
        """Secret, account, and what compression still owes."""
        return {
            # Only noise draws on it.
            "secret": None if self._perturbation is None else self._secret.hex(),
            "account": None if self._account is None else self._account.state(),
            "left_out": self._left_out,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        if self._perturbation is not None and state["secret"] is not None:
            self._secret = bytes.fromhex(state["secret"])
            self._perturbation.noise = SecretNoise(self._secret)
        if self._account is not None and state["account"] is not None:
            self._account.restore(state["account"])
        self._left_out = state["left_out"]

    # Forms

    def _in_ring(self, call: Call, value: Value, made: Sequence[Encoding], ring: Ring) -> Value:
        summand = call.summand
        if summand is None:
            if self._blinding is not None and _holds(value, made):
                raise Refused(
                    f"party '{self._party}' refuses, rule 'blind': '{call.verb}' asks for its "
                    "embedding by itself; it sends embeddings as parts of a sum only",
                    party=self._party,
                )
            return value
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise ProtocolError(f"'{call.verb}' gives nothing that could be added up")
        numbers = into_ring(value, ring)
        if numbers is None:
            raise Diverged(
                f"exchange {call.exchange}: the embedding of party '{self._party}' has values that "
                "are not finite; lower its learning rate, or check its data",
                exchange=call.exchange,
                party=self._party,
            )
        if self._blinding is not None:
            batches = [(item.part, item.number) for item in call.arguments if type(item) is Batch]
            label = repr((call.exchange, call.verb, batches, summand.names, *value.shape))
            self._blinding.mask(numbers, summand, label.encode())
        return to_wire(numbers)

    def _packed(self, value: Value, made: Sequence[Encoding], spec: Compression) -> Value:
        """The answer with every embedding in it packed; other tensors stay as they are."""
        if isinstance(value, Tensor):
            encoding = next((item for item in made if item.embedding is value), None)
            return value if encoding is None else self._pack_one(encoding, spec)
        if isinstance(value, Mapping):
            return {key: self._packed(item, made, spec) for key, item in value.items()}  # type: ignore[return-value]
        return value

    def _pack_one(self, encoding: Encoding, spec: Compression) -> Tensor:
        seed = derive_seed(self._seed, encoding.purpose, encoding.number)
        embedding = encoding.embedding.detach()
        if not spec.feedback or encoding.purpose != "encode":
            return pack(embedding, spec, seed)
        if self._left_out is None:
            self._left_out = embedding.new_zeros(encoding.plan.num_samples, embedding.shape[1])
        positions = encoding.plan.positions(encoding.batch.number)
        wanted = embedding + self._left_out[positions]
        packed = pack(wanted, spec, seed)
        self._left_out[positions] = wanted - unpack(packed)
        return packed

    def _charged(self, made: Sequence[Encoding]) -> list[tuple[str, str, int]]:
        """Count what is about to leave; names and batches of what did not leave before."""
        if self._account is None or self._perturbation is None:
            return []
        charged = []
        for item in made:
            name = self._perturbation.identity(item.purpose, item.number)
            if self._account.charge(item, name):
                charged.append((name.hex(), item.batch.part, item.batch.number))
        return charged

    def _write(
        self, call: Call, value: Value, kinds: list[str], released: list[tuple[str, str, int]]
    ) -> None:
        assert self._ledger is not None
        shapes: Any = None
        if isinstance(value, Tensor):
            shapes = list(value.shape)
        elif isinstance(value, Mapping):
            shapes = {k: list(v.shape) for k, v in value.items() if isinstance(v, Tensor)}
        self._ledger.append(
            {
                "event": "left",
                "exchange": call.exchange,
                "verb": call.verb,
                "shape": shapes,
                "bytes": num_payload_bytes(value),
                "protection": "+".join(kinds) or "none",
                "spent": None if self._account is None else self._account.spent(),
                **({"released": released} if released else {}),
            }
        )

    def _own_blinding(self) -> Blinding:
        if self._blinding is None:
            raise ProtocolError(f"party '{self._party}' does not blind")
        return self._blinding


def _holds(value: Value, made: Sequence[Encoding]) -> bool:
    """Whether one of the embeddings is in an answer as it is."""
    items = value.values() if isinstance(value, Mapping) else (value,)
    return any(encoding.embedding is item for encoding in made for item in items)


def _differs(before: Value, after: Value) -> bool:
    """Whether an answer, or an item of it, leaves in another form."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return any(after[key] is not item for key, item in before.items())
    return after is not before
