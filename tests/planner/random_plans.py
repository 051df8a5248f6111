"""Random logical plans over small tables of integers with NULLs and many duplicates."""

from __future__ import annotations

import random

import pyarrow as pa

from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import (
    AggregateCall,
    Call,
    Expression,
    FieldReference,
    InList,
    JoinKind,
    Literal,
    SortKey,
    conjunction,
)
from pystachio.planner.logical import (
    Aggregate,
    Filter,
    Join,
    Limit,
    LogicalPlan,
    Project,
    Query,
    Read,
    Sort,
    UnionAll,
    Values,
)
from tests.planner.interpreter import Row, Tables

INTEGER = pa.int64()
REDUCING = (JoinKind.SEMI, JoinKind.ANTI)
KINDS = (*[JoinKind.INNER] * 8, *[JoinKind.SEMI] * 2, *(kind for kind in JoinKind if kind is not JoinKind.INNER))


def random_tables(chance: random.Random) -> Tables:
    schemas: dict[str, Schema] = {}
    contents: dict[str, list[Row]] = {}
    for number in range(chance.randint(2, 5)):
        width = chance.randint(1, 4)
        schemas[f"t{number}"] = tuple(Field(f"t{number}_{c}", INTEGER, True) for c in range(width))
        rows = chance.randint(0, 9)
        contents[f"t{number}"] = [tuple(random_value(chance) for _ in range(width)) for _ in range(rows)]
    return Tables(schemas, contents)


def random_value(chance: random.Random) -> int | None:
    return None if chance.random() < 0.12 else chance.randint(0, 4)


def random_query(chance: random.Random, tables: Tables) -> Query:
    plan = random_plan(chance, tables, chance.randint(1, 5))
    if chance.random() < 0.3:
        plan = Sort(plan, (SortKey(chance.randrange(len(plan.schema)), chance.random() < 0.5, True),))
    return Query(plan)


def random_plan(chance: random.Random, tables: Tables, joins: int) -> LogicalPlan:
    """A tree with `joins` joins and other operators sprinkled in."""
    if joins == 0:
        return random_leaf(chance, tables)
    below = chance.randrange(joins)
    left, right = random_plan(chance, tables, below), random_plan(chance, tables, joins - 1 - below)
    plan: LogicalPlan = random_join(chance, left, right)
    if chance.random() < 0.25:
        plan = Filter(plan, random_predicate(chance, plan.schema))
    if chance.random() < 0.25:
        plan = random_project(chance, plan)
    if chance.random() < 0.1:
        plan = random_aggregate(chance, plan)
    if chance.random() < 0.05:
        other = random_project(chance, plan, width=len(plan.schema))
        plan = UnionAll((plan, other), plan.schema)
    return plan


def random_leaf(chance: random.Random, tables: Tables) -> LogicalPlan:
    if chance.random() < 0.1:
        schema = (Field("v0", INTEGER, True), Field("v1", INTEGER, True))
        return Values(tuple((random_value(chance), random_value(chance)) for _ in range(chance.randint(0, 3))), schema)
    name = chance.choice(sorted(tables.schemas))
    schema = tables.schemas[name]
    columns = tuple(sorted(chance.sample(range(len(schema)), chance.randint(1, len(schema)))))
    fields = tuple(schema[c] for c in columns)
    predicate = random_predicate(chance, fields) if chance.random() < 0.4 else None
    return Read(name, columns, fields, predicate)


def random_join(chance: random.Random, left: LogicalPlan, right: LogicalPlan) -> Join:
    kind = chance.choice(KINDS)
    keys = chance.choice((0, 1, 1, 1, 1, 2))
    left_keys = tuple(chance.randrange(len(left.schema)) for _ in range(keys))
    right_keys = tuple(chance.randrange(len(right.schema)) for _ in range(keys))
    null_equal = tuple(chance.random() < 0.1 for _ in range(keys))
    residual = random_predicate(chance, left.schema + right.schema) if chance.random() < 0.2 else None
    null_aware = kind is JoinKind.ANTI and keys == 1 and not null_equal[0] and residual is None
    null_aware = null_aware and chance.random() < 0.3
    return Join(left, right, kind, left_keys, right_keys, null_equal, residual, null_aware)


def random_project(chance: random.Random, plan: LogicalPlan, width: int | None = None) -> Project:
    plain = chance.random() < 0.7
    expressions: list[Expression] = []
    for _ in range(width or chance.randint(1, len(plan.schema) + 1)):
        field = random_field(chance, plan.schema)
        expressions.append(field if plain else Call("add", (field, Literal(1, INTEGER)), INTEGER))
    return Project(plan, tuple(expressions), tuple(Field(f"p{i}", e.type, True) for i, e in enumerate(expressions)))


def random_aggregate(chance: random.Random, plan: LogicalPlan) -> Aggregate:
    keys = tuple(chance.sample(range(len(plan.schema)), chance.randint(0, min(2, len(plan.schema)))))
    functions = [function for function in ("sum", "min", "max", "count") if chance.random() < 0.4]
    calls = [AggregateCall("count", (), INTEGER)]
    calls += [AggregateCall(function, (chance.randrange(len(plan.schema)),), INTEGER) for function in functions]
    fields = [plan.schema[k] for k in keys] + [Field(f"a{i}", INTEGER, True) for i in range(len(calls))]
    sets: tuple[tuple[int, ...], ...] = ()
    if keys and chance.random() < 0.3:
        sets = (tuple(range(len(keys))), (0,), ())
        fields.append(Field("grouping", pa.int32(), False))
    return Aggregate(plan, keys, tuple(calls), tuple(fields), sets)


def random_field(chance: random.Random, schema: Schema) -> FieldReference:
    index = chance.randrange(len(schema))
    return FieldReference(index, schema[index].type)


def random_predicate(chance: random.Random, schema: Schema) -> Expression:
    parts: list[Expression] = []
    for _ in range(chance.choice((1, 1, 2))):
        field = random_field(chance, schema)
        match chance.randrange(5):
            case 0:
                parts.append(InList(field, (Literal(1, INTEGER), Literal(3, INTEGER)), pa.bool_()))
            case 1:
                parts.append(Call("equal", (field, random_field(chance, schema)), pa.bool_()))
            case 2:
                parts.append(Call("is_not_null", (field,), pa.bool_()))
            case _:
                function = chance.choice(("lt", "gte", "equal", "not_equal"))
                parts.append(Call(function, (field, Literal(chance.randint(0, 4), INTEGER)), pa.bool_()))
    predicate = conjunction(tuple(parts))
    assert predicate is not None
    return predicate


def limited(plan: LogicalPlan, count: int) -> Limit:
    return Limit(plan, 0, count)
