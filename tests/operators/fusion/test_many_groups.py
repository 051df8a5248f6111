"""Folds of more groups than a batch has rows, and values that rise from batch to batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pystachio.operators.aggregation.aggregate import aggregate
from pystachio.operators.aggregation.partial import PartialAggregate
from pystachio.operators.batch import Batch
from pystachio.operators.column import FixedColumn
from pystachio.operators.expressions import AggregateCall
from pystachio.operators.filter import Filter
from pystachio.operators.fusion import flow, groups
from pystachio.operators.fusion.flow import Flow, _widened
from tests.operators.conftest import ListOutput
from tests.operators.fusion.chains import Given, batch_of, call, lit, ref, schema_of
from tests.operators.fusion.trees import INT

SCHEMA = schema_of(INT, INT)
ROWS, GROUPS, BATCHES = 1000, 6000, 40


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)
    monkeypatch.setattr(flow, "_MANY_ROWS_BITS", 12)
    monkeypatch.setattr(groups, "FEWEST_SLOTS", 64)


def batches(count: int = BATCHES) -> list[Batch]:
    draw = torch.Generator().manual_seed(7)
    return [
        batch_of(
            FixedColumn(INT, torch.randint(0, GROUPS, (ROWS,), generator=draw), None, (0, GROUPS - 1)),
            FixedColumn(INT, torch.randint(-50, 50, (ROWS,), generator=draw), None, (-50, 50)),
        )
        for _ in range(count)
    ]


def expected(given: Sequence[Batch]) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for each in given:
        for key, value in zip(*(column.values.tolist() for column in each.columns), strict=True):  # type: ignore[union-attr]
            count, total = found.get(key, (0, 0))
            found[key] = count + 1, total + value
    return found


def sums(given: Sequence[Batch]) -> Any:
    calls = (AggregateCall("count", (), INT), AggregateCall("sum", (1,), INT))
    return aggregate(Given(tuple(given), SCHEMA), (0,), calls, schema_of(INT, INT, INT), ())  # type: ignore[arg-type]


class Run:
    """One run of the aggregation's chain: the groups, and how many rows came out of it before they were merged."""

    def __init__(self, harness: Any, operator: Any) -> None:
        self.partial_rows = 0
        self.segments: list[Any] = []
        self.groups = asyncio.run(self._groups(harness, operator))

    async def _groups(self, harness: Any, operator: Any) -> dict[int, tuple[int, int]]:
        ctx = harness.context()
        partial: PartialAggregate = operator.input
        fold = await partial.open(ctx, ())
        chain = Flow([(fold, harness.context())], True)
        made = [batch for batch in chain.push(partial.input.batches, ctx) if batch.length]  # type: ignore[attr-defined]
        made += [batch for batch in fold.finish() or () if batch.length]
        self.partial_rows = sum(batch.length for batch in made)
        self.segments = [known.segment for several in chain._written.values() for known in several]
        await operator.run(ctx, (harness.receiver(made),), collected := ListOutput())
        rows = harness.rows_of(collected.batches, operator.schema)
        return {key: (count, total) for key, count, total in rows}


def test_states_that_pay_for_many_batches_are_addressed_once_these_are_seen_to_come(harness: Any) -> None:
    given = batches()
    operator = sums(given)
    first = Run(harness, operator)
    assert first.groups == expected(given)
    # Until as many rows had come as there are slots for, batches were put out as they were.
    assert GROUPS < first.partial_rows < 3 * GROUPS + ROWS
    again = Run(harness, operator)
    assert again.groups == expected(given)
    assert again.partial_rows == len(again.groups)
    assert [segment is not None and segment.folded is not None for segment in again.segments] == [True]


def test_few_batches_get_no_states_for_all_groups(harness: Any) -> None:
    given = batches(2)
    run = Run(harness, sums(given))
    assert run.groups == expected(given)
    assert all(segment is None for segment in run.segments)


def test_states_take_their_share_of_the_memory(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = batches()
    monkeypatch.setattr("pystachio.operators.aggregation.partial._STATE_SHARE", harness.memory.budget() // 100_000)
    run = Run(harness, sums(given))
    assert run.groups == expected(given)
    assert run.partial_rows == ROWS * BATCHES
    assert all(segment is None for segment in run.segments)


def test_several_programs_share_what_states_may_take(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of two widths need a program each; there is room for the states of one."""
    most = 8 * 3 * GROUPS + 1000
    monkeypatch.setattr("pystachio.operators.aggregation.partial._MOST_STATE_BYTES", most)
    monkeypatch.setattr(groups, "_MOST_STATE_BYTES", 1000)
    given = []
    for number, each in enumerate(batches()):
        key, value = each.columns
        assert isinstance(key, FixedColumn)
        dtype = torch.int32 if number % 2 else torch.int64
        given.append(batch_of(FixedColumn(INT, key.values.to(dtype), None, key.bounds), value))
    operator = sums(given)
    assert Run(harness, operator).groups == expected(given)
    again = Run(harness, operator)
    assert again.groups == expected(given)
    folded = [segment.folded.nbytes for segment in again.segments if segment is not None]
    assert len(folded) == 1
    assert most // 2 < folded[0] <= most


def test_values_that_rise_from_batch_to_batch_need_few_programs(harness: Any) -> None:
    given = [batch_of(*(FixedColumn(INT, torch.arange(n * 100, n * 100 + 100)),) * 2) for n in range(500)]
    odd = call("gt", ref(SCHEMA, 0), lit(120, INT))
    operator = Filter(Given(tuple(given), SCHEMA), odd)  # type: ignore[arg-type]
    ctx = harness.context()
    chain = Flow([(asyncio.run(operator.open(ctx, ())), harness.context())], True)
    rows = sum(batch.length for batch in chain.push(given, ctx))
    assert rows == 500 * 100 - 121
    assert 1 < sum(map(len, chain._written.values())) <= 10


def test_what_cannot_be_proved_of_wider_ranges_is_of_those_that_were_seen(harness: Any) -> None:
    """The second batch asks for a program for twice its range, whose products may be too large."""
    highs = [2**30, 2**31 - 1, 2**31 - 1]
    columns = [FixedColumn(INT, torch.tensor([0, high]).repeat(50)) for high in highs]
    given = [batch_of(column, column) for column in columns]
    product = call("gt", call("multiply", ref(SCHEMA, 0), ref(SCHEMA, 1), type_=INT), lit(1, INT))
    operator = Filter(Given(tuple(given), SCHEMA), product)  # type: ignore[arg-type]
    ctx = harness.context()
    chain = Flow([(asyncio.run(operator.open(ctx, ())), harness.context())], True)
    assert sum(batch.length for batch in chain.push(given, ctx)) == 3 * 50
    written = [known for several in chain._written.values() for known in several]
    assert [known.segment is not None for known in written] == [True] * len(written)
    assert written[-1].bounds[0] == (0, 2**31 - 1)


def test_programs_of_earlier_expectations_make_room(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of many looks, while more and more rows come: each is folded by a program once it has one."""
    monkeypatch.setattr(flow, "_MANY_ROWS_BITS", 4)
    dtypes = (torch.int16, torch.int32, torch.int64)
    given = []
    for number, each in enumerate(batches(300)):
        key, value = each.columns
        assert isinstance(key, FixedColumn)
        assert isinstance(value, FixedColumn)
        width, kind = dtypes[number % 3], (torch.int8, *dtypes)[number // 3 % 4]
        narrow = FixedColumn(INT, value.values.to(kind), None, value.bounds)
        given.append(batch_of(FixedColumn(INT, key.values.to(width), None, key.bounds), narrow))
    run = Run(harness, sums(given))
    assert run.groups == expected(given)
    assert run.partial_rows < 30 * ROWS + 12 * GROUPS
    assert len(run.segments) == 12


@pytest.mark.parametrize(
    ("bounds", "earlier", "wide"),
    [
        ((10, 20), (0, 9), (0, 40)),
        ((-10, -5), (0, 10), (-30, 10)),
        ((2, 3), (0, 10), (0, 10)),
        ((-20, 20), (0, 10), (-60, 60)),
        ((100, 120), (0, 10), (0, 127)),
        ((200, 300), (0, 10), (0, 300)),
        (None, (0, 10), None),
    ],
)
def test_ranges_grow_twice_as_far_as_they_must(bounds: Any, earlier: Any, wide: Any) -> None:
    assert _widened(bounds, earlier, (-128, 127)) == wide
