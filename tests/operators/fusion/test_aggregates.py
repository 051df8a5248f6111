"""Partial aggregation as programs, against the operators."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
import torch

from pystachio.operators.aggregation.aggregate import aggregate
from pystachio.operators.column import FixedColumn
from pystachio.operators.expressions import AggregateCall, Expression, FieldReference, JoinKind
from pystachio.operators.filter import Filter
from pystachio.operators.functions.registry import aggregate_result_type
from pystachio.operators.fusion import flow
from pystachio.operators.joins.join import Join
from pystachio.operators.project import Project
from tests.operators.conftest import Source
from tests.operators.fusion.chains import (
    WORDS,
    Given,
    agree,
    batch_of,
    booleans,
    call,
    codes,
    dictionary_of,
    integers,
    ref,
    schema_of,
)
from tests.operators.fusion.trees import DAY, FLAG, FLOAT, INT, MOMENT, PRICE, RATE, TEXT

TYPES = (INT, INT, TEXT, FLAG, DAY, PRICE, RATE, INT, FLOAT, MOMENT, FLAG)
SCHEMA = schema_of(*TYPES)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)
    monkeypatch.setattr("pystachio.operators.aggregation.partial._SMALLEST_GROUPED_BATCH", 0)


def exact_floats(r: random.Random, rows: int, nulls: float) -> FixedColumn:
    """Whose sums do not depend on the order."""
    column = integers(r, INT, rows, -4000, 4000, nulls=nulls)
    return FixedColumn(FLOAT, column.values.to(torch.float64) / 4, column.validity)


def batch(r: random.Random, rows: int, words: Any, *, nulls: float, start: int, extreme: bool) -> Any:
    def share() -> float:
        return nulls if r.random() < 0.5 else 0.0

    clustered = FixedColumn(INT, torch.arange(start, start + rows) // 3, None)
    return batch_of(
        clustered,
        integers(r, INT, rows, -5, r.choice([5, 300]), nulls=share(), known=r.random() < 0.5),
        codes(r, rows, words, share()),
        booleans(r, rows, share()),
        integers(r, DAY, rows, 9000, 9010, nulls=share()),
        integers(r, PRICE, rows, -(10**9), 10**9, nulls=share()),
        integers(r, RATE, rows, 0, 1000, nulls=share()),
        integers(r, INT, rows, *((-(2**63), 2**63 - 1) if extreme else (-(2**45), 2**45)), nulls=share()),
        exact_floats(r, rows, share()),
        integers(r, MOMENT, rows, -(2**50), 2**50, nulls=share()),
        booleans(r, rows, share()),
    )


def calls_of(r: random.Random, *, sums: bool) -> tuple[AggregateCall, ...]:
    calls = []
    for _ in range(r.randrange(6)):
        argument = r.choice([1, 4, 5, 6, 7, 8, 9, 3])
        functions = ["count", "min", "max"]
        if argument in (1, 5, 6, 8) or (argument == 7 and sums):
            functions += ["sum", "avg"] * 2
        function = r.choice(functions)
        type_ = aggregate_result_type(function, TYPES[argument])
        if pa.types.is_decimal(type_):
            type_ = pa.decimal128(38, type_.scale)
        calls.append(AggregateCall(function, (argument,), type_, filter=10 if r.random() < 0.3 else None))
    if not calls or r.random() < 0.5:
        calls.append(AggregateCall("count", (), INT))
    return tuple(calls)


@pytest.mark.parametrize("seed", range(120))
def test_random_aggregates(harness: Any, seed: int) -> None:
    r = random.Random(seed)
    shared, start, extreme = dictionary_of(WORDS), r.choice([0, 10**12, -(2**62)]), r.random() < 0.2
    pushed = []
    for _ in range(r.choice([1, 2, 5])):
        rows = r.choice([1, 300, 3000])
        words = shared if r.random() < 0.8 else dictionary_of(r.sample(WORDS, 4))
        pushed.append(batch(r, rows, words, nulls=r.choice([0.0, 0.3, 1.0]), start=start, extreme=extreme))
        start += r.choice([rows, rows // 2, 10_000_000])
    keys = tuple(r.sample(range(5), r.choice([0, 1, 1, 2, 3])))
    calls = calls_of(r, sums=not extreme)
    predicate: Expression | None = r.choice([None, ref(SCHEMA, 10), call("lt", ref(SCHEMA, 1), ref(SCHEMA, 6))])
    source = Given(tuple(pushed), SCHEMA)
    schema = schema_of(*(TYPES[key] for key in keys), *(one.type for one in calls))

    def grouped() -> Any:
        below: Any = source if predicate is None else Filter(source, predicate)
        return aggregate(below, keys, calls, schema, ())

    agree(harness, grouped, direct_addressing=r.random() < 0.9, batch_rows=1 << 20)


def summed(operator: Any, keys: tuple[int, ...], argument: int) -> Any:
    calls = (AggregateCall("sum", (argument,), pa.decimal128(38, 0)), AggregateCall("count", (), INT))
    types = (*(operator.schema[key].type for key in keys), pa.decimal128(38, 0), INT)
    return aggregate(operator, keys, calls, schema_of(*types), ())


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [40, 45, 50, 58, 62])
def test_sums_near_the_limit(harness: Any, bits: int, sign: int) -> None:
    """Many batches of values whose sum passes int64 whatever the states are."""
    values = torch.full((5000,), sign * 2**bits, dtype=torch.int64)
    source = Given((batch_of(FixedColumn(PRICE, values)),) * 9, schema_of(PRICE))
    agree(harness, lambda: summed(source, (), 0))


@pytest.mark.parametrize("bits", [30, 40, 45, 48])
def test_sums_near_the_limit_behind_a_join_that_multiplies_rows(harness: Any, bits: int) -> None:
    pushed = batch_of(
        FixedColumn(INT, torch.zeros(4096, dtype=torch.int64)),
        FixedColumn(PRICE, torch.full((4096,), 2**bits, dtype=torch.int64)),
    )
    stored = Source((batch_of(FixedColumn(INT, torch.zeros(1500, dtype=torch.int64))),), schema_of(INT))
    source = Given((pushed,), schema_of(INT, PRICE))

    def grouped() -> Any:
        joined = Join(source, stored, JoinKind.INNER, (0,), (0,), (False,), None, False, "right", (1,), (None,))
        return summed(joined, (), 0)

    agree(harness, grouped)


@pytest.mark.parametrize("low", [-(2**63), -(2**63) + 1, -5, 0, 2**63 - 4000])
def test_a_clustered_key_at_the_ends_of_int64(harness: Any, low: int) -> None:
    """Whose range over all batches is far too wide to address."""
    far = FixedColumn(INT, torch.tensor([-(2**63), 2**63 - 1] * 1500, dtype=torch.int64))
    near = FixedColumn(INT, torch.tensor([low + number for number in range(3000)], dtype=torch.int64))
    ones = integers(random.Random(1), PRICE, 3000, -9, 9)
    flag = booleans(random.Random(2), 3000, 0.5)
    source = Given(tuple(batch_of(key, ones, flag) for key in (far, near, near, far)), schema_of(INT, PRICE, FLAG))
    for keys in ((0,), (0, 2), (2, 0)):
        agree(harness, lambda keys=keys: summed(source, keys, 1))


def test_no_rows(harness: Any) -> None:
    source = Given((batch_of(FixedColumn(INT, torch.arange(2000))),), schema_of(INT))
    never = call("lt", FieldReference(0, INT), FieldReference(0, INT))
    for keys in ((), (0,)):
        agree(harness, lambda keys=keys: summed(Filter(source, never), keys, 0))
        agree(harness, lambda keys=keys: summed(Given((), schema_of(INT)), keys, 0))


def test_products_are_summed(harness: Any) -> None:
    r = random.Random(3)
    pushed = tuple(batch(r, 2000, dictionary_of(WORDS), nulls=n, start=0, extreme=False) for n in (0.0, 0.2))
    product = call("multiply", ref(SCHEMA, 5), ref(SCHEMA, 6), type_=pa.decimal128(21, 6))
    schema = schema_of(TEXT, product.type)

    def grouped() -> Any:
        below = Project(Given(pushed, SCHEMA), (ref(SCHEMA, 2), product), schema)
        calls = (AggregateCall("sum", (1,), pa.decimal128(38, 6)),)
        return aggregate(below, (0,), calls, schema_of(TEXT, pa.decimal128(38, 6)), ())

    assert agree(harness, grouped).stages == 2
