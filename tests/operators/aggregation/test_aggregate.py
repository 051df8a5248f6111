"""Aggregates against dictionaries of lists in plain Python."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
import torch

from pystachio.errors import DataError, ResourceExhausted, Unsupported
from pystachio.operators import small
from pystachio.operators.aggregation import aggregate as aggregate_module
from pystachio.operators.aggregation import fold, key_ranges
from pystachio.operators.aggregation.aggregate import aggregate
from pystachio.operators.aggregation.fold import expected_groups
from pystachio.operators.aggregation.plan import plan_aggregate
from pystachio.operators.batch import Batch, Field
from pystachio.operators.column import FixedColumn
from pystachio.operators.expressions import AggregateCall
from pystachio.operators.functions.registry import aggregate_result_type

Row = tuple[Any, ...]
EXACT = Context(prec=100)

COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "int": (pa.int64(), lambda r: r.randrange(-3, 4)),
    "wide int": (pa.int64(), lambda r: r.choice([-(2**61), 2**61 + 1, 5, 0])),
    "small int": (pa.int16(), lambda r: r.choice([-(2**15), 2**15 - 1, 3])),
    "string": (pa.string(), lambda r: r.choice(["", "b", "a", "ä", "zz", "z"])),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), lambda r: r.choice(["", "b", "a", "ä"])),
    "float": (pa.float64(), lambda r: r.choice([0.0, 1.5, -2.25, 1e10])),
    "bool": (pa.bool_(), lambda r: r.random() < 0.5),
    "date": (pa.date32(), lambda r: r.randrange(10_000, 10_004)),
    "decimal": (pa.decimal128(15, 2), lambda r: Decimal(r.randrange(-(10**14), 10**14)) / 100),
    "wide decimal": (pa.decimal128(30, 3), lambda r: Decimal(r.randrange(-(10**29), 10**29)) / 1000),
}
NUMBERS = ["int", "wide int", "small int", "float", "decimal", "wide decimal"]


def half_up(value: Decimal, scale: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, EXACT)


def folded(function: str, values: list[Any], type_: pa.DataType, rows: int) -> Any:
    if function == "count":
        return len(values)
    if not values:
        return None
    exact = isinstance(values[0], Decimal)
    match function:
        case "sum":
            if exact:
                total = Decimal(0)
                for value in values:
                    total = EXACT.add(total, value)
                return total
            return sum(values)
        case "avg":
            if exact:
                total = Decimal(0)
                for value in values:
                    total = EXACT.add(total, value)
                return half_up(EXACT.divide(total, Decimal(len(values))), type_.scale)
            return sum(values) / len(values)
        case "min" | "bool_and":
            return min(values, key=sort_key)
        case "max" | "bool_or":
            return max(values, key=sort_key)
        case "stddev_samp":
            return statistics.stdev(map(float, values)) if len(values) > 1 else None
        case "stddev_pop":
            return statistics.pstdev(map(float, values))
        case "var_samp":
            return statistics.variance(map(float, values)) if len(values) > 1 else None
        case "var_pop":
            return statistics.pvariance(map(float, values))
    raise AssertionError(function)


def sort_key(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def expected(
    rows: list[Row], keys: tuple[int, ...], calls: list[AggregateCall], sets: tuple[tuple[int, ...], ...]
) -> dict[Row, list[Any]]:
    out: dict[Row, list[Any]] = {}
    for number, chosen in enumerate(sets or (tuple(range(len(keys))),)):
        groups: dict[Row, list[Row]] = {} if chosen else {(None,) * len(keys): []}
        for row in rows:
            key = tuple(row[k] if i in chosen else None for i, k in enumerate(keys))
            groups.setdefault(key, []).append(row)
        for key, members in groups.items():
            results = []
            for call in calls:
                passing = [m for m in members if call.filter is None or m[call.filter] is True]
                if not call.arguments:
                    results.append(len(passing))
                    continue
                values = [tuple(m[a] for a in call.arguments) for m in passing]
                values = [v for v in values if None not in v]
                if call.distinct:
                    values = list(dict.fromkeys(values))
                results.append(folded(call.function, [v[0] for v in values], call.type, len(passing)))
            out[(*key, number) if sets else key] = results
    return out


def close(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    return bool(left == right)


def make_table(rows: list[Row], names: list[str]) -> pa.Table:
    return pa.table(
        [pa.array([row[i] for row in rows], COLUMNS[n][0]) for i, n in enumerate(names)],
        [f"c{i}" for i in range(len(names))],
    )


def build(
    harness: Any, table: pa.Table, keys: tuple[int, ...], calls: list[AggregateCall], sets: Any = (), rows: int = 7
) -> Any:
    source = harness.source(table, rows)
    schema = [source.schema[k] for k in keys] + [Field(f"a{i}", c.type) for i, c in enumerate(calls)]
    if sets:
        schema.append(Field("set", pa.int32(), False))
    return aggregate(source, keys, tuple(calls), tuple(schema), sets)


def call(function: str, argument: int | None, names: list[str], **options: Any) -> AggregateCall:
    argument_type = None if argument is None else pa.array([], COLUMNS[names[argument]][0]).type
    if argument_type is not None and pa.types.is_dictionary(argument_type):
        argument_type = pa.string()
    type_ = aggregate_result_type(function, argument_type)
    if pa.types.is_decimal(type_):
        # Room for the test's sums: what is beyond 38 digits has its own test.
        type_ = pa.decimal128(38, type_.scale)
    return AggregateCall(function, () if argument is None else (argument,), type_, **options)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_against_python(harness: Any, seed: int, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`many`: with thresholds that send few rows the way of many."""
    r, draw = random.Random(seed), random.Random(-seed)
    grouped = r.choice([0, 5, 4096])
    monkeypatch.setattr("pystachio.operators.aggregation.partial._SMALLEST_GROUPED_BATCH", grouped)
    thresholds = {"_MERGE_ROWS": r.choice([1, 10, 1 << 20])}
    if many:
        monkeypatch.setattr("pystachio.operators.aggregation.partial._BATCHES_PASSED_THROUGH", 1)
        monkeypatch.setattr("pystachio.operators.aggregation.partial._SAMPLED_BATCH", draw.choice([16, 1 << 16]))
        monkeypatch.setattr("pystachio.operators.aggregation.fold.SAMPLE_ROWS", 8)
        monkeypatch.setattr("pystachio.operators.aggregation.fold._SAMPLE_BLOCKS", 2)
        thresholds |= {"_MANY_ROWS": draw.choice([1, 3]), "_SPLIT_ROWS": 1, "_ORDERED_ROWS": draw.choice([1, 1 << 20])}
        thresholds |= {"FEW_ROWS": draw.choice([0, 20]), "_PORTION_ROWS": draw.choice([1, 20])}
    for name, threshold in thresholds.items():
        monkeypatch.setattr(aggregate_module, name, threshold)
    names = [r.choice(list(COLUMNS)) for _ in range(r.choice([0, 1, 1, 2, 3]))]
    keys = tuple(range(len(names)))
    names = [*names, "bool", *(r.choice(list(COLUMNS)) for _ in range(3))]
    flag = len(keys)
    calls = []
    for _ in range(r.randrange(0, 5)):
        argument = r.randrange(flag, len(names))
        functions = ["count", "min", "max"]
        if names[argument] == "bool":
            functions += ["bool_and", "bool_or"]
        if names[argument] in NUMBERS:
            functions += ["sum", "avg", "stddev_samp", "var_pop", "sum", "avg"]
        options = {"filter": flag if r.random() < 0.25 else None, "distinct": r.random() < 0.3}
        calls.append(call(r.choice(functions), argument, names, **options))
        if r.random() < 0.3:
            calls.append(call("count", None, names, filter=options["filter"]))
    sets: tuple[tuple[int, ...], ...] = ()
    if keys and r.random() < 0.25:
        sets = tuple(tuple(k for k in keys if r.random() < 0.5) for _ in range(r.randrange(2, 4)))
    nulls = r.choice([0.0, 0.2, 1.0, 0.5])
    count = r.choice([0, 1, 5, 100])
    rows = [tuple(None if r.random() < nulls else COLUMNS[n][1](r) for n in names) for _ in range(count)]
    if not keys and not calls:
        calls = [call("count", None, names)]
    operator = build(harness, make_table(rows, names), keys, calls, sets, r.choice([1, 7, 1000]))
    got = harness.rows(operator, batch_rows=r.choice([1, 3, 1000]), direct_addressing=r.random() < 0.6)
    rows = make_table(rows, names).to_pylist()
    rows = [tuple(row.values()) for row in rows]
    want = expected(rows, keys, calls, sets)
    width = len(keys)
    found = {(*row[:width], row[-1]) if sets else row[:width]: row[width : len(row) - bool(sets)] for row in got}
    assert len(found) == len(got)
    assert found.keys() == want.keys()
    for key, values in want.items():
        assert all(close(a, b) for a, b in zip(found[key], values, strict=True)), (key, found[key], values, calls)
    assert harness.memory.held == 0


@pytest.mark.parametrize("holds_little", [False, True])
def test_many_groups_pass_through_partial_aggregation(
    harness: Any, monkeypatch: pytest.MonkeyPatch, holds_little: bool
) -> None:
    if not holds_little:
        monkeypatch.setattr(small, "_LITTLE_BYTES", 0)
    rows = [(i % 30_000, i) for i in range(90_000)]
    table = pa.table({"k": [a for a, _ in rows], "v": [b for _, b in rows]})
    calls = [AggregateCall("sum", (1,), pa.int64()), AggregateCall("count", (), pa.int64())]
    got = harness.rows(build(harness, table, (0,), calls, rows=10_000), batch_rows=7000)
    assert sorted(got) == [(k, k + (k + 30_000) + (k + 60_000), 3) for k in range(30_000)]


@pytest.mark.parametrize("rows", [20_000, 80_000])
def test_groups_that_no_two_batches_share_are_not_merged(
    harness: Any, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Workers took turns in a table in the order of its key: few rows, and many, whose ranges overlap."""

    def never(*given: Any, **named: Any) -> None:
        raise AssertionError("merged")

    monkeypatch.setattr(fold, "_grouped", never)
    keys = [*range(0, rows, 2), *range(1, rows, 2)]
    source = harness.source(pa.table({"k": keys, "n": [key % 7 for key in keys]}), rows // 2)
    plan = plan_aggregate(source.schema, (0,), (AggregateCall("count", (), pa.int64()),), ())
    whole = aggregate_module.Aggregate(source, plan, source.schema)
    assert sorted(harness.rows(whole)) == [(key, key % 7) for key in range(rows)]


def test_an_integer_sum_beyond_int64_is_an_error(harness: Any) -> None:
    table = pa.table({"v": pa.array([2**62] * 3, pa.int64())})
    with pytest.raises(DataError, match="overflow"):
        harness.rows(build(harness, table, (), [AggregateCall("sum", (0,), pa.int64())]))


def test_an_integer_sum_may_pass_int64_on_the_way(harness: Any) -> None:
    table = pa.table({"v": pa.array([2**62] * 3 + [-(2**62)] * 3, pa.int64())})
    assert harness.rows(build(harness, table, (), [AggregateCall("sum", (0,), pa.int64())], rows=1)) == [(0,)]


def test_a_decimal_sum_of_38_digits_is_exact_and_one_more_an_error(harness: Any) -> None:
    largest = Decimal("9" * 38)
    type_ = pa.decimal128(38, 0)
    calls = [AggregateCall("sum", (0,), type_)]
    fits = pa.table({"v": pa.array([largest, Decimal(1), Decimal(-1)], type_)})
    assert harness.rows(build(harness, fits, (), calls, rows=1)) == [(largest,)]
    beyond = pa.table({"v": pa.array([largest, Decimal(1)], type_)})
    with pytest.raises(DataError, match="overflow"):
        harness.rows(build(harness, beyond, (), calls))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_average_of_decimals_rounds_half_away_from_zero(harness: Any, sign: int) -> None:
    values = [Decimal(sign), Decimal(0)] + [Decimal(0)] * 14  # 1 / 16 = 0.0625
    table = pa.table({"v": pa.array(values, pa.decimal128(5, 0))})
    rows = harness.rows(build(harness, table, (), [AggregateCall("avg", (0,), pa.decimal128(9, 3))]))
    assert rows == [(sign * Decimal("0.063"),)]


def test_variance_of_large_numbers_keeps_its_digits(harness: Any) -> None:
    values = [1e9 + x for x in (4.0, 7.0, 13.0, 16.0)]
    table = pa.table({"v": values * 50})
    (row,) = harness.rows(build(harness, table, (), [AggregateCall("var_pop", (0,), pa.float64())], rows=3))
    assert row[0] == pytest.approx(22.5, rel=1e-12)


def test_nan_is_the_largest_and_one_group(harness: Any) -> None:
    table = pa.table({"k": [math.nan, -0.0, 0.0, math.nan], "v": [1.0, 2.0, math.nan, 4.0]})
    calls = [AggregateCall("min", (1,), pa.float64()), AggregateCall("max", (1,), pa.float64())]
    rows = {repr(abs(row[0])): row[1:] for row in harness.rows(build(harness, table, (0,), calls, rows=1))}
    assert rows["nan"] == (1.0, 4.0)
    assert rows["0.0"][0] == 2.0
    assert math.isnan(rows["0.0"][1])


def test_first_value_is_some_row_of_the_group(harness: Any) -> None:
    table = pa.table({"k": [1, 2, 1, 3], "v": ["a", None, "b", "c"], "f": [False, True, True, False]})
    calls = [
        AggregateCall("first_value", (1,), pa.string()),
        AggregateCall("first_value", (1,), pa.string(), filter=2),
    ]
    rows = harness.rows(build(harness, table, (0,), calls, rows=2))
    assert sorted(rows) == [(1, "a", "b"), (2, None, None), (3, "c", None)]


@pytest.mark.parametrize("rows", [1, 2, 70_000], ids=str)
def test_a_row_that_a_filter_leaves_out_is_no_first_value(harness: Any, rows: int) -> None:
    """Keys in order, each once: nothing is merged."""
    table = pa.table(
        {"k": list(range(rows)), "v": [f"{n}" for n in range(rows)], "f": [n % 3 == 1 for n in range(rows)]}
    )
    calls = [AggregateCall("first_value", (1,), pa.string(), filter=2)]
    found = dict(harness.rows(build(harness, table, (0,), calls, rows=rows)))
    assert found == {n: f"{n}" if n % 3 == 1 else None for n in range(rows)}


@pytest.mark.parametrize("few", [1, 10**6])
@pytest.mark.parametrize("rows_of_each", [1, 3])
@pytest.mark.parametrize("rows", [40, 41])
@pytest.mark.parametrize("keys", [(0,), (0, 1)])
def test_clustered_keys(
    harness: Any, monkeypatch: pytest.MonkeyPatch, few: int, rows_of_each: int, rows: int, keys: tuple[int, ...]
) -> None:
    """Groups whose rows are beside each other, some of them in two batches; with thresholds for many rows."""
    monkeypatch.setattr(aggregate_module, "_ORDERED_ROWS", 1)
    monkeypatch.setattr(aggregate_module, "_MERGE_ROWS", 100)
    monkeypatch.setattr(key_ranges, "_FEW_ROWS", few)
    seen: list[bool] = []
    parts = key_ranges.KeyRanges.parts
    monkeypatch.setattr(
        key_ranges.KeyRanges, "parts", lambda *all: seen.append((found := parts(*all)) is not None) or found
    )
    table = pa.table({"k": [n // rows_of_each for n in range(2000)], "l": [n % 2 for n in range(2000)]})
    calls = [AggregateCall("count", (), pa.int64()), AggregateCall("sum", (1,), pa.int64())]
    expected: dict[Row, tuple[int, int]] = {}
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        key = tuple(row[at] for at in keys)
        count, total = expected.get(key, (0, 0))
        expected[key] = count + 1, total + row[1]
    found = {tuple(row[:-2]): tuple(row[-2:]) for row in harness.rows(build(harness, table, keys, calls, rows=rows))}
    assert found == expected
    if rows_of_each == 1:
        assert seen == [True]


def test_a_grouping_set_without_keys_has_a_row_for_no_input(harness: Any) -> None:
    table = pa.table({"k": pa.array([], pa.int64())})
    rows = harness.rows(build(harness, table, (0,), [AggregateCall("count", (), pa.int64())], ((0,), ())))
    assert rows == [(None, 0, 1)]


def test_unknown_functions_are_refused_when_planned(harness: Any) -> None:
    table = pa.table({"v": [1.0]})
    with pytest.raises(Unsupported, match="median"):
        build(harness, table, (), [AggregateCall("median", (0,), pa.float64())])


def test_groups_beyond_the_budget_are_a_typed_error(harness: Any) -> None:
    harness.memory.most = 10_000
    table = pa.table({"k": list(range(10_000))})
    with pytest.raises(ResourceExhausted):
        harness.rows(build(harness, table, (0,), [AggregateCall("count", (), pa.int64())]))
    assert harness.memory.held == 0


@pytest.mark.parametrize("groups", [1, 3_000, 40_000, 150_000, 2**40])
def test_a_sample_says_about_how_many_groups_there_are(groups: int) -> None:
    generator = torch.Generator().manual_seed(groups)
    keys = torch.randint(0, groups, (200_000,), generator=generator)
    plan = plan_aggregate((Field("k", pa.int64()),), (0,), (), ())
    batch = Batch((FixedColumn(pa.int64(), keys),), len(keys), None)
    expected = expected_groups(plan, batch, 0, keys.device, allow_direct=True)
    assert 0.5 < expected / len(keys.unique()) < 2.5


@pytest.mark.parametrize("keys", [(), (0,)])
def test_the_last_merge_in_parts(harness: Any, monkeypatch: pytest.MonkeyPatch, keys: tuple[int, ...]) -> None:
    """Distinct values and groups that no batch has alone, with thresholds that send few rows the way of many."""
    monkeypatch.setattr(aggregate_module, "_ORDERED_ROWS", 1)
    monkeypatch.setattr(aggregate_module, "_SPLIT_ROWS", 1)
    draw = random.Random(5)
    rows = [(draw.randrange(7), draw.choice([None, *range(40)]), draw.randrange(100)) for _ in range(700)]
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate("kvs")})
    calls = [
        AggregateCall("count", (1,), pa.int64(), distinct=True),
        AggregateCall("sum", (2,), pa.int64()),
        AggregateCall("count", (), pa.int64()),
    ]
    expected = []
    for group in sorted({tuple(row[key] for key in keys) for row in rows}):
        mine = [row for row in rows if tuple(row[key] for key in keys) == group]
        values = {value for _, value, _ in mine if value is not None}
        expected.append((*group, len(values), sum(row[2] for row in mine), len(mine)))
    assert sorted(tuple(row) for row in harness.rows(build(harness, table, keys, calls))) == expected
