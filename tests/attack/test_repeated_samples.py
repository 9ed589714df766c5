"""A label holder that names one sample many times: the account counts people, not places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from colonnade.core.errors import ProtocolError, Refused
from colonnade.federate.roll_calls import checked_roll
from messages import says

NAMES = ("bank", "telco")


def roll(**samples: list[int]) -> None:
    numbers: dict[str, Tensor] = {part: torch.tensor(own) for part, own in samples.items()}
    presence = {part: torch.ones(len(own), 2, dtype=torch.bool) for part, own in samples.items()}
    checked_roll("telco", NAMES, numbers, presence)


@pytest.mark.attack(
    what="One sample many times in a roll",
    has="the roll (cheating)",
    before="20,000 releases for the price of one",
    now="refused, rule 'distinct samples'",
)
@pytest.mark.parametrize(
    "samples",
    [
        {"train": [3] * 1000},
        {"train": [0, 1, 2, 3, 1]},
        {"train": [0, 1], "validation": [2, 3], "test": [4, 1]},
        {"train": [0], **{f"part {number}": [0] for number in range(12)}},
    ],
    ids=["one sample only", "once more", "in another part", "in many parts"],
)
def test_no_sample_stands_in_the_roll_twice(samples: dict[str, list[int]]) -> None:
    with pytest.raises(Refused, match=says("'distinct samples'", "once")):
        roll(**samples)


def test_an_honest_roll_is_taken() -> None:
    roll(train=[4, 0, 2], validation=[1], test=[3, 5])


ONES, PRESENT = torch.arange(3), torch.ones(3, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("numbers", "presence"),
    [
        (ONES.float(), PRESENT),
        (ONES.reshape(3, 1), PRESENT),
        (ONES, PRESENT.int()),
        (ONES, PRESENT[:2]),
        (ONES, PRESENT[:, :1]),
    ],
    ids=["not whole", "two dimensions", "not true or false", "a row short", "a party short"],
)
def test_numbers_and_presence_fit_together(numbers: Tensor, presence: Tensor) -> None:
    with pytest.raises(ProtocolError, match="part 'train'"):
        checked_roll("telco", NAMES, {"train": numbers}, {"train": presence})


def test_a_roll_has_as_many_presence_tables_as_parts_and_not_too_many() -> None:
    with pytest.raises(ProtocolError, match="presence"):
        checked_roll("telco", NAMES, {"train": ONES}, {"train": PRESENT, "test": PRESENT})
    roll(**{f"part {number}": [number] for number in range(16)})
    with pytest.raises(ProtocolError, match=says("17 parts", "2 parties")):
        roll(**{f"part {number}": [number] for number in range(17)})
    table = torch.ones(3, 1024, dtype=torch.bool)
    checked_roll("telco", ("x",) * 1024, {"train": ONES}, {"train": table})
    with pytest.raises(ProtocolError, match="1025 parties"):
        checked_roll("telco", ("x",) * 1025, {"train": ONES}, {"train": table})
