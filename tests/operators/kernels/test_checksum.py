"""Checksum and range in one pass, against xxhash and torch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import xxhash

from pystachio.operators.kernels import host, native

pytestmark = [
    pytest.mark.skipif(native.library() is None, reason="the C library is not built"),
    pytest.mark.usefixtures("instructions"),
]

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
SHORT_BYTES = 240


@pytest.mark.parametrize("dtype", INTEGERS)
def test_checksum_and_range_of_any_length(dtype: torch.dtype) -> None:
    chance = random.Random(0)
    lengths = [
        *range(300),
        *(1 << power for power in range(9, 17)),
        *(chance.randrange(300, 200_000) for _ in range(30)),
    ]
    for rows in (length + by for length in lengths for by in (-1, 0, 1) if length + by > 0):
        nbytes = np.random.default_rng(rows).integers(0, 256, rows * dtype.itemsize, np.uint8)
        values = torch.from_numpy(nbytes).view(dtype)
        found = host.checksum_and_range(values)
        if len(nbytes) <= SHORT_BYTES:
            assert found is None
        else:
            assert found == (xxhash.xxh3_64_intdigest(nbytes), (int(values.min()), int(values.max())))


def test_the_ends_are_found_wherever_they_are() -> None:
    for place in (0, 1, 4095, 4096, 8191, 50_000, 99_998, 99_999):
        for extreme in (-(2**31), 2**31 - 1):
            values = torch.zeros(100_000, dtype=torch.int32)
            values[place] = extreme
            found = host.checksum_and_range(values)
            assert found is not None
            assert found[1] == (min(extreme, 0), max(extreme, 0))


def test_any_changed_byte_changes_the_checksum() -> None:
    values = torch.arange(40_000, dtype=torch.int16)
    before = host.checksum_and_range(values)
    for place in (0, 255, 256, 8191, 8192, 39_967, 39_999):
        changed = values.clone()
        changed[place] ^= 1
        after = host.checksum_and_range(changed)
        assert before is not None
        assert after is not None
        assert after[0] != before[0]


def test_other_values_than_integers_are_left_to_others() -> None:
    assert host.checksum_and_range(torch.zeros(1000)) is None
    assert host.checksum_and_range(torch.zeros(1000, dtype=torch.uint8)) is None
    assert host.checksum_and_range(torch.zeros(2000, dtype=torch.int64)[::2]) is None
