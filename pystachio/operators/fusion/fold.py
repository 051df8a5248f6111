"""A partial aggregation as instructions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from pystachio.operators.aggregation.partial import PartialFold
from pystachio.operators.aggregation.states import State, StateKind
from pystachio.operators.column import Bounds
from pystachio.operators.fusion.arithmetic import as_float
from pystachio.operators.fusion.division import divided
from pystachio.operators.fusion.groups import (
    FEWEST_SLOTS,
    LARGEST_SUM,
    Accumulator,
    FoldedGroups,
    GroupKey,
    Rebased,
    RowKey,
    StateColumn,
    are_addressable,
    folded_rows,
    pay_in_the_end,
)
from pystachio.operators.fusion.trace import Form, Input, NotTraceable, Symbol, TableRow, Trace
from pystachio.operators.kernels.instructions import Operation, Register
from pystachio.operators.scans.pace import MOST_ROWS

_INT64: Final = torch.iinfo(torch.int64)


def fold(trace: Trace, partial: PartialFold, fields: Sequence[Symbol | None]) -> FoldedGroups:
    """Put every row into its group's states. NotTraceable for what has no addressable groups or other states."""
    plan = partial.plan
    if plan.lists or plan.tagged or not partial.allow_direct:
        raise NotTraceable("distinct values")
    compute = trace.assembler.compute
    digits = _digits_of([_known(fields[position]) for position in plan.keys])
    slots = math.prod(each.span for each in digits)
    widest = max(digits, key=lambda each: each.span, default=None)
    accumulators = 1 + len(plan.states)
    rebased = not (
        are_addressable(slots, trace.rows, accumulators)
        or pay_in_the_end(slots, partial.expected_rows, accumulators, partial.most_state_bytes)
    )
    if rebased:
        # The widest key comes first, then the other digits do not depend on its range.
        assert widest is not None
        first = widest.symbols[0]
        if (
            plan.sets
            or widest.row is not None
            or not isinstance(first.values, Input)
            or first.valid is not None
            or first.form is not Form.INTEGER
            or slots // widest.span > FEWEST_SLOTS
        ):
            raise NotTraceable("too many groups to address")
        digits.remove(widest)
        digits.insert(0, widest)
    keys: list[GroupKey | RowKey] = []
    code: Register | None = None
    offset = 0
    for each in digits:
        key, digit = _key(trace, each, is_shared=not (rebased and not keys))
        offset = offset if keys else trace.assembler.length - 1
        keys.append(key)
        code = digit if code is None else compute(Operation.APPEND, code, digit, x=key.span)
    # Those of a rebased key are filled in for each run.
    writer = _Writer(trace, code, 0 if rebased else slots, fields)
    writer.count(None)
    for state in plan.states:
        writer.state(state)
    base: Rebased | None = None
    if rebased:
        assert widest is not None
        origin = widest.symbols[0].values
        assert isinstance(origin, Input)
        base = Rebased(origin.position, offset, tuple(writer.folds))
    folded = FoldedGroups(
        tuple(keys),
        slots,
        tuple(writer.accumulators),
        tuple(writer.columns),
        writer.largest,
        trace.multiplied,
        base,
        bool(plan.sets),
    )
    if folded.is_large and not partial.has_room(folded.nbytes):
        raise NotTraceable("states that take too much")
    return folded


def _known(symbol: Symbol | None) -> Symbol:
    if symbol is None:
        raise NotTraceable("a column that is not there")
    return symbol


@dataclass(frozen=True, slots=True, eq=False)
class _Digit:
    """One of the slot's: of the key at the only one of `positions`, or of all these keys at once, which are columns of
    the same `row`."""

    positions: tuple[int, ...]
    symbols: tuple[Symbol, ...]
    span: int
    row: TableRow | None = None


def _digits_of(symbols: Sequence[Symbol]) -> list[_Digit]:
    """For keys in their order. Those that are read from one row are one digit, its number, where some of them cannot be
    addressed, or where there are fewer rows than combinations of their values."""
    by_row: dict[object, list[int]] = {}
    for position, symbol in enumerate(symbols):
        row = symbol.row
        by_row.setdefault(position if row is None else (row.index, row.shift, row.exists), []).append(position)
    digits: list[_Digit] = []
    for positions in by_row.values():
        together = tuple(symbols[position] for position in positions)
        row = together[0].row
        if row is not None:
            rows = len(row.column) + (row.exists is not None)
            if not all(map(_is_addressable, together)) or math.prod(map(_span, together)) > rows:
                digits.append(_Digit(tuple(positions), together, rows, row))
                continue
        for position, symbol in zip(positions, together, strict=True):
            if not _is_addressable(symbol):
                raise NotTraceable("a key that is no integer")
            digits.append(_Digit((position,), (symbol,), _span(symbol)))
    return digits


def _is_addressable(symbol: Symbol) -> bool:
    return symbol.form in (Form.INTEGER, Form.CODES, Form.BOOLEAN)


def _span(symbol: Symbol) -> int:
    """How many digits an addressable key has."""
    if symbol.form is Form.BOOLEAN:
        return 2 + (symbol.valid is not None)
    assert symbol.bounds is not None
    return (symbol.bounds[1] - symbol.bounds[0]) // symbol.step + 1 + (symbol.valid is not None)


def _key(trace: Trace, digit: _Digit, *, is_shared: bool) -> tuple[GroupKey | RowKey, Register]:
    """The key and its digits. Without `is_shared` the last instruction subtracts the lowest value."""
    return _value_key(trace, digit, is_shared=is_shared) if digit.row is None else _row_key(trace, digit, digit.row)


def _row_key(trace: Trace, digit: _Digit, row: TableRow) -> tuple[RowKey, Register]:
    compute = trace.assembler.compute
    number = compute(Operation.SCALE, row.index, x=1, y=row.shift)
    if row.exists is not None:
        number = compute(Operation.CHOOSE, row.exists, number, trace.constant(digit.span - 1))
    of = tuple(symbol.row.column for symbol in digit.symbols if symbol.row is not None)
    return RowKey(digit.positions, of, digit.span, row.exists is not None), number


def _value_key(trace: Trace, digit: _Digit, *, is_shared: bool) -> tuple[GroupKey, Register]:
    (position,), (symbol,), span = digit.positions, digit.symbols, digit.span
    compute = trace.assembler.compute
    valid = trace.valid(symbol)
    nullable = valid is not None
    if symbol.form is Form.BOOLEAN:
        digits = compute(Operation.FROM_MASK, trace.values(symbol))
        key = GroupKey(position, symbol.type, torch.bool, 0, span, nullable, None, None)
    else:
        assert symbol.bounds is not None
        low = symbol.bounds[0]
        digits = divided(trace, trace.values(symbol), symbol.step, symbol.bounds)
        if low or not is_shared:
            digits = compute(Operation.SCALE, digits, x=1, y=-(low // symbol.step), is_shared=is_shared)
        bounds = None if symbol.form is Form.CODES else symbol.bounds
        key = GroupKey(position, symbol.type, symbol.dtype, low, span, nullable, bounds, symbol.dictionary, symbol.step)
    if valid is not None:
        digits = compute(Operation.CHOOSE, valid, digits, trace.constant(key.span - 1))
    return key, digits


class _Writer:
    """The folds of one aggregate."""

    def __init__(self, trace: Trace, code: Register | None, slots: int, fields: Sequence[Symbol | None]) -> None:
        self._trace = trace
        self._code = code
        self._slots = slots
        self._fields = fields
        self._counts: dict[Register | None, int] = {}
        self.accumulators: list[Accumulator] = []
        self.columns: list[StateColumn] = []
        self.largest = 1
        self.folds: list[int] = []

    def count(self, mask: Register | None) -> int:
        """The accumulator that counts the rows of the mask (None: all)."""
        if mask not in self._counts:
            self._counts[mask] = self._fold(Operation.FOLD_COUNT, None, mask)
        return self._counts[mask]

    def state(self, state: State) -> None:
        arguments = [self._argument(position) for position in state.arguments]
        mask = self._mask(state, arguments)
        present = None if mask is None else self.count(mask)
        match state.kind:
            case StateKind.COUNT:
                self._column(state, self.count(mask), None, torch.int64)
            case StateKind.SUM:
                (symbol,) = arguments
                bounds = _integer_bounds(symbol)
                self.largest = max(self.largest, abs(bounds[0]), abs(bounds[1]))
                # Of a longer turn the flow makes several that fit.
                rows = min(self._trace.rows, MOST_ROWS)
                if self.largest * folded_rows(rows, self._trace.multiplied) * 4 >= LARGEST_SUM:
                    raise NotTraceable("a sum that may overflow")
                self._column(state, self._fold(Operation.FOLD_SUM, symbol, mask), present, torch.int64)
            case StateKind.FLOAT_SUM:
                number = as_float(self._trace, arguments[0])
                self._column(state, self._fold(Operation.FOLD_SUM_FLOATS, number, mask), present, torch.float64)
            case StateKind.MINIMUM | StateKind.MAXIMUM:
                (symbol,) = arguments
                bounds = _integer_bounds(symbol)
                largest = state.kind is StateKind.MAXIMUM
                operation = Operation.FOLD_MAXIMUM if largest else Operation.FOLD_MINIMUM
                self._column(state, self._fold(operation, symbol, mask), present, symbol.dtype, bounds)
            case _:
                raise NotTraceable(f"the state {state.kind}")

    def _argument(self, position: int) -> Symbol:
        return _known(self._fields[position])

    def _mask(self, state: State, arguments: Sequence[Symbol]) -> Register | None:
        """The rows that count; None: all."""
        trace = self._trace
        mask: Register | bool = True
        if state.filter is not None:
            condition = self._argument(state.filter)
            if condition.form is not Form.BOOLEAN:
                raise NotTraceable("a filter that is not boolean")
            mask = trace.both(trace.valid(condition), trace.values(condition))
        for symbol in arguments:
            mask = trace.both(mask, trace.valid(symbol))
        return None if mask is True else trace.mask(mask)

    def _fold(self, operation: Operation, symbol: Symbol | None, mask: Register | None) -> int:
        dtype = torch.float64 if operation is Operation.FOLD_SUM_FLOATS else torch.int64
        initial = {Operation.FOLD_MINIMUM: _INT64.max, Operation.FOLD_MAXIMUM: _INT64.min}.get(operation, 0)
        values = 0 if symbol is None else self._trace.values(symbol)
        self.accumulators.append(Accumulator(operation, dtype, initial))
        number = len(self.accumulators) - 1
        code = -1 if self._code is None else self._code
        counted = -1 if mask is None else mask
        self.folds.append(self._trace.assembler.length)
        self._trace.assembler.perform(operation, number, code, values, counted, x=self._slots)
        return number

    def _column(
        self, state: State, values: int, present: int | None, dtype: torch.dtype, bounds: Bounds | None = None
    ) -> None:
        self.columns.append(StateColumn(state.types[0], values, present, dtype, bounds))


def _integer_bounds(symbol: Symbol) -> Bounds:
    if symbol.form is not Form.INTEGER or symbol.bounds is None:
        raise NotTraceable(f"a fold of {symbol.type}")
    return symbol.bounds
