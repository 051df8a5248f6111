"""The states of a program's folds: what several threads have filled comes out as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
import torch

from pystachio.operators.aggregation.different_groups import has_no_group_twice, share_no_group
from pystachio.operators.arrow import column_from_arrow, dictionary_from_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.column import Column, DictionaryColumn, FixedColumn
from pystachio.operators.fusion.groups import LARGEST_SUM, Accumulated, Accumulator, FoldedGroups, GroupKey, StateColumn
from pystachio.operators.kernels.instructions import FEW_SLOTS, WAYS, Operation

LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def folded(slots: int, largest: int = 1) -> FoldedGroups:
    """By a number from 10 on: how many rows, their sum (NULL without a value), the least and the largest value."""
    int64 = torch.int64
    return FoldedGroups(
        keys=(GroupKey(0, pa.int64(), torch.int16, 10, slots, False, (10, 10 + slots), None),),
        slots=slots,
        accumulators=(
            Accumulator(Operation.FOLD_COUNT, int64, 0),
            Accumulator(Operation.FOLD_SUM, int64, 0),
            Accumulator(Operation.FOLD_MINIMUM, int64, LARGEST),
            Accumulator(Operation.FOLD_MAXIMUM, int64, SMALLEST),
            Accumulator(Operation.FOLD_SUM_FLOATS, torch.float64, 0),
        ),
        columns=(
            StateColumn(pa.int64(), 0, None, int64, None),
            StateColumn(pa.int64(), 1, 0, torch.int32, (-1000, 1000)),
            StateColumn(pa.int64(), 2, 0, int64, None),
            StateColumn(pa.int64(), 3, 0, int64, None),
            StateColumn(pa.float64(), 4, 0, torch.float64, None),
        ),
        largest=largest,
        multiplied=1,
        rebased=None,
    )


def fold(states: Accumulated, slots: int, rows: Sequence[tuple[int, int]]) -> None:
    """As a program does, which writes each row to one of the ways."""
    count, total, least, most, floats = (state.view(-1, slots) for state in states.states)
    for number, (group, value) in enumerate(rows):
        way = number % count.shape[0]
        count[way, group] += 1
        total[way, group] += value
        least[way, group] = min(int(least[way, group]), value)
        most[way, group] = max(int(most[way, group]), value)
        floats[way, group] += value / 4
    states.rows += len(rows)


def rows_of(batches: Sequence[Batch]) -> list[tuple[object, ...]]:
    found = []
    for batch in batches:
        columns = [column for column in batch.columns if isinstance(column, FixedColumn)]
        assert len(columns) == 6
        found += list(zip(*[column.values.tolist() for column in columns], strict=True))
    return found


def expected(rows: Sequence[tuple[int, int]]) -> list[tuple[object, ...]]:
    groups: dict[int, list[int]] = {}
    for group, value in rows:
        groups.setdefault(group, []).append(value)
    return [(10 + g, len(v), sum(v), min(v), max(v), sum(v) / 4) for g, v in sorted(groups.items())]


@pytest.mark.parametrize("slots", [1, 3, FEW_SLOTS, FEW_SLOTS + 1])
def test_what_threads_have_folded_comes_out_as_one(slots: int) -> None:
    groups = folded(slots)
    parts = [[(n % slots, n * sign) for n in range(5 * size)] for size, sign in ((3, 1), (7, -1), (1, 3))]
    taken = [groups.take((), len(part))[0] for part in parts]
    for states, part in zip(taken, parts, strict=True):
        assert states.states[0].shape[0] == (slots * WAYS if slots <= FEW_SLOTS else slots)
        fold(states, slots, part)
        assert groups.give_back(states) is None
    (batch,) = groups.finish()
    assert rows_of([batch]) == expected([row for part in parts for row in part])
    assert list(groups.finish()) == [], "and only once"


def test_sums_that_may_outgrow_their_states_are_not_joined() -> None:
    groups = folded(4, largest=LARGEST_SUM // 10)
    parts = [[(n % 4, n) for n in range(6)], [(n % 4, 2 * n) for n in range(6)], [(1, 5), (2, 7)]]
    taken = [groups.take((), len(part))[0] for part in parts]
    for states, part in zip(taken, parts, strict=True):
        fold(states, 4, part)
        groups.give_back(states)
    batches = list(groups.finish())
    assert len(batches) == 2
    assert rows_of(batches) == [*expected(parts[0]), *expected(parts[1] + parts[2])]


def test_what_is_to_stay_is_put_out_at_the_end() -> None:
    """Full states too: of grouping sets nobody but the end of a run makes what is put out."""
    groups = replace(folded(4, largest=LARGEST_SUM // 10), stay=True)
    rows = [[(1, 5)] * 6, [(1, 2)] * 6, [(3, 1)] * 6]
    for some in rows:
        states, full = groups.take([], len(some))
        assert full is None
        fold(states, 4, some)
        assert groups.give_back(states) is None
    merged: dict[object, int] = {}
    for key, count, *_ in rows_of(list(groups.finish())):
        merged[key] = merged.get(key, 0) + int(str(count))
    assert merged == {11: 12, 13: 6}
    assert list(groups.finish()) == []


def test_states_without_a_row_put_out_nothing() -> None:
    groups = folded(5)
    for states in [groups.take((), 0)[0] for _ in range(2)]:
        groups.give_back(states)
    assert list(groups.finish()) == []


def numbers(*values: int, dtype: torch.dtype = torch.int64) -> FixedColumn:
    return FixedColumn(pa.int64(), torch.tensor(values, dtype=dtype))


def codes(*values: int) -> DictionaryColumn:
    letters = dictionary_from_arrow(pa.array(["c", "a", "b"]))
    return DictionaryColumn(pa.string(), torch.tensor(values, dtype=torch.int8), letters)


@pytest.mark.parametrize(
    ("keys", "known"),
    [
        ([numbers(1, 2, 9)], True),
        ([numbers(1, 2, 2)], False),
        ([numbers(2, 1)], False),
        ([codes(0, 1, 2)], True),
        ([numbers(1, 1, 2), codes(0, 2, 1)], True),
        ([numbers(1, 1, 2), codes(2, 2, 1)], False),
        ([numbers(1, 1, 2), codes(2, 0, 1)], False),
        ([numbers(1, 2, 3), column_from_arrow(pa.array(["c", "a", "b"]))], True),
        ([numbers(1, 1, 2), column_from_arrow(pa.array(["a", "b", "c"]))], False),
        ([column_from_arrow(pa.array(["a", "b", "c"])), numbers(1, 2, 3)], False),
        ([numbers(*range(300), 299)], False),
        ([numbers(*range(300))], True),
        ([numbers(0, 1, dtype=torch.bool)], True),
        ([FixedColumn(pa.float64(), torch.tensor([-0.0, 0.0]))], False),
        ([FixedColumn(pa.int64(), torch.tensor([1, 2]), torch.tensor([True, False]))], False),
    ],
)
def test_groups_in_order_are_seen_to_be_different(keys: list[Column], known: bool) -> None:
    assert has_no_group_twice(keys, len(keys[0])) is known


def test_a_single_row_is_a_single_group() -> None:
    assert has_no_group_twice([], 1)
    assert not has_no_group_twice([], 2)
    assert has_no_group_twice([FixedColumn(pa.float64(), torch.tensor([1.0]), torch.tensor([False]))], 1)


@pytest.mark.parametrize(
    ("firsts", "known"),
    [
        ([numbers(1, 4, 9), numbers(2, 3, 10)], True),
        ([numbers(1, 4, 9), numbers(2, 4, 10)], False),
        ([numbers(1, 4, 9), numbers(2, 2, 10)], False),
        ([numbers(1, 4, 9), numbers(10, 2)], False),
        ([numbers(-3, 4), numbers(), numbers(5, dtype=torch.int8)], True),
        ([numbers(1, 2), numbers(3, 1000)], False),
        ([numbers(1, 2**62), numbers(-(2**62), 3)], False),
        ([numbers(1, 2), codes(0, 1)], False),
        ([numbers(1, 2), FixedColumn(pa.int64(), torch.tensor([3, 4]), torch.tensor([True, False]))], False),
        ([FixedColumn(pa.float64(), torch.tensor([1.0])), FixedColumn(pa.float64(), torch.tensor([2.0]))], False),
    ],
)
def test_batches_whose_first_keys_are_all_different_share_no_group(
    monkeypatch: pytest.MonkeyPatch, firsts: list[Column], known: bool
) -> None:
    batches = [Batch((key, key), len(key), None) for key in firsts]
    assert not share_no_group(batches, 2), "few rows each are better merged"
    monkeypatch.setattr("pystachio.operators.aggregation.different_groups._FEW_ROWS", 0)
    assert share_no_group(batches, 2) is known
    assert not share_no_group(batches, 0)
    assert not share_no_group([Batch((numbers(),), 0, None)] * 2, 1)
