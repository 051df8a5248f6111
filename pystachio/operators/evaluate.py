"""Evaluating expressions on batches: the only interpreter of `expressions.Expression`.

Operands stay literals as long as they can, so that kernels compare with a constant instead of a column of it.
An expression over one dictionary-coded field runs on the dictionary (`distinct`). CASE, AND and OR evaluate everything
on all rows first, which is fastest; only when that fails (a division by zero, say) are rows narrowed to those that SQL
says must be evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import pyarrow as pa
import torch

from pystachio.errors import DataError, InternalError
from pystachio.operators.arrow import literal_at
from pystachio.operators.batch import Batch
from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn, ViewColumn
from pystachio.operators.distinct import evaluate_on_distinct, is_as_large
from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    ScalarSubquery,
    conjuncts,
    fields_of,
    transform,
    walk,
)
from pystachio.operators.functions import casts
from pystachio.operators.functions.beginnings import begins_with_any, can_compare_beginnings, compared_beginning
from pystachio.operators.functions.boolean import Mask, both, either, truth
from pystachio.operators.functions.conditional import choose
from pystachio.operators.functions.function import Invocation, NullRule, Operand
from pystachio.operators.functions.in_list import in_list
from pystachio.operators.functions.operands import constant, validity_of
from pystachio.operators.functions.registry import lookup
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.selection import (
    all_null,
    device_of,
    take,
    take_batch,
    take_or_null,
    take_where,
    with_validity,
)
from pystachio.records import record
from pystachio.runtime.context import Context

_NULL: Final = pa.null()
_ONE_ROW: Final = Batch((), 1, None)


def evaluate(expression: Expression, batch: Batch, device: torch.device | None = None) -> Column:
    """The expression's value in every row of the batch.

    `device` is where constants are put; without it, where the batch's columns are.

    Raises DataError for values that cannot be computed (overflow, division by zero, invalid cast), Unsupported or
    InvalidRequest for what no batch could compute.
    """
    operand = _operand(expression, batch)
    return constant(operand, batch.length, device or _device(batch)) if isinstance(operand, Literal) else operand


def value_of(expression: Expression) -> Literal:
    """The value of an expression that reads no fields. Raises what `evaluate` raises."""
    operand = _operand(expression, _ONE_ROW)
    return operand if isinstance(operand, Literal) else literal_at(operand, 0)


def select(predicate: Expression, batch: Batch) -> torch.Tensor | None:
    """Positions (int64, ascending) of the rows in which the predicate is true; None when it is true in all.

    Conjuncts that must look into the bytes of strings run last, on the rows that the others leave.
    """
    return _narrowed(*_mask_and_rest(predicate, batch), batch)


def passing(predicate: Expression, batch: Batch) -> Batch:
    """The rows of `batch` in which the predicate is true; on a device without their positions where it can."""
    mask, later = _mask_and_rest(predicate, batch)
    if isinstance(mask, torch.Tensor) and not later and mask.device.type != "cpu":
        return take_where(batch, mask)
    rows = _narrowed(mask, later, batch)
    return batch if rows is None else take_batch(batch, rows)


def _narrowed(mask: Mask, later: Sequence[Expression], batch: Batch) -> torch.Tensor | None:
    if mask is False:
        return torch.empty(0, dtype=torch.int64, device=_device(batch))
    rows = _rows(mask)
    for conjunct in later:
        rows = _narrow(rows, conjunct, batch)
    return rows


def _mask_and_rest(predicate: Expression, batch: Batch) -> tuple[Mask, list[Expression]]:
    """Where the conjuncts are true that need no bytes of strings, and the others. A conjunct whose operands fail is
    among the others: it may hold for the rows that are left."""
    mask: Mask = True
    later: list[Expression] = []
    in_bytes = _fields_in_bytes(batch)
    for conjunct in conjuncts(predicate):
        if in_bytes and not in_bytes.isdisjoint(fields_of(conjunct)) and not _is_of_beginnings(conjunct, batch):
            later.append(conjunct)
            continue
        try:
            mask = both(mask, _truth(conjunct, batch))
        except DataError:
            later.append(conjunct)
        if mask is False:
            break
    return mask, later


@record(eq=False)
class Bound:
    """An expression in which `scalars` stand for its scalar subqueries."""

    expression: Expression
    scalars: Mapping[Expression, Literal]


async def bind_scalars(ctx: Context, expression: Expression) -> Expression:
    """The expression with each scalar subquery replaced by its value, waiting for those that still run."""
    return (await bound_again(ctx, expression, None)).expression


async def bound_again(ctx: Context, expression: Expression, earlier: Bound | None) -> Bound:
    """The same. `earlier` was bound of the same expression: if that was to the same values, it is the answer, and what
    is known of its expression holds."""
    if earlier is not None and not earlier.scalars:
        return earlier  # it has none
    if not any(kind == "scalar" for kind, _ in ctx.slots):
        return Bound(expression, {})  # the plan has none
    scalars: dict[Expression, Literal] = {}
    for node in walk(expression):
        if isinstance(node, ScalarSubquery) and node not in scalars:
            value = cast(Literal, await ctx.slots["scalar", node.index].wait())
            scalars[node] = cast(Literal, _cast(Cast(value, node.type), _ONE_ROW))
    if earlier is not None and all(_is_same(value, earlier.scalars[node]) for node, value in scalars.items()):
        return earlier
    bound = transform(expression, lambda node: scalars.get(node, node)) if scalars else expression
    return Bound(bound, scalars)


def _is_same(left: Literal, right: Literal) -> bool:
    """NaN is not even itself."""
    return left == right and type(left.value) is type(right.value) and bool(left.value == right.value)


def _operand(expression: Expression, batch: Batch) -> Operand:
    match expression:
        case Literal():
            return expression
        case FieldReference(index=index):
            return batch.columns[index]
        case ScalarSubquery(index=index):
            raise InternalError(f"a scalar subquery was not bound: {index}")
        case _:
            found = evaluate_on_distinct(expression, batch, evaluate)
            return _compute(expression, batch) if found is None else found


def _compute(expression: Call | Cast | IfThen | InList, batch: Batch) -> Operand:
    beginning = compared_beginning(expression)
    if beginning is not None:
        field, length, texts = beginning
        column = batch.columns[field.index]
        if can_compare_beginnings(column):
            return FixedColumn(pa.bool_(), begins_with_any(column, length, texts), column.validity)
    match expression:
        case Call():
            return _call(expression, batch)
        case Cast():
            return _cast(expression, batch)
        case IfThen():
            return _if_then(expression, batch)
        case InList(operand=operand, options=options):
            return in_list(_operand(operand, batch), [_operand(option, batch) for option in options])


def _call(call: Call, batch: Batch) -> Operand:
    function = lookup(call.function)
    arguments = tuple([_operand(argument, batch) for argument in call.arguments])
    rows, device = batch.length, _device(batch)
    constants_only = True
    for argument in arguments:
        constants_only &= isinstance(argument, Literal)
    if function.nulls is NullRule.STRICT:
        for argument in arguments:
            if isinstance(argument, Literal) and argument.value is None:
                return Literal(None, call.type)
            if argument.type == _NULL:
                return all_null(call.type, rows, device)
    if constants_only:
        if batch.length == 0:
            return Literal(None, call.type)  # Nothing is computed, so nothing can fail.
        # Kernels want at least one column: one row of the subject will do.
        rows, device, subject = 1, torch.device("cpu"), function.subject
        column = constant(cast(Literal, arguments[subject]), rows, device)
        arguments = (*arguments[:subject], column, *arguments[subject + 1 :])
    valid = validity_of(arguments) if function.nulls is NullRule.STRICT else None
    result = function.kernel(Invocation(arguments, call.type, rows, device, valid))
    if constants_only:
        return result if isinstance(result, Literal) else literal_at(result, 0)
    if valid is None:
        return result
    if isinstance(result, Literal):
        result = constant(result, rows, device)
    return with_validity(result, valid if result.validity is None else result.validity & valid)


def _cast(expression: Cast, batch: Batch) -> Operand:
    operand = _operand(expression.operand, batch)
    if not isinstance(operand, Literal):
        return casts.cast(operand, expression.type, null_on_failure=expression.null_on_failure)
    if operand.value is None or operand.type == expression.type:
        return Literal(operand.value, expression.type)
    if batch.length == 0:
        return Literal(None, expression.type)
    column = constant(operand, 1, torch.device("cpu"))
    return literal_at(casts.cast(column, expression.type, null_on_failure=expression.null_on_failure), 0)


def _if_then(expression: IfThen, batch: Batch) -> Operand:
    try:
        clauses = [(_truth(condition, batch), _operand(value, batch)) for condition, value in expression.clauses]
        otherwise = _operand(expression.otherwise, batch)
    except DataError:
        return _if_then_row_by_row(expression, batch)
    return choose(clauses, otherwise, expression.type, batch.length, _device(batch))


def _if_then_row_by_row(expression: IfThen, batch: Batch) -> Operand:
    """Each condition and value only on the rows that reach it."""
    device = _device(batch)
    waiting = torch.arange(batch.length, device=device)
    clauses: list[tuple[Mask, Operand]] = []
    for condition, value in expression.clauses:
        true = _truth(condition, take_batch(batch, waiting))
        mask = torch.full((waiting.shape[0],), true, device=device) if isinstance(true, bool) else true
        chosen, waiting = waiting[mask], waiting[~mask]
        clauses.append(_scattered(value, chosen, batch))
    clauses.append(_scattered(expression.otherwise, waiting, batch))
    return choose(clauses, Literal(None, expression.type), expression.type, batch.length, device)


def _scattered(expression: Expression, rows: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, Column]:
    """Where `rows` are, and a column of the whole batch that has the expression's value there and NULL elsewhere."""
    positions = torch.full((batch.length,), -1, dtype=torch.int64, device=rows.device)
    positions[rows] = torch.arange(rows.shape[0], device=rows.device)
    values = evaluate(expression, take_batch(batch, rows))
    return positions >= 0, take_or_null(values, positions)


def _truth(predicate: Expression, batch: Batch) -> Mask:
    """Where the predicate is true. AND and OR need only know that of their operands, not which of them are NULL."""
    match predicate:
        case Call(function="and" | "or" as function, arguments=arguments):
            found = evaluate_on_distinct(predicate, batch, evaluate)
            return _connected(function, arguments, batch) if found is None else truth(found)
        case _:
            return truth(_operand(predicate, batch))


def _connected(function: str, arguments: Sequence[Expression], batch: Batch) -> Mask:
    """Where AND or OR is true. An operand that fails may hold for the rows that the others leave undecided."""
    combine, decided = (both, False) if function == "and" else (either, True)
    mask: Mask = not decided
    failed: list[Expression] = []
    for argument in arguments:
        try:
            mask = combine(mask, _truth(argument, batch))
        except DataError:
            failed.append(argument)
        if mask is decided:
            return mask
    for argument in failed:
        mask = combine(mask, _truth_where(mask if isinstance(mask, bool) else mask != decided, argument, batch))
    return mask


def _truth_where(wanted: Mask, predicate: Expression, batch: Batch) -> Mask:
    """Where the predicate is true among the `wanted` rows (a bool: all); nothing is said of the others."""
    if isinstance(wanted, bool):
        return _truth(predicate, batch)
    rows = primitives(wanted.device).indices_of_true(wanted)
    if rows.shape[0] == 0:
        return False
    found = _truth(predicate, take_batch(batch, rows))
    if isinstance(found, bool):
        return found
    spread = torch.zeros_like(wanted)
    spread[rows] = found
    return spread


def _is_of_beginnings(conjunct: Expression, batch: Batch) -> bool:
    """Whether it costs less for all texts than to gather those of some rows."""
    beginning = compared_beginning(conjunct)
    return beginning is not None and can_compare_beginnings(batch.columns[beginning[0].index])


def _fields_in_bytes(batch: Batch) -> frozenset[int]:
    """The fields whose strings must be read: without a dictionary, or with one that is as large as the batch."""
    return frozenset(
        position
        for position, column in enumerate(batch.columns)
        if isinstance(column, BytesColumn | ViewColumn)
        or (isinstance(column, DictionaryColumn) and is_as_large(column.dictionary, batch.length))
    )


def _rows(mask: Mask) -> torch.Tensor | None:
    if isinstance(mask, bool):
        assert mask
        return None
    rows = primitives(mask.device).indices_of_true(mask)
    return None if rows.shape[0] == mask.shape[0] else rows


def _narrow(rows: torch.Tensor | None, predicate: Expression, batch: Batch) -> torch.Tensor | None:
    """Of `rows` (None: all) those in which the predicate is true too."""
    if rows is None:
        mask = _truth(predicate, batch)
        return _rows(mask) if mask is not False else torch.empty(0, dtype=torch.int64, device=_device(batch))
    if rows.shape[0] == 0:
        return rows
    needed = fields_of(predicate)
    nothing = all_null(pa.null(), rows.shape[0], _device(batch))
    columns = tuple(take(column, rows) if i in needed else nothing for i, column in enumerate(batch.columns))
    mask = _truth(predicate, Batch(columns, rows.shape[0], batch.ready))
    if isinstance(mask, bool):
        return rows if mask else rows[:0]
    return rows.index_select(0, primitives(mask.device).indices_of_true(mask))


def _device(batch: Batch) -> torch.device:
    return device_of(batch.columns[0]) if batch.columns else torch.device("cpu")
