"""Masks: they cancel for any set of parties, are never used twice, and hide everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from colonnade.core.errors import ConfigError, ProtocolError, Refused
from colonnade.core.messages import Summand
from colonnade.protect.blind import Blind, Blinding
from colonnade.protect.ring import into_ring, ring_type, sum_of, to_wire
from colonnade.protect.signatures import Ed25519Signer, PinnedVerifier
from messages import says

NAMES = ("anna", "bank", "clinic", "depot", "Ämter", "farm")


def agreed(names: tuple[str, ...] = NAMES, spec: Blind | None = None) -> dict[str, Blinding]:
    signers = {name: Ed25519Signer() for name in names}
    pinned = {name: signer.public for name, signer in signers.items()}
    parties = {
        name: Blinding(
            spec or Blind(), party=name, signer=signers[name], verifier=PinnedVerifier(name, pinned)
        )
        for name in names
    }
    offers = {name: party.offer() for name, party in parties.items()}
    for party in parties.values():
        party.accept(offers)
    return parties


PARTIES = {bits: agreed(spec=Blind(ring_bits=bits)) for bits in (32, 64)}
SERIALS = itertools.count()


def masks_of(
    parties: dict[str, Blinding], names: tuple[str, ...], serial: int, label: bytes, count: int
) -> list[np.ndarray]:
    made = []
    for name in names:
        parties[name].check(Summand(serial, names))
        values = np.zeros(count, dtype=ring_type(parties[name]._spec))
        parties[name].mask(values, Summand(serial, names), label)
        made.append(values)
    return made


@settings(max_examples=40, deadline=None)
@given(
    names=st.sets(st.sampled_from(NAMES), min_size=2).map(lambda s: tuple(sorted(s))),
    label=st.binary(max_size=30),
    count=st.integers(1, 70),
    bits=st.sampled_from([32, 64]),
)
def test_masks_of_any_set_of_parties_sum_to_zero(
    names: tuple[str, ...], label: bytes, count: int, bits: int
) -> None:
    masks = masks_of(PARTIES[bits], names, next(SERIALS), label, count)
    assert not sum(masks[1:], start=masks[0]).any()
    assert count < 8 or all(mask.any() for mask in masks)


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_sum_in_the_ring_is_that_of_the_clipped_and_rounded(
    values: list[float], dtype: torch.dtype
) -> None:
    ring = Blind(range=64.0, fraction_bits=16)
    each = [torch.tensor(values, dtype=dtype) * factor for factor in (1.0, -0.5, 0.25)]
    rings = [into_ring(item, ring) for item in each]
    assert all(item is not None for item in rings)
    wires = [to_wire(item) for item in rings if item is not None]
    total = sum_of(wires, ring, torch.float64)
    assert total is not None
    slow = sum(torch.round(item.clamp(-64, 64).double() * 2**16) / 2**16 for item in each)
    assert torch.equal(total, slow)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 70),
    num_parties=st.integers(1, 9),
    bits=st.sampled_from([32, 64]),
)
def test_a_sum_goes_around_as_whole_numbers_do(
    seed: int, count: int, num_parties: int, bits: int
) -> None:
    """Masked numbers are as large as they can be; with Python's own numbers nothing overflows."""
    ring = Blind(fraction_bits=0, range=4.0, ring_bits=bits)
    numbers = np.random.default_rng(seed)
    kind = ring_type(ring)
    each = [
        numbers.integers(0, 2**bits, size=count, dtype=kind, endpoint=False)
        for _ in range(num_parties)
    ]
    before = [item.copy() for item in each]
    total = sum_of([to_wire(item) for item in each], ring, torch.float64)
    slow = [sum(int(item[at]) for item in each) % 2**bits for at in range(count)]
    signed = [item - 2**bits if item >= 2 ** (bits - 1) else item for item in slow]
    assert total is not None
    assert total.tolist() == [float(item) for item in signed]
    assert all(np.array_equal(one, other) for one, other in zip(each, before, strict=True))


def test_what_can_t_be_added_has_no_sum() -> None:
    ring = Blind()
    whole = torch.zeros(3, 2, dtype=torch.int32)
    assert sum_of([whole, whole], ring, torch.float32) is not None
    for other in (whole[:2], whole.long(), whole.float(), whole.flatten()):
        assert sum_of([whole, other], ring, torch.float32) is None
        assert sum_of([other, whole], ring, torch.float32) is None


def test_what_is_not_finite_is_not_encoded() -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert into_ring(torch.tensor([1.0, bad]), Blind()) is None
    assert into_ring(torch.tensor([3e38, 3e38]), Blind()) is not None  # large, but a number


def test_no_two_exchanges_share_a_keystream() -> None:
    parties = PARTIES[32]
    names = ("anna", "bank")
    seen: list[bytes] = []
    serials = [next(SERIALS) for _ in range(40)]
    for serial in serials:
        mask, _ = masks_of(parties, names, serial, b"same label", 64)
        seen.append(mask.tobytes())
    # Not only whole masks: no block of the cipher comes twice.
    blocks = [mask[at : at + 16] for mask in seen for at in range(0, len(mask), 16)]
    assert len(set(blocks)) == len(blocks)
    again = agreed()
    fresh, _ = masks_of(again, names, serials[0], b"same label", 64)
    assert fresh.tobytes() not in seen


@pytest.mark.attack(
    what="Replay of a blinded sum",
    has="the serial of a sum (cheating)",
    before="nothing (held)",
    now="refused, rule 'fresh masks'",
)
def test_a_serial_is_used_once() -> None:
    parties = agreed()
    masks_of(parties, ("anna", "bank"), 5, b"", 4)
    for serial in (5, 4, 0, -1, 2**32):
        with pytest.raises(Refused, match="rule 'fresh masks'"):
            parties["anna"].check(Summand(serial, ("anna", "bank")))
    parties["anna"].check(Summand(6, ("anna", "bank")))


def test_masks_do_not_cancel_under_different_labels_or_sets() -> None:
    parties = agreed()
    values = {name: np.zeros(16, dtype=np.uint32) for name in ("anna", "bank")}
    for name, label in (("anna", b"batch 1"), ("bank", b"batch 2")):
        parties[name].check(Summand(0, ("anna", "bank")))
        parties[name].mask(values[name], Summand(0, ("anna", "bank")), label)
    assert (values["anna"] + values["bank"]).any()


def test_one_upload_looks_like_uniform_noise() -> None:
    """Chi-square over bytes and over the leading bits, whatever was hidden; fixed keys."""
    parties = agreed()
    names = NAMES[:3]
    counts = np.zeros(256, dtype=np.int64)
    leading = np.zeros(64, dtype=np.int64)
    for serial in range(40):
        numbers = into_ring(torch.full((1000,), 0.25), Blind())
        assert numbers is not None
        parties["anna"].check(Summand(serial, names))
        parties["anna"].mask(numbers, Summand(serial, names), b"label")
        counts += np.bincount(numbers.view(np.uint8), minlength=256)
        leading += np.bincount(numbers >> 26, minlength=64)
    # The keys are fresh every time, so the level is one that chance all but never reaches.
    assert stats.chisquare(counts).pvalue > 1e-6
    assert stats.chisquare(leading).pvalue > 1e-6


@pytest.mark.attack(
    what="Key substitution in blinding",
    has="the exchange of keys (cheating)",
    before="nothing (held)",
    now="refused, rule 'identity'",
)
def test_a_key_in_the_middle_is_refused() -> None:
    names = NAMES[:3]
    signers = {name: Ed25519Signer() for name in names}
    pinned = {name: signer.public for name, signer in signers.items()}
    parties = {
        name: Blinding(
            Blind(), party=name, signer=signers[name], verifier=PinnedVerifier(name, pinned)
        )
        for name in names
    }
    offers = {name: party.offer() for name, party in parties.items()}
    middle = Blinding(
        Blind(), party="bank", signer=Ed25519Signer(), verifier=PinnedVerifier("bank", pinned)
    )
    with pytest.raises(Refused, match=says("'anna'", "rule 'identity'", "'bank'")):
        parties["anna"].accept({**offers, "bank": middle.offer()})
    # Somebody else's offer under another name is no better.
    with pytest.raises(Refused, match="rule 'identity'"):
        parties["anna"].accept({**offers, "bank": offers["clinic"]})
    with pytest.raises(Refused, match=says("'anna'", "rule 'identity'", "'stranger'")):
        parties["anna"].accept({**offers, "stranger": offers["clinic"]})
    flipped = offers["bank"].clone()
    flipped[3] ^= 1
    with pytest.raises(Refused, match="rule 'identity'"):
        parties["anna"].accept({**offers, "bank": flipped})
    with pytest.raises(ProtocolError, match=says("'anna'", "own key")):
        parties["anna"].accept({name: offers[name] for name in ("bank", "clinic")})


def test_keys_are_agreed_on_once() -> None:
    parties = agreed(NAMES[:2])
    offers: dict[str, Tensor] = {name: party.offer() for name, party in parties.items()}
    for party in parties.values():
        party.accept(offers)
    with pytest.raises(ProtocolError):
        parties["anna"].accept(offers)  # would start the serials again under the same keys


@pytest.mark.attack(
    what="A sum of one",
    has="the choice of parties in a sum (cheating)",
    before="nothing (held)",
    now="refused, rule 'least'",
)
def test_sums_that_hide_too_little_are_refused() -> None:
    parties = agreed(spec=Blind(least=3))
    with pytest.raises(Refused, match="rule 'least'"):
        parties["anna"].check(Summand(0, ("anna", "bank")))
    with pytest.raises(ProtocolError, match=says("'anna'", ["bank", "clinic", "depot"])):
        parties["anna"].check(Summand(0, ("bank", "clinic", "depot")))
    with pytest.raises(ProtocolError, match=says("'anna'", ["nobody"])):
        parties["anna"].check(Summand(0, ("anna", "bank", "nobody")))


def test_a_ring_that_is_too_small_is_found_at_once() -> None:
    assert Blind(range=64, fraction_bits=20).most_parties == 31
    assert Blind(range=64, fraction_bits=20, ring_bits=64).most_parties > 10**9
    with pytest.raises(ConfigError, match=says("range", 4096, 20, 32)):
        Blind(range=4096, fraction_bits=20)
    with pytest.raises(ConfigError, match="least"):
        Blind(least=1)
