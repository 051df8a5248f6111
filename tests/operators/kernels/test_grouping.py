"""Folds per group against Python's integers."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.operators import kernels as kernel_choice
from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.column import FixedColumn
from pystachio.operators.kernels import grouping as grouping_kernels
from pystachio.operators.kernels import native, portable
from pystachio.operators.kernels.exact_sums import exact_sums
from pystachio.operators.kernels.extremes import extreme, first
from pystachio.operators.kernels.grouping import Grouping, group_rows, one_group
from pystachio.operators.kernels.numbering import expected_groups
from pystachio.operators.kernels.parts import mix_hashes, rows_by_part
from pystachio.operators.kernels.selection import take_late
from pystachio.operators.kernels.texts import hash_texts

CPU = torch.device("cpu")
NATIVE = pytest.mark.skipif(native.library() is None, reason="needs the compiled library")
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-5, 5), st.sampled_from([-(2**63), 2**63 - 1]))
WIDE = st.integers(-(10**36), 10**36)


def grouped(keys: list[int], rows: int, allow_direct: bool) -> Grouping:
    if not keys and rows == 0:
        return one_group(0, CPU)
    return group_rows([column_from_arrow(pa.array(keys, pa.int64()))], rows, CPU, allow_direct=allow_direct)


def values_by_group(grouping: Grouping, values: list[Any]) -> list[list[Any]]:
    """The values of each group, in the grouping's order of groups, found through the rows' ids."""
    if grouping.ids is None:
        return [values]
    slots: dict[int, list[Any]] = defaultdict(list)
    for slot, value in zip(grouping.ids.tolist(), values, strict=True):
        slots[slot].append(value)
    used = range(grouping.slots) if grouping.used is None else grouping.used.tolist()
    return [slots[slot] for slot in used]


@st.composite
def keyed_values(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> tuple[list[int], list[Any]]:
    keys = draw(st.lists(st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1, 10_000])), max_size=40))
    return keys, [draw(st.one_of(st.none(), values, values)) for _ in keys]


@given(keyed_values(INT64), st.booleans(), st.booleans())
@settings(max_examples=200)
def test_groups_sums_and_extremes_of_int64(
    rows: tuple[list[int], list[int | None]], allow_direct: bool, without_numpy: bool
) -> None:
    keys, values = rows
    with pytest.MonkeyPatch.context() as patch:
        if without_numpy:
            patch.setattr(kernel_choice, "host", portable)
        grouping = grouped(keys, len(keys), allow_direct)
        members = values_by_group(grouping, list(zip(keys, values, strict=True)))
        if grouping.ids is not None:
            assert [{key for key, _ in group} for group in members] == [
                {keys[position]} for position in grouping.representatives.tolist()
            ]
            assert sorted(keys[p] for p in grouping.representatives.tolist()) == sorted(set(keys))
        present = [[value for _, value in group if value is not None] for group in members]
        column = column_from_arrow(pa.array(values, pa.int64()))
        total = column_to_arrow(exact_sums(column, pa.decimal128(38, 0), grouping)).to_pylist()
        assert total == [Decimal(sum(group)) if group else None for group in present]
        for largest in (False, True):
            best = column_to_arrow(extreme(column, grouping, largest=largest)).to_pylist()
            assert best == [(max if largest else min)(group) if group else None for group in present]
        assert grouping.row_counts.tolist() == [len(group) for group in members]
        start = column_to_arrow(first(column, None, grouping)).to_pylist()
        assert start == [group[0][1] if group else None for group in members]


@given(keyed_values(WIDE))
@settings(max_examples=150)
def test_sums_and_extremes_of_wide_decimals(rows: tuple[list[int], list[int | None]]) -> None:
    keys, values = rows
    grouping = grouped(keys, len(keys), True)
    present = [[v for v in group if v is not None] for group in values_by_group(grouping, values)]
    scaled = pa.array([None if v is None else Decimal(v) for v in values], pa.decimal128(38, 0))
    column = column_from_arrow(scaled)
    total = column_to_arrow(exact_sums(column, pa.decimal128(38, 0), grouping)).to_pylist()
    assert [None if v is None else int(v) for v in total] == [sum(group) if group else None for group in present]
    for largest in (False, True):
        best = column_to_arrow(extreme(column, grouping, largest=largest)).to_pylist()
        wanted = [(max if largest else min)(group) if group else None for group in present]
        assert [None if v is None else int(v) for v in best] == wanted


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, "", "a", "ab", "ba"])), max_size=30),
    st.booleans(),
)
@settings(max_examples=200)
def test_text_beside_another_key(rows: list[tuple[int, str | None]], determined: bool) -> None:
    if determined:
        texts = dict(rows)
        rows = [(key, texts[key]) for key, _ in rows]
    keys = [
        column_from_arrow(pa.array([key for key, _ in rows], pa.int64())),
        column_from_arrow(pa.array([text for _, text in rows], pa.string())),
    ]
    grouping = group_rows(keys, len(rows), CPU, allow_direct=True)
    members = values_by_group(grouping, rows)
    assert all(len(set(group)) == 1 for group in members)
    assert len(members) == len(set(rows))


@given(
    st.lists(st.tuples(st.integers(0, 2), *[st.sampled_from([None, "", "a", "b" * 20])] * 2), max_size=30),
    st.sampled_from(["different", "few", "one"]),
    st.booleans(),
)
@settings(max_examples=200)
@NATIVE
def test_views_are_grouped_by_hashes_and_are_right_where_those_are_not(
    rows: list[tuple[int, str | None, str | None]], hashes: str, with_number: bool
) -> None:
    columns = [pa.array([row[at] for row in rows], type_) for at, type_ in enumerate([pa.int64(), *[pa.string()] * 2])]
    first, second = (column_from_arrow(texts) for texts in columns[1:])
    keys = [
        *([column_from_arrow(columns[0])] if with_number else []),
        take_late(first, torch.arange(len(rows))),
        second,
    ]
    with pytest.MonkeyPatch.context() as patch:
        if hashes != "different":
            kept = 0 if hashes == "one" else 1
            patch.setattr(grouping_kernels, "hash_texts", lambda texts: hash_texts(texts) & kept)
        grouping = group_rows(keys, len(rows), CPU, allow_direct=True)
    members = values_by_group(grouping, rows if with_number else [row[1:] for row in rows])
    assert all(len(set(group)) == 1 for group in members)
    assert len(members) == len({row[0 if with_number else 1 :] for row in rows})


@pytest.mark.parametrize("determined", ["all", "one", "at first", "none"])
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=NATIVE)])
def test_texts_that_a_number_determines_in_many_rows(determined: str, late: bool) -> None:
    rows = 20_000
    numbers = [(7 * row) % 1000 for row in range(rows)]
    first = [f"name {number % 500}" for number in numbers]
    second = [f"town {number % 90}" for number in numbers]
    if determined == "at first":
        first[-1] = "another"
    if determined in ("one", "none"):
        second = [f"town {row % 11}" for row in range(rows)]
    if determined == "none":
        first = [f"name {row % 13}" for row in range(rows)]
    texts = [column_from_arrow(pa.array(column)) for column in (first, second)]
    keys = [take_late(column, torch.arange(rows)) if late else column for column in texts]
    grouping = group_rows([column_from_arrow(pa.array(numbers)), *keys], rows, CPU, allow_direct=True)
    members = values_by_group(grouping, list(zip(numbers, first, second, strict=True)))
    assert all(len(set(group)) == 1 for group in members)
    assert len(members) == len(set(zip(numbers, first, second, strict=True)))


@pytest.mark.parametrize("late", [False, pytest.param(True, marks=NATIVE)])
def test_more_texts_than_a_table_has_words(late: bool) -> None:
    values = [[f"{row % (2 + at % 3)}" for row in range(60)] for at in range(20)]
    texts = [column_from_arrow(pa.array(column)) for column in values]
    keys = [take_late(column, torch.arange(60)) if late else column for column in texts]
    grouping = group_rows(keys, 60, CPU, allow_direct=True)
    members = values_by_group(grouping, list(zip(*values, strict=True)))
    assert all(len(set(group)) == 1 for group in members)
    assert len(members) == 12


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_beyond_128_bits_is_an_error_and_never_wraps(sign: int) -> None:
    column = column_from_arrow(pa.array([Decimal(sign * (10**38 - 1))] * 7, pa.decimal128(38, 0)))
    with pytest.raises(DataError, match="38 digits"):
        exact_sums(column, pa.decimal128(38, 0), one_group(7, CPU))


def test_spread_gives_each_row_its_groups_value() -> None:
    for allow_direct in (False, True):
        grouping = grouped([5, 9, 5, 7], 4, allow_direct)
        totals = grouping.sums(torch.tensor([1, 10, 2, 100]))
        assert grouping.spread(totals).tolist() == [3, 10, 3, 100]


@NATIVE
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(("rows", "different"), [(1, 1), (3000, 40), (60_000, 59_000), (60_000, 2_000), (60_000, 1)])
def test_groups_of_runs_are_those_of_all_rows(width: int, rows: int, different: int, counted: bool) -> None:
    """Pieces in runs by hash, among them empty ones and one that is far longer than the others."""
    generator = torch.Generator().manual_seed(rows + width)
    numbers = torch.randint(0, different, (rows,), generator=generator)
    words = torch.randint(-(2**62), 2**62, (different, width), generator=generator)[numbers]
    heavy = torch.rand(rows, generator=generator) < 0.3
    words[heavy] = words[0].clone()
    pieces: list[torch.Tensor] = []
    edges: list[list[int]] = []
    before = 0
    for piece in (words[: rows // 7], words[:0], words[rows // 7 :]):
        hashes = torch.zeros(len(piece), dtype=torch.int64)
        for word in piece.T:
            mix_hashes(hashes, word, None)
        own, order = rows_by_part(hashes, 3)
        pieces.append(piece[order.to(torch.int64)])
        edges.append([before + edge for edge in own])
        before += len(piece)
    whole = torch.cat(pieces)
    columns = [FixedColumn(pa.int64(), word.contiguous()) for word in whole.T]
    grouping = group_rows(columns, rows, CPU, allow_direct=False, runs=np.array(edges), counted=counted)
    expected, ids, counts = torch.unique(whole, dim=0, return_inverse=True, return_counts=True)
    assert grouping.groups == len(expected)
    assert grouping.ids is not None
    assert torch.equal(whole[grouping.representatives.to(torch.int64)][grouping.ids], whole)
    assert torch.equal(grouping.row_counts[grouping.ids], counts[ids])
    assert grouping.is_trivial == (len(expected) == rows)


@pytest.mark.parametrize(("groups", "seen", "rows"), [(1, 1, 1), (1, 500, 10**6), (900, 1000, 5000), (500, 500, 9000)])
def test_expected_groups_are_between_those_seen_and_all_rows(groups: int, seen: int, rows: int) -> None:
    assert groups <= expected_groups(groups, seen, rows) <= rows


@pytest.mark.parametrize("of", [100, 5000, 200_000])
def test_expected_groups_are_about_those_of_equal_ones(of: int) -> None:
    generator = torch.Generator().manual_seed(of)
    keys = torch.randint(0, of, (300_000,), generator=generator)
    for seen in (2000, 50_000):
        expected = expected_groups(len(torch.unique(keys[:seen])), seen, len(keys))
        assert abs(expected - len(torch.unique(keys))) <= 0.25 * of
