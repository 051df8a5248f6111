"""Simpler expressions of equal value: constants folded, AND and OR flattened, common parts taken out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa

from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    transform,
)
from pystachio.planner.rewrites.comparisons import closer
from pystachio.planner.rewrites.constants import constant, is_widening
from pystachio.planner.rewrites.patterns import plainer

TRUE: Final = Literal(True, pa.bool_())
FALSE: Final = Literal(False, pa.bool_())
NULL: Final = Literal(None, pa.bool_())

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "lt": operator.lt,
    "lte": operator.le,
    "gt": operator.gt,
    "gte": operator.ge,
}
_OPPOSITE: Final = {
    "equal": "not_equal",
    "not_equal": "equal",
    "lt": "gte",
    "gte": "lt",
    "gt": "lte",
    "lte": "gt",
    "is_null": "is_not_null",
    "is_not_null": "is_null",
    "is_distinct_from": "is_not_distinct_from",
    "is_not_distinct_from": "is_distinct_from",
    "is_true": "is_not_true",
    "is_not_true": "is_true",
    "is_false": "is_not_false",
    "is_not_false": "is_false",
}
# What changes no integer on the right.
_NEUTRAL: Final = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1}
# Mirrored, a comparison has its constant on the right.
_MIRRORED: Final = {"equal": "equal", "not_equal": "not_equal", "lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"}


def fold(expression: Expression) -> Expression:
    """An equal expression, simpler or the same."""
    if isinstance(expression, FieldReference | Literal):
        return expression
    return transform(expression, _fold_node)


def fold_condition(predicate: Expression) -> Expression:
    """Like `fold` where only true counts, so that NULL may become false: filters and the conditions of joins."""
    return _only_true(fold(predicate))


def both(operands: Iterable[Expression]) -> Expression:
    """AND, flattened, without duplicates and constants."""
    return _combined("and", operands, absorbing=FALSE, neutral=TRUE)


def either(operands: Iterable[Expression]) -> Expression:
    """OR, flattened, without duplicates and constants."""
    return _combined("or", operands, absorbing=TRUE, neutral=FALSE)


def _fold_node(node: Expression) -> Expression:
    if isinstance(node, FieldReference | Literal):
        return node
    node = constant(node)
    match node:
        case Call(function="and", arguments=arguments):
            return both(arguments)
        case Call(function="or", arguments=arguments):
            return _fewer_alternatives(either(arguments))
        case Call(function="not", arguments=(operand,)):
            return _negated(operand)
        case Call(arguments=(first, second)) if node.function in _COMPARE:
            return _compared(node, first, second)
        case Call(function="like" | "regexp_like"):
            return plainer(node)
        case Call(function="is_distinct_from" | "is_not_distinct_from"):
            return closer(node)
        case Call(function="coalesce", arguments=arguments):
            return _chosen(node, arguments)
        case Call(function=function, arguments=(first, Literal() as second)) if function in _NEUTRAL:
            return _without_neutral(node, first, second)
        case InList(operand=operand, options=(option,)):
            return _fold_node(Call("equal", (operand, option), pa.bool_()))
        case InList(operand=operand, options=options):
            return closer(InList(operand, tuple(dict.fromkeys(options)), node.type))
        case IfThen():
            return _fold_case(node)
        case _:
            return node


def _combined(function: str, operands: Iterable[Expression], *, absorbing: Literal, neutral: Literal) -> Expression:
    flat: dict[Expression, None] = {}
    waiting = list(operands)[::-1]
    while waiting:
        operand = waiting.pop()
        if isinstance(operand, Call) and operand.function == function:
            waiting.extend(operand.arguments[::-1])
        elif operand == absorbing:
            return absorbing
        elif operand != neutral:
            flat[operand] = None
    if len(flat) < 2:
        return next(iter(flat), neutral)
    return Call(function, tuple(flat), pa.bool_())


def _negated(operand: Expression) -> Expression:
    match operand:
        case Call(function="not", arguments=(inner,)):
            return inner
        case Call(function="and", arguments=parts):
            return either(_fold_node(_not(part)) for part in parts)
        case Call(function="or", arguments=parts):
            return both(_fold_node(_not(part)) for part in parts)
        case Call(function=function, arguments=arguments) if function in _OPPOSITE:
            # With NaN neither a < b nor a >= b holds.
            if function in _COMPARE and any(pa.types.is_floating(a.type) for a in arguments):
                break_even = function in ("equal", "not_equal")
                return Call(_OPPOSITE[function], arguments, pa.bool_()) if break_even else _not(operand)
            return Call(_OPPOSITE[function], arguments, pa.bool_())
    return _not(operand)


def _not(operand: Expression) -> Expression:
    return Call("not", (operand,), pa.bool_())


def _compared(node: Call, first: Expression, second: Expression) -> Expression:
    if isinstance(first, Literal) and not isinstance(second, Literal):
        return _fold_node(Call(_MIRRORED[node.function], (second, first), node.type))
    match node.function, first, second:
        case "equal" | "not_equal", _, Literal(value=bool(value)) if not isinstance(first, Literal):
            return first if value is (node.function == "equal") else _fold_node(_not(first))
        case _, IfThen(), Literal() if all(isinstance(result, Literal) for result in _results(first)):
            return _fold_node(_mapped(first, lambda result: Call(node.function, (result, second), pa.bool_())))
        case _:
            return closer(node)


def _without_neutral(node: Call, first: Expression, second: Literal) -> Expression:
    if first.type == node.type and pa.types.is_integer(node.type):
        return first if second.value == _NEUTRAL[node.function] else node
    if node.function == "multiply" and pa.types.is_decimal(second.type) and second.value == 10**second.type.scale:
        return Cast(first, node.type) if is_widening(first.type, node.type) else node
    return node


def _results(case: IfThen) -> tuple[Expression, ...]:
    return (*(result for _, result in case.clauses), case.otherwise)


def _mapped(case: IfThen, change: Callable[[Expression], Expression]) -> Expression:
    """The CASE with other conditions as its results."""
    clauses = tuple((condition, constant(change(result))) for condition, result in case.clauses)
    return IfThen(clauses, constant(change(case.otherwise)), pa.bool_())


def _chosen(node: Call, arguments: tuple[Expression, ...]) -> Expression:
    """COALESCE without what is never chosen."""
    kept: list[Expression] = []
    for argument in arguments:
        if not isinstance(argument, Literal):
            kept.append(argument)
        elif argument.value is not None:
            kept.append(argument)
            break
    if len(kept) < 2:
        only = kept[0] if kept else Literal(None, node.type)
        return only if only.type == node.type else node
    return node if len(kept) == len(arguments) else Call(node.function, tuple(kept), node.type)


def _fold_case(node: IfThen) -> Expression:
    clauses = []
    otherwise = node.otherwise
    for condition, result in node.clauses:
        if isinstance(condition, Literal):
            if condition.value is True:
                otherwise = result
                break
        else:
            clauses.append((condition, result))
    if not clauses or all(result == otherwise for _, result in clauses):
        return otherwise
    return IfThen(tuple(clauses), otherwise, node.type)


def _fewer_alternatives(expression: Expression) -> Expression:
    """(a AND b) OR (a AND c) as a AND (b OR c); x = 1 OR x = 2 as x IN (1, 2)."""
    match expression:
        case Call(function="or", arguments=alternatives):
            pass
        case _:
            return expression
    parts = [dict.fromkeys(_conjuncts(alternative)) for alternative in alternatives]
    common = [part for part in parts[0] if all(part in others for others in parts[1:])]
    if common:
        taken = set(common)
        rest = [both(part for part in own if part not in taken) for own in parts]
        return both((*common, _fewer_alternatives(either(rest))))
    return _as_lists(alternatives)


def _conjuncts(expression: Expression) -> tuple[Expression, ...]:
    return expression.arguments if isinstance(expression, Call) and expression.function == "and" else (expression,)


def _as_lists(alternatives: tuple[Expression, ...]) -> Expression:
    options: dict[Expression, list[Expression]] = {}
    order: list[Expression] = []
    for alternative in alternatives:
        test = _equality_test(alternative)
        if test is None:
            order.append(alternative)
            continue
        subject, values = test
        if subject not in options:
            options[subject] = []
            order.append(subject)
        options[subject].extend(values)
    return either(_list_of(subject, options[subject]) if subject in options else subject for subject in order)


def _list_of(subject: Expression, values: list[Expression]) -> Expression:
    distinct = tuple(dict.fromkeys(values))
    if len(distinct) == 1:
        return Call("equal", (subject, distinct[0]), pa.bool_())
    return InList(subject, distinct, pa.bool_())


def _equality_test(expression: Expression) -> tuple[Expression, tuple[Expression, ...]] | None:
    """What is compared, and with which constants."""
    match expression:
        case Call(function="equal", arguments=(subject, Literal(value=value) as constant)) if value is not None:
            same = subject.type == constant.type
            return (subject, (constant,)) if same and not isinstance(subject, Literal) else None
        case InList(operand=subject, options=options) if all(_is_constant(o, subject.type) for o in options):
            return subject, options
    return None


def _is_constant(option: Expression, type_: pa.DataType) -> bool:
    return isinstance(option, Literal) and option.value is not None and option.type == type_


def _only_true(predicate: Expression) -> Expression:
    match predicate:
        case Literal(value=None):
            return FALSE
        case Call(function="and", arguments=arguments):
            return both(_only_true(argument) for argument in arguments)
        case Call(function="or", arguments=arguments):
            return _fewer_alternatives(either(_only_true(argument) for argument in arguments))
        case Call(function="not", arguments=(IfThen() as inner,)) if _is_membership(inner):
            return both(_fold_node(_not(condition)) for condition, _ in inner.clauses)
        case IfThen() if pa.types.is_boolean(predicate.type):
            return _case_only_true(predicate)
        case InList(operand=operand, options=options) if any(_is_null(option) for option in options):
            known = tuple(option for option in options if not _is_null(option))
            return _fold_node(InList(operand, known, predicate.type)) if known else FALSE
        case Call(function="equal" | "lte" | "gte", arguments=(first, second)) if first == second:
            return Call("is_not_null", (first,), pa.bool_())
        case _:
            return predicate


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is None


def _case_only_true(case: IfThen) -> Expression:
    """The conditions alone, where they lead to nothing but true and all else to nothing but false or NULL."""
    results = [isinstance(result, Literal) and result.value is True for result in _results(case)]
    unknown = [not isinstance(result, Literal) for result in _results(case)]
    true = (*results, False).index(False)
    if any(results[true:]) or any(unknown[true:]):
        return case
    return either(_only_true(condition) for condition, _ in case.clauses[:true])


def _is_membership(case: IfThen) -> bool:
    """The value of IN from two-valued marks (`planner.membership`): true, else NULL, else false."""
    return case.otherwise == FALSE and [result for _, result in case.clauses] == [TRUE, NULL]
