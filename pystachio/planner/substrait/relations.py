"""Substrait's relations as logical plans, one function per relation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from substrait import algebra_pb2

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.expressions import Call, Cast, Expression, FieldReference, Literal, SortKey, walk
from pystachio.planner.joins.condition import fields_for, select_fields, with_fields
from pystachio.planner.logical import Filter, Limit, LogicalPlan, Project, Sort
from pystachio.planner.substrait.aggregates import read_aggregate
from pystachio.planner.substrait.expressions import Scope, read_condition, read_expression
from pystachio.planner.substrait.joins import read_cross, read_join, read_key_join, read_nested_loop_join
from pystachio.planner.substrait.reading import Reading
from pystachio.planner.substrait.sets import read_set
from pystachio.planner.substrait.tables import read_read

# Ascending or descending, NULLs first or last.
_DIRECTIONS: Final = {
    algebra_pb2.SortField.SORT_DIRECTION_ASC_NULLS_FIRST: (False, True),
    algebra_pb2.SortField.SORT_DIRECTION_ASC_NULLS_LAST: (False, False),
    algebra_pb2.SortField.SORT_DIRECTION_DESC_NULLS_FIRST: (True, True),
    algebra_pb2.SortField.SORT_DIRECTION_DESC_NULLS_LAST: (True, False),
}

_ALL_ROWS: Final = -1


def read_relation(message: algebra_pb2.Rel, reading: Reading, depth: int = 0) -> LogicalPlan:
    """The relation as a logical plan; `depth` counts the relations around it."""
    reading.enter_relation(depth)
    kind = message.WhichOneof("rel_type")
    if kind is None:
        raise InvalidRequest("a Substrait relation without a kind")
    if kind == "reference":
        return _read_reference(message.reference, reading, depth)
    if kind not in _READERS:
        raise Unsupported(f"the Substrait relation {kind}")
    body = getattr(message, kind)
    if body.HasField("advanced_extension") and body.advanced_extension.HasField("enhancement"):
        raise Unsupported(f"an enhancement of the Substrait relation {kind}")
    plan = _READERS[kind](body, reading, depth)
    if kind == "project":
        return plan
    return _emitted(plan, body.common)


def _emitted(plan: LogicalPlan, common: algebra_pb2.RelCommon) -> LogicalPlan:
    positions = output_mapping(common, len(plan.schema))
    return plan if positions is None else select_fields(plan, positions)


def output_mapping(common: algebra_pb2.RelCommon, width: int) -> list[int] | None:
    """The positions that a relation of `width` fields puts out; None for all."""
    if common.WhichOneof("emit_kind") != "emit":
        return None
    positions = list(common.emit.output_mapping)
    if any(not 0 <= position < width for position in positions):
        raise InvalidRequest(f"an output mapping beyond the {width} fields of its relation")
    return positions


def _input(message: Any, reading: Reading, depth: int) -> LogicalPlan:
    if not message.HasField("input"):
        raise InvalidRequest("a Substrait relation without its input")
    return read_relation(message.input, reading, depth + 1)


def _read_filter(message: algebra_pb2.FilterRel, reading: Reading, depth: int) -> LogicalPlan:
    scope = Scope(_input(message, reading, depth), reading, depth)
    predicate = read_condition(message.condition, scope)
    return select_fields(Filter(scope.plan, predicate), list(range(scope.width)))


def _read_project(message: algebra_pb2.ProjectRel, reading: Reading, depth: int) -> LogicalPlan:
    """Puts out the input's fields, then one per expression, then the mapping chooses among them."""
    plan = _input(message, reading, depth)
    scope = Scope(plan, reading, depth)
    computed = [read_expression(expression, scope) for expression in message.expressions]
    references: list[Expression] = [FieldReference(p, f.type) for p, f in enumerate(plan.schema)]
    outputs = references + computed
    positions = output_mapping(message.common, len(outputs))
    chosen = tuple(outputs if positions is None else [outputs[position] for position in positions])
    if scope.plan is plan and chosen == tuple(references):
        return plan
    return Project(scope.plan, chosen, fields_for(chosen, scope.plan.schema))


def _read_sort(message: algebra_pb2.SortRel, reading: Reading, depth: int) -> LogicalPlan:
    plan = _input(message, reading, depth)
    scope = Scope(plan, reading, depth)
    if not message.sorts:
        return plan
    computed: list[Expression] = []
    keys: dict[int, SortKey] = {}
    for sort in message.sorts:
        if sort.WhichOneof("sort_kind") != "direction" or sort.direction not in _DIRECTIONS:
            raise Unsupported("a sort without a plain direction")
        expression = read_expression(sort.expr, scope)
        if isinstance(expression, Literal):
            continue
        if isinstance(expression, FieldReference):
            position = expression.index
        else:
            position = len(scope.plan.schema) + len(computed)
            computed.append(expression)
        descending, nulls_first = _DIRECTIONS[sort.direction]
        keys.setdefault(position, SortKey(position, descending, nulls_first))
    if len(scope.plan.schema) != scope.width:
        raise Unsupported("a sort by a subquery predicate")
    widened = with_fields(scope.plan, tuple(computed)) if computed else scope.plan
    return select_fields(Sort(widened, tuple(keys.values())), list(range(scope.width))) if keys else plan


def _read_fetch(message: algebra_pb2.FetchRel, reading: Reading, depth: int) -> LogicalPlan:
    plan = _input(message, reading, depth)
    scope = Scope(plan, reading, depth)
    offset = _bound(message, "offset", scope) or 0
    count = _bound(message, "count", scope)
    return plan if offset == 0 and count is None else Limit(plan, offset, count)


def _bound(message: algebra_pb2.FetchRel, name: str, scope: Scope) -> int | None:
    if message.WhichOneof(f"{name}_mode") == f"{name}_expr":
        written = getattr(message, f"{name}_expr")
        expression = read_expression(written, scope)
        if not isinstance(expression, Literal) or not pa.types.is_integer(expression.type):
            if all(isinstance(node, Literal | Call | Cast) for node in walk(expression)):
                raise InvalidRequest(f"a {name} of rows that is no number of 64 bits")
            raise Unsupported(f"a computed {name} of rows")
        value = expression.value
        if value is not None and value < 0 and written.WhichOneof("rex_type") != "literal":
            raise InvalidRequest(f"a negative {name} of rows: {value}")
    elif message.WhichOneof(f"{name}_mode") == name:
        value = getattr(message, name)
    else:
        value = None
    if value is None or (name == "count" and value == _ALL_ROWS):
        return None
    if value < 0 and name == "count" and scope.reading.is_datafusion:
        # A limit and an offset above a sort, added, are beyond 64 bits; a negative number in a statement is refused.
        return None
    if value < 0:
        raise InvalidRequest(f"a negative {name} of rows: {value}")
    return int(value)


def _read_reference(message: algebra_pb2.ReferenceRel, reading: Reading, depth: int) -> LogicalPlan:
    ordinal = message.subtree_ordinal
    if not 0 <= ordinal < len(reading.shared):
        raise InvalidRequest(f"a reference to the sub-plan {ordinal} of {len(reading.shared)}")
    return read_relation(reading.shared[ordinal], reading, depth + 1)


_READERS: Final[Mapping[str, Callable[[Any, Reading, int], LogicalPlan]]] = {
    "read": read_read,
    "filter": _read_filter,
    "project": _read_project,
    "fetch": _read_fetch,
    "sort": _read_sort,
    "aggregate": read_aggregate,
    "join": read_join,
    "cross": read_cross,
    "hash_join": read_key_join,
    "merge_join": read_key_join,
    "nested_loop_join": read_nested_loop_join,
    "set": read_set,
}
