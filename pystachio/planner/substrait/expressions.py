"""Substrait's expressions as typed expressions over the fields of a relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import pyarrow as pa
from substrait import algebra_pb2

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.batch import Schema
from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    ScalarSubquery,
)
from pystachio.planner.logical import LogicalPlan
from pystachio.planner.membership import any_match, exists
from pystachio.planner.nullability import is_nullable
from pystachio.planner.rewrites.constants import constant
from pystachio.planner.substrait.calls import call, comparable, typed_alike
from pystachio.planner.substrait.datafusion_functions import translated
from pystachio.planner.substrait.functions import function_name
from pystachio.planner.substrait.literals import read_literal
from pystachio.planner.substrait.reading import MOST_EXPRESSIONS_DEEP, SUBQUERY_DEPTH, Reading
from pystachio.planner.substrait.types import read_type

_Message: TypeAlias = algebra_pb2.Expression
_SetComparison: TypeAlias = algebra_pb2.Expression.Subquery.SetComparison

_COMPARISONS = {
    _SetComparison.COMPARISON_OP_EQ: "equal",
    _SetComparison.COMPARISON_OP_NE: "not_equal",
    _SetComparison.COMPARISON_OP_LT: "lt",
    _SetComparison.COMPARISON_OP_GT: "gt",
    _SetComparison.COMPARISON_OP_LE: "lte",
    _SetComparison.COMPARISON_OP_GE: "gte",
}


@dataclass(slots=True)
class Scope:
    """The relation whose fields expressions refer to.

    A subquery predicate puts a mark join on top of `plan`, whose fields in front stay where they are; the caller
    drops the marks behind position `width` afterwards.
    """

    plan: LogicalPlan
    reading: Reading
    depth: int
    schema: Schema = ()
    """Of the fields in front."""
    width: int = -1

    def __post_init__(self) -> None:
        self.schema = self.plan.schema
        self.width = len(self.schema)


def read_expression(message: _Message, scope: Scope, depth: int = 0) -> Expression:
    """The expression; Unsupported or InvalidRequest, naming what is wrong, for what cannot be read."""
    if depth > MOST_EXPRESSIONS_DEEP:
        return _deep_constant(message, scope)
    kind = message.WhichOneof("rex_type")
    match kind:
        case "selection":
            return _field(message.selection, scope)
        case "literal":
            return read_literal(message.literal)
        case "scalar_function":
            return constant(_function(message.scalar_function, scope, depth))
        case "cast":
            return constant(_cast(message.cast, scope, depth))
        case "if_then":
            return constant(_if_then(message.if_then, scope, depth))
        case "switch_expression":
            return _switch(message.switch_expression, scope, depth)
        case "singular_or_list":
            return constant(_in_list(message.singular_or_list, scope, depth))
        case "multi_or_list":
            return _multi_in_list(message.multi_or_list, scope, depth)
        case "subquery":
            return _subquery(message.subquery, scope, depth)
        case "dynamic_parameter":
            return _parameter(message.dynamic_parameter, scope)
        case "window_function":
            name = function_name(scope.reading.functions, message.window_function.function_reference)
            raise Unsupported(f"the window function {name}")
        case None:
            raise InvalidRequest("a Substrait expression without a kind")
        case _:
            raise Unsupported(f"the Substrait expression {kind}")


def _deep_constant(message: _Message, scope: Scope) -> Literal:
    """What is nested too deep for everything else, as a chain of operators between constants is: without recursion."""
    calls: list[algebra_pb2.Expression.ScalarFunction] = []
    while message.WhichOneof("rex_type") == "scalar_function" and message.scalar_function.arguments:
        calls.append(message.scalar_function)
        message = message.scalar_function.arguments[0].value
    found = read_literal(message.literal) if message.WhichOneof("rex_type") == "literal" else None
    while found is not None and calls:
        outer = calls.pop()
        rest = tuple([_argument(argument, scope, MOST_EXPRESSIONS_DEEP - 1) for argument in outer.arguments[1:]])
        value = constant(_called(outer, (found, *rest), scope))
        found = value if isinstance(value, Literal) else None
    if found is None:
        raise Unsupported(f"an expression nested more than {MOST_EXPRESSIONS_DEEP} deep")
    return found


def read_condition(message: _Message, scope: Scope) -> Expression:
    """A boolean expression."""
    return _boolean(read_expression(message, scope), "a condition")


def _boolean(expression: Expression, what: str) -> Expression:
    if not pa.types.is_boolean(expression.type):
        raise InvalidRequest(f"{what} must be boolean, not {expression.type}")
    return expression


def _all(messages: Sequence[_Message], scope: Scope, depth: int) -> tuple[Expression, ...]:
    return tuple([read_expression(message, scope, depth + 1) for message in messages])


def _field(message: algebra_pb2.Expression.FieldReference, scope: Scope) -> Expression:
    if message.WhichOneof("root_type") == "outer_reference":
        raise Unsupported("a correlated subquery (a reference to an outer relation)")
    if message.WhichOneof("root_type") == "expression":
        raise Unsupported("a field of an expression")
    if message.WhichOneof("reference_type") != "direct_reference":
        raise Unsupported("a masked field reference")
    segment = message.direct_reference
    if segment.WhichOneof("reference_type") != "struct_field" or segment.struct_field.HasField("child"):
        raise Unsupported("a field inside a nested value")
    index = segment.struct_field.field
    if not 0 <= index < scope.width:
        raise InvalidRequest(f"a reference to the field {index} of a relation with {scope.width} fields")
    return FieldReference(index, scope.schema[index].type)


def _function(message: algebra_pb2.Expression.ScalarFunction, scope: Scope, depth: int) -> Expression:
    name = function_name(scope.reading.functions, message.function_reference)
    if name in ("and", "or"):
        return _chain(name, message, scope, depth)
    if name == "array_has":
        return _array_has(message, scope, depth)
    arguments = tuple([_argument(argument, scope, depth) for argument in message.arguments] or [])
    return _called(message, arguments or _all(message.args, scope, depth), scope)


def _called(
    message: algebra_pb2.Expression.ScalarFunction, arguments: tuple[Expression, ...], scope: Scope
) -> Expression:
    reading, declared = scope.reading, _declared(message)
    name = function_name(reading.functions, message.function_reference)
    if reading.is_datafusion:
        found = translated(name, arguments, declared, reading.moment, reading.constant_call)
        if found is not None:
            return found
    if name in ("is_null", "is_not_null") and len(arguments) == 1 and not is_nullable(arguments[0], scope.plan.schema):
        return Literal(name == "is_not_null", pa.bool_())
    return call(name, arguments, declared, is_datafusion=reading.is_datafusion)


def _declared(message: algebra_pb2.Expression.ScalarFunction) -> pa.DataType | None:
    """The type that the plan states for the result. DataFusion's type of NULL is none of ours."""
    if not message.HasField("output_type") or message.output_type.HasField("user_defined"):
        return None
    return read_type(message.output_type)[0]


def _array_has(message: algebra_pb2.Expression.ScalarFunction, scope: Scope, depth: int) -> Expression:
    """Whether a list that is written out has a value: IN."""
    if len(message.arguments) == 2 and message.arguments[0].value.WhichOneof("rex_type") == "scalar_function":
        listed = message.arguments[0].value.scalar_function
        if function_name(scope.reading.functions, listed.function_reference) == "make_array" and listed.arguments:
            wanted = _argument(message.arguments[1], scope, depth)
            options = [_argument(argument, scope, depth) for argument in listed.arguments]
            operand, *alike = typed_alike((wanted, *options))
            return InList(operand, tuple(alike), pa.bool_())
    raise Unsupported("lists of values that are computed")


def _argument(message: algebra_pb2.FunctionArgument, scope: Scope, depth: int) -> Expression:
    match message.WhichOneof("arg_type"):
        case "value":
            return read_expression(message.value, scope, depth + 1)
        case "enum":
            return Literal(message.enum.lower(), pa.string())
        case other:
            raise Unsupported(f"a function argument of the kind {other}")


def _chain(name: str, message: algebra_pb2.Expression.ScalarFunction, scope: Scope, depth: int) -> Expression:
    """AND or OR of any length: producers nest long ones to the left, thousands deep, so this does not recurse."""
    operands: list[Expression] = []
    waiting = _operands(message)[::-1]
    while waiting:
        operand = waiting.pop()
        inner = operand.scalar_function if operand.WhichOneof("rex_type") == "scalar_function" else None
        if inner is not None and scope.reading.functions.get(inner.function_reference) == name:
            waiting.extend(_operands(inner)[::-1])
        else:
            operands.append(_boolean(read_expression(operand, scope, depth + 1), f"an operand of {name.upper()}"))
    if len(operands) == 1:
        return operands[0]
    if not operands:
        raise InvalidRequest(f"{name.upper()} without operands")
    return Call(name, tuple(operands), pa.bool_())


def _operands(message: algebra_pb2.Expression.ScalarFunction) -> list[_Message]:
    if any(argument.WhichOneof("arg_type") != "value" for argument in message.arguments):
        raise InvalidRequest("an operand of AND or OR that is no expression")
    return [argument.value for argument in message.arguments] or list(message.args)


def _cast(message: algebra_pb2.Expression.Cast, scope: Scope, depth: int) -> Expression:
    operand = read_expression(message.input, scope, depth + 1)
    target, _ = read_type(message.type)
    null_on_failure = message.failure_behavior == _Message.Cast.FAILURE_BEHAVIOR_RETURN_NULL
    if isinstance(operand, Literal) and operand.value is None:
        return Literal(None, target)
    if pa.types.is_interval(target) and pa.types.is_duration(operand.type):
        # It is an interval without months already, and one that can be compared.
        return operand
    written = scope.reading.written_decimals
    if written is not None and pa.types.is_floating(operand.type) and pa.types.is_decimal(target):
        return Cast(operand, target, null_on_failure) if target in written else operand
    if written is not None and target not in written and _loses_digits(operand.type, target):
        return operand
    return operand if operand.type == target else Cast(operand, target, null_on_failure)


def _loses_digits(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether decimals are rounded, as those beside floats are by DataFusion."""
    return bool(pa.types.is_decimal(source) and pa.types.is_decimal(target) and target.scale < source.scale)


def _if_then(message: algebra_pb2.Expression.IfThen, scope: Scope, depth: int) -> Expression:
    ifs = list(message.ifs)
    subject: Expression | None = None
    if ifs and not ifs[0].HasField("then"):
        # DataFusion writes CASE x WHEN y THEN ... as a first clause without a result.
        subject = read_expression(getattr(ifs.pop(0), "if"), scope, depth + 1)
    clauses = []
    for clause in ifs:
        test = read_expression(getattr(clause, "if"), scope, depth + 1)
        condition = _boolean(test, "the condition of a CASE") if subject is None else comparable("equal", subject, test)
        clauses.append((condition, read_expression(clause.then, scope, depth + 1)))
    otherwise = read_expression(getattr(message, "else"), scope, depth + 1) if message.HasField("else") else None
    return _case(clauses, otherwise)


def _switch(message: algebra_pb2.Expression.SwitchExpression, scope: Scope, depth: int) -> Expression:
    subject = read_expression(message.match, scope, depth + 1)
    clauses = [
        (
            comparable("equal", subject, read_literal(getattr(clause, "if"))),
            read_expression(clause.then, scope, depth + 1),
        )
        for clause in message.ifs
    ]
    otherwise = read_expression(getattr(message, "else"), scope, depth + 1) if message.HasField("else") else None
    return _case(clauses, otherwise)


def _case(clauses: Sequence[tuple[Expression, Expression]], otherwise: Expression | None) -> Expression:
    if not clauses:
        raise InvalidRequest("a CASE without clauses")
    results = typed_alike([result for _, result in clauses] + ([] if otherwise is None else [otherwise]))
    type_ = results[0].type
    default = Literal(None, type_) if otherwise is None else results[-1]
    return IfThen(tuple((condition, result) for (condition, _), result in zip(clauses, results)), default, type_)


def _in_list(message: algebra_pb2.Expression.SingularOrList, scope: Scope, depth: int) -> Expression:
    operand = read_expression(message.value, scope, depth + 1)
    options = _all(message.options, scope, depth)
    if not options:
        raise InvalidRequest("IN with an empty list")
    operand, *alike = typed_alike((operand, *options))
    return InList(operand, tuple(alike), pa.bool_())


def _multi_in_list(message: algebra_pb2.Expression.MultiOrList, scope: Scope, depth: int) -> Expression:
    operands = _all(message.value, scope, depth)
    records = []
    for record in message.options:
        values = _all(record.fields, scope, depth)
        if len(values) != len(operands) or not values:
            raise InvalidRequest("IN compares rows of different lengths")
        equalities = tuple(comparable("equal", a, b) for a, b in zip(operands, values))
        records.append(equalities[0] if len(equalities) == 1 else Call("and", equalities, pa.bool_()))
    if not records:
        raise InvalidRequest("IN with an empty list")
    return records[0] if len(records) == 1 else Call("or", tuple(records), pa.bool_())


def _parameter(message: algebra_pb2.DynamicParameter, scope: Scope) -> Expression:
    bound = scope.reading.parameters.get(message.parameter_reference)
    if bound is None:
        raise InvalidRequest(f"no value for the parameter {message.parameter_reference}")
    return bound


def _subquery(message: algebra_pb2.Expression.Subquery, scope: Scope, depth: int) -> Expression:
    reading, below = scope.reading, scope.depth + depth + SUBQUERY_DEPTH
    match message.WhichOneof("subquery_type"):
        case "scalar":
            plan = reading.read_relation(message.scalar.input, reading, below)
            if len(plan.schema) != 1:
                raise InvalidRequest(f"a scalar subquery with {len(plan.schema)} columns")
            return ScalarSubquery(reading.scalar(plan), plan.schema[0].type)
        case "set_predicate":
            if message.set_predicate.predicate_op != _Message.Subquery.SetPredicate.PREDICATE_OP_EXISTS:
                raise Unsupported("the subquery predicate UNIQUE")
            plan = exists(reading.read_relation(message.set_predicate.tuples, reading, below))
            return Call("gt", (ScalarSubquery(reading.scalar(plan), pa.int64()), Literal(0, pa.int64())), pa.bool_())
        case "in_predicate":
            needles = _all(message.in_predicate.needles, scope, depth)
            haystack = reading.read_relation(message.in_predicate.haystack, reading, below)
            return _matches("equal", needles, haystack, scope)
        case "set_comparison":
            return _set_comparison(message.set_comparison, scope, depth)
        case other:
            raise Unsupported(f"the subquery kind {other}")


def _set_comparison(message: _SetComparison, scope: Scope, depth: int) -> Expression:
    if message.comparison_op not in _COMPARISONS:
        raise InvalidRequest("a comparison with a subquery without an operator")
    function = _COMPARISONS[message.comparison_op]
    left = (read_expression(message.left, scope, depth + 1),)
    right = scope.reading.read_relation(message.right, scope.reading, scope.depth + depth + SUBQUERY_DEPTH)
    match message.reduction_op:
        case _SetComparison.REDUCTION_OP_ANY:
            return _matches(function, left, right, scope)
        case _SetComparison.REDUCTION_OP_ALL:
            # All hold when for none the opposite holds.
            opposite = {"equal": "not_equal", "not_equal": "equal", "lt": "gte", "gte": "lt", "gt": "lte", "lte": "gt"}
            return Call("not", (_matches(opposite[function], left, right, scope),), pa.bool_())
        case _:
            raise InvalidRequest("a comparison with a subquery is neither ANY nor ALL")


def _matches(function: str, needles: tuple[Expression, ...], haystack: LogicalPlan, scope: Scope) -> Expression:
    """Whether `function` holds between the needles and any row of the haystack, as a mark on the scope's plan."""
    if len(needles) != len(haystack.schema) or not needles:
        raise InvalidRequest(f"{len(needles)} values compared with {len(haystack.schema)} columns of a subquery")
    base = len(scope.plan.schema)
    columns = [FieldReference(base + p, field.type) for p, field in enumerate(haystack.schema)]
    tests = [comparable(function, needle, column) for needle, column in zip(needles, columns)]
    predicate = reduce(lambda a, b: Call("and", (a, b), pa.bool_()), tests)
    scope.plan, mark = any_match(scope.plan, haystack, predicate)
    return mark
