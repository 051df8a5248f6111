"""Sort and TopN against Python's stable sort."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import torch

from pystachio.errors import ResourceExhausted
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels import ordering, radix_sort
from pystachio.operators.kernels.ordering import Direction
from pystachio.operators.sort import Sort
from pystachio.operators.top_n import TopN

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [1, 2, 3, -7]),
    "whole range": (pa.int64(), [-(2**63), 2**63 - 1, 0, -1]),
    "byte": (pa.int8(), [-128, 127, 0]),
    "string": (pa.string(), ["", "a", "ab", "b", "ä", "Z", "\U0001f600"]),
    "dictionary": (pa.dictionary(pa.int16(), pa.string()), ["b", "a", "c", ""]),
    "float": (pa.float64(), [1.5, -0.0, 0.0, math.inf, -math.inf, math.nan, -2.5]),
    "bool": (pa.bool_(), [True, False]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.25"), Decimal("-3.00"), Decimal("0.00")]),
    "wide decimal": (
        pa.decimal128(38, 0),
        [Decimal(10) ** 30, -(Decimal(10) ** 30), Decimal(2**64), Decimal(2**63), Decimal(0), Decimal(-1)],
    ),
}


def ordered(rows: list[tuple[Any, ...]], keys: list[SortKey]) -> list[tuple[Any, ...]]:
    for key in reversed(keys):

        def rank(row: tuple[Any, ...], key: SortKey = key) -> Any:
            value = row[key.index]
            if isinstance(value, str):
                return value.encode()
            if isinstance(value, float):
                return (math.isnan(value), 0.0 if math.isnan(value) else value)
            return value

        nulls = [row for row in rows if row[key.index] is None]
        values = [row for row in rows if row[key.index] is not None]
        # reverse=True keeps ties in their order, as a stable descending sort does.
        values = sorted(values, key=rank, reverse=key.descending)
        rows = nulls + values if key.nulls_first else values + nulls
    return rows


def same(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> bool:
    return repr(left) == repr(right)


def random_case(seed: int) -> tuple[pa.Table, list[SortKey], random.Random]:
    r = random.Random(seed)
    names = [r.choice(list(COLUMNS)) for _ in range(r.randrange(1, 4))]
    count = r.choice([0, 1, 10, 200, 600])
    nulls = r.choice([0.0, 0.2, 1.0])
    columns = [
        pa.array([None if r.random() < nulls else r.choice(COLUMNS[n][1]) for _ in range(count)], COLUMNS[n][0])
        for n in names
    ]
    table = pa.table([*columns, pa.array(range(count))], names=[*(f"c{i}" for i in range(len(names))), "row"])
    keys = [SortKey(i, r.random() < 0.5, r.random() < 0.5) for i in range(len(names))]
    r.shuffle(keys)
    return table, keys, r


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("seed", range(120))
def test_sort(harness: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr("pystachio.operators.small._LITTLE_BYTES", 0)
    if seed % 3 == 0:
        monkeypatch.setattr(radix_sort, "is_available", lambda *_: False)
    table, keys, r = random_case(seed)
    wanted = r.choice([None, 0, 5, 300])
    sort = Sort(harness.source(table, r.choice([1, 7, 1000])), tuple(keys), wanted)
    batches = harness.batches(sort, batch_rows=13)
    assert all(batch.length <= 13 for batch in batches)
    assert same(harness.rows(sort, batch_rows=13), ordered(rows_of(table), keys)[:wanted])
    assert harness.memory.held == 0


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("candidates", [1, 1 << 16])
def test_top_n(harness: Any, seed: int, candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystachio.operators.top_n._CANDIDATES", candidates)
    monkeypatch.setattr("pystachio.operators.top_n._FIRST_CANDIDATES", candidates)
    monkeypatch.setattr("pystachio.operators.kernels.ordering._FEW_CANDIDATES", seed % 3)
    table, keys, r = random_case(seed)
    count, offset = r.choice([0, 1, 3, 500]), r.choice([0, 2, 300])
    top = TopN(harness.source(table, r.choice([1, 7, 1000])), tuple(keys), count, offset)
    assert same(harness.rows(top), ordered(rows_of(table), keys)[offset : offset + count])
    assert harness.memory.held == 0


def test_top_n_holds_candidates_only(harness: Any) -> None:
    table = pa.table({"v": list(range(300_000, 0, -1))})
    harness.memory.most = 2_500_000
    top = TopN(harness.source(table, 10_000), (SortKey(0, False, False),), 5, 0)
    assert harness.rows(top) == [(1,), (2,), (3,), (4,), (5,)]
    with pytest.raises(ResourceExhausted):
        harness.rows(Sort(harness.source(table, 10_000), (SortKey(0, False, False),)))


@pytest.mark.parametrize("seed", range(40))
def test_few_rows_are_in_the_order_of_many(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way against the long one."""
    r = random.Random(seed)
    rows = r.choice([0, 1, 2, 30, 256])
    keys = []
    for type_, pool in r.choices(list(COLUMNS.values()), k=r.randint(1, 4)):
        array = pa.array([None if r.random() < 0.2 else r.choice(pool) for _ in range(rows)], type_)
        keys.append((column_from_arrow(array), Direction(r.random() < 0.5, r.random() < 0.5)))
    short = ordering.sort_order(keys, rows)
    monkeypatch.setattr(ordering, "_FEW_ROWS", -1)
    assert torch.equal(short, ordering.sort_order(keys, rows))
