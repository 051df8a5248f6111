"""Chains of several stages from a scan to the groups; programs that end, are written anew, or are given up."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa
import pytest
import torch

from pystachio.operators.aggregation.aggregate import aggregate
from pystachio.operators.column import FixedColumn
from pystachio.operators.expressions import AggregateCall, FieldReference, JoinKind
from pystachio.operators.filter import Filter
from pystachio.operators.fusion import flow
from pystachio.operators.joins.join import Join
from pystachio.operators.project import Project
from tests.operators.conftest import Source
from tests.operators.fusion.chains import (
    WORDS,
    Given,
    agree,
    batch_of,
    call,
    codes,
    dictionary_of,
    integers,
    lit,
    outcome,
    ref,
    schema_of,
)

INT, TEXT, PRICE = pa.int64(), pa.string(), pa.decimal128(12, 2)
FACTS = schema_of(INT, INT, PRICE, TEXT)
SIDE = schema_of(INT, TEXT, INT)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)


def facts(r: random.Random, rows: int, words: Any, nulls: float, far: int) -> Any:
    return batch_of(
        integers(r, INT, rows, 0, 40, nulls=nulls),
        integers(r, INT, rows, far, far + 60),
        integers(r, PRICE, rows, -(10**6), 10**6, nulls=nulls),
        codes(r, rows, words, nulls),
    )


def side(r: random.Random, rows: int, words: Any, *, unique: bool) -> Source:
    key = FixedColumn(INT, torch.arange(rows) % 37) if unique else integers(r, INT, rows, 0, 45, nulls=0.1)
    return Source((batch_of(key, codes(r, rows, words, 0.1), integers(r, INT, rows, 0, 9)),), SIDE)


@pytest.mark.parametrize("seed", range(40))
def test_two_joins_and_groups(harness: Any, seed: int) -> None:
    r = random.Random(seed)
    words = dictionary_of(WORDS)
    pushed = tuple(
        facts(
            r, r.choice([1, 800, 3000]), r.choice([words, words, dictionary_of(WORDS[::-1])]), n, r.choice([0, 0, 30])
        )
        for n in r.choices([0.0, 0.2], k=r.choice([1, 4]))
    )
    sides = [side(r, r.choice([5, 37, 150]), words, unique=r.random() < 0.5) for _ in range(2)]
    kinds = [r.choice([JoinKind.INNER, JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.MARK]) for _ in range(2)]
    limit, key = r.choice([20, 60]), r.choice([(1,), (3,), (0, 3)])
    grouped = r.random() < 0.6

    def chain() -> Any:
        operator: Any = Given(pushed, FACTS)
        operator = Filter(operator, call("lt", ref(FACTS, 1), lit(limit, INT)))
        for which, (kind, stored) in enumerate(zip(kinds, sides, strict=True)):
            output = (0, 1, 2, 3) if kind in (JoinKind.SEMI, JoinKind.MARK) else (0, 1, 2, 5)
            on = ((which,), (0,), (False,))
            operator = Join(operator, stored, kind, *on, None, False, "right", output, (None,))
        doubled = call("add", ref(FACTS, 2), ref(FACTS, 2), type_=pa.decimal128(13, 2))
        schema = schema_of(INT, INT, doubled.type, TEXT)
        operator = Project(operator, (ref(FACTS, 0), ref(FACTS, 1), doubled, ref(FACTS, 3)), schema)
        if not grouped:
            return operator
        calls = (AggregateCall("sum", (2,), pa.decimal128(38, 2)), AggregateCall("count", (), INT))
        types = (*(schema[one].type for one in key), *(one.type for one in calls))
        return aggregate(operator, key, calls, schema_of(*types), ())

    agree(harness, chain, batch_rows=5000)


def test_a_stage_that_is_no_program_is_done_by_its_operator(harness: Any) -> None:
    """Two programs around it."""
    r = random.Random(1)
    pushed = tuple(facts(r, 3000, dictionary_of(WORDS), 0.1, 0) for _ in range(3))
    modulus = call("modulus", ref(FACTS, 1), ref(FACTS, 0), type_=INT)

    def chain() -> Any:
        operator: Any = Filter(Given(pushed, FACTS), call("gt", ref(FACTS, 0), lit(3, INT)))
        operator = Filter(operator, call("lt", modulus, lit(5, INT)))
        return Filter(operator, call("lt", ref(FACTS, 1), lit(30, INT)))

    got = agree(harness, chain, ordered=True)
    assert len(got.programs) >= 2
    assert got.stages == 1


def test_batches_that_never_look_the_same_are_not_written_for_ever(harness: Any) -> None:
    pushed = tuple(
        batch_of(FixedColumn(INT, torch.arange(start, start + 50))) for start in range(0, 100 * 2**40, 2**40)
    )
    schema = schema_of(INT)
    got = agree(
        harness, lambda: Filter(Given(pushed, schema), call("lt", ref(schema, 0), lit(2**44 + 9, INT))), ordered=True
    )
    assert 0 < len(got.programs) <= flow._MOST_PROGRAMS + 1


def test_ranges_that_repeat_need_no_other_program(harness: Any) -> None:
    pushed = tuple(batch_of(FixedColumn(INT, torch.arange(start, start + 50))) for start in (0, 100, 50, 20, 100))
    schema = schema_of(INT)
    got = agree(harness, lambda: Filter(Given(pushed, schema), call("lt", ref(schema, 0), lit(60, INT))), ordered=True)
    assert len(got.programs) == 2


def test_small_batches_and_no_fusion_need_no_program(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 100)
    schema = schema_of(INT)
    below = call("lt", FieldReference(0, INT), lit(7, INT))
    for rows, fused, programs in ((99, True, 0), (100, True, 1), (100, False, 0)):
        source = Given((batch_of(FixedColumn(INT, torch.arange(rows))),), schema)
        got = outcome(harness, Filter(source, below), fused=fused)
        assert (len(got.programs), got.rows) == (programs, tuple(f"({n},)" for n in range(7)))


def test_a_consumer_may_stop_and_the_rest_is_not_computed(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that multiplies rows comes back now and then, and need not be resumed."""
    monkeypatch.setattr("pystachio.operators.kernels.program.MOST_EXPANDED", 5000)
    pushed = batch_of(FixedColumn(INT, torch.zeros(50_000, dtype=torch.int64)))
    stored = Source((batch_of(FixedColumn(INT, torch.zeros(10, dtype=torch.int64))),), schema_of(INT))
    join = Join(
        Given((pushed,), schema_of(INT)),
        stored,
        JoinKind.INNER,
        (0,),
        (0,),
        (False,),
        None,
        False,
        "right",
        (0,),
        (None,),
    )
    got = outcome(harness, join, fused=True)
    assert len(got.rows) == 500_000
    transform = asyncio.run(join.open(harness.context(), (harness.receiver(stored.batches),)))
    made = flow.Flow([(transform, harness.context())], True).push([pushed], harness.context())
    lengths = [next(made).length for _ in range(4)]
    assert max(lengths) < 30_000
    made.close()  # type: ignore[attr-defined]
