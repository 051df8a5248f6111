"""Partial batches by the ranges of their keys, against the rows that went in."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
import torch

from pystachio.operators.aggregation import different_groups, key_ranges
from pystachio.operators.aggregation.key_ranges import KeyRanges
from pystachio.operators.aggregation.parts import Part
from pystachio.operators.aggregation.plan import AggregatePlan, plan_aggregate
from pystachio.operators.batch import Batch, Field
from pystachio.operators.column import FixedColumn

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _parts_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ranges, "_FEW_ROWS", 8)
    monkeypatch.setattr(key_ranges, "_SMALL_ROWS", 0)


def plan(*keys: pa.DataType) -> AggregatePlan:
    return plan_aggregate(tuple(Field("k", type_) for type_ in keys or (pa.int64(),)), (0,), (), ())


def batch(keys: Sequence[int | None], dtype: torch.dtype = torch.int32) -> Batch:
    values = torch.tensor([key or 0 for key in keys], dtype=dtype)
    validity = torch.tensor([key is not None for key in keys]) if None in keys else None
    return Batch((FixedColumn(pa.int64(), values, validity),), len(keys), None)


def keys_of(batches: Sequence[Batch]) -> list[int]:
    return [key for each in batches for key in each.columns[0].values.tolist()]  # type: ignore[union-attr]


def ranges() -> KeyRanges:
    return KeyRanges(plan(), CPU)


def parts_of(*keys: Sequence[int]) -> list[list[int]] | None:
    batches = [batch(each) for each in keys]
    parts = ranges().parts(batches)
    if parts is not None:
        check(parts, batches)
    return None if parts is None else [sorted(keys_of(part.batches)) for part in parts]


def check(parts: Sequence[Part], batches: Sequence[Batch]) -> None:
    """Every row is in one part, every key in one part, and what is merged has no key twice."""
    inside = [keys_of(part.batches) for part in parts]
    assert Counter(key for keys in inside for key in keys) == Counter(keys_of(batches))
    assert sum(len(set(keys)) for keys in inside) == len(set(keys_of(batches)))
    for part, keys in zip(parts, inside, strict=True):
        assert all(each.length for each in part.batches)
        assert not part.is_merged or (len(part.batches) == 1 and len(set(keys)) == len(keys))


def test_ranges_that_do_not_meet_are_parts_as_they_are() -> None:
    assert parts_of([1, 2, 5], [20, 21], [7, 9]) == [[1, 2, 5], [7, 9], [20, 21]]


def test_keys_at_which_ranges_meet_are_a_part_of_their_own() -> None:
    assert parts_of([1, 2, 5], [9, 12, 13], [5, 6, 9]) == [[1, 2], [6], [12, 13], [5, 5, 9, 9]]


def test_a_key_that_several_batches_have_alone() -> None:
    assert parts_of([1, 5], [5], [5], [5, 7]) == [[1], [7], [5, 5, 5, 5]]


def test_ranges_that_overlap_are_merged_as_one_part() -> None:
    assert parts_of([1, 2, 5], [4, 6, 8], [8, 10], [20]) == [[1, 2, 4, 5, 6], [10], [20], [8, 8]]


def test_a_key_twice_in_one_batch_is_merged() -> None:
    batches = [batch([1, 1, 5]), batch([7, 8])]
    parts = ranges().parts(batches)
    assert parts is not None
    check(parts, batches)
    assert [part.is_merged for part in parts] == [False, True]


def test_empty_batches_are_in_no_part() -> None:
    assert parts_of([1, 2], [], [3]) == [[1, 2], [3]]
    assert parts_of([], []) is None


@pytest.mark.parametrize(
    "odd",
    [batch([3, 1, 2]), batch([1, None]), batch([1, 2], torch.float64)],
    ids=["no order", "a NULL", "floating point"],
)
def test_other_keys_have_no_ranges(odd: Batch) -> None:
    batches = [batch([10, 11]), odd]
    known = ranges()
    assert known.parts(batches) is None
    assert not known.merging_is_vain(batches)


def test_without_keys_there_are_no_ranges() -> None:
    known = KeyRanges(plan_aggregate((Field("k", pa.int64()),), (), (), ()), CPU)
    assert known.parts([Batch((), 3, None)]) is None


def test_what_one_worker_would_merge_alone_is_no_part() -> None:
    assert parts_of(*[[number, 100] for number in range(4)]) is not None
    assert parts_of(*[[number, 100] for number in range(5)]) is None


def test_overlapping_batches_without_a_common_key_are_parts_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(different_groups, "_FEW_ROWS", 0)
    keys = [[number, 100 + number] for number in range(5)]
    batches = [*map(batch, keys), batch([])]
    parts = ranges().parts(batches)
    assert parts is not None
    check(parts, batches)
    assert [part.is_merged for part in parts] == [True] * 5


def test_a_key_that_nearly_all_batches_have_is_no_part() -> None:
    assert parts_of(*[[5] for _ in range(8)]) is not None
    assert parts_of(*[[5] for _ in range(9)]) is None


def test_merging_is_vain_as_long_as_few_batches_overlap() -> None:
    batches = [batch(range(10 * number, 10 * number + 10)) for number in range(8)]
    known = ranges()
    assert known.merging_is_vain(batches)
    batches.append(batch([5, 6]))
    assert known.merging_is_vain(batches)
    batches.append(batch([25, 26, 45]))
    assert not known.merging_is_vain(batches)


def test_ranges_of_batches_that_were_merged_are_forgotten() -> None:
    batches = [batch([1, 2]), batch([3, 4]), batch([1, 4])]
    known = ranges()
    assert not known.merging_is_vain(batches)
    known.forget()
    merged = [batch([1, 2, 3, 4]), batch([5])]
    parts = known.parts(merged)
    assert parts is not None
    assert [part.is_merged for part in parts] == [True, True]


def test_keys_of_several_widths() -> None:
    """A key at which ranges meet may be too large for another batch of its cluster."""
    batches = [
        batch([0, 100], torch.int8),
        batch([90, 40_000], torch.int32),
        batch([40_000, 2**40], torch.int64),
        batch([-(2**63), -5], torch.int64),
    ]
    parts = ranges().parts(batches)
    assert parts is not None
    check(parts, batches)
    assert sorted(keys_of(parts[-1].batches)) == [40_000, 40_000]


@pytest.mark.parametrize("empty", [batch([], torch.float64), Batch((batch([None]).columns[0],), 0, None)])
def test_a_batch_without_rows_says_nothing_of_the_keys(empty: Batch) -> None:
    batches = [batch([1, 2]), empty, batch([3])]
    parts = ranges().parts(batches)
    assert parts is not None
    assert [keys_of(part.batches) for part in parts] == [[1, 2], [3]]


def test_groups_by_several_keys_in_order_are_each_there_once() -> None:
    def pairs(first: Sequence[int], second: Sequence[int]) -> Batch:
        columns = tuple(FixedColumn(pa.int64(), torch.tensor(values)) for values in (first, second))
        return Batch(columns, len(first), None)

    two = plan_aggregate((Field("k", pa.int64()), Field("l", pa.int64())), (0, 1), (), ())
    batches = [pairs([1, 1, 2], [1, 2, 1]), pairs([3, 3, 4], [7, 8, 8])]
    parts = KeyRanges(two, CPU).parts(batches)
    assert parts is not None
    assert [part.is_merged for part in parts] == [True, True]
    assert KeyRanges(two, CPU).merging_is_vain(batches)
    twice = [pairs([1, 1, 2], [1, 1, 1]), batches[1]]
    parts = KeyRanges(two, CPU).parts(twice)
    assert parts is not None
    assert [part.is_merged for part in parts] == [False, True]
    assert not KeyRanges(two, CPU).merging_is_vain(twice)


def test_small_neighbours_are_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ranges, "_SMALL_ROWS", 5)
    assert parts_of([1, 2], [2, 3], [4, 5], [6], [7, 8, 9, 10, 11, 12], [12], [13]) == [
        [1, 2, 2, 3],
        [4, 5, 6],
        [7, 8, 9, 10, 11],
        [13],
        [12, 12],
    ]


@pytest.mark.parametrize("seed", range(200))
def test_random_batches(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(key_ranges, "_SMALL_ROWS", draw.choice([0, 10]))
    count = draw.choice([1, 3, 20])
    strict = draw.random() < 0.5
    batches: list[Batch] = []
    low = 0
    for _ in range(count):
        keys = [low + draw.randrange(draw.choice([1, 4, 30])) for _ in range(draw.randrange(6))]
        fits = [torch.int16, torch.int32, torch.int64] if low < 2**15 - 30 else [torch.int32, torch.int64]
        batches.append(batch(sorted(set(keys) if strict else keys), draw.choice(fits)))
        low += draw.choice([0, 3, 30, 20_000])
    draw.shuffle(batches)
    known = ranges()
    known.merging_is_vain(batches[: draw.randrange(count + 1)])
    parts = known.parts(batches)
    if parts is not None:
        check(parts, batches)
