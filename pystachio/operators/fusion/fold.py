"""A partial aggregation as instructions."""

from __future__ import annotations

from collections.abc import Sequence
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
    StateColumn,
    are_addressable,
    folded_rows,
)
from pystachio.operators.fusion.trace import Form, Input, NotTraceable, Symbol, Trace
from pystachio.operators.kernels.instructions import Operation, Register

_INT64: Final = torch.iinfo(torch.int64)


def fold(trace: Trace, partial: PartialFold, fields: Sequence[Symbol | None]) -> FoldedGroups:
    """Put every row into its group's states. NotTraceable for what has no addressable groups or other states."""
    plan = partial.plan
    if plan.sets or plan.lists or plan.tagged or not partial.allow_direct:
        raise NotTraceable("grouping sets or distinct values")
    compute = trace.assembler.compute
    symbols = [_known(fields[position]) for position in plan.keys]
    slots, widest, span = 1, 0, 0
    for number, symbol in enumerate(symbols):
        size = _span(symbol)
        slots *= size
        if size > span:
            widest, span = number, size
    accumulators = 1 + len(plan.states)
    rebased = not are_addressable(slots, trace.rows, accumulators)
    order = list(range(len(symbols)))
    if rebased:
        # The widest key comes first, then the other digits do not depend on its range.
        first = symbols[widest]
        if (
            not isinstance(first.values, Input)
            or first.valid is not None
            or first.form is not Form.INTEGER
            or slots // span > FEWEST_SLOTS
        ):
            raise NotTraceable("too many groups to address")
        order.remove(widest)
        order.insert(0, widest)
    keys: list[GroupKey] = []
    code: Register | None = None
    offset = 0
    for number in order:
        key, digits = _key(trace, symbols[number], is_shared=not (rebased and not keys))
        offset = offset if keys else trace.assembler.length - 1
        keys.append(key)
        code = digits if code is None else compute(Operation.APPEND, code, digits, x=key.span)
    # Those of a rebased key are filled in for each run.
    writer = _Writer(trace, code, 0 if rebased else slots, fields)
    writer.count(None)
    for state in plan.states:
        writer.state(state)
    base: Rebased | None = None
    if rebased:
        origin = symbols[widest].values
        assert isinstance(origin, Input)
        base = Rebased(origin.position, offset, tuple(writer.folds))
    return FoldedGroups(
        tuple(keys),
        tuple(order),
        slots,
        tuple(writer.accumulators),
        tuple(writer.columns),
        writer.largest,
        trace.multiplied,
        base,
    )


def _known(symbol: Symbol | None) -> Symbol:
    if symbol is None:
        raise NotTraceable("a column that is not there")
    return symbol


def _span(symbol: Symbol) -> int:
    """How many digits the key has."""
    if symbol.form not in (Form.INTEGER, Form.CODES, Form.BOOLEAN):
        raise NotTraceable("a key that is no integer")
    if symbol.form is Form.BOOLEAN:
        return 2 + (symbol.valid is not None)
    assert symbol.bounds is not None
    return (symbol.bounds[1] - symbol.bounds[0]) // symbol.step + 1 + (symbol.valid is not None)


def _key(trace: Trace, symbol: Symbol, *, is_shared: bool) -> tuple[GroupKey, Register]:
    """The key and its digits. Without `is_shared` the last instruction subtracts the lowest value."""
    compute = trace.assembler.compute
    valid = trace.valid(symbol)
    nullable = valid is not None
    if symbol.form is Form.BOOLEAN:
        digits = compute(Operation.FROM_MASK, trace.values(symbol))
        key = GroupKey(symbol.type, torch.bool, 0, _span(symbol), nullable, None, None)
    else:
        assert symbol.bounds is not None
        low = symbol.bounds[0]
        digits = divided(trace, trace.values(symbol), symbol.step, symbol.bounds)
        if low or not is_shared:
            digits = compute(Operation.SCALE, digits, x=1, y=-(low // symbol.step), is_shared=is_shared)
        bounds = None if symbol.form is Form.CODES else symbol.bounds
        key = GroupKey(symbol.type, symbol.dtype, low, _span(symbol), nullable, bounds, symbol.dictionary, symbol.step)
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
                if self.largest * folded_rows(self._trace.rows, self._trace.multiplied) * 4 >= LARGEST_SUM:
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
