"""Balanced chains mean what the chains meant, and nest no deeper than a logarithm."""

from __future__ import annotations

import random

import duckdb
import pytest

from pystachio.planner.sql.chains import balance
from pystachio.planner.sql.text import tokenize


def balanced(sql: str) -> str:
    return balance(sql, tokenize(sql))


def depth(sql: str) -> int:
    deepest = level = 0
    for token in tokenize(sql):
        level += (token.text == "(") - (token.text == ")")
        deepest = max(deepest, level)
    assert level == 0
    return deepest


UNTOUCHED = [
    "select a from t where a = 1 or b = 2",
    "select " + ", ".join(["a"] * 100) + " from t",
    "select " + " or ".join(["a"] * 100) + " from t",
    "select a from t where a in (" + ", ".join("1" * 100) + ")",
    "select a from t where x = '" + " or ".join("a" * 100) + "'",
    "select a from t where a /* " + " or ".join("a" * 100) + " */ = 1",
    'select a from t where "' + " or ".join("a" * 100) + '" = 1',
    "select a from t where " + " or ".join([""] * 100),
]


@pytest.mark.parametrize("sql", UNTOUCHED)
def test_nothing_to_balance(sql: str) -> None:
    assert balanced(sql) is sql


@pytest.mark.parametrize(
    "place",
    [
        "select a from t where {}",
        "select a from t where {} group by a",
        "select a from t where {} order by a limit 3",
        "select a from t join u on {} where x = 1",
        "select a from t join u on {} left join v on b = c",
        "select case when {} then 1 else 2 end from t",
        "select a from t group by a having {}",
        "select a from t where b = 1 and ({}) and c = 2",
        "select a from (select a from t where {}) x",
    ],
)
@pytest.mark.parametrize("operator", ["or", "and"])
def test_long_chains_become_shallow(place: str, operator: str) -> None:
    chain = f" {operator} ".join(f"a <> {i}" for i in range(1000))
    sql = place.format(chain)
    assert depth(balanced(sql)) <= depth(sql) + 11
    assert [t.text for t in tokenize(balanced(sql)) if t.text not in "()"] == [
        t.text for t in tokenize(sql) if t.text not in "()"
    ]


def random_condition(chance: random.Random, size: int) -> str:
    """A flat chain of AND, OR, NOT, BETWEEN and CASE over the integer x, some of it in parentheses."""
    terms = []
    for _ in range(size):
        match chance.randrange(6):
            case 0:
                terms.append(f"x between {chance.randint(0, 5)} and {chance.randint(3, 9)}")
            case 1:
                terms.append(f"not x = {chance.randint(0, 9)}")
            case 2 if size > 2:
                terms.append(f"({random_condition(chance, size // 5)})")
            case 3:
                terms.append(f"case when x = {chance.randint(0, 9)} or x = 1 then x < 5 else x in (1, 2) end")
            case 4:
                terms.append("x is null")
            case _:
                terms.append(f"x {chance.choice(('=', '<>', '<'))} {chance.randint(0, 9)}")
    words = [terms[0]]
    for term in terms[1:]:
        words += [chance.choice(("and", "and", "or")), term]
    return " ".join(words)


def test_random_conditions_keep_their_value() -> None:
    changed = 0
    with duckdb.connect() as connection:
        connection.execute("create table t as select i as x from range(10) r(i) union all select null")
        for seed in range(30):
            sql = f"select x from t where {random_condition(random.Random(seed), 40)} order by x nulls first"
            assert connection.execute(balanced(sql)).fetchall() == connection.execute(sql).fetchall(), seed
            changed += balanced(sql) != sql
    assert changed > 10
