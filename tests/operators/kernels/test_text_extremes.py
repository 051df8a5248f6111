"""The smallest and largest texts of groups, against Python's order of bytes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.column import BytesColumn, Column, ViewColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.extremes import extreme
from pystachio.operators.kernels.grouping import group_rows
from pystachio.operators.kernels.selection import slice_column, take_late
from pystachio.operators.kernels.texts import extreme_rows

ALPHABET = (b"", b"a", b"ab", b"abcdefgh", b"abcdefgh\0", b"abcdefghi", b"abcdefgz", b"\0", b"\xff", "ünïcode".encode())


def texts(r: random.Random, rows: int) -> list[bytes | None]:
    return [None if r.random() < 0.3 else r.choice(ALPHABET) + r.choice(ALPHABET) for _ in range(rows)]


@pytest.mark.parametrize("code", [None, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("rows", [0, 1, 30, 5000])
@pytest.mark.parametrize("largest", [False, True])
def test_first_row_of_the_extreme_text(code: torch.dtype | None, rows: int, largest: bool) -> None:
    r = random.Random(rows)
    values = texts(r, rows + 2)
    whole = column_from_arrow(pa.array(values, pa.large_binary()))
    # Offsets that do not begin at 0, and texts somewhere else.
    shapes: list[Column] = [slice_column(whole, 2, rows + 2), take_late(whole, torch.arange(2, rows + 2))]
    values = values[2:]
    slots = 1 if code is None else 40
    codes = [0 if code is None else r.randrange(slots - 1) for _ in range(rows)]
    expected = []
    for slot in range(slots):
        here = [row for row in range(rows) if codes[row] == slot and values[row] is not None]
        choose = max if largest else min
        expected.append(choose(here, key=lambda row: values[row] or b"", default=-1))
    for column in shapes:
        assert isinstance(column, BytesColumn | ViewColumn)
        tensor = None if code is None else torch.tensor(codes, dtype=code)
        found = extreme_rows(column, tensor, slots, largest=largest)
        assert found is not None
        assert found.tolist() == expected


@pytest.mark.parametrize("has_library", [True, False])
@pytest.mark.parametrize("largest", [False, True])
def test_extreme_of_groups(has_library: bool, largest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_library:
        monkeypatch.setattr(native, "library", lambda *_: None)
    r = random.Random(7)
    keys = [r.randrange(50) * 1_000_003 for _ in range(2000)]
    values = [None if key % 7 == 0 else text for key, text in zip(keys, texts(r, 2000), strict=True)]
    grouping = group_rows([column_from_arrow(pa.array(keys))], 2000, torch.device("cpu"), allow_direct=True)
    column = extreme(column_from_arrow(pa.array(values, pa.large_binary())), grouping, largest=largest)
    groups = [keys[row] for row in grouping.representatives.tolist()]
    assert sorted(groups) == sorted(set(keys))
    for key, found in zip(groups, column_to_arrow(column).to_pylist(), strict=True):
        here = [value for other, value in zip(keys, values, strict=True) if other == key and value is not None]
        assert found == (max if largest else min)(here, default=None)
