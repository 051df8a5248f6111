"""Where the right operand of IS [NOT] DISTINCT FROM ends."""

from __future__ import annotations

import pytest

from pystachio.planner.sql.distinct_from import respell
from pystachio.planner.sql.text import tokenize


def respelt(sql: str) -> str:
    return respell(sql, tokenize(sql))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a is distinct from b and c", "a <=> (b) = false and c"),
        ("a IS NOT DISTINCT FROM b or c", "a <=> (b) or c"),
        ("a is not distinct from b + 1 is null", "a <=> (b + 1) is null"),
        ("a is not distinct from b = c and d", "a <=> (b = c) and d"),
        ("a is not distinct from b between 1 and 2 and c", "a <=> (b between 1 and 2) and c"),
        ("a is not distinct from f(b and c, d) and e", "a <=> (f(b and c, d)) and e"),
        ("a is not distinct from left(b, 1) and e", "a <=> (left(b, 1)) and e"),
        ("a is not distinct from case when b and c then d end or e", "a <=> (case when b and c then d end) or e"),
        ("(a is not distinct from(b)and c)", "(a <=> ((b))and c)"),
        ("a is not distinct from b and c is distinct from d or e", "a <=> (b) and c <=> (d) = false or e"),
        ('a is not distinct from "and" and c', 'a <=> ("and") and c'),
    ],
)
def test_operands_end_before_what_binds_less(written: str, read: str) -> None:
    assert respelt(written) == read


@pytest.mark.parametrize(
    "sql",
    [
        "select a is distinct from b as x, c and d from t",
        "select a is distinct from b x from t where c and d",
        "select * from t join u on t.a is not distinct from u.a left join v on u.b = v.b and u.c",
        "select case when a is distinct from b then c or d end from t",
        "select (a is distinct from b) and c from t",
        "select count(distinct a), b from t where c and d",
        "select distinct a and b from t",
        "is distinct from",
        "a is distinct from and b",
    ],
)
def test_other_texts_stay(sql: str) -> None:
    assert respelt(sql) is sql
