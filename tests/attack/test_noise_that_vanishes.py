"""A label holder that proposes noise which is none: underflow, and values that swallow it."""

from __future__ import annotations

import math

import pytest
import torch

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import ConfigError, Diverged
from colonnade.core.messages import Batch
from colonnade.core.protection import Encoding
from colonnade.protect.perturb import Perturb
from colonnade.protect.protection_spec import Place

ENCODING = Encoding("encode", 1, Batch("train", 0), BatchPlan(8, 8, seed=0, shuffle=False))


@pytest.mark.attack(
    what="Noise that becomes zero",
    has="the choice of 'noise' and 'clip' (cheating)",
    before="clip = 1e-30: no noise at all, an account of ε 0.93",
    now="refused before the start",
)
@pytest.mark.parametrize(
    ("noise", "clip"), [(1.0, 1e-30), (1e-30, 1.0), (1e-10, 1e-10), (1e10, 1e10), (1.0, 1e30)]
)
def test_a_deviation_that_can_t_be_squared_is_refused(noise: float, clip: float) -> None:
    """It was zero in float32 while the account said a small epsilon."""
    with pytest.raises(ConfigError, match="noise, clip"):
        Perturb(noise=noise, clip=clip)


@pytest.mark.parametrize("clip", [1e-14, 1e-3, 1.0, 1e14])
def test_whatever_is_allowed_is_noise(clip: float) -> None:
    protection = Perturb(noise=1.0, clip=clip).stand_at(Place(owner="telco"))
    released = protection.encoded(torch.zeros(1000, 8), ENCODING)
    assert released.std().item() == pytest.approx(clip, rel=0.1)


@pytest.mark.attack(
    what="A NaN or infinity that passes through the noise",
    has="weights that overflow",
    before="the sample could be told from others",
    now="the party sends nothing and says so",
)
@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_do_not_leave(wild: float) -> None:
    """An overflow in one sample's row would pass through the noise and tell of it."""
    protection = Perturb(noise=1.0).stand_at(Place(owner="telco"))
    embedding = torch.zeros(8, 4)
    embedding[3, 2] = wild
    with pytest.raises(Diverged, match="'telco'"):
        protection.encoded(embedding, ENCODING)
