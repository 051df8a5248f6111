"""Floats that the library orders, rounds and folds, against torch and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pystachio.operators.kernels import native
from pystachio.operators.kernels.floats import (
    extreme_floats,
    group_float_sums,
    group_moments,
    ordered_floats,
    whole_floats,
)
from pystachio.operators.kernels.ordering import ordered_bits

pytestmark = pytest.mark.usefixtures("instructions")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_order(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 1e-45, -1e-45, 3.5, -3.5]
    values = torch.cat((torch.tensor(strange * 600, dtype=dtype), torch.randn(1001, dtype=dtype)))
    found = ordered_floats(values)
    assert found is not None
    monkeypatch.setattr(native, "library", lambda *_: None)
    assert torch.equal(found, ordered_bits(values))
    assert found[0] == found[1]
    assert found[4] == found[5] == found.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [0, 1, 7, 5000])
def test_whole_floats(dtype: torch.dtype, rows: int) -> None:
    chance = np.random.default_rng(rows)
    values = torch.from_numpy(np.round(chance.normal(0, 1e6, rows) * 2) / 2).to(dtype)
    valid = torch.from_numpy(chance.random(rows) < 0.7)
    for mask in (None, valid):
        found = whole_floats(values, mask)
        assert found is not None
        kept = torch.ones(rows, dtype=torch.bool) if mask is None else mask
        expected = torch.round(values)[kept].to(torch.int64)
        assert torch.equal(found[0][kept], expected)
        assert found[1] == ((int(expected.min()), int(expected.max())) if len(expected) else (0, 0))


def test_halves_are_rounded_to_even() -> None:
    values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999999999999994, 4503599627370495.5, -4503599627370497.5, 2.0**62]
    found = whole_floats(torch.tensor(values * 10, dtype=torch.float64), None)
    assert found is not None
    assert found[0].tolist() == [round(value) for value in values] * 10


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf, 2.0**63, -(2.0**64)])
def test_floats_that_do_not_fit(strange: float) -> None:
    values = torch.tensor([1.0, strange, 2.5, 3.5] * 20, dtype=torch.float64)
    assert whole_floats(values, None) is None
    found = whole_floats(values, torch.tensor([True, False, True, True] * 20))
    assert found is not None
    assert found[0].tolist() == [1, 0, 2, 4] * 20
    assert found[1] == (1, 4)


@pytest.mark.parametrize("code", [None, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("slots", [1, 3, 100, 3000])
def test_moments(code: torch.dtype | None, slots: int) -> None:
    if code is torch.int8 and slots > 127:
        slots = 127
    slots = 1 if code is None else slots
    chance = np.random.default_rng(slots)
    rows = 20_000
    values, codes = 1e9 + chance.normal(0, 1, rows), chance.integers(0, slots, rows)
    passing = chance.random(rows) < 0.6
    passing[codes == slots // 2] = slots == 1
    for mask in (None, passing):
        counted = None if mask is None else torch.from_numpy(mask.astype(np.int8))
        tensor = None if code is None else torch.from_numpy(codes).to(code)
        found = group_moments(torch.from_numpy(values), counted, tensor, slots)
        assert found is not None
        for slot in range(slots):
            here = values[(codes == slot) & (True if mask is None else mask)]
            count, mean, squares = (float(each[slot]) for each in found)
            assert count == len(here)
            if count:
                assert mean == pytest.approx(here.mean(), rel=1e-14)
                assert squares == pytest.approx(((here - here.mean()) ** 2).sum(), rel=1e-9, abs=1e-9)
            else:
                assert squares == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("code", [None, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("largest", [False, True])
def test_extremes(dtype: torch.dtype, code: torch.dtype | None, largest: bool) -> None:
    chance = np.random.default_rng(4)
    rows, slots = 5000, 1 if code is None else 100
    strange = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1.5, -1.5])
    values = torch.from_numpy(
        np.where(chance.random(rows) < 0.1, chance.choice(strange, rows), chance.normal(0, 9, rows))
    )
    values, codes = values.to(dtype), chance.integers(0, slots, rows)
    words = ordered_bits(values)
    for mask in (None, chance.random(rows) < 0.5):
        valid = None if mask is None else torch.from_numpy(mask)
        tensor = None if code is None else torch.from_numpy(codes).to(code)
        found = extreme_floats(values, valid, tensor, slots, largest=largest)
        assert found is not None
        for slot in range(slots):
            here = words.numpy()[(codes == slot) & (True if mask is None else mask)]
            assert not len(here) or found[slot] == (here.max() if largest else here.min())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("code", [None, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("slots", [1, 100, 2000])
def test_sums(dtype: torch.dtype, code: torch.dtype | None, slots: int) -> None:
    slots = 1 if code is None else min(slots, 127 if code is torch.int8 else slots)
    chance = np.random.default_rng(slots)
    values, codes = torch.from_numpy(chance.normal(0, 1e3, 6007)).to(dtype), chance.integers(0, slots, 6007)
    for mask in (None, chance.random(6007) < 0.5):
        counted = None if mask is None else torch.from_numpy(mask)
        if mask is not None:
            values[~counted] = math.nan
        tensor = None if code is None else torch.from_numpy(codes).to(code)
        found = group_float_sums(values, counted, tensor, slots)
        assert found is not None
        kept = np.ones(6007, np.bool_) if mask is None else mask
        expected = np.bincount(codes[kept], values.double().numpy()[kept], slots)
        assert found.numpy() == pytest.approx(expected, rel=1e-12, abs=1e-9)
