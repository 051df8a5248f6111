"""Pruning never loses a row: against brute force over random small row groups, and case by case."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pystachio.operators.expressions import Call, Cast, Expression, FieldReference, InList, Literal
from pystachio.operators.parquet.pruning import may_be_true, row_groups
from pystachio.operators.parquet.statistics import ChunkStatistics, IntegerRanges

INT = pa.int64()
TEXT = pa.string()
DOUBLE = pa.float64()


def call(function: str, *arguments: Expression) -> Call:
    return Call(function, arguments, pa.bool_())


def against(function: str, value: Any, type_: pa.DataType = INT) -> Call:
    return call(function, FieldReference(0, type_), Literal(value, type_))


def prune(predicate: Expression, low: Any, high: Any, nulls: int | None = 0, rows: int = 10) -> bool:
    return not may_be_true(predicate, lambda _: ChunkStatistics(low, high, nulls), rows)


@pytest.mark.parametrize(
    ("predicate", "pruned"),
    [
        (against("equal", 4), True),
        (against("equal", 5), False),
        (against("equal", 9), False),
        (against("equal", 10), True),
        (against("lt", 5), True),
        (against("lte", 5), False),
        (against("gt", 9), True),
        (against("gte", 9), False),
        (against("not_equal", 5), False),
        (against("equal", None), True),
        (against("is_not_distinct_from", None), False),
        (against("is_not_distinct_from", 3), True),
        (call("lt", Literal(9, INT), FieldReference(0, INT)), True),
        (call("gt", Literal(5, INT), FieldReference(0, INT)), True),
        (call("gte", Literal(5, INT), FieldReference(0, INT)), False),
        (call("and", against("gt", 0), against("lt", 5)), True),
        (call("or", against("lt", 5), against("gt", 9)), True),
        (call("or", against("lt", 5), against("gt", 8)), False),
        (call("not", against("lt", 50)), False),
        (call("is_null", FieldReference(0, INT)), True),
        (call("is_not_null", FieldReference(0, INT)), False),
        (InList(FieldReference(0, INT), (Literal(1, INT), Literal(11, INT)), pa.bool_()), True),
        (InList(FieldReference(0, INT), (Literal(1, INT), Literal(7, INT)), pa.bool_()), False),
        (InList(FieldReference(0, INT), (Literal(None, INT),), pa.bool_()), True),
        (Literal(False, pa.bool_()), True),
        (Literal(None, pa.bool_()), True),
        (Literal(True, pa.bool_()), False),
        (call("equal", FieldReference(0, INT), FieldReference(0, INT)), False),
        (call("equal", call("add", FieldReference(0, INT), Literal(1, INT)), Literal(0, INT)), False),
    ],
)
def test_integers_between_5_and_9(predicate: Expression, pruned: bool) -> None:
    assert prune(predicate, 5, 9) is pruned


def test_unknown_statistics_prune_only_what_is_never_true() -> None:
    for predicate in (against("equal", 4), against("lt", 4), call("is_null", FieldReference(0, INT))):
        assert not prune(predicate, None, None, nulls=None)
    assert prune(against("equal", None), None, None, nulls=None)


def test_a_row_group_of_nulls() -> None:
    assert prune(against("equal", 5), None, None, nulls=10)
    assert prune(call("is_not_null", FieldReference(0, INT)), None, None, nulls=10)
    assert not prune(call("is_null", FieldReference(0, INT)), None, None, nulls=10)
    assert not prune(against("is_not_distinct_from", None), None, None, nulls=10)


def test_casts_that_lose_nothing() -> None:
    decimal = pa.decimal128(15, 2)
    widened = Cast(FieldReference(0, INT), decimal)
    assert prune(call("lt", widened, Literal(500, decimal)), 5, 9)
    assert not prune(call("lt", widened, Literal(501, decimal)), 5, 9)
    assert prune(call("gt", Cast(FieldReference(0, pa.int32()), INT), Literal(9, INT)), 5, 9)
    narrowed = Cast(FieldReference(0, INT), pa.int8())
    assert not prune(call("gt", narrowed, Literal(9, pa.int8())), 5, 9)
    as_text = Cast(FieldReference(0, INT), TEXT)
    assert not prune(call("gt", as_text, Literal("x", TEXT)), 5, 9)


def test_strings_by_bytes_and_truncated_limits() -> None:
    low, high = b"apple", "naïw".encode()  # "naïve..." with its limit cut and raised
    assert prune(against("equal", "aaa", TEXT), low, high)
    assert not prune(against("equal", "naïve people", TEXT), low, high)
    assert prune(against("gt", "z", TEXT), low, high)
    assert prune(against("like", "zebra%", TEXT), low, high)
    assert prune(against("starts_with", "aa", TEXT), low, high)
    assert not prune(against("like", "app%", TEXT), low, high)
    assert not prune(against("like", "apple pie", TEXT), low, high)
    assert prune(against("like", "appl", TEXT), b"appm", high)
    assert not prune(against("like", "%zebra", TEXT), low, high)
    assert not prune(against("like", "_", TEXT), low, high)
    assert not prune(against("like", r"\%", TEXT), low, high)
    assert not prune(against("starts_with", "", TEXT), low, high)
    assert prune(against("like", "a%", TEXT), None, None, nulls=10)


def test_floats_may_hide_nan() -> None:
    """NaN is greater than every number and not in the statistics."""
    assert not prune(against("gt", 10.0, DOUBLE), 1.0, 2.0)
    assert not prune(against("gte", 10.0, DOUBLE), 1.0, 2.0)
    assert prune(against("lt", 1.0, DOUBLE), 1.0, 2.0)
    assert prune(against("equal", 3.0, DOUBLE), 1.0, 2.0)
    assert not prune(against("equal", math.nan, DOUBLE), 1.0, 2.0)
    assert not prune(against("equal", -0.0, DOUBLE), 0.0, 2.0)


def test_random_predicates_against_brute_force() -> None:
    rng = random.Random(11)

    def random_predicate(depth: int) -> Expression:
        if depth and rng.random() < 0.5:
            return call(rng.choice(["and", "or"]), random_predicate(depth - 1), random_predicate(depth - 1))
        field = FieldReference(0, INT)
        match rng.randrange(4):
            case 0:
                return call(rng.choice(["is_null", "is_not_null"]), field)
            case 1:
                options = tuple(Literal(rng.choice([None, *range(-2, 12)]), INT) for _ in range(rng.randrange(1, 4)))
                return InList(field, options, pa.bool_())
            case _:
                function = rng.choice(["equal", "not_equal", "lt", "lte", "gt", "gte", "is_not_distinct_from"])
                sides = [field, Literal(rng.choice([None, *range(-2, 12)]), INT)]
                rng.shuffle(sides)
                return call(function, *sides)

    pruned = 0
    for _ in range(3000):
        values = [None if rng.random() < 0.2 else rng.randrange(10) for _ in range(rng.randrange(1, 5))]
        present = [value for value in values if value is not None]
        statistics = ChunkStatistics(min(present, default=None), max(present, default=None), len(values) - len(present))
        predicate = random_predicate(3)
        if not may_be_true(predicate, lambda _, known=statistics: known, len(values)):
            pruned += 1
            assert not any(truth(predicate, value) for value in values), (predicate, values)
    assert pruned > 500


def truth(predicate: Expression, value: int | None) -> bool | None:
    """SQL's answer for one row."""
    match predicate:
        case Call(function="and", arguments=(a, b)):
            parts = truth(a, value), truth(b, value)
            return False if False in parts else None if None in parts else True
        case Call(function="or", arguments=(a, b)):
            parts = truth(a, value), truth(b, value)
            return True if True in parts else None if None in parts else False
        case Call(function="is_null"):
            return value is None
        case Call(function="is_not_null"):
            return value is not None
        case InList(options=options):
            wanted = [option.value for option in options if isinstance(option, Literal)]
            return None if value is None else True if value in wanted else None if None in wanted else False
        case Call(function=function, arguments=sides):
            left, right = (side.value if isinstance(side, Literal) else value for side in sides)
            if function == "is_not_distinct_from":
                return bool(left == right)
            if left is None or right is None:
                return None
            outcomes = {
                "equal": left == right,
                "not_equal": left != right,
                "lt": left < right,
                "lte": left <= right,
                "gt": left > right,
                "gte": left >= right,
            }
            return outcomes[function]
        case _:
            raise AssertionError(predicate)


DECIMAL = pa.decimal128(38, 4)
COMPARED = ["equal", "is_not_distinct_from", "lt", "lte", "gt", "gte", "not_equal"]


def random_predicate(r: random.Random, depth: int) -> Expression:
    if depth and r.random() < 0.6:
        parts = [random_predicate(r, depth - 1) for _ in range(r.choice([1, 2, 3]))]
        return call(r.choice(["and", "or"]), *parts)
    field: Expression = FieldReference(r.randrange(2), INT)
    if r.random() < 0.3:
        field = Cast(field, r.choice([DECIMAL, pa.int64(), pa.int32()]))
    number = r.choice([0, 5, -7, 50_000, 2**63 - 1, -(2**63), 2**63, 10**20, None, r.randint(-20, 20)])
    sides: list[Expression] = [field, Literal(number, field.type)]
    if r.random() < 0.3:
        sides.reverse()
    if r.random() < 0.2:
        return call(r.choice(["is_null", "is_not_null"]), field)
    return call(r.choice(COMPARED), *sides)


def random_statistics(r: random.Random, rows: int) -> ChunkStatistics:
    nulls = r.choice([0, 0, 1, rows, None])
    if nulls == rows or r.random() < 0.2:
        return ChunkStatistics(None, None, nulls)
    ends = [r.choice([-(2**63), 2**63 - 1, 0, 10**15]) if r.random() < 0.2 else r.randint(-20, 20) for _ in range(2)]
    return ChunkStatistics(min(ends), max(ends), nulls)


@pytest.mark.parametrize("seed", range(200))
def test_all_row_groups_at_once_are_as_one_by_one(seed: int) -> None:
    r = random.Random(seed)
    rows = np.array([r.choice([1, 3, 10]) for _ in range(r.choice([0, 1, 8]))], dtype=np.int64)
    known = [[random_statistics(r, int(count)) for count in rows] for _ in range(2)]
    without = r.choice([None, None, 0])
    for _ in range(20):
        predicate = random_predicate(r, 2)
        found = row_groups(
            predicate,
            lambda index: None if index == without else IntegerRanges.of(known[index]),
            lambda group, index: known[index][group],
            rows,
        )
        wanted = [
            may_be_true(predicate, lambda index, group=group: known[index][group], int(count))  # type: ignore[misc]
            for group, count in enumerate(rows)
        ]
        assert found.tolist() == wanted


@pytest.mark.parametrize("kind", ["int", "str", "float", "nan", "mixed"])
def test_lists_of_all_kinds_against_their_options_one_by_one(kind: str) -> None:
    r = random.Random(kind)
    make = {
        "int": lambda: r.randrange(30),
        "float": lambda: r.randrange(60) / 2,
        "nan": lambda: r.choice([math.nan, 3.0]),
        "str": lambda: chr(97 + r.randrange(26)) * 2,
        "mixed": lambda: r.choice([r.randrange(30), "x"]),
    }[kind]
    outcomes = set()
    for _ in range(500):
        options = tuple(Literal(r.choice([None, make(), make()]), INT) for _ in range(r.randrange(1, 4)))
        operand = r.choice([FieldReference(0, INT), FieldReference(0, INT), Cast(FieldReference(0, INT), TEXT)])
        ends = sorted((r.randrange(26), r.randrange(26)))
        limits = [bytes([97 + end]) if kind == "str" else end for end in ends]
        known = r.choice([ChunkStatistics(*limits, 0), ChunkStatistics(*limits, 7), ChunkStatistics(None, None, None)])
        found = may_be_true(InList(operand, options, pa.bool_()), lambda _, known=known: known, 7)
        alone = [call("equal", operand, option) for option in options]
        assert found == any(may_be_true(each, lambda _, known=known: known, 7) for each in alone)
        outcomes.add(found)
    assert outcomes == {True, False}


def test_a_long_list_is_put_in_order_once_for_all_row_groups() -> None:
    compared = 0

    class Counted(int):
        def __lt__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)  # type: ignore[call-overload, no-any-return]

    options = tuple(Literal(Counted(2 * n), INT) for n in range(10_000))
    predicate = InList(FieldReference(0, INT), options, pa.bool_())
    found = row_groups(
        call("and", predicate, predicate),
        lambda _: None,
        lambda group, _: ChunkStatistics(2 * group + 1, 2 * group + 1 + group % 2, 0),
        np.full(1000, 10),
    )
    assert found.tolist() == [bool(group % 2) for group in range(1000)]
    assert compared < 20 * len(options)
