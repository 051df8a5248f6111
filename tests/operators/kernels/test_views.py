"""Texts where they lie: against Python's lists, and against the same texts in columns of their own."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.operators.arrow import column_from_arrow, column_to_arrow, literal_at
from pystachio.operators.batch import Batch, column_nbytes
from pystachio.operators.column import BytesColumn, Column, ViewColumn
from pystachio.operators.kernels import native, views
from pystachio.operators.kernels.extremes import extreme, first
from pystachio.operators.kernels.grouping import group_rows
from pystachio.operators.kernels.keys import encode_build
from pystachio.operators.kernels.ordering import Direction, sort_order
from pystachio.operators.kernels.selection import (
    concat,
    own_texts,
    settled_batch,
    slice_column,
    take,
    take_late,
    take_or_null,
)
from pystachio.operators.kernels.strings import to_codes
from pystachio.operators.kernels.texts import hash_texts, hashed
from pystachio.operators.kernels.views import all_in_place, settled, texts_equal

pytestmark = pytest.mark.skipif(native.library() is None, reason="needs the compiled library")

CPU = torch.device("cpu")
ANY = st.one_of(st.none(), st.text(max_size=70), st.sampled_from(["", "a", *("x" * n for n in (7, 8, 15, 16, 17, 64))]))
TEXTS = st.lists(ANY, max_size=40)
FEW = st.lists(st.sampled_from([None, "", "a", "b", "x" * 40]), min_size=1, max_size=40)
DTYPES = st.sampled_from([torch.int32, torch.int64])


def column(texts: Sequence[str | None]) -> BytesColumn:
    """A column whose offsets do not begin at 0."""
    made = column_from_arrow(pa.array(["before", *texts], pa.large_string())[1:])
    assert isinstance(made, BytesColumn)
    return made


def seen(texts: Sequence[str | None]) -> ViewColumn:
    """Equal texts at different addresses, in other than the order of the rows."""
    backwards = torch.arange(len(texts) - 1, -1, -1)
    made = take_late(column(texts[::-1]), backwards)
    assert isinstance(made, ViewColumn)
    return made


def texts_of(found: Column) -> list[Any]:
    return list(column_to_arrow(found).to_pylist())


@given(texts=TEXTS.filter(bool), data=st.data(), dtype=DTYPES)
def test_rows_in_and_out(texts: list[str | None], data: st.DataObject, dtype: torch.dtype) -> None:
    positions = st.lists(st.integers(0, len(texts) - 1), max_size=60)
    first_rows, rows = data.draw(positions), None
    late = take_late(column(texts), torch.tensor(first_rows, dtype=dtype))
    expected = [texts[row] for row in first_rows]
    assert texts_of(late) == expected
    assert [literal_at(late, row).value for row in range(len(late))] == expected
    if expected:
        rows = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=60))
        late, expected = take(late, torch.tensor(rows, dtype=dtype)), [expected[row] for row in rows]
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    part = slice_column(late, start, stop)
    assert texts_of(part) == expected[start:stop]
    together = concat([part, column(texts), late])
    assert isinstance(together, ViewColumn)
    assert texts_of(together) == [*expected[start:stop], *texts, *expected]
    assert together.text_bytes == sum(int(length) for length in together.views[:, 1])


@given(texts=TEXTS.filter(bool), data=st.data())
def test_hashes_go_with_their_rows(texts: list[str | None], data: st.DataObject) -> None:
    for whole in (hashed(all_in_place(column(texts))), hashed(seen(texts))):
        assert texts_of(whole) == texts
        start = data.draw(st.integers(0, len(texts)))
        part = slice_column(whole, start, data.draw(st.integers(start, len(texts))))
        together = concat([part, whole])
        for made in (whole, part, together):
            assert isinstance(made, ViewColumn)
            assert made.hashes is not None
            assert torch.equal(made.hashes, hash_texts(replace(made, hashes=None)))
        beside = concat([whole, column(texts)])
        assert isinstance(beside, ViewColumn)
        assert beside.hashes is None


@given(texts=TEXTS, data=st.data(), dtype=DTYPES)
def test_rows_without_a_match_are_null(texts: list[str | None], data: st.DataObject, dtype: torch.dtype) -> None:
    rows = data.draw(st.lists(st.integers(-1, len(texts) - 1), max_size=60))
    indices = torch.tensor(rows, dtype=dtype)
    expected = [None if row < 0 else texts[row] for row in rows]
    assert texts_of(take_or_null(column(texts), indices)) == expected
    assert texts_of(take_or_null(seen(texts), indices)) == expected


@pytest.mark.parametrize("where", ["bytes", "views", "bytes elsewhere"])
@given(texts=FEW, data=st.data(), dtype=DTYPES)
def test_equal_to_models(where: str, texts: list[str | None], data: st.DataObject, dtype: torch.dtype) -> None:
    rows = range(len(texts))
    free = data.draw(st.lists(st.sampled_from(rows), min_size=len(texts), max_size=len(texts)))
    same = [texts.index(text) for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        if where == "bytes elsewhere":
            patch.setattr(views, "can_view", lambda _: False)
        made = seen(texts) if where == "views" else column(texts)
        for models in (free, same):
            expected = all(texts[row] == texts[model] for row, model in zip(rows, models, strict=True))
            assert texts_equal(made, torch.tensor(models, dtype=dtype)) == expected


@pytest.mark.parametrize("length", [1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100])
def test_one_byte_makes_texts_of_one_length_different(length: int) -> None:
    models = torch.zeros(40, dtype=torch.int32)
    text = "x" * length
    assert texts_equal(seen([text] * 40), models)
    for place in range(length):
        other = f"{text[:place]}y{text[place + 1 :]}"
        for row in (1, 39):
            assert not texts_equal(seen([text] * row + [other] + [text] * (39 - row)), models)


@pytest.mark.parametrize("position", [-1, 3])
def test_positions_are_checked(position: int) -> None:
    for texts in (column(["a", "b", "c"]), seen(["a", "b", "c"])):
        with pytest.raises(IndexError):
            take_late(texts, torch.tensor([0, position]))
        with pytest.raises(IndexError):
            texts_equal(texts, torch.tensor([0, 1, position]))


def test_views_keep_the_bytes_alive() -> None:
    late = seen([str(number) * 50 for number in range(1000)])
    gc.collect()
    torch.full((100_000,), 7, dtype=torch.uint8)
    assert texts_of(late)[::333] == [str(number) * 50 for number in range(0, 1000, 333)]


def test_what_is_kept_holds_little_else() -> None:
    source = column(["x" * 100] * 1000)
    held = source.data.untyped_storage().nbytes()
    many, few = (take_late(source, torch.arange(rows)) for rows in (800, 10))
    assert settled(many) is many
    assert isinstance(settled(few), BytesColumn)
    assert texts_of(settled(few)) == ["x" * 100] * 10
    some = take_late(source, torch.arange(200))
    assert settled(some, waits=True) is some
    assert isinstance(settled(few, waits=True), BytesColumn)
    assert [type(each) for each in settled_batch(Batch((some, many), 200, None)).columns] == [BytesColumn, ViewColumn]
    # What is kept alive counts, and so does what copying will take.
    assert column_nbytes(few) == 10 * 16 + held
    repeated = take_late(source, torch.arange(1000).repeat(3))
    assert column_nbytes(repeated) == 3000 * (16 + 100)


def test_a_source_counts_once() -> None:
    source = column(["x" * 100] * 1000)
    halves = concat([take_late(slice_column(source, start, start + 500), torch.arange(500)) for start in (0, 500)])
    assert isinstance(halves, ViewColumn)
    assert halves.held_bytes == source.data.untyped_storage().nbytes()


def test_own_texts_of_chosen_columns() -> None:
    batch = own_texts(Batch((seen(["a"]), seen(["b"])), 1, None), (1,))
    assert [type(each) for each in batch.columns] == [ViewColumn, BytesColumn]
    assert texts_of(batch.columns[1]) == ["b"]


@given(texts=FEW, data=st.data())
def test_views_are_read_like_texts(texts: list[str | None], data: st.DataObject) -> None:
    """Groups, orders, extremes and keys of joins."""
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=len(texts), max_size=len(texts)))
    key, rows = column_from_arrow(pa.array(numbers, pa.int32())), len(texts)
    plain, late = column(texts), seen(texts)
    assert texts_of(to_codes(late)) == texts
    assert torch.equal(hash_texts(late), hash_texts(plain))
    for keys in ([plain], [key, plain]):
        expected = group_rows(keys, rows, CPU, allow_direct=True)
        found = group_rows([late if each is plain else each for each in keys], rows, CPU, allow_direct=True)
        assert found.groups == expected.groups
        assert [texts_of(take(each, found.models)) for each in keys] == [texts_of(each) for each in keys]
    grouping = group_rows([key], rows, CPU, allow_direct=True)
    assert texts_of(first(late, None, grouping)) == texts_of(first(plain, None, grouping))
    assert texts_of(extreme(late, grouping, largest=True)) == texts_of(extreme(plain, grouping, largest=True))
    down = Direction(descending=True, nulls_first=True)
    assert torch.equal(sort_order([(late, down)], rows), sort_order([(plain, down)], rows))
    for null_equal in (True, False):
        encoding, codes = encode_build([late], (null_equal,))
        assert torch.equal(encoding.encode([plain]).values, codes.values)
        assert torch.equal(encoding.encode([late]).values, codes.values)
