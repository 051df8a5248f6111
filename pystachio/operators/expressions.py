"""Typed expressions over the fields of a batch: plain data, hashable, shared by the planner and the operators.

NULL follows SQL's three-valued logic. Types are normalised Arrow types (`column.normalise_type`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import copysign
from operator import is_not
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FieldReference:
    """The input's field at position `index`."""

    index: int
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `value` is None for NULL, else: bool, int, float, str, bytes; a decimal is its scaled int; dates,
    times, timestamps and durations are ints in the type's unit; a month_day_nano interval is (months, days, nanos).

    Zeros of different sign are different constants: what is divided by them is not the same.
    """

    value: Any
    type: pa.DataType

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        mine, its = self.value, other.value
        if not (mine is its or mine == its) or self.type != other.type:
            return False
        return not (isinstance(mine, float) and isinstance(its, float) and copysign(1, mine) != copysign(1, its))


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the registry (`operators.functions`) by its canonical name; `type` is the result's."""

    function: str
    arguments: tuple[Expression, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion to `type`; a value that does not fit raises DataError, or becomes NULL when `null_on_failure`."""

    operand: Expression
    type: pa.DataType
    null_on_failure: bool = False


@dataclass(frozen=True, slots=True)
class IfThen:
    """CASE: the value of the first clause whose condition is true, else `otherwise`."""

    clauses: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class InList:
    """operand IN (options): options are expressions, mostly literals; NULL semantics of SQL's IN."""

    operand: Expression
    options: tuple[Expression, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class ScalarSubquery:
    """The single value of the plan's scalar sub-plan `index`; replaced by a Literal before evaluation."""

    index: int
    type: pa.DataType


Expression = FieldReference | Literal | Call | Cast | IfThen | InList | ScalarSubquery


@dataclass(frozen=True, slots=True)
class SortKey:
    """A sort by the field at `index`."""

    index: int
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate over input fields: canonical `function` (sum, avg, min, max, count, ...) of the fields `arguments`
    (empty for count(*)), over distinct values when `distinct`, over rows where the boolean field `filter` is true."""

    function: str
    arguments: tuple[int, ...]
    type: pa.DataType
    distinct: bool = False
    filter: int | None = None


class JoinKind(StrEnum):
    """What a join keeps. SEMI, ANTI and MARK put out the left side (MARK with a boolean column behind it)."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"
    MARK = "mark"


def children(expression: Expression) -> tuple[Expression, ...]:
    """The direct operands."""
    match expression:
        case FieldReference() | Literal() | ScalarSubquery():
            return ()
        case Call(arguments=arguments):
            return arguments
        case Cast(operand=operand):
            return (operand,)
        case IfThen(clauses=clauses, otherwise=otherwise):
            return (*(part for clause in clauses for part in clause), otherwise)
        case InList(operand=operand, options=options):
            return (operand, *options)


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and everything below it, parents first."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))


def transform(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Rebuild bottom-up: `change` sees each node after its children. Unchanged parts stay the same objects."""
    before = children(expression)
    if before:
        after = tuple([transform(child, change) for child in before])
        if any(map(is_not, after, before)):
            expression = with_children(expression, after)
    return change(expression)


def with_children(expression: Expression, operands: tuple[Expression, ...]) -> Expression:
    """The same node over other operands, given in the order of `children`."""
    match expression:
        case FieldReference() | Literal() | ScalarSubquery():
            return expression
        case Call(function=function, type=type_):
            return Call(function, operands, type_)
        case Cast(type=type_, null_on_failure=null_on_failure):
            return Cast(operands[0], type_, null_on_failure)
        case IfThen(type=type_):
            return IfThen(tuple(zip(operands[:-1:2], operands[1:-1:2], strict=True)), operands[-1], type_)
        case InList(type=type_):
            return InList(operands[0], operands[1:], type_)


def fields_of(expression: Expression) -> frozenset[int]:
    """Positions of the input fields the expression reads."""
    found = set()
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FieldReference):
            found.add(node.index)
        else:
            waiting.extend(children(node))
    return frozenset(found)


def conjuncts(expression: Expression | None) -> tuple[Expression, ...]:
    """The operands of nested ANDs; a single predicate is itself, None is no predicate."""
    match expression:
        case None:
            return ()
        case Call(function="and", arguments=arguments):
            return tuple(part for argument in arguments for part in conjuncts(argument))
        case _:
            return (expression,)


def conjunction(predicates: tuple[Expression, ...]) -> Expression | None:
    """AND of all; None of none."""
    match predicates:
        case ():
            return None
        case (single,):
            return single
        case _:
            return Call("and", predicates, pa.bool_())


def shift_fields(expression: Expression, mapping: Callable[[int], int]) -> Expression:
    """The expression over another input: each field position goes through `mapping`."""

    def change(node: Expression) -> Expression:
        return FieldReference(mapping(node.index), node.type) if isinstance(node, FieldReference) else node

    return transform(expression, change)
