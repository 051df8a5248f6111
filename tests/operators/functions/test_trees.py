"""Random trees of functions against DuckDB: what one function gives must be what the next one takes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pystachio.operators.expressions import Expression, IfThen, InList
from tests.operators.functions.oracle import call, cast, check, col, lit

Tree = tuple[Expression, str]
Trees = st.SearchStrategy[Tree]

WIDE = pa.decimal128(38, 2)


def fields(*names: str) -> Trees:
    return st.sampled_from([(col(name), name) for name in names])


def binary(trees: Trees, names: dict[str, str]) -> Trees:
    """Two-argument functions and the operators DuckDB writes them with."""

    def build(function: str, left: Tree, right: Tree) -> Tree:
        return call(function, left[0], right[0]), f"({left[1]} {names[function]} {right[1]})"

    return st.builds(build, st.sampled_from(sorted(names)), trees, trees)


def named(trees: Trees, *names: str) -> Trees:
    """Functions that have one name everywhere, of one or several arguments of one type."""

    def build(function: str, arguments: list[Tree]) -> Tree:
        kept = arguments if function in ("coalesce", "greatest", "least") else arguments[:1]
        return call(function, *(a for a, _ in kept)), f"{function}({', '.join(sql for _, sql in kept)})"

    return st.builds(build, st.sampled_from(names), st.lists(trees, min_size=2, max_size=3))


def chosen(conditions: Trees, trees: Trees) -> Trees:
    def build(condition: Tree, value: Tree, otherwise: Tree) -> Tree:
        expression = IfThen(((condition[0], value[0]),), otherwise[0], value[0].type)
        return expression, f"(case when {condition[1]} then {value[1]} else {otherwise[1]} end)"

    return st.builds(build, conditions, trees, trees)


def as_type(trees: Trees, type_: pa.DataType, sql: str) -> Trees:
    return trees.map(lambda tree: (cast(tree[0], type_), f"({tree[1]})::{sql}"))


INTEGERS: Trees = as_type(fields("i", "j", "u"), pa.int64(), "bigint") | st.sampled_from(
    [(lit(number), f"{number}::bigint") for number in (0, 1, -7, 100, 2**33)]
)
DECIMALS: Trees = as_type(fields("d", "e", "i"), WIDE, "decimal(38, 2)") | st.sampled_from(
    [(lit(Decimal(number), WIDE), f"{number}::decimal(38, 2)") for number in ("0.00", "-1.25", "1234567890123456.78")]
)
TEXTS: Trees = fields("s", "t") | st.sampled_from([(lit(text), f"'{text}'") for text in ("", "abc", "ü%")])
DATES: Trees = fields("day", "other_day") | st.just((lit(dt.date(1999, 12, 31)), "date '1999-12-31'"))
COMPARISONS = {"equal": "=", "not_equal": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
COMPARISONS |= {"is_distinct_from": "is distinct from", "is_not_distinct_from": "is not distinct from"}


def truths(depth: int) -> Trees:
    simple = fields("b", "c")
    if depth == 0:
        return simple
    below = truths(depth - 1)
    listed = st.builds(
        lambda tree, options: (
            InList(tree[0], tuple(option[0] for option in options), pa.bool_()),
            f"({tree[1]} in ({', '.join(option[1] for option in options)}))",
        ),
        integers(depth - 1),
        st.lists(INTEGERS, min_size=1, max_size=3),
    )
    negated = below.map(lambda tree: (call("not", tree[0]), f"(not {tree[1]})"))
    missing = texts(depth - 1).map(lambda tree: (call("is_null", tree[0]), f"({tree[1]} is null)"))
    compared = [binary(trees(depth - 1), COMPARISONS) for trees in (integers, decimals, texts, dates)]
    return st.one_of(simple, listed, negated, missing, *compared, binary(below, {"and": "and", "or": "or"}))


def integers(depth: int) -> Trees:
    if depth == 0:
        return INTEGERS
    below = integers(depth - 1)
    return st.one_of(
        INTEGERS,
        binary(below, {"add": "+", "subtract": "-"}),
        named(below, "abs", "coalesce", "greatest", "least"),
        chosen(truths(depth - 1), below),
        texts(depth - 1).map(lambda tree: (call("char_length", tree[0]), f"length({tree[1]})")),
        dates(depth - 1).map(lambda tree: (call("date_part", lit("year"), tree[0]), f"year({tree[1]})")),
    )


def decimals(depth: int) -> Trees:
    if depth == 0:
        return DECIMALS
    below = decimals(depth - 1)
    total = binary(below, {"add": "+", "subtract": "-"})
    return st.one_of(
        DECIMALS,
        as_type(total, WIDE, "decimal(38, 2)"),
        as_type(integers(depth - 1), WIDE, "decimal(38, 2)"),
        named(below, "abs", "coalesce", "greatest", "least"),
        chosen(truths(depth - 1), below),
    )


def texts(depth: int) -> Trees:
    if depth == 0:
        return TEXTS
    below = texts(depth - 1)
    return st.one_of(
        TEXTS,
        binary(below, {"concat_operator": "||"}),
        named(below, "lower", "trim", "reverse", "coalesce", "greatest", "least"),
        below.map(lambda tree: (call("substring", tree[0], lit(2), lit(3)), f"substring({tree[1]}, 2, 3)")),
        chosen(truths(depth - 1), below),
        as_type(integers(depth - 1), pa.string(), "varchar"),
        as_type(decimals(depth - 1), pa.string(), "varchar"),
        as_type(dates(depth - 1), pa.string(), "varchar"),
    )


def dates(depth: int) -> Trees:
    if depth == 0:
        return DATES
    below = dates(depth - 1)
    later = below.map(
        lambda tree: (call("add", tree[0], lit((1, 3, 0))), f"({tree[1]} + interval 1 month + interval 3 day)::date")
    )
    return st.one_of(DATES, later, named(below, "coalesce", "greatest", "least"), chosen(truths(depth - 1), below))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.one_of(truths(3), integers(2), decimals(2), texts(2), dates(2)))
def test_trees(tree: Tree) -> None:
    check(*tree)
