"""Expressions that have no instructions, as tables: over the values of the only field that they read, or over the rows
of the build side that all their fields are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from pystachio.errors import DataError, InvalidRequest
from pystachio.operators.batch import Batch
from pystachio.operators.column import Bounds, BytesColumn, Column, DictionaryColumn, FixedColumn, ViewColumn
from pystachio.operators.distinct import result_on_distinct
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Expression, Literal, fields_of, shift_fields
from pystachio.operators.fusion.membership import in_range, is_member
from pystachio.operators.fusion.trace import Form, Lookup, NotTraceable, Symbol, Trace, table_symbol
from pystachio.operators.kernels.instructions import Operation, Register
from pystachio.operators.kernels.selection import take, with_validity
from pystachio.operators.kernels.strings import to_codes

Fields = Sequence[Symbol | None]

_MOST_TABULATED: Final = 1 << 16
_MOST_ROWS: Final = 1 << 17
"""Of a build side: what one job does between two chances to cancel it, while others wait for the program."""
_FIRST: Final = torch.zeros(1, dtype=torch.int64)
_NULL: Final = torch.zeros(1, dtype=torch.bool)


def field(fields: Fields, index: int) -> Symbol:
    symbol = fields[index]
    if symbol is None:
        raise NotTraceable("a field that is not there")
    return symbol


def _only_field(expression: Expression, fields: Fields) -> tuple[int, Symbol]:
    positions = fields_of(expression)
    if len(positions) != 1:
        raise NotTraceable(f"an expression over {len(positions)} fields")
    (position,) = positions
    return position, field(fields, position)


def _table(trace: Trace, expression: Expression, fields: Fields) -> tuple[Symbol, Column, Literal, int]:
    """The field that the expression reads, its result for each value of that from the last number on, and for NULL."""
    position, symbol = _only_field(expression, fields)
    if symbol.form is Form.CODES:
        assert symbol.dictionary is not None
        known = result_on_distinct(expression, position, symbol.dictionary, trace.rows, evaluate)
        if known is None:
            raise NotTraceable("an expression that must be evaluated row by row")
        return symbol, known.values, known.on_null, 0
    if symbol.form is not Form.INTEGER or symbol.bounds is None:
        raise NotTraceable("an expression over other values")
    low, high = symbol.bounds
    if high - low >= min(_MOST_TABULATED, max(trace.rows, 1)):
        raise NotTraceable("an expression over a wide range of values")
    single = shift_fields(expression, lambda _: 0)
    numbers = (torch.arange(high - low + 1) + low).to(symbol.dtype)  # high + 1 may be none of 64 bits
    values = FixedColumn(symbol.type, numbers, None, symbol.bounds)
    try:
        result = evaluate(single, Batch((values,), len(values), None))
        if symbol.valid is None:
            return symbol, result, Literal(None, expression.type), low
        null = FixedColumn(symbol.type, values.values[:1], torch.zeros(1, dtype=torch.bool))
        on_null = evaluate(single, Batch((null,), 1, None))
    except (DataError, InvalidRequest) as error:
        raise NotTraceable(str(error)) from None
    if on_null.validity is None or bool(on_null.validity[0]):
        raise NotTraceable("a value for NULL")
    return symbol, result, Literal(None, expression.type), low


def truth_of_values(trace: Trace, predicate: Expression, fields: Fields, wanted: bool) -> Register | bool:
    symbol, result, on_null, low = _table(trace, predicate, fields)
    if not isinstance(result, FixedColumn) or result.values.dtype != torch.bool:
        raise NotTraceable("a condition that is not boolean")
    table = result.values if wanted else ~result.values
    if result.validity is not None:
        table = table & result.validity
    if bool(table.all()):
        found: Register | bool = True
    elif not bool(table.any()):
        found = False
    else:
        found = _by_table(trace, symbol, table, low)
    valid = trace.valid(symbol)
    found = trace.both(valid, found)
    if valid is not None and on_null.value is wanted:
        found = trace.either(found, trace.inverse(valid))
    return found


def of_rows(trace: Trace, expression: Expression, fields: Fields) -> Symbol:
    """What the expression is for each row that its fields are of: those of a build side, if they are no more than the
    rows that a run begins with."""
    positions = sorted(fields_of(expression))
    rows = [field(fields, position).row for position in positions]
    known = [row for row in rows if row is not None]
    places = {(row.index, row.shift, row.exists) for row in known}
    if len(places) != 1 or len(known) < len(rows):
        raise NotTraceable("an expression over fields of several rows")
    columns, row = [each.column for each in known], known[0]
    if not 0 < len(row.column) <= min(trace.rows, _MOST_ROWS):
        raise NotTraceable("an expression over more rows than may look it up")
    key = expression, row.index, row.shift, row.exists
    result = trace.of_rows.get(key)
    if result is None:
        moved = shift_fields(expression, positions.index)
        result = trace.of_rows[key] = _evaluated(moved, columns, with_null=row.exists is not None)
    return table_symbol(trace, result, row.index, row.shift, row.exists)


def _evaluated(expression: Expression, columns: Sequence[Column], *, with_null: bool) -> Column:
    """Texts as codes, which groups and comparisons behind are made of. `with_null`: must be NULL where the columns are.
    NotTraceable where a row fails, which nobody may ever ask for."""
    try:
        result = evaluate(expression, Batch(tuple(columns), len(columns[0]), None))
        if with_null:
            nothing = Batch(tuple(with_validity(take(column, _FIRST), _NULL) for column in columns), 1, None)
            on_null = evaluate(expression, nothing)
            if on_null.validity is None or bool(on_null.validity[0]):
                raise NotTraceable("a value for NULL")
    except (DataError, InvalidRequest) as error:
        raise NotTraceable(str(error)) from None
    return to_codes(result) if isinstance(result, BytesColumn | ViewColumn) else result


def _by_table(trace: Trace, symbol: Symbol, table: torch.Tensor, low: int) -> Register | bool:
    """One range of values is compared, others are looked up."""
    true = torch.nonzero(table).squeeze(1)
    first, last = int(true[0]), int(true[-1])
    if last - first + 1 == true.shape[0]:
        return in_range(trace, symbol, low + first, low + last)
    return is_member(trace, symbol, table.contiguous(), low, is_fixed=True)


def tabulated(trace: Trace, expression: Expression, fields: Fields) -> Symbol:
    symbol, result, on_null, low = _table(trace, expression, fields)
    if symbol.valid is not None and on_null.value is not None:
        raise NotTraceable("a value for NULL")
    index = trace.values(symbol)
    if symbol.valid is not None:
        # What lies under a NULL may be outside the table.
        index = trace.assembler.compute(Operation.OFFSET, index, x=low, y=len(result) - 1)
        low = 0
    valid = trace.valid(symbol)
    if result.validity is not None:
        there = trace.load(Lookup(result.validity, index, -low, is_fixed=True), Form.BOOLEAN, torch.bool)
        valid = trace.mask(trace.both(valid, there))
    bounds: Bounds | None = None
    match result:
        case FixedColumn(type=type_, values=values) if values.dtype == torch.bool:
            return Symbol(type_, Form.BOOLEAN, torch.bool, Lookup(values, index, -low, is_fixed=True), valid)
        case FixedColumn(type=type_, values=values) if values.dtype.is_floating_point:
            return Symbol(type_, Form.FLOAT, values.dtype, Lookup(values, index, -low, is_fixed=True), valid)
        case FixedColumn(type=type_, values=values):
            bounds = int(values.min()), int(values.max())
            return Symbol(type_, Form.INTEGER, values.dtype, Lookup(values, index, -low, is_fixed=True), valid, bounds)
        case DictionaryColumn(type=type_, codes=codes, dictionary=dictionary):
            bounds = 0, max(0, len(dictionary) - 1)
            return Symbol(
                type_, Form.CODES, codes.dtype, Lookup(codes, index, -low, is_fixed=True), valid, bounds, dictionary
            )
        case _:
            raise NotTraceable(f"a table of {result.type}")
