"""Noise at a party: its gradient, its distribution, its secrecy, and what it is bound to."""

from __future__ import annotations

import bisect
import copy
import hashlib
import hmac
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ConfigError
from colonnade.core.messages import Batch
from colonnade.core.protection import Encoding
from colonnade.models import MLPSpec, ResNet18Spec
from colonnade.protect.noise import SecretNoise
from colonnade.protect.perturb import Perturb, Perturbation, clip, in_steps
from colonnade.protect.protection_spec import Place
from colonnade.protect.rounded_gaussian import STEPS, rounded_gaussian, rounded_gaussian_table

SECRET = bytes(range(32))
BATCH = Batch("train", 3)


PLAN = BatchPlan(100, 10, seed=0, shuffle=True)


class Perturbed:
    """An encoder behind a door where noise stands."""

    def __init__(self, encoder: nn.Module, secret: bytes = SECRET, **settings: float) -> None:
        self.encoder = encoder
        place = Place(owner="telco", secret=secret)
        self.protection = Perturbation(Perturb(**{"noise": 1.0, **settings}), place)

    def __call__(
        self, rows: Tensor, purpose: str = "encode", number: int = 1, batch: Batch = BATCH
    ) -> Tensor:
        encoding = Encoding(purpose, number, batch, PLAN)
        return self.protection.encoded(self.encoder(rows), encoding)


def slowly(output: Tensor, clip: float) -> Tensor:
    """Clipping written out, for autograd."""
    norm = output.flatten(1).norm(dim=1).clamp_min(1e-30)
    return output * torch.clamp(clip / norm, max=1.0).view(-1, *[1] * (output.dim() - 1))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 9),
    width=st.integers(1, 7),
    clip=st.floats(0.05, 20.0),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_gradient_goes_through_the_clipping(
    seed: int, rows: int, width: int, clip: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    encoder = nn.Linear(3, width).to(dtype)
    released = Perturbed(encoder, clip=clip, noise=0.5)
    rows_in = torch.randn(rows, 3, dtype=dtype)
    rows_in[0] = 0
    upstream = torch.randn(rows, width, dtype=dtype)
    noisy = released(rows_in)
    plain = nn.functional.linear(rows_in, encoder.weight, encoder.bias)
    expected = slowly(plain, clip)
    found = torch.autograd.grad(noisy, list(encoder.parameters()), upstream)
    slow = torch.autograd.grad(expected, list(encoder.parameters()), upstream)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for one, other in zip(found, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert torch.equal(released(rows_in), noisy)


@pytest.mark.parametrize(
    "encoder",
    [
        nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU()),
        nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(10, 4), nn.Tanh()),
        nn.Sequential(nn.Flatten(), nn.Linear(10, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Linear(5, 3), nn.ReLU()),
        nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Dropout(0.0)),
    ],
    ids=["conv", "conv, flat", "linear", "batch norm", "linear on sequences", "dropout last"],
)
def test_whatever_the_last_layer_the_gradient_is_that_of_the_slow_way(encoder: nn.Module) -> None:
    torch.manual_seed(3)
    encoder = copy.deepcopy(encoder).double()
    for layer in encoder:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()  # the first ones are drawn before any seed
    slow_one = copy.deepcopy(encoder)
    rows = torch.randn(6, 2, 5, dtype=torch.float64, requires_grad=True)
    same = rows.detach().clone().requires_grad_()
    noisy = Perturbed(encoder, clip=0.9, noise=1e-12)(rows)
    expected = slowly(slow_one(same), 0.9)
    # A clipped row that came out a little too long in whole steps is shortened by 2^-20.
    torch.testing.assert_close(noisy, expected, rtol=2**-19, atol=1e-9)
    upstream = torch.randn_like(noisy)
    noisy.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(rows.grad, same.grad, rtol=1e-9, atol=1e-9)
    for one, two in zip(encoder.parameters(), slow_one.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-9, atol=1e-9)


def test_nobody_s_tensor_is_written_over() -> None:
    """An output that is somebody else's input or view stays as it was."""
    rows = torch.randn(6, 4)
    before = rows.clone()
    for encoder in (nn.Identity(), nn.Flatten(), nn.Sequential(nn.Identity())):
        assert not torch.equal(Perturbed(encoder)(rows, "infer"), rows)
        assert torch.equal(rows, before)


def scaled_cdf(far: Fraction) -> Decimal:
    """2^128 Φ to 55 digits, by its series; the slow way."""
    with localcontext() as context:
        context.prec = 60
        place = Decimal(far.numerator) / far.denominator
        term = total = abs(place)
        odd = 1
        while term > total * Decimal("1e-58"):
            odd += 2
            term *= place * place / odd
            total += term
        root = (2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494")).sqrt()
        above = (-place * place / 2).exp() / root * total
        return (Decimal("0.5") + above.copy_sign(place)) * 2**128


def test_the_table_is_that_of_a_rounded_gaussian() -> None:
    table = rounded_gaussian_table()
    assert list(table.thresholds) == sorted(table.thresholds)
    for number in (*range(-838, 838, 31), -839, -2, -1, 0, 1, 838):
        with localcontext() as context:
            context.prec = 60
            expected = scaled_cdf(Fraction(2 * number + 1, 2 * STEPS))
            assert abs(table.thresholds[number - table.least] - expected) < Decimal("0.5001")
    # As many uniform numbers fall between two thresholds, whatever decides.
    cells = np.arange(2**16, dtype=np.uint16)
    decided = table.decided != -(2**15)
    assert decided.mean() > 0.99
    ends = (
        rounded_gaussian(cells, lambda count: bytes(count)),
        rounded_gaussian(cells, lambda count: b"\xff" * count),
    )
    for drawn in ends:
        assert np.array_equal(drawn[decided], table.decided[decided])
    assert (ends[0][~decided] < ends[1][~decided]).all()


@pytest.mark.parametrize("number", [-820, -600, -1, 0, 77, 820])
def test_the_lowest_of_128_bits_decides_at_a_threshold(number: int) -> None:
    table = rounded_gaussian_table()
    threshold = table.thresholds[number - table.least]
    for offset, expected in ((-1, number), (0, number + 1)):
        uniform = threshold + offset
        first = np.array([uniform >> 112], dtype=np.uint16)
        upper = uniform >> 64 & 2**48 - 1
        more = (upper << 16).to_bytes(8, "little") + (uniform % 2**64).to_bytes(8, "little")
        assert rounded_gaussian(first, lambda count, more=more: more).tolist() == [expected]


@pytest.mark.parametrize("count", [1, 2, 7, 3000])
def test_noise_is_the_table_applied_to_the_keystream(count: int) -> None:
    drawn = SecretNoise(SECRET).whole_numbers((count,), b"label")
    key = hmac.digest(SECRET, b"colonnade noise: stream", "sha256")
    labels = hmac.digest(SECRET, b"colonnade noise: labels", "sha256")
    nonce = hashlib.blake2b(b"label", digest_size=16, key=labels).digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()
    content = stream.update(bytes(2 * count))
    table = rounded_gaussian_table()
    for place, found in enumerate(drawn.tolist()):
        uniform = int.from_bytes(content[2 * place : 2 * place + 2], "little") << 112
        low = bisect.bisect_right(table.thresholds, uniform)
        if low != bisect.bisect_right(table.thresholds, uniform + 2**112 - 1):
            one, two = (int.from_bytes(stream.update(bytes(8)), "little") for _ in range(2))
            low = bisect.bisect_right(table.thresholds, uniform | one >> 16 << 64 | two)
        assert found == low + table.least


def drawn_numbers(count: int, size: int) -> np.ndarray:
    noise = SecretNoise(SECRET)
    drawn = [noise.whole_numbers((size,), f"draw {n}".encode()) for n in range(count)]
    return np.concatenate(drawn).astype(np.float64)


def test_noise_has_the_tails_of_a_gaussian() -> None:
    drawn = drawn_numbers(500, 8192) / STEPS
    for far in (2.0, 3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(far + 0.5 / STEPS) * len(drawn)
        # Five standard deviations of a count.
        assert abs((np.abs(drawn) > far).sum() - expected) < 5 * math.sqrt(expected)
    for power, moment in ((2, 1), (4, 3), (6, 15), (8, 105)):
        assert (drawn**power).mean() == pytest.approx(moment, rel=0.05)
    assert abs(drawn.mean()) < 5 / math.sqrt(len(drawn))
    assert 4.8 < np.abs(drawn).max() < 6.5


def test_noise_is_gaussian_to_half_a_step() -> None:
    drawn = drawn_numbers(5, 37_000)
    within = np.random.default_rng(0).uniform(-0.5, 0.5, len(drawn))
    assert stats.kstest((drawn + within) / STEPS, "norm").pvalue > 0.01
    assert stats.normaltest(drawn).pvalue > 0.01
    assert drawn.std() == pytest.approx(STEPS, rel=0.01)
    half = len(drawn) // 10
    assert abs(np.corrcoef(drawn[:half], drawn[half : 2 * half])[0, 1]) < 0.02


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    width=st.integers(1, 300),
    noise=st.floats(1e-6, 1e3),
    size=st.floats(1e-3, 1e30),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_no_row_is_longer_than_the_clipping_norm_in_whole_steps(
    seed: int, width: int, noise: float, size: float, dtype: type
) -> None:
    rows = np.random.default_rng(seed).standard_normal((5, width)).astype(dtype) * dtype(size)
    clipped, _ = clip(rows, 0.7)
    steps = in_steps(clipped, STEPS / (noise * 0.7), STEPS / noise)
    for row in steps:
        whole = [int(item) for item in row]
        assert whole == row.tolist()
        assert sum(item**2 for item in whole) <= Fraction(STEPS / noise) ** 2
    np.testing.assert_allclose(steps * noise * 0.7 / STEPS, clipped, atol=noise * 0.7 / STEPS)


def test_every_label_and_every_secret_has_its_own_noise() -> None:
    encoder = nn.Linear(3, 4)
    rows = torch.randn(5, 3)

    def released(purpose: str, number: int, batch: Batch, secret: bytes = SECRET) -> Tensor:
        return Perturbed(encoder, secret)(rows, purpose, number, batch).detach()

    seen = [
        released("encode", 1, BATCH),
        released("encode", 2, BATCH),
        released("infer", 1, BATCH),
        released("encode", 1, Batch("train", 4)),
        released("encode", 1, Batch("test", 3)),
        released("encode", 1, BATCH, bytes(32)),
    ]
    for at, one in enumerate(seen):
        assert not any(torch.equal(one, other) for other in seen[:at])
    assert torch.equal(released("encode", 1, BATCH), seen[0])


def test_other_values_under_the_same_number_have_other_noise() -> None:
    """A party that is put back and made to encode something else gives nothing away."""
    encoder = nn.Linear(3, 4)
    released = Perturbed(encoder, clip=1e6, noise=1e-6)
    rows = torch.randn(5, 3)

    def noise_of(weight: Tensor) -> Tensor:
        with torch.no_grad():
            encoder.weight.copy_(weight)
        return released(rows).detach() - encoder(rows).detach()

    first = encoder.weight.detach().clone()
    changed = first.clone()
    changed[0, 0] += 0.5
    assert torch.equal(noise_of(first), noise_of(first))
    assert (noise_of(first) - noise_of(changed)).abs().median() > 0.1


def test_clipping_bounds_what_one_sample_can_change() -> None:
    rows = torch.cat([torch.randn(50, 6) * 100, torch.randn(50, 6) * 1e-3])
    norms = Perturbed(nn.Identity(), clip=2.0, noise=1e-9)(rows).norm(dim=1)
    assert norms.max() <= 2.0 + 1e-5
    assert torch.allclose(norms[:50], torch.full((50,), 2.0))
    torch.testing.assert_close(norms[50:], rows[50:].norm(dim=1), rtol=1e-3, atol=1e-6)


def test_noise_is_on_what_leaves_not_inside_the_network() -> None:
    """A network with hooks, or computed in another way than layer by layer, is covered as well."""
    encoder = MLPSpec(embedding=8, hidden=(6,), activation="relu").build((3,))
    embedding = Perturbed(encoder, noise=3.0)(torch.randn(40, 3))
    assert 0.3 < (embedding < 0).float().mean() < 0.7
    assert not any(part._forward_hooks for part in encoder.modules())


def test_batch_norm_is_refused_since_it_carries_a_sample_into_others_embeddings() -> None:
    spec = Perturb(noise=1.0)
    encoder = ResNet18Spec(widths=(4, 4, 8, 8)).build((1, 8, 8))
    with pytest.raises(ConfigError) as refused:
        spec.stand_at(Place(owner="telco", encoder=encoder))
    message = str(refused.value)
    for words in ("party.telco.protect", "'perturb'", "batch norm ('stem.norm')", 'norm = "group"'):
        assert words in message
    grouped = ResNet18Spec(widths=(4, 4, 8, 8), norm="group").build((1, 8, 8))
    assert spec.stand_at(Place(owner="telco", encoder=grouped)).spent()
