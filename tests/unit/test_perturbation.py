"""Noise at a party: its gradient, its distribution, its secrecy, and what it is bound to."""

from __future__ import annotations

import copy
import hashlib
import hmac
import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from colonnade.core.errors import ConfigError
from colonnade.core.messages import Batch
from colonnade.models import MLPSpec, ResNet18Spec, is_deterministic
from colonnade.protect.guard import PartyGuard
from colonnade.protect.noise import SecretNoise
from colonnade.protect.perturbation import Perturbation, _place_of_output
from colonnade.protect.specs import Perturb

SECRET = bytes(range(32))
BATCH = Batch("train", 3)


def perturbed(
    encoder: nn.Module, secret: bytes = SECRET, **settings: float
) -> tuple[nn.Module, Perturbation]:
    spec = Perturb(**{"noise": 1.0, **settings})
    return encoder, Perturbation(spec, encoder, SecretNoise(secret))


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
    encoder, perturbation = perturbed(nn.Linear(3, width).to(dtype), clip=clip, noise=0.5)
    rows_in = torch.randn(rows, 3, dtype=dtype)
    rows_in[0] = 0
    upstream = torch.randn(rows, width, dtype=dtype)
    perturbation.begin("encode", 1, BATCH)
    noisy = encoder(rows_in)
    plain = nn.functional.linear(rows_in, encoder.weight, encoder.bias)
    expected = slowly(plain, clip)
    found = torch.autograd.grad(noisy, list(encoder.parameters()), upstream)
    slow = torch.autograd.grad(expected, list(encoder.parameters()), upstream)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for one, other in zip(found, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    perturbation.begin("encode", 1, BATCH)
    assert torch.equal(encoder(rows_in), noisy)


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
    place = _place_of_output(encoder)
    layers, at = list(encoder), list(encoder).index(place)
    slow_one = [copy.deepcopy(layer) for layer in layers]
    rows = torch.randn(6, 2, 5, dtype=torch.float64, requires_grad=True)
    same = rows.detach().clone().requires_grad_()
    encoder, perturbation = perturbed(encoder, clip=0.9, noise=1e-12)
    perturbation.begin("encode", 1, BATCH)
    noisy = encoder(rows)
    expected = nn.Sequential(*slow_one[: at + 1])(same)
    expected = nn.Sequential(*slow_one[at + 1 :])(slowly(expected, 0.9))
    torch.testing.assert_close(noisy, expected, rtol=1e-9, atol=1e-9)
    upstream = torch.randn_like(noisy)
    noisy.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(rows.grad, same.grad, rtol=1e-9, atol=1e-9)
    for layer, other in zip(layers, slow_one, strict=True):
        for one, two in zip(layer.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-9, atol=1e-9)


def test_only_what_is_the_layer_s_own_is_written_over() -> None:
    """An output that is somebody else's input or view stays as it was."""
    rows = torch.randn(6, 4)
    before = rows.clone()
    for encoder in (nn.Identity(), nn.Flatten(), nn.Sequential(nn.Identity())):
        encoder, perturbation = perturbed(encoder)
        perturbation.begin("infer", 1, BATCH)
        assert not torch.equal(encoder(rows), rows)
        assert torch.equal(rows, before)


def test_a_perturbed_encoder_needs_no_seed_unless_something_else_draws() -> None:
    quiet, _ = perturbed(MLPSpec(embedding=4, hidden=(5,)).build((3,)), inner=0.1)
    assert is_deterministic(quiet)
    drawing, _ = perturbed(MLPSpec(embedding=4, hidden=(5,), dropout=0.5).build((3,)))
    assert not is_deterministic(drawing)
    quiet.register_forward_hook(lambda layer, arguments, output: torch.rand_like(output))
    assert not is_deterministic(quiet)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_noise_is_the_formula_applied_to_the_keystream(dtype: type, count: int) -> None:
    noise = SecretNoise(SECRET)
    drawn = noise.gaussian((count,), 3.0, dtype, b"label")
    key = hmac.digest(SECRET, b"colonnade noise: stream", "sha256")
    labels = hmac.digest(SECRET, b"colonnade noise: labels", "sha256")
    nonce = hashlib.blake2b(b"label", digest_size=16, key=labels).digest()
    size = np.dtype(dtype).itemsize
    num_pairs = (count + 1) // 2
    stream = Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()
    content = stream.update(bytes(2 * num_pairs * size))
    whole = [
        int.from_bytes(content[at : at + size], "little") for at in range(0, len(content), size)
    ]
    unit = 2.0 ** (-8 * size)
    slow = np.empty((2, num_pairs))
    for pair in range(num_pairs):
        radius = 3.0 * math.sqrt(-2.0 * math.log((whole[pair] + 0.5) * unit))
        angle = 2.0 * math.pi * (whole[num_pairs + pair] + 0.5) * unit
        slow[:, pair] = radius * math.cos(angle), radius * math.sin(angle)
    tolerance = 1e-4 if dtype is np.float32 else 1e-10
    np.testing.assert_allclose(drawn, slow.ravel()[:count], rtol=tolerance, atol=tolerance)


def test_noise_has_the_tails_of_a_gaussian() -> None:
    noise = SecretNoise(SECRET)
    drawn = np.stack(
        [noise.gaussian((8192,), 1.0, np.float32, f"tail {n}".encode()) for n in range(500)]
    ).ravel()
    for far in (2.0, 3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(far) * len(drawn)
        # Five standard deviations of a count.
        assert abs((np.abs(drawn) > far).sum() - expected) < 5 * math.sqrt(expected)
    wide = drawn.astype(np.float64)
    for power, moment in ((2, 1), (4, 3), (6, 15), (8, 105)):
        assert (wide**power).mean() == pytest.approx(moment, rel=0.05)
    assert abs(wide.mean()) < 5 / math.sqrt(len(wide))
    assert 4.8 < np.abs(wide).max() < 6.5


def test_sizes_take_turns_and_memory_is_not_shared() -> None:
    """What was drawn stays as it is, however many draws of other sizes and the same follow."""
    noise = SecretNoise(SECRET)
    sizes = [*range(1, 20), 5, 1, 19]
    drawn = [noise.gaussian((size,), 1.0, np.float32, b"one label") for size in sizes]
    for size, item in zip(sizes, drawn, strict=True):
        fresh = SecretNoise(SECRET).gaussian((size,), 1.0, np.float32, b"one label")
        assert np.array_equal(item, fresh)
    assert noise.uniform((7,), 1.0, np.float32, b"one label").shape == (7,)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_is_gaussian(dtype: type) -> None:
    noise = SecretNoise(SECRET)
    drawn = np.concatenate(
        [noise.gaussian((1000, 37), 2.5, dtype, f"draw {n}".encode()).ravel() for n in range(5)]
    )
    assert drawn.dtype == dtype
    assert stats.kstest(drawn / 2.5, "norm").pvalue > 0.01
    assert stats.normaltest(drawn).pvalue > 0.01
    assert drawn.std() == pytest.approx(2.5, rel=0.01)
    # Both halves of Box and Muller's pairs, and their neighbours, know nothing of each other.
    half = len(drawn) // 10
    assert abs(np.corrcoef(drawn[:half], drawn[half : 2 * half])[0, 1]) < 0.02


def test_inner_noise_is_uniform_with_the_given_deviation() -> None:
    drawn = SecretNoise(SECRET).uniform((20000,), math.sqrt(3) * 0.2, np.float32, b"inner")
    half = math.sqrt(3) * 0.2
    assert stats.kstest(drawn, "uniform", args=(-half, 2 * half)).pvalue > 0.01
    assert drawn.std() == pytest.approx(0.2, rel=0.02)


def test_every_label_and_every_secret_has_its_own_noise() -> None:
    encoder, perturbation = perturbed(nn.Linear(3, 4))
    rows = torch.randn(5, 3)

    def released(purpose: str, number: int, batch: Batch, secret: bytes = SECRET) -> Tensor:
        perturbation.noise = SecretNoise(secret)
        perturbation.begin(purpose, number, batch)
        return encoder(rows).detach()

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
    encoder, perturbation = perturbed(nn.Linear(3, 4), clip=1e6, noise=1e-6)
    rows = torch.randn(5, 3)

    def noise_of(weight: Tensor) -> Tensor:
        with torch.no_grad():
            encoder.weight.copy_(weight)
        perturbation.begin("encode", 1, BATCH)
        return encoder(rows).detach() - nn.functional.linear(rows, weight, encoder.bias).detach()

    first = encoder.weight.detach().clone()
    changed = first.clone()
    changed[0, 0] += 0.5
    assert torch.equal(noise_of(first), noise_of(first))
    assert (noise_of(first) - noise_of(changed)).abs().median() > 0.1


def test_clipping_bounds_what_one_sample_can_change() -> None:
    encoder, perturbation = perturbed(nn.Identity(), clip=2.0, noise=1e-9)
    rows = torch.cat([torch.randn(50, 6) * 100, torch.randn(50, 6) * 1e-3])
    perturbation.begin("encode", 1, BATCH)
    norms = encoder(rows).norm(dim=1)
    assert norms.max() <= 2.0 + 1e-5
    assert torch.allclose(norms[:50], torch.full((50,), 2.0))
    torch.testing.assert_close(norms[50:], rows[50:].norm(dim=1), rtol=1e-3, atol=1e-6)


def test_noise_comes_before_the_last_activation() -> None:
    encoder = MLPSpec(embedding=8, hidden=(6,), activation="relu").build((3,))
    encoder, perturbation = perturbed(encoder, noise=3.0)
    perturbation.begin("encode", 1, BATCH)
    embedding = encoder(torch.randn(40, 3))
    assert (embedding >= 0).all()
    assert 0.3 < (embedding == 0).float().mean() < 0.7


def test_place_is_the_end_where_it_is_not_plain() -> None:
    norm_last = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2))
    assert _place_of_output(norm_last) is norm_last[2]
    nested = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Tanh())
    assert _place_of_output(nested) is nested[0][0]
    own = nn.Bilinear(2, 2, 2)
    assert _place_of_output(own) is own


def test_inner_layers_have_noise_when_asked() -> None:
    encoder = MLPSpec(embedding=4, hidden=(5, 6), activation="tanh").build((3,))
    seen: list[Tensor] = []
    encoder, perturbation = perturbed(encoder, inner=0.5)
    encoder.get_submodule("hidden1").register_forward_hook(lambda m, a, out: seen.append(out))
    rows = torch.randn(4, 3)
    for number in (1, 1, 2):
        perturbation.begin("encode", number, BATCH)
        encoder(rows)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_batch_norm_is_refused_since_it_carries_a_sample_into_others_embeddings() -> None:
    spec = Perturb(noise=1.0)
    encoder = ResNet18Spec(widths=(4, 4, 8, 8)).build((1, 8, 8))
    with pytest.raises(ConfigError) as refused:
        PartyGuard(party="telco", encoder=encoder, protections=[spec])
    message = str(refused.value)
    for words in ("party.telco.protect", "'perturb'", "batch norm ('stem.norm')", 'norm = "group"'):
        assert words in message
    grouped = ResNet18Spec(widths=(4, 4, 8, 8), norm="group").build((1, 8, 8))
    guard = PartyGuard(party="telco", encoder=grouped, protections=[spec])
    assert guard.spent()
