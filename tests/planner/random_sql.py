"""Random statements over the tables t(a, b, c), u(x, y, z) and v(p, q) of integers."""

from __future__ import annotations

import random
from collections.abc import Sequence

SUBQUERY_SOURCES = (("u s", ("s.x", "s.y", "s.z")), ("v s", ("s.p", "s.q")), ("t s", ("s.a", "s.b", "s.c")))


def random_statement(chance: random.Random) -> str:
    # Both kinds of subquery predicates in one statement are refused when NULLs would tell them apart.
    kind = chance.choice(("in", "exists"))
    source, columns = _source(chance)
    where = f"where {_predicate(chance, columns, 3, kind)}" if chance.random() < 0.9 else ""
    if chance.random() < 0.25:
        key, value = columns[0], chance.choice(columns)
        having = chance.choice(("", "having count(*) > 1", f"having {key} > 1", f"having sum({value}) is not null"))
        return f"select {key}, count(*) as n, sum({value}) as s from {source} {where} group by {key} {having}"
    outputs = ", ".join(f"{column} as c{number}" for number, column in enumerate(columns))
    return f"select {outputs} from {source} {where}"


def _source(chance: random.Random) -> tuple[str, list[str]]:
    columns = ["t.a", "t.b", "t.c"]
    draw = chance.random()
    if draw < 0.3:
        return "t", columns
    if draw < 0.4:
        return "t, u, v", [*columns[:2], "u.x", "u.y", "v.p"]
    columns += ["u.x", "u.y"]
    source = f"t {_join(chance)} u on {chance.choice(('t.a = u.x', 't.a = u.x', 't.a < u.x'))}"
    if chance.random() < 0.6:
        source += f" and {_predicate(chance, columns, 1, None)}"
    if chance.random() < 0.3:
        source += f" {_join(chance)} v on {chance.choice(columns)} = v.p"
        columns += ["v.p", "v.q"]
    return source, columns


def _join(chance: random.Random) -> str:
    return chance.choice(("join", "left join", "right join", "full join"))


def _predicate(chance: random.Random, columns: Sequence[str], depth: int, kind: str | None) -> str:
    draw = chance.random()
    if depth <= 0 or draw < 0.4 or (draw > 0.76 and kind is None):
        return _test(chance, columns)
    if draw < 0.7:
        sides = (_predicate(chance, columns, depth - 1, kind) for _ in range(2))
        return f"({chance.choice((' and ', ' or ')).join(sides)})"
    if draw < 0.76:
        return f"not ({_predicate(chance, columns, depth - 1, kind)})"
    source, inner = chance.choice(SUBQUERY_SOURCES)
    visible = [*inner, *(columns if chance.random() < 0.5 else ())]
    where = f"where {_test(chance, visible)}" if chance.random() < 0.8 else ""
    maybe = chance.choice(("", "not "))
    if kind == "exists":
        return f"{maybe}exists (select 1 from {source} {where})"
    return f"{chance.choice((*columns, '3'))} {maybe}in (select {chance.choice(inner)} from {source} {where})"


def _test(chance: random.Random, columns: Sequence[str]) -> str:
    column, maybe = chance.choice(columns), chance.choice(("", "not "))
    low, high = chance.randint(0, 2), chance.randint(2, 4)
    return chance.choice(
        (
            f"{column} {chance.choice(('=', '<>', '<', '<=', '>'))} {chance.randint(0, 4)}",
            f"{column} {chance.choice(('=', '<>', '<', '>'))} {chance.choice(columns)}",
            f"{column} is {maybe}null",
            f"{column} {maybe}in ({low}, {high}{chance.choice(('', ', null'))})",
            f"({column} is {maybe}distinct from {chance.choice(columns)})",
            f"coalesce({column}, {low}) = {high}",
            f"{column} between {low} and {high}",
        )
    )
