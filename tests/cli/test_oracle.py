from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from pystachio.cli.oracle import difference, ordered_columns, same


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        (1, 1, True),
        (1, 2, False),
        (None, None, True),
        (None, 0, False),
        ("a", "a ", False),
        (Decimal("1.50"), Decimal("1.5"), True),
        (Decimal("1.50"), Decimal("1.51"), False),
        (Decimal("25.5022"), 25.50224999, True),
        (Decimal("25.5022"), 25.5024, False),
        (Decimal("123456789012.34"), 123456789012.35, True),
        (1.0, 1.0 + 1e-12, True),
        (1.0, 1.0 + 1e-6, False),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        (dt.date(2024, 1, 1), dt.date(2024, 1, 1), True),
        (dt.date(2024, 1, 1), dt.date(2024, 1, 2), False),
    ],
)
def test_same(mine: object, other: object, expected: bool) -> None:
    assert same(mine, other) is expected


def test_rows_in_another_order_are_right_where_nothing_fixes_it() -> None:
    assert difference([(1, "b"), (2, "a")], [(2, "a"), (1, "b")]) is None


def test_rows_in_another_order_are_wrong_where_order_by_fixes_it() -> None:
    assert difference([(1, "b"), (2, "a")], [(2, "a"), (1, "b")], order=[0]) is not None


def test_ties_may_come_in_any_order() -> None:
    assert difference([(1, "b"), (1, "a")], [(1, "a"), (1, "b")], order=[0]) is None


def test_missing_and_changed_rows_are_found() -> None:
    assert difference([(1,)], [(1,), (1,)]) == "1 rows instead of 2"
    assert difference([(1,), (2,)], [(1,), (3,)]) is not None
    assert difference([(None,), (2,)], [(2,), (None,)]) is None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select a, b from t", ()),
        ("select a, b from t order by b desc, a", (1, 0)),
        ("select a, b from t order by b desc nulls last, a limit 10;", (1, 0)),
        ("select a, b from (select * from t order by a limit 3)", ()),
        ("select a, b from t order by t.a, lower(b), b", (0,)),
        ("select a, b from t\nORDER BY\n    t.a,\n    c, b\nLIMIT 5", (0,)),
    ],
)
def test_ordered_columns(sql: str, expected: tuple[int, ...]) -> None:
    assert ordered_columns(sql, ["a", "b"]) == expected
