"""Random valid queries over `tests.queries.tables`, in the part of SQL that DuckDB and DataFusion read alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

COLUMNS: Final = {
    "facts": {
        "id": "integer", "key": "integer", "skewed": "integer", "small": "integer", "nothing": "integer",
        "big": "huge", "flag": "boolean", "ratio": "double", "price": "decimal", "rate": "decimal", "wide": "wide",
        "day": "date", "moment": "timestamp", "word": "text", "text": "text",
    },
    "dimension": {"key": "integer", "category": "integer", "name": "text", "weight": "decimal", "since": "date"},
    "other": {"key": "integer", "category": "integer", "name": "text", "amount": "double"},
    "many": {"key": "integer", "category": "integer", "name": "text", "amount": "double"},
    "single": {"key": "integer", "category": "integer", "name": "text", "weight": "decimal", "since": "date"},
    "nothing": {"id": "integer", "key": "integer", "word": "text", "price": "decimal", "flag": "boolean"},
}  # fmt: skip
LITERALS: Final = {
    "integer": ["0", "1", "-1", "5", "29", "127"],
    "huge": ["0", "4611686018427387904", "-1"],
    "decimal": ["0.5", "1.25", "-3.00", "99.99"],
    "wide": ["0.00001", "-7", "100000000000000000000.5"],
    "double": ["cast(0.25 as double)", "cast(-0.5 as double)"],
    "text": ["''", "'a'", "'A'", "'apple'", "'日本'", "'zz'"],
    "boolean": ["true", "false"],
    "date": ["date '1995-01-20'", "date '1998-02-28'"],
    "timestamp": ["timestamp '2001-01-02 03:00:00'", "timestamp '2002-06-30 23:59:59'"],
}
SQL_TYPES: Final = {"huge": "bigint", "decimal": "decimal(15, 2)", "wide": "decimal(38, 5)", "text": "varchar"}
CALLS: Final[dict[str, Sequence[str]]] = {
    "integer": ["({integer} + {integer})", "({integer} - 7)", "abs({integer})", "({integer} % 7)", "length({text})",
                "extract(month from {date})", "extract(hour from {timestamp})"],
    "decimal": ["({decimal} + {decimal})", "({decimal} * 0.5)", "round({decimal}, 1)", "abs({decimal})"],
    "double": ["({double} * 0.5)", "floor({double})", "abs({double})", "cast({integer} as double)"],
    "text": ["upper({text})", "({text} || {text})", "substring({text} from 2 for 3)", "trim({text})",
             "replace({text}, 'a', 'é')", "cast({integer} as varchar)"],
    "date": ["cast(date_trunc('month', {date}) as date)", "cast({date} + interval '3' month as date)"],
    "timestamp": ["date_trunc('hour', {timestamp})", "cast({date} as timestamp)"],
}  # fmt: skip
TESTS: Final = ["{} = {}", "{} <> {}", "{} < {}", "{} >= {}", "{} is distinct from {}", "{} between {} and {}",
                "{} not between {} and {}", "{} in ({}, {}, null)", "{} not in ({}, {})", "{} is null"]  # fmt: skip
PATTERNS: Final = ["a%", "%e", "%p%", "_", "a_p%", "50%", "%日%", "%"]
JOINS: Final = ["join", "join", "left join", "right join", "full join"]


@dataclass(frozen=True)
class Scope:
    """What a FROM clause gives: the columns that expressions may use, by type."""

    sql: str
    columns: dict[str, list[str]]

    def beside(self, other: Scope, sql: str) -> Scope:
        kinds = {*self.columns, *other.columns}
        return Scope(sql, {kind: self.columns.get(kind, []) + other.columns.get(kind, []) for kind in sorted(kinds)})


@dataclass
class Generator:
    """One statement per seed."""

    rng: random.Random
    named: dict[str, dict[str, str]] = field(default_factory=dict)
    names: int = 0

    def statement(self) -> str:
        if self.rng.random() < 0.25:
            sql, columns = self.query()
            self.named = {"w": columns}
            return f"with w as ({sql}) {self.query()[0]}"
        return self.query()[0]

    def query(self) -> tuple[str, dict[str, str]]:
        """A query and the types of its columns."""
        source = self.source()
        where = f" where {self.condition(source)}" if self.rng.random() < 0.5 else ""
        kinds = [self.kind(source) for _ in range(self.rng.randint(1, 3))]
        keys = [self.expression(source, kind, 1) for kind in kinds]
        if self.rng.random() < 0.5:
            sql, kinds = self.grouped(source, where, keys, kinds)
        else:
            distinct = "distinct " if self.rng.random() < 0.3 else ""
            sql = f"select {distinct}{self.listed(keys)} from {source.sql}{where}"
        if self.rng.random() < 0.3:
            directions = [self.pick("", " desc", " nulls first", " desc nulls last") for _ in kinds]
            order = ", ".join(f"{position}{how}" for position, how in enumerate(directions, 1))
            sql = f"{sql} order by {order} limit {self.pick(0, 3, 50)} offset {self.pick(0, 2)}"
        return sql, {f"c{position}": kind for position, kind in enumerate(kinds)}

    def grouped(self, source: Scope, where: str, keys: list[str], kinds: list[str]) -> tuple[str, list[str]]:
        keys = [key if "." in key else f"{self.column(source, kind)}" for key, kind in zip(keys, kinds, strict=True)]
        keys = list(dict.fromkeys(keys))
        kinds = kinds[: len(keys)]
        measures = [self.measure(source) for _ in range(self.rng.randint(1, 3))]
        listed = self.listed([*keys, *(sql for sql, _ in measures)])
        groups = self.pick("{}", "{}", "{}", "rollup ({})", "cube ({})", "grouping sets (({}), ())").format(
            ", ".join(keys)
        )
        having = " having count(*) > 1" if self.rng.random() < 0.3 else ""
        sql = f"select {listed} from {source.sql}{where} group by {groups}{having}"
        return sql, [*kinds, *(kind for _, kind in measures)]

    def source(self) -> Scope:
        scope = self.table(["facts", "facts", *COLUMNS])
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            other = self.table(["dimension", "other", "many", "dimension", "other", "many", "single", "nothing"])
            shared = [kind for kind in scope.columns if kind in other.columns]
            if not shared:
                continue
            pairs = [(self.column(scope, kind), self.column(other, kind)) for kind in self.rng.choices(shared, k=2)]
            on = f"{pairs[0][0]} = {pairs[0][1]}"
            join = self.pick(*JOINS)
            if self.rng.random() < 0.2:
                on += f" and {pairs[1][0]} {'=' if join == 'full join' else self.pick('=', '<>', '<')} {pairs[1][1]}"
            scope = scope.beside(other, f"{scope.sql} {join} {other.sql} on {on}")
        return scope

    def table(self, names: list[str]) -> Scope:
        name = self.pick(*names, *self.named)
        self.names += 1
        alias = f"t{self.names}"
        columns: dict[str, list[str]] = {}
        for column, kind in (self.named.get(name) or COLUMNS[name]).items():
            columns.setdefault(kind, []).append(f"{alias}.{column}")
        return Scope(f"{name} as {alias}", columns)

    def condition(self, scope: Scope, depth: int = 2) -> str:
        if depth and self.rng.random() < 0.4:
            left, right = self.condition(scope, depth - 1), self.condition(scope, depth - 1)
            return self.pick(f"({left} and {right})", f"({left} or {right})", f"(not {left})")
        if depth == 2 and self.rng.random() < 0.35:
            return self.subquery(scope)
        if "text" in scope.columns and self.rng.random() < 0.2:
            return f"{self.column(scope, 'text')} {self.pick('like', 'not like', 'ilike')} '{self.pick(*PATTERNS)}'"
        kind = self.kind(scope)
        test: str = self.pick(*TESTS)
        return "(" + test.format(*(self.expression(scope, kind, 1) for _ in range(test.count("{}")))) + ")"

    def subquery(self, scope: Scope) -> str:
        inner = self.table(["dimension", "other", "many", "nothing"])
        kind = self.pick(*[kind for kind in scope.columns if kind in inner.columns] or ["integer"])
        outside, inside = self.column(scope, kind), self.column(inner, kind)
        condition = self.condition(inner, 0)
        correlated = f"{inside} = {outside} and {condition}"
        return self.pick(
            f"{outside} {self.pick('in', 'not in')} (select {inside} from {inner.sql} where {condition})",
            f"{self.pick('exists', 'not exists')} (select 1 from {inner.sql} where {correlated})",
            f"{outside} {self.pick('<', '>=', '=')} (select {self.pick('min', 'max')}({inside}) from {inner.sql})",
        )

    def measure(self, scope: Scope) -> tuple[str, str]:
        kind = self.kind(scope)
        distinct = "distinct " if self.rng.random() < 0.3 else ""
        condition = f" filter (where {self.condition(scope, 0)})" if self.rng.random() < 0.2 else ""
        if kind in ("integer", "decimal") and self.rng.random() < 0.4:
            return f"sum({distinct}{self.column(scope, kind)}){condition}", "huge" if kind == "integer" else "wide"
        if kind == "boolean" or self.rng.random() < 0.4:
            return f"count({distinct}{self.expression(scope, kind, 1)}){condition}", "huge"
        return f"{self.pick('min', 'max')}({self.expression(scope, kind, 1)}){condition}", kind

    def expression(self, scope: Scope, kind: str, depth: int) -> str:
        if depth and kind in CALLS and self.rng.random() < 0.3:
            arguments = {other: self.expression(scope, other, depth - 1) for other in LITERALS}
            return str(self.pick(*CALLS[kind])).format(**arguments)
        if depth and self.rng.random() < 0.2:
            first, second = (self.expression(scope, kind, depth - 1) for _ in range(2))
            return self.pick(
                f"case when {self.condition(scope, 0)} then {first} else {second} end",
                f"coalesce({first}, {second})",
                f"nullif({first}, {second})",
            )
        if self.rng.random() < 0.1:
            return f"cast(null as {SQL_TYPES.get(kind, kind)})"
        return self.column(scope, kind) if self.rng.random() < 0.85 else self.pick(*LITERALS[kind])

    def kind(self, scope: Scope) -> str:
        return self.pick(*scope.columns)

    def column(self, scope: Scope, kind: str) -> str:
        """A column of that type, or a literal where there is none."""
        return self.pick(*scope.columns.get(kind) or LITERALS[kind])

    def pick(self, *choices: object) -> str:
        return str(self.rng.choice(choices))

    def listed(self, expressions: Sequence[str]) -> str:
        return ", ".join(f"{expression} as c{position}" for position, expression in enumerate(expressions))


def statement(seed: int) -> str:
    return Generator(random.Random(seed)).statement()
