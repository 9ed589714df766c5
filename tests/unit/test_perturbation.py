"""Noise at a party: its gradient, its distribution, its secrecy, and what it is bound to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from colonnade.core.messages import Batch
from colonnade.models import MLPSpec
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
