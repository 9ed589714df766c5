"""A label holder that has candidates for a row: one noisy release rules none of them out.

Sums of floating-point numbers have last bits that tell what was added (Mironov 2012): of the old
noise, Box and Muller's formula in float32 added to the embedding, one release of eight numbers
ruled out a wrong candidate for certain in more than half of the cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from colonnade.core.batches import BatchPlan
from colonnade.core.messages import Batch
from colonnade.core.protection import Encoding
from colonnade.protect.perturb import Perturb, clip
from colonnade.protect.protection_spec import Place

TRIES, WIDTH, NOISE = 10_000, 8, 2.828


def could_be(released: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """Whether some float32 number, added to the candidate in float32, gives what was released."""
    distance = (released.astype(np.float64) - candidate.astype(np.float64)).astype(np.float32)
    possible = np.zeros(released.shape, dtype=bool)
    for near in (-np.inf, None, np.inf):
        noise = distance if near is None else np.nextafter(distance, np.float32(near))
        possible |= candidate + noise == released
    return possible.all(axis=1)


def on_the_grid(released: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """Whether what was released lies a whole number of steps from the candidate's rounding.

    The attacker knows the grid, and how far the noise reaches.
    """
    step = NOISE / 64
    away = released.astype(np.float64) / step - np.trunc(candidate.astype(np.float64) / step)
    whole = np.abs(away - np.round(away)) < 1e-3
    return (whole & (np.abs(away) <= 13 * 64)).all(axis=1)


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Each try's true row and a wrong candidate, clipped as at the party."""
    generator = np.random.default_rng(5)
    true, wrong = generator.standard_normal((2, TRIES, WIDTH)).astype(np.float32)
    return true, clip(wrong, 1.0)[0]


def box_muller(count: int) -> np.ndarray:
    """The noise as it was drawn before: in float32, with the deviation inside the root."""
    whole = np.random.default_rng(6).integers(0, 2**32, (2, count), dtype=np.uint32)
    spread = whole.astype(np.float32) + np.float32(0.5)
    radius = np.log(spread[0] * np.float32(2.0**-32)) * np.float32(-2.0 * NOISE**2)
    return np.sqrt(radius) * np.cos(spread[1] * np.float32(2.0 * math.pi * 2.0**-32))


def test_the_attack_rules_out_candidates_behind_the_old_noise() -> None:
    true, wrong = rows()
    released = clip(true, 1.0)[0] + box_muller(TRIES * WIDTH).reshape(TRIES, WIDTH)
    assert could_be(released, clip(true, 1.0)[0]).all()
    assert 1.0 - could_be(released, wrong).mean() > 0.5


def released_by_the_party(true: np.ndarray) -> np.ndarray:
    plan = BatchPlan(TRIES, TRIES, seed=0, shuffle=False)
    encoding = Encoding("encode", 1, Batch("train", 0), plan)
    protection = Perturb(noise=NOISE).stand_at(Place(owner="telco"))
    return protection.encoded(torch.from_numpy(true), encoding).numpy()


@pytest.mark.attack(
    what="Candidates ruled out by the last bits of floating-point noise",
    has="one release and candidates for the row (Mironov 2012; honest but curious)",
    before="57 to 75 % of wrong candidates ruled out with certainty",
    now="{share:.2%} of 10,000 wrong candidates",
)
def test_of_ten_thousand_candidates_fewer_than_one_in_a_hundred_is_ruled_out(
    measured: Callable[..., None],
) -> None:
    true, wrong = rows()
    released = released_by_the_party(true)
    assert on_the_grid(released, clip(true, 1.0)[0]).mean() > 0.999
    share = 1.0 - on_the_grid(released, wrong).mean()
    measured(share=share)
    assert share < 0.01


def test_what_is_released_lies_on_one_grid_whatever_was_hidden() -> None:
    """No value tells by where it lies: the set of possible releases is the same for every row."""
    true, _ = rows()
    steps = released_by_the_party(true.astype(np.float64)) / (NOISE / 64)
    assert np.abs(steps - np.round(steps)).max() < 1e-9
