"""Blinding, the party's side: pairwise masks that cancel in the sum over parties.

Paper: EASTER (Wang et al.), equations (4) to (6). Departures: equation (5) taken literally gives
one constant mask per party, so that the difference of two uploads shows the difference of two
embeddings, and masks in floating point neither hide nor cancel exactly. Here every pair agrees on
a secret by X25519; HKDF-SHA256 makes it the pair's key; AES-256 in counter mode makes a fresh
keystream per exchange; of each pair one party adds it and the other subtracts it, in a ring of
whole numbers where the sum is exact.

Keys live as long as a process: a resumed run agrees on new ones, so that no keystream is ever used
twice, whatever a checkpoint goes back to.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import ProtocolError, Refused
from colonnade.core.messages import Summand
from colonnade.protect.extra import needed
from colonnade.protect.identity import Signer, Verifier
from colonnade.protect.ring import RingArray, ring_type
from colonnade.protect.specs import Blind, Ring

__all__ = ["Blinding"]

_X25519 = "cryptography.hazmat.primitives.asymmetric.x25519"
_PUBLIC, _NONCE, _SIGNATURE = 32, 16, 64
_NUM_OFFER_BYTES = _PUBLIC + _NONCE + _SIGNATURE
_MOST_SERIALS = 2**32


class Blinding:
    """One party's keys and masks."""

    def __init__(self, spec: Blind, *, party: str, signer: Signer, verifier: Verifier) -> None:
        self._spec = spec
        self._party = party
        self._signer = signer
        self._verifier = verifier
        self._private: Any = None
        self._offer = b""
        self._streams: dict[str, Any] = {}
        self._last_serial = -1
        # The last parties that were found to be in order; and memory for a keystream.
        self._checked: tuple[str, ...] = ()
        self._pad: _Pad = _make_pad((0,), spec)

    def offer(self) -> Tensor:
        """A fresh public key and nonce under own signature; earlier keys are forgotten."""
        self._private = needed(_X25519, "blinding").X25519PrivateKey.generate()
        self._streams = {}
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
        streams = {}
        for name, item in raw.items():
            if name != self._party:
                streams[name] = self._stream_with(name, item, session)
        self._streams = streams
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
        if len(names) < self._spec.least:
            raise Refused(
                f"party '{self._party}' refuses, rule 'least': a sum of {len(names)} parties hides "
                f"too little; it wants {self._spec.least}",
                party=self._party,
            )
        strangers = [name for name in names if name not in self._streams and name != self._party]
        if strangers:
            raise ProtocolError(f"party '{self._party}': no key is agreed on with {strangers}")

    def mask(self, values: RingArray, summand: Summand, label: bytes) -> None:
        """Add what hides the values; in place. All parties must give the same label."""
        nonce = (
            summand.serial.to_bytes(4, "big")
            + hashlib.blake2b(label, digest_size=8).digest()
            + bytes(4)
        )
        if self._pad.numbers.shape != values.shape:
            self._pad = _make_pad(values.shape, self._spec)
        zeros, keystream, numbers = self._pad
        for name in summand.names:
            if name == self._party:
                continue
            stream = self._streams[name]
            stream.reset_nonce(nonce)
            stream.update_into(zeros, keystream)
            if self._party < name:
                np.add(values, numbers, out=values)
            else:
                np.subtract(values, numbers, out=values)

    def _stream_with(self, name: str, offer: bytes, session: bytes) -> Any:
        if len(offer) != _NUM_OFFER_BYTES:
            raise ProtocolError(f"the key of '{name}' has {len(offer)} bytes")
        content, signature = offer[:-_SIGNATURE], offer[-_SIGNATURE:]
        self._verifier.verify(name, signature, _signed(name, content))
        public = needed(_X25519, "blinding").X25519PublicKey.from_public_bytes(content[:_PUBLIC])
        hashes = needed("cryptography.hazmat.primitives.hashes", "blinding")
        hkdf = needed("cryptography.hazmat.primitives.kdf.hkdf", "blinding").HKDF
        first, second = sorted((self._party, name))
        info = b"colonnade blinding" + _framed(first.encode()) + _framed(second.encode())
        key = hkdf(algorithm=hashes.SHA256(), length=32, salt=session, info=info).derive(
            self._private.exchange(public)
        )
        ciphers = needed("cryptography.hazmat.primitives.ciphers", "blinding")
        mode = ciphers.modes.CTR(bytes(16))
        return ciphers.Cipher(ciphers.algorithms.AES(key), mode).encryptor()


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
