"""Substrait's set operations: unions as such, intersections and differences as joins in which NULLs are equal."""

from __future__ import annotations

import pyarrow as pa
from substrait import algebra_pb2

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import Call, Expression, FieldReference, JoinKind
from pystachio.planner.joins.condition import join_on
from pystachio.planner.logical import Aggregate, LogicalPlan, Project, UnionAll
from pystachio.planner.substrait.calls import cast, typed_alike
from pystachio.planner.substrait.reading import Reading

_SetOp = algebra_pb2.SetRel


def read_set(message: algebra_pb2.SetRel, reading: Reading, depth: int) -> LogicalPlan:
    """A set operation on two or more inputs of equal layout."""
    if len(message.inputs) < 2:
        raise InvalidRequest(f"a set operation on {len(message.inputs)} inputs")
    inputs = _aligned([reading.read_relation(part, reading, depth + 1) for part in message.inputs])
    first, rest = inputs[0], inputs[1:]
    match message.op:
        case _SetOp.SET_OP_UNION_ALL:
            return union(inputs)
        case _SetOp.SET_OP_UNION_DISTINCT:
            return distinct(union(inputs))
        case _SetOp.SET_OP_INTERSECTION_PRIMARY:
            return _by_rows(distinct(first), union(rest), JoinKind.SEMI)
        case _SetOp.SET_OP_INTERSECTION_MULTISET:
            plan = distinct(first)
            for other in rest:
                plan = _by_rows(plan, other, JoinKind.SEMI)
            return plan
        case _SetOp.SET_OP_MINUS_PRIMARY:
            return _by_rows(distinct(first), union(rest), JoinKind.ANTI)
        case _:
            known = message.op in _SetOp.SetOp.values()
            name = _SetOp.SetOp.Name(message.op).removeprefix("SET_OP_").lower() if known else str(message.op)
            raise Unsupported(f"the set operation {name}")


def union(inputs: list[LogicalPlan]) -> LogicalPlan:
    """All rows of all inputs."""
    if len(inputs) == 1:
        return inputs[0]
    flat = [part for plan in inputs for part in (plan.inputs if isinstance(plan, UnionAll) else (plan,))]
    nullable = [any(plan.schema[p].nullable for plan in flat) for p in range(len(flat[0].schema))]
    schema = tuple(Field(f.name, f.type, null) for f, null in zip(flat[0].schema, nullable))
    return UnionAll(tuple(flat), schema)


def distinct(plan: LogicalPlan) -> LogicalPlan:
    """Each row once."""
    return Aggregate(plan, tuple(range(len(plan.schema))), (), plan.schema)


def _by_rows(left: LogicalPlan, right: LogicalPlan, kind: JoinKind) -> LogicalPlan:
    width = len(left.schema)
    pairs = tuple(
        Call("is_not_distinct_from", (FieldReference(p, f.type), FieldReference(p + width, f.type)), pa.bool_())
        for p, f in enumerate(left.schema)
    )
    return join_on(left, right, kind, pairs)


def _aligned(inputs: list[LogicalPlan]) -> list[LogicalPlan]:
    widths = {len(plan.schema) for plan in inputs}
    if len(widths) != 1:
        raise InvalidRequest(f"a set operation on inputs of {' and '.join(map(str, sorted(widths)))} columns")
    types = [_common([plan.schema[p].type for plan in inputs]) for p in range(widths.pop())]
    return [_cast(plan, types) for plan in inputs]


def _common(types: list[pa.DataType]) -> pa.DataType:
    columns: list[Expression] = [FieldReference(0, type_) for type_ in types]
    return typed_alike(columns)[0].type


def _cast(plan: LogicalPlan, types: list[pa.DataType]) -> LogicalPlan:
    schema: Schema = plan.schema
    if [f.type for f in schema] == types:
        return plan
    columns = tuple(cast(FieldReference(p, f.type), type_) for p, (f, type_) in enumerate(zip(schema, types)))
    return Project(plan, columns, tuple(Field(f.name, type_, f.nullable) for f, type_ in zip(schema, types)))
