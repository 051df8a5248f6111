"""Substrait's aggregations. Keys, arguments and filters that are expressions become fields below."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from substrait import algebra_pb2

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.batch import Field
from pystachio.operators.expressions import AggregateCall, Call, Expression, FieldReference, IfThen, Literal
from pystachio.operators.functions.registry import aggregate_result_type
from pystachio.planner.joins.condition import fields_for, select_fields, with_fields
from pystachio.planner.logical import Aggregate, LogicalPlan, Project
from pystachio.planner.nullability import is_nullable
from pystachio.planner.substrait.expressions import Scope, read_condition, read_expression
from pystachio.planner.substrait.functions import aggregate_name, function_name, require_aggregate
from pystachio.planner.substrait.reading import Reading
from pystachio.planner.substrait.types import read_type

_WHOLE_PHASES: Final = (
    algebra_pb2.AGGREGATION_PHASE_UNSPECIFIED,
    algebra_pb2.AGGREGATION_PHASE_INITIAL_TO_RESULT,
)
_NUMERIC: Final = frozenset({"sum", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop"})


@dataclass(slots=True)
class _Inputs:
    """Positions for expressions over `plan`; those that are no fields are appended to it."""

    plan: LogicalPlan
    computed: list[Expression] = field(default_factory=list)

    def position(self, expression: Expression) -> int:
        if isinstance(expression, FieldReference):
            return expression.index
        if expression not in self.computed:
            self.computed.append(expression)
        return len(self.plan.schema) + self.computed.index(expression)

    def finished(self) -> LogicalPlan:
        return with_fields(self.plan, tuple(self.computed)) if self.computed else self.plan


def read_aggregate(message: algebra_pb2.AggregateRel, reading: Reading, depth: int) -> LogicalPlan:
    """Keys first, then measures, then (several grouping sets) the index of the set."""
    if not message.HasField("input"):
        raise InvalidRequest("an aggregation without its input")
    scope = Scope(reading.read_relation(message.input, reading, depth + 1), reading, depth)
    expressions, sets, shown = _groupings(message, scope)
    measures = [_Measure(measure, scope) for measure in message.measures]
    inputs = _Inputs(scope.plan)
    keys = tuple(inputs.position(expression) for expression in expressions)
    calls = tuple(measure.call(inputs) for measure in measures)
    plan = inputs.finished()
    several = sets if len(sets) > 1 else ()
    key_fields = tuple(
        Field(f.name, f.type, f.nullable or bool(several)) for f in fields_for(tuple(expressions), scope.plan.schema)
    )
    # Without keys there is a row even when there is no input, so whatever is not a count may be NULL.
    call_fields = tuple(Field(call.function, call.type, call.function != "count") for call in calls)
    set_field = (Field("grouping_set", pa.int32(), False),) if several else ()
    aggregate = Aggregate(plan, keys, calls, key_fields + call_fields + set_field, several)
    result = _with_defaults(aggregate, measures, len(keys))
    if several:
        return _in_datafusion_order(result, several, len(keys)) if reading.is_datafusion else result
    return select_fields(result, [*shown, *range(len(keys), len(result.schema))])


def _groupings(
    message: algebra_pb2.AggregateRel, scope: Scope
) -> tuple[list[Expression], tuple[tuple[int, ...], ...], list[int]]:
    """The distinct key expressions, for each grouping set the positions among them, and those of an only set's output.

    Newer plans list the expressions once and refer to them; older ones, and DataFusion, repeat them in every set. Keys
    may become equal while a plan is simplified (`x` and `coalesce(null, x)`): each is a column of the output.
    """
    listed = [read_expression(expression, scope) for expression in message.grouping_expressions]
    expressions: list[Expression] = list(dict.fromkeys(listed))
    sets = []
    shown = list(range(len(expressions)))
    for grouping in message.groupings:
        if listed:
            if any(not 0 <= reference < len(listed) for reference in grouping.expression_references):
                raise InvalidRequest("a grouping set refers to an expression that the plan does not list")
            members = [listed[reference] for reference in grouping.expression_references]
        else:
            members = [read_expression(expression, scope) for expression in grouping.grouping_expressions]
            expressions.extend(member for member in dict.fromkeys(members) if member not in expressions)
        shown = [expressions.index(member) for member in members]
        sets.append(tuple(dict.fromkeys(shown)))
        if len(message.groupings) > 1 and len(shown) > len(sets[-1]):
            raise Unsupported("equal expressions in a grouping set")
    if len(sets) == 1 and len(sets[0]) != len(expressions):
        raise InvalidRequest("grouping expressions that the only grouping set leaves out")
    if not sets and expressions:
        sets = [tuple(range(len(expressions)))]
    return expressions, tuple(sets), shown


class _Measure:
    """One aggregate function of the relation, before its arguments have positions."""

    def __init__(self, message: algebra_pb2.AggregateRel.Measure, scope: Scope) -> None:
        function = message.measure
        declared = function_name(scope.reading.functions, function.function_reference)
        self.zero_when_empty = aggregate_name(declared) == "sum0"
        self.name = "sum" if self.zero_when_empty else require_aggregate(declared)
        if function.phase not in _WHOLE_PHASES:
            raise Unsupported(f"a part of the aggregate {declared} (an aggregation phase)")
        if function.sorts and self.name in ("first_value", "any_value"):
            raise Unsupported(f"the ordered aggregate {declared}")
        self.distinct = function.invocation == algebra_pb2.AggregateFunction.AGGREGATION_INVOCATION_DISTINCT
        arguments = [read_expression(a.value, scope) for a in function.arguments if a.HasField("value")]
        arguments = arguments or [read_expression(a, scope) for a in function.args]
        self.arguments = self._checked(declared, arguments, scope)
        self.filter = read_condition(message.filter, scope) if message.HasField("filter") else None
        argument = self.arguments[0].type if self.arguments else None
        derived = aggregate_result_type(self.name, argument)
        self.type = read_type(function.output_type)[0] if function.HasField("output_type") else derived

    def _checked(self, declared: str, arguments: list[Expression], scope: Scope) -> list[Expression]:
        if self.name == "count" and not self.distinct:
            arguments = [a for a in arguments if is_nullable(a, scope.plan.schema)]
        if len(arguments) > 1:
            raise Unsupported(f"the aggregate {declared} of {len(arguments)} arguments")
        if not arguments and self.name != "count":
            raise InvalidRequest(f"the aggregate {declared} without an argument")
        for argument in arguments:
            type_ = argument.type
            if self.name in _NUMERIC and not _is_number(type_):
                raise InvalidRequest(f"the aggregate {declared} of {type_}")
            if self.name in ("bool_and", "bool_or") and not pa.types.is_boolean(type_):
                raise InvalidRequest(f"the aggregate {declared} of {type_}")
        return arguments

    def call(self, inputs: _Inputs) -> AggregateCall:
        arguments = tuple(inputs.position(argument) for argument in self.arguments)
        filter_ = None if self.filter is None else inputs.position(self.filter)
        return AggregateCall(self.name, arguments, self.type, self.distinct, filter_)


def _is_number(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_duration(type_)
    )


def _with_defaults(aggregate: Aggregate, measures: list[_Measure], keys: int) -> LogicalPlan:
    """Calcite's SUM0: 0 instead of NULL."""
    defaults = {keys + i for i, measure in enumerate(measures) if measure.zero_when_empty}
    if not defaults:
        return aggregate
    outputs: list[Expression] = []
    for position, output in enumerate(aggregate.schema):
        reference = FieldReference(position, output.type)
        zero = Literal(0.0 if pa.types.is_floating(output.type) else 0, output.type)
        outputs.append(Call("coalesce", (reference, zero), output.type) if position in defaults else reference)
    return Project(aggregate, tuple(outputs), fields_for(tuple(outputs), aggregate.schema))


def _in_datafusion_order(plan: LogicalPlan, sets: tuple[tuple[int, ...], ...], keys: int) -> LogicalPlan:
    """DataFusion's layout: keys, then a bit mask of the keys left out (the last key is bit 0), then measures."""
    last = len(plan.schema) - 1
    id_type = _mask_type(keys)
    set_index = FieldReference(last, pa.int32())
    masks = [sum(1 << (keys - 1 - key) for key in range(keys) if key not in chosen) for chosen in sets]
    clauses = tuple(
        (Call("equal", (set_index, Literal(number, pa.int32())), pa.bool_()), Literal(mask, id_type))
        for number, mask in enumerate(masks)
    )
    mask = IfThen(clauses[:-1], clauses[-1][1], id_type)
    widened = with_fields(plan, (mask,))
    return select_fields(widened, [*range(keys), last + 1, *range(keys, last)])


def _mask_type(keys: int) -> pa.DataType:
    for bits, type_ in ((8, pa.uint8()), (16, pa.uint16()), (32, pa.uint32()), (64, pa.uint64())):
        if keys <= bits:
            return type_
    raise Unsupported(f"grouping sets over {keys} keys")
