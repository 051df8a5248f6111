"""Rows by node: equal keys go to one node, whatever they look like; with the C library and without."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import column_from_arrow, dictionary_from_arrow
from pystachio.operators.column import (
    BytesColumn,
    Column,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels import native
from pystachio.operators.kernels.partition import hash_rows, rows_by_node
from pystachio.operators.kernels.selection import widen, with_validity
from pystachio.operators.kernels.views import view_texts

WORDS = ["", "a", None, "apple", "naïve", "x" * 40, "a", "", None, "zebra crossing"]


@pytest.fixture(params=["compiled", "portable"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "portable":
        monkeypatch.setattr(native, "library", lambda *_: None)
    elif native.library() is None:
        pytest.skip("needs the compiled library")


def hashes(*columns: Column) -> list[int]:
    result: list[int] = hash_rows(columns, len(columns[0])).tolist()
    return result


def test_texts_hash_alike_as_codes_plain_and_as_views() -> None:
    plain = column_from_arrow(pa.array(WORDS))
    assert isinstance(plain, BytesColumn)
    values = ["zebra crossing", "x" * 40, "unused", "naïve", "apple", "a", ""]
    codes = torch.tensor([values.index(word) if word is not None else 3 for word in WORDS])
    validity = torch.tensor([word is not None for word in WORDS])
    coded = DictionaryColumn(pa.string(), codes, dictionary_from_arrow(pa.array(values)), validity)
    assert hashes(plain) == hashes(coded)
    if native.library() is not None:
        views = with_validity(view_texts(plain, None), plain.validity)
        assert isinstance(views, ViewColumn)
        assert hashes(plain) == hashes(views)
    assert len(set(hashes(plain))) == len(set(WORDS))


def test_all_nulls_with_an_empty_dictionary_hash_like_other_nulls() -> None:
    nothing = dictionary_from_arrow(pa.array([], pa.string()))
    empty = DictionaryColumn(pa.string(), torch.zeros(3, dtype=torch.int8), nothing, torch.zeros(3, dtype=torch.bool))
    assert hashes(empty) == hashes(column_from_arrow(pa.array([None] * 3, pa.string())))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_hash_alike_in_every_width(dtype: torch.dtype) -> None:
    values = torch.tensor([-128, -1, 0, 1, 5, 127])
    validity = torch.tensor([True, True, True, False, True, True])
    wide = FixedColumn(pa.int64(), values, validity)
    narrow = FixedColumn(pa.int64(), torch.where(validity, values, 99).to(dtype), validity)
    assert hashes(wide) == hashes(narrow)


def test_decimals_hash_alike_in_one_limb_and_in_two() -> None:
    values = [
        Decimal("-1.50"),
        Decimal("0.00"),
        None,
        Decimal("92233720368547758.07"),
        Decimal("-92233720368547758.08"),
    ]
    small = column_from_arrow(pa.array(values, pa.decimal128(19, 2)))
    assert isinstance(small, FixedColumn)
    wide = widen(small)
    assert isinstance(wide, WideDecimalColumn)
    assert hashes(small) == hashes(wide)
    apart = WideDecimalColumn(pa.decimal128(38, 2), torch.tensor([0, 1, -1]), torch.tensor([7, 7, 7]))
    assert len(set(hashes(apart))) == 3


def test_floats_hash_by_value() -> None:
    values = torch.tensor([0.0, -0.0, float("nan"), -float("nan"), 1.5, float("inf")], dtype=torch.float64)
    found = hashes(FixedColumn(pa.float64(), values))
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[4:] == hashes(FixedColumn(pa.float32(), values[4:].float()))
    assert len(set(found)) == 4


def test_every_key_counts_and_so_does_their_order() -> None:
    first, second = FixedColumn(pa.int64(), torch.arange(100)), FixedColumn(pa.int64(), torch.arange(100).flip(0))
    assert len(set(hashes(first, second))) == 100
    assert hashes(first, second) != hashes(second, first)


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 64, 65, 300])
def test_every_row_goes_to_one_node_and_nodes_get_equal_parts(nodes: int) -> None:
    rows = 60_000
    parts = rows_by_node(hash_rows([FixedColumn(pa.int64(), torch.arange(rows))], rows), nodes)
    assert len(parts) == nodes
    assert torch.cat([part.long() for part in parts]).sort().values.tolist() == list(range(rows))
    assert all(torch.equal(part, part.sort().values) for part in parts)
    assert max(len(part) for part in parts) < 1.5 * rows / nodes


def test_no_rows_go_nowhere() -> None:
    parts = rows_by_node(hash_rows([FixedColumn(pa.int64(), torch.zeros(0, dtype=torch.int64))], 0), 3)
    assert [len(part) for part in parts] == [0, 0, 0]
