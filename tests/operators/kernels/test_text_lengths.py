"""Characters of strings, counted in C, against Python's `len`."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import BytesColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.texts import text_lengths

pytestmark = pytest.mark.skipif(native.library() is None, reason="the C library is not built")


@pytest.mark.parametrize("alphabet", ["ab", "aé", "aé漢😀"])
@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 1500])
def test_lengths(alphabet: str, rows: int) -> None:
    r = random.Random(rows)
    texts = [
        "".join(r.choice(alphabet if r.random() < 0.02 else "xyz") for _ in range(r.randrange(9))) for _ in range(rows)
    ]
    column = column_from_arrow(pa.array(texts, pa.large_string()))
    assert isinstance(column, BytesColumn)
    lengths = text_lengths(column)
    assert lengths is not None
    assert lengths.tolist() == [len(text) for text in texts]


def test_a_slice_and_offsets_that_lie() -> None:
    column = column_from_arrow(pa.array(["aé", "", "漢b"], pa.large_string()))
    assert isinstance(column, BytesColumn)
    part = text_lengths(BytesColumn(column.type, column.offsets[1:], column.data))
    assert part is not None
    assert part.tolist() == [0, 2]
    assert text_lengths(BytesColumn(column.type, column.offsets + 1, column.data)) is None
