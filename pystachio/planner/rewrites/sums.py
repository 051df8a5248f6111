"""Sums of one value and several constants: `sum(x + 1), sum(x + 2), ...` are a sum and a count of x."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from pystachio.operators.batch import Field
from pystachio.operators.expressions import AggregateCall, Call, Cast, Expression, FieldReference, Literal
from pystachio.planner.logical import Aggregate, LogicalPlan, Project
from pystachio.planner.nullability import is_nullable

_INTEGER: Final = pa.int64()
# Neither x + c nor c for each row of a table goes beyond 64 bits then.
_MOST_BITS: Final = 32

_Key = tuple[Expression, int | None]
"""What is summed, and the filter of the rows."""


def shared_sums(plan: Aggregate) -> LogicalPlan:
    """The same rows, with as few sums as the aggregate's need."""
    if not isinstance(plan.input, Project):
        return plan
    shifts = [_shift(call, plan.input) for call in plan.calls]
    constants: dict[_Key, set[int]] = {}
    for shift in shifts:
        if shift is not None:
            constants.setdefault(shift[0], set()).add(shift[1])
    shared = {key for key, added in constants.items() if len(added - {0}) > 1}
    return _rewritten(plan, plan.input, shifts, shared) if shared else plan


def _rewritten(
    plan: Aggregate, source: Project, shifts: list[tuple[_Key, int] | None], shared: set[_Key]
) -> LogicalPlan:
    expressions, input_schema = list(source.expressions), list(source.schema)
    width = len(plan.keys)
    calls: list[AggregateCall] = []
    fields: list[Field] = []
    outputs: list[Expression] = [FieldReference(p, f.type) for p, f in enumerate(plan.schema[:width])]
    placed: dict[_Key, FieldReference] = {}
    for call, field, shift in zip(plan.calls, plan.schema[width:], shifts):
        if shift is None or shift[0] not in shared:
            outputs.append(FieldReference(width + len(calls), call.type))
            calls.append(call)
            fields.append(field)
            continue
        key, constant = shift
        if key not in placed:
            value, filtered = key
            if value not in expressions:
                expressions.append(value)
                input_schema.append(Field("", value.type, is_nullable(value, source.input.schema)))
            arguments = (expressions.index(value),)
            placed[key] = FieldReference(width + len(calls), _INTEGER)
            calls += [AggregateCall(name, arguments, _INTEGER, filter=filtered) for name in ("sum", "count")]
            fields += [Field("sum", _INTEGER, True), Field("count", _INTEGER, False)]
        outputs.append(_shifted(placed[key], constant))
    after = width + len(plan.calls)
    outputs += [FieldReference(width + len(calls) + p, f.type) for p, f in enumerate(plan.schema[after:])]
    below = Project(source.input, tuple(expressions), tuple(input_schema))
    schema = (*plan.schema[:width], *fields, *plan.schema[after:])
    return Project(replace(plan, input=below, calls=tuple(calls), schema=schema), tuple(outputs), plan.schema)


def _shift(call: AggregateCall, source: Project) -> tuple[_Key, int] | None:
    """What a sum is of, and the constant that is added to it; None for other sums and aggregates."""
    if call.function != "sum" or call.distinct or call.type != _INTEGER:
        return None
    argument = source.expressions[call.arguments[0]]
    match argument:
        case Call(function="add" | "subtract" as function, arguments=(value, Literal(value=int(constant)))):
            pass
        case Call(function="add" as function, arguments=(Literal(value=int(constant)), value)):
            pass
        case _:
            function, value, constant = "add", argument, 0
    if not _is_narrow(value, source.input) or abs(constant) >> (_MOST_BITS - 1):
        return None
    return (value, call.filter), constant if function == "add" else -constant


def _is_narrow(value: Expression, below: LogicalPlan) -> bool:
    """Whether it is a small integer, cast."""
    if isinstance(value, FieldReference) and isinstance(below, Project):
        value = below.expressions[value.index]
    match value:
        case Cast(operand=narrow, type=type_) if pa.types.is_integer(narrow.type) and type_ == _INTEGER:
            return bool(narrow.type.bit_width <= _MOST_BITS)
        case _:
            return False


def _shifted(total: FieldReference, constant: int) -> Expression:
    if constant == 0:
        return total
    count = FieldReference(total.index + 1, _INTEGER)
    return Call("add", (total, Call("multiply", (Literal(constant, _INTEGER), count), _INTEGER)), _INTEGER)
