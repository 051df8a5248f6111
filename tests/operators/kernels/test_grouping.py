"""Folds per group against Python's integers."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.operators import kernels as kernel_choice
from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.kernels import portable
from pystachio.operators.kernels.exact_sums import exact_sums
from pystachio.operators.kernels.extremes import extreme, first
from pystachio.operators.kernels.grouping import Grouping, group_rows, one_group

CPU = torch.device("cpu")
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
@settings(max_examples=200, deadline=None)
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
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=200, deadline=None)
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
