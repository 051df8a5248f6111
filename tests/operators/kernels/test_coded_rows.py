"""Rows by what is true of their codes, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pystachio.operators.kernels import native
from pystachio.operators.kernels.coded_rows import rows_of_codes

pytestmark = pytest.mark.usefixtures("instructions")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("rows", [0, 1, 31, 1023, 1024, 1025, 10_000])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_positions_of_wanted_codes(dtype: torch.dtype, rows: int, share: float) -> None:
    chance = np.random.default_rng(rows)
    entries = 100 if dtype == torch.int8 else 1000
    codes, wanted = chance.integers(0, entries, rows + 3), chance.random(entries) < share
    # Not from the first of its tensor on, as a part of a column.
    found = rows_of_codes(torch.from_numpy(codes).to(dtype)[3:], torch.from_numpy(wanted))
    assert found.dtype == torch.int64
    assert found.tolist() == np.flatnonzero(wanted[codes[3:]]).tolist()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda *_: None)
    codes = torch.tensor([2, 0, 1, 2], dtype=torch.int16)
    assert rows_of_codes(codes, torch.tensor([False, False, True])).tolist() == [0, 3]
