"""Packed embeddings: what comes out, what it costs, and what a damaged one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.core.doors import Door
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.core.releases import Kind
from colonnade.core.seeds import shuffled
from colonnade.protect import compress
from colonnade.protect.compress import (
    Compression,
    Quantize,
    RandomK,
    TopK,
    pack,
    unpack,
)

shapes = st.tuples(st.integers(0, 9), st.integers(1, 300))
dtypes = st.sampled_from([torch.float32, torch.float64])


def numbers(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


@settings(max_examples=60, deadline=None)
@given(shape=shapes, dtype=dtypes, keep=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_top_k_keeps_the_largest_and_nothing_else(
    shape: tuple[int, int], dtype: torch.dtype, keep: float, seed: int
) -> None:
    values = numbers(shape, dtype, seed)
    found = unpack(pack(values, TopK(keep=keep), 0))
    kept = max(1, round(keep * shape[1]))
    slow = torch.zeros_like(values)
    for row in range(shape[0]):
        places = values[row].abs().argsort(descending=True)[:kept]
        slow[row, places] = values[row, places]
    assert found.dtype == dtype
    assert torch.equal(found, slow)


@settings(max_examples=40, deadline=None)
@given(shape=shapes, dtype=dtypes, keep=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_random_k_sends_some_columns(
    shape: tuple[int, int], dtype: torch.dtype, keep: float, seed: int
) -> None:
    values = numbers(shape, dtype, seed)
    kept = max(1, round(keep * shape[1]))
    columns = shuffled(shape[1], seed)[:kept]
    slow = torch.zeros_like(values)
    slow[:, columns] = values[:, columns] * (shape[1] / kept)
    torch.testing.assert_close(unpack(pack(values, RandomK(keep=keep), seed)), slow)
    unscaled = unpack(pack(values, RandomK(keep=keep, feedback=True), seed))
    assert torch.equal(unscaled[:, columns], values[:, columns])


@settings(max_examples=40, deadline=None)
@given(shape=shapes, dtype=dtypes, bits=st.sampled_from([1, 2, 4, 8]), seed=st.integers(0, 99))
def test_quantized_values_are_at_most_one_step_off(
    shape: tuple[int, int], dtype: torch.dtype, bits: int, seed: int
) -> None:
    values = numbers(shape, dtype, seed)
    found = unpack(pack(values, Quantize(bits=bits), seed))
    assert found.shape == values.shape
    if shape[0] == 0:
        return
    step = (values.amax(1, keepdim=True) - values.amin(1, keepdim=True)) / (2**bits - 1)
    assert ((found - values).abs() <= step * 1.001 + 1e-6).all()
    assert (found >= values.amin(1, keepdim=True) - 1e-6).all()


def test_rounding_is_right_on_average() -> None:
    values = numbers((4, 16), torch.float64, 1)
    drawn = torch.stack([unpack(pack(values, Quantize(bits=2), seed)) for seed in range(3000)])
    step = (values.amax(1, keepdim=True) - values.amin(1, keepdim=True)) / 3
    assert ((drawn.mean(0) - values).abs() < 0.05 * step).all()


def test_a_constant_sample_stays_what_it_is() -> None:
    values = torch.full((3, 5), 2.5)
    assert torch.equal(unpack(pack(values, Quantize(bits=1), 0)), values)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Quantize(bits=4), 28 + 128 * 8 + 128 * 64 // 2),
        (Quantize(bits=1), 28 + 128 * 8 + 128 * 64 // 8),
        (TopK(keep=0.1), 28 + 128 * 6 * (4 + 1)),
        (TopK(keep=0.5), 28 + 128 * (32 * 4 + 8)),
        (RandomK(keep=0.25), 28 + 128 * 16 * 4),
    ],
)
def test_what_it_costs(spec: Compression, expected: int) -> None:
    assert pack(torch.randn(128, 64), spec, 1).numel() == expected


def test_other_values_are_left_alone() -> None:
    packed = pack(torch.ones(2, 3), TopK(keep=1.0), 0)
    door = Door(owner="holder", readers={"bank": [TopK(keep=1.0)]})
    sent = {"embedding": packed, "fitting": torch.tensor(3), "other": 1.0}
    kinds = {"embedding": Kind.EMBEDDING, "fitting": Kind.COUNT}
    answer = door.read("bank", sent, kinds)
    assert isinstance(answer, dict)
    assert torch.equal(answer["embedding"], torch.ones(2, 3))
    assert torch.equal(answer["fitting"], torch.tensor(3))
    bare = torch.zeros(40, dtype=torch.uint8)
    assert door.read("bank", bare, Kind.BYTES) is bare
    assert door.read("shop", packed, Kind.EMBEDDING) is packed
    with pytest.raises(ProtocolError):
        door.read("bank", torch.ones(2, 3), Kind.EMBEDDING)


@pytest.mark.parametrize(
    "spec", [TopK(keep=0.1), TopK(keep=0.9), RandomK(keep=0.5), Quantize(bits=2)]
)
def test_damaged_bytes_are_a_protocol_error_or_numbers(spec: Compression) -> None:
    packed = pack(torch.randn(6, 20), spec, 3)
    for cut in (0, 3, 20, 28, packed.numel() - 1):
        with pytest.raises(ProtocolError):
            unpack(packed[:cut])
    flips = np.random.default_rng(0)
    for _ in range(300):
        changed = packed.clone()
        changed[int(flips.integers(4, packed.numel()))] ^= int(flips.integers(1, 256))
        try:
            found = unpack(changed)
        except ProtocolError:
            continue
        assert found.numel() <= 2**26


def test_a_packed_embedding_has_so_many_values_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = pack(torch.randn(6, 20), TopK(keep=0.5), 0)
    monkeypatch.setattr(compress, "_MOST_VALUES", 120)
    assert unpack(packed).shape == (6, 20)
    monkeypatch.setattr(compress, "_MOST_VALUES", 119)
    with pytest.raises(ProtocolError):
        unpack(packed)


def test_only_tables_of_samples_can_be_packed() -> None:
    with pytest.raises(ConfigError, match="shape"):
        pack(torch.ones(3), TopK(keep=0.5), 0)
    for bad in (0.0, 1.5):
        with pytest.raises(ConfigError, match="keep"):
            TopK(keep=bad)
    with pytest.raises(ConfigError, match="bits"):
        Quantize(bits=3)
