"""Blinding: pairwise masks that cancel in the sum over parties; and fixed point without masks.

Paper: EASTER (Wang et al.), equations (4) to (6). Departures: equation (5) taken literally gives
one constant mask per party, so that the difference of two uploads shows the difference of two
embeddings, and masks in floating point neither hide nor cancel exactly. Here every pair agrees on
a secret by X25519; HKDF-SHA256 makes it the pair's key. For every sum, HMAC-SHA256 makes a key of
it and a label: settings, roll, exchange, verb, batch, parties. AES-256 in counter mode makes a
keystream; of each pair one party adds it and the other subtracts it, in a ring of whole numbers
where the sum is exact. Parties that were told different things have masks that don't cancel.

Keys live as long as a process: a resumed run agrees on new ones, so that no keystream is ever used
twice, whatever a checkpoint goes back to. The label holder's side is in ``secure_sum``.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, Diverged, ProtocolError, Refused
from colonnade.core.messages import Batch, Call, Summand
from colonnade.core.protection import Leaving, Protection
from colonnade.core.releases import ABOUT_COLUMNS, Bytes, Kind
from colonnade.core.sums import Sums
from colonnade.core.verbs import verb
from colonnade.protect.extra import needed
from colonnade.protect.protection_spec import Place, ProtectionSpec, Setting, SumRules
from colonnade.protect.ring import Ring, RingArray, into_ring, ring_type, to_wire
from colonnade.protect.secure_sum import RingSums
from colonnade.protect.signatures import Signer, Verifier

__all__ = ["Blind", "Blinding", "Fixed", "FixedPoint"]

_X25519 = "cryptography.hazmat.primitives.asymmetric.x25519"
_PUBLIC, _NONCE, _SIGNATURE = 32, 16, 64
_NUM_OFFER_BYTES = _PUBLIC + _NONCE + _SIGNATURE
_MOST_SERIALS = 2**32


@dataclass(frozen=True, kw_only=True)
class Fixed(Ring, ProtectionSpec):
    """Fixed-point numbers and nothing more: what blinding is compared with."""

    kind: ClassVar[str] = "fixed"
    # Whatever is asked for as part of a sum leaves in the ring.
    covers: ClassVar[frozenset[Kind]] = frozenset(Kind) - {Kind.COUNT, Kind.BYTES, Kind.UNDECLARED}
    changes_form: ClassVar[bool] = True
    is_common: ClassVar[bool] = True

    def stand_at(self, place: Place) -> Protection:
        return FixedPoint(self, place.owner)

    def beside_labels(self) -> ProtectionSpec:
        """The same ring without masks: the label holder's own block is no secret from it.

        Returns:
            Its settings.
        """
        ring = {"range": self.range, "fraction_bits": self.fraction_bits}
        return Fixed(ring_bits=self.ring_bits, **ring)  # type: ignore[arg-type]

    def sums(self, dtype: torch.dtype, masked: frozenset[str]) -> Sums:
        """Add up in the ring.

        Args:
            dtype: Of the sum that a method gets.
            masked: The parties whose tensors carry masks.

        Returns:
            The label holder's side.
        """
        return RingSums(self, dtype=dtype, masked=masked)

    def check(self, setting: Setting) -> None:
        """Check that sums are possible, and fit into the ring.

        Args:
            setting: The run.

        Raises:
            ConfigError: If a party lacks it, the method needs single embeddings, or sums don't fit.
        """
        for name in setting.across:
            if self not in setting.chains[name]:
                raise ConfigError(
                    f"party.{name}.protect: a sum needs the same '{self.kind}' at every party but "
                    "the label holder; set it in defaults.protect"
                )
        reason = ""
        if setting.needs.embeddings == "each":
            reason = f"method '{setting.method}' needs every party's embedding by itself"
        elif setting.needs.fusion and setting.combine != "mean":
            reason = f"fusion with combine = '{setting.combine}' needs every party's by itself"
        if reason:
            raise ConfigError(
                f"protect: '{self.kind}' can't be: {reason}; blinding needs a sum over parties: "
                "set fusion combine = 'mean' and a method that takes sums"
            )
        if len(setting.chains) > self.most_parties:
            raise ConfigError(
                f"protect: a sum of {len(setting.chains)} parties within ±{self.range:g} at "
                f"{self.fraction_bits} fraction_bits may not fit into {self.ring_bits} bits (at "
                f"most {self.most_parties} parties); lower range or fraction_bits, or set "
                "ring_bits = 64"
            )


@dataclass(frozen=True, kw_only=True)
class Blind(Fixed):
    """Masks that cancel in the sum over parties: the label holder sees sums alone.

    Args:
        least: How many blinded parties a sum must have.

    Raises:
        ConfigError: If ``least`` is below 2.
    """

    kind: ClassVar[str] = "blind"

    least: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least < 2:
            raise ConfigError(
                f"least: at least 2, got {self.least}; one party's sum is its embedding"
            )

    @property
    def needs_identity(self) -> bool:
        """Keys are signed."""
        return True

    @property
    def least_summands(self) -> int:
        """How many parties a sum must have."""
        return self.least

    def stand_at(self, place: Place) -> Protection:
        if place.signer is None or place.verifier is None:
            raise ConfigError(f"protect: party '{place.owner}' can't blind without identity")
        known = {"signer": place.signer(), "verifier": place.verifier()}
        return Blinding(self, party=place.owner, rules=place.sums, **known)  # type: ignore[arg-type]

    def check(self, setting: Setting) -> None:
        """Check that there are enough parties to hide behind.

        Args:
            setting: The run.

        Raises:
            ConfigError: If there are fewer than ``least``.
        """
        super().check(setting)
        if len(setting.across) < self.least:
            raise ConfigError(
                f"protect: 'blind' needs at least {self.least} parties besides the label holder's "
                f"own block, there are {len(setting.across)}; with fewer there is nothing to hide "
                "behind: the sum less what is known is the embedding"
            )


class FixedPoint(Protection):
    """Sends tensors as whole numbers wherever they are asked for as part of a sum."""

    adds_up = True

    def __init__(self, ring: Fixed, party: str) -> None:
        self.kind, self.covers = ring.kind, ring.covers
        self._ring = ring
        self._party = party

    def leaving(self, item: Leaving) -> Tensor:
        """The ring's numbers; by itself a tensor leaves as it is."""
        if item.call.summand is None:
            return item.value
        return to_wire(self._in_ring(item))

    def _in_ring(self, item: Leaving) -> RingArray:
        call, value = item.call, item.value
        if not value.is_floating_point():
            raise ProtocolError(f"'{call.verb}' gives nothing that could be added up")
        numbers = into_ring(value, self._ring)
        if numbers is None:
            raise Diverged(
                f"exchange {call.exchange + 1}: the embedding of party '{self._party}' has values "
                "that are not finite; lower its learning rate, or check its data",
                exchange=call.exchange + 1,
                party=self._party,
            )
        return numbers


class Offer(TypedDict):
    """A public key and nonce under their owner's signature."""

    offer: Bytes


class Blinding(FixedPoint):
    """One party's keys and masks: embeddings leave as parts of a sum, or not at all."""

    def __init__(
        self,
        spec: Blind,
        *,
        party: str,
        signer: Signer,
        verifier: Verifier,
        rules: SumRules | None = None,
    ) -> None:
        super().__init__(spec, party)
        self._spec = spec
        self._rules = rules or SumRules()
        self._signer = signer
        self._verifier = verifier
        self._private: Any = None
        self._offer = b""
        # By the other party's name.
        self._keys: dict[str, bytes] = {}
        self._last_serial = -1
        # The last parties that were found to be in order; and memory for a keystream.
        self._checked: tuple[str, ...] = ()
        self._pad: _Pad = _make_pad((0,), spec)

    def entering(self, call: Call) -> None:
        """Check the parties and the serial of a sum; from then on its serial is used up."""
        if call.summand is not None:
            self.check(call.summand)

    def leaving(self, item: Leaving) -> Tensor:
        """The masked numbers; refuse to send anything made of columns by itself."""
        call = item.call
        if call.summand is None:
            if item.kind in ABOUT_COLUMNS:
                raise Refused(
                    f"party '{self._party}' refuses, rule 'blind': '{call.verb}' asks for its "
                    f"{item.kind.value} by itself; it sends these as parts of a sum only",
                    party=self._party,
                )
            return item.value
        numbers = self._in_ring(item)
        self._refuse_flat(item, numbers)
        batches = [(other.part, other.number) for other in call.arguments if type(other) is Batch]
        names = call.summand.names
        told = self._rules.told
        label = repr((call.exchange, call.verb, batches, names, *item.value.shape, told))
        self.mask(numbers, call.summand, label.encode())
        return to_wire(numbers)

    @verb
    def offer_key(self) -> Offer:
        """Tell a fresh public key for sums that hide what is added, signed."""
        return {"offer": self.offer()}

    @verb
    def accept_keys(self, keys: Mapping[str, Bytes]) -> None:
        """Agree on secrets with the other parties, whose keys these are."""
        self.accept(keys)

    def offer(self) -> Tensor:
        """A fresh public key and nonce under own signature; earlier keys are forgotten."""
        self._private = needed(_X25519, "blinding").X25519PrivateKey.generate()
        self._keys = {}
        content = self._private.public_key().public_bytes_raw() + secrets.token_bytes(_NONCE)
        self._offer = content + self._signer.sign(_signed(self._party, content))
        return torch.frombuffer(bytearray(self._offer), dtype=torch.uint8)

    def accept(self, offers: Mapping[str, Tensor]) -> None:
        """Verify everybody's offer and derive one key per pair."""
        raw = {name: bytes(item.numpy()) for name, item in sorted(offers.items())}
        if self._private is None or raw.get(self._party) != self._offer:
            raise ProtocolError(f"party '{self._party}': its own key is not among those agreed on")
        # Everyone who saw the same offers derives the same keys; whoever did not can't sum.
        session = hashlib.sha256(
            b"".join(_framed(name.encode()) + _framed(item) for name, item in raw.items())
        ).digest()
        others = {name: item for name, item in raw.items() if name != self._party}
        self._keys = {name: self._key_with(name, item, session) for name, item in others.items()}
        self._checked = ()
        self._last_serial = -1
        # The private key has done its work: what it could decrypt later, nobody should.
        self._private = None

    def check(self, summand: Summand) -> None:
        """Raise unless a sum of these parties under this serial may be taken part in."""
        serial, names = summand.serial, summand.names
        if not self._last_serial < serial < _MOST_SERIALS:
            raise Refused(
                f"party '{self._party}' refuses, rule 'fresh masks': serial {serial} does not come "
                f"after {self._last_serial}; a keystream is used once",
                party=self._party,
            )
        if names != self._checked:
            self._check_names(names)
            self._checked = names
        self._last_serial = serial

    def _check_names(self, names: tuple[str, ...]) -> None:
        if len(set(names)) != len(names) or self._party not in names:
            raise ProtocolError(f"party '{self._party}': a sum of {list(names)} is not well formed")
        least = max(self._spec.least, self._rules.least)
        if len(names) < least:
            raise Refused(
                f"party '{self._party}' refuses, rule 'least': a sum of {len(names)} parties hides "
                f"too little; it wants {least}",
                party=self._party,
            )
        everyone = self._rules.everyone
        if everyone is not None and everyone != set(names):
            raise Refused(
                f"party '{self._party}' refuses by its policy, rule 'fixed_participants': a sum of "
                f"{list(names)} in place of {sorted(everyone)} would tell the others' difference",
                party=self._party,
            )
        strangers = [name for name in names if name not in self._keys and name != self._party]
        if strangers:
            raise ProtocolError(f"party '{self._party}': no key is agreed on with {strangers}")

    def _refuse_flat(self, item: Leaving, numbers: RingArray) -> None:
        """Refuse a part that is the same for every sample: then the sum shows the others'."""
        if not self._rules.refuses_flat or item.kind not in ABOUT_COLUMNS or len(numbers) < 2:
            return
        if (numbers == numbers[:1]).all():
            raise Refused(
                f"party '{self._party}' refuses, rule 'flat_parts': all {len(numbers)} rows of its "
                f"{item.kind.value} are the same, which hides nobody; lower the learning rate",
                party=self._party,
            )

    def mask(self, values: RingArray, summand: Summand, label: bytes) -> None:
        """Add what hides the values; in place. All parties must give the same label."""
        ciphers = needed("cryptography.hazmat.primitives.ciphers", "blinding")
        # A serial is used once, so no keystream is, whatever the label.
        mode = ciphers.modes.CTR(summand.serial.to_bytes(4, "big") + bytes(12))
        if self._pad.numbers.shape != values.shape:
            self._pad = _make_pad(values.shape, self._spec)
        zeros, keystream, numbers = self._pad
        for name in summand.names:
            if name == self._party:
                continue
            key = hmac.digest(self._keys[name], label, "sha256")
            stream = ciphers.Cipher(ciphers.algorithms.AES(key), mode).encryptor()
            stream.update_into(zeros, keystream)
            if self._party < name:
                np.add(values, numbers, out=values)
            else:
                np.subtract(values, numbers, out=values)

    def _key_with(self, name: str, offer: bytes, session: bytes) -> bytes:
        if len(offer) != _NUM_OFFER_BYTES:
            raise ProtocolError(f"the key of '{name}' has {len(offer)} bytes")
        content, signature = offer[:-_SIGNATURE], offer[-_SIGNATURE:]
        self._verifier.verify(name, signature, _signed(name, content))
        public = needed(_X25519, "blinding").X25519PublicKey.from_public_bytes(content[:_PUBLIC])
        hashes = needed("cryptography.hazmat.primitives.hashes", "blinding")
        hkdf = needed("cryptography.hazmat.primitives.kdf.hkdf", "blinding").HKDF
        first, second = sorted((self._party, name))
        info = b"colonnade blinding" + _framed(first.encode()) + _framed(second.encode())
        key: bytes = hkdf(algorithm=hashes.SHA256(), length=32, salt=session, info=info).derive(
            self._private.exchange(public)
        )
        return key


class _Pad(NamedTuple):
    """Memory for a keystream of one shape, and the same bytes as numbers of the ring."""

    zeros: memoryview
    keystream: bytearray
    numbers: RingArray


def _make_pad(shape: tuple[int, ...], ring: Ring) -> _Pad:
    kind = ring_type(ring)
    count = math.prod(shape)
    num_bytes = count * np.dtype(kind).itemsize
    # The cipher wants room for a block more than it writes.
    keystream = bytearray(num_bytes + 16)
    numbers: RingArray = np.frombuffer(keystream, dtype=kind, count=count).reshape(shape)
    return _Pad(memoryview(bytes(num_bytes)), keystream, numbers)


def _signed(name: str, content: bytes) -> bytes:
    return b"colonnade blinding offer" + _framed(name.encode()) + content


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
