"""A partial aggregation as instructions: states in arrays addressed by the group's number, one set for each thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import torch

from pystachio.operators.aggregate import PartialFold
from pystachio.operators.aggregate_states import State, StateKind
from pystachio.operators.batch import Batch
from pystachio.operators.column import Bounds, Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.fusion.expressions import as_float
from pystachio.operators.fusion.trace import Form, Input, NotTraceable, Symbol, Trace
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.program import (
    FEW_SLOTS,
    MOST_EXPANDED,
    VECTOR_ROWS,
    WAYS,
    Change,
    Operation,
    Register,
)

_FEWEST_SLOTS: Final = 4096
_SLOTS_PER_ROW: Final = 2
_MOST_STATE_BYTES: Final = 8 << 20

_INT64: Final = torch.iinfo(torch.int64)
LARGEST_SUM: Final = 2**62


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A digit of the slot: value - `low`, or a code; the last of `span` is NULL's where `nullable`."""

    type: pa.DataType
    dtype: torch.dtype
    low: int
    span: int
    nullable: bool
    bounds: Bounds | None
    dictionary: Dictionary | None

    def column(self, digits: torch.Tensor, low: int) -> Column:
        """The keys of groups, whose digits count from `low`."""
        validity = None
        if self.nullable:
            validity = digits != self.span - 1
            digits = torch.where(validity, digits, 0)
            validity = None if bool(validity.all()) else validity
        if self.dictionary is not None:
            return DictionaryColumn(self.type, digits.to(self.dtype), self.dictionary, validity)
        return FixedColumn(self.type, (digits + low).to(self.dtype), validity, self.bounds)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One array of states. `initial` fills it; copies of the ways are joined as `operation` says."""

    operation: Operation
    dtype: torch.dtype
    initial: int


@dataclass(frozen=True, slots=True)
class StateColumn:
    """A column of the partial batch, from the accumulator `values`; NULL where `present` counted nothing."""

    type: pa.DataType
    values: int
    present: int | None
    dtype: torch.dtype
    bounds: Bounds | None


@dataclass(frozen=True, slots=True)
class Rebased:
    """The first key is an input column (at `position`) whose range in each run is what counts, not that of the table.

    `offset` is the instruction that subtracts the lowest value, `folds` are those that know how many slots there are.
    """

    position: int
    offset: int
    folds: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Accumulated:
    """The states of a thread, how many slots they have, and how many rows are in them."""

    states: list[torch.Tensor]
    slots: int
    changes: tuple[Change, ...] = ()
    low: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FoldedGroups:
    """What the folds of a program fill. Threads take a set of states for a run and give it back; where the groups are
    `rebased`, each run has its own."""

    keys: tuple[GroupKey, ...]
    order: tuple[int, ...]
    """Which key column each of `keys` is."""
    slots: int
    accumulators: tuple[Accumulator, ...]
    columns: tuple[StateColumn, ...]
    largest: int
    """No summand is larger, in magnitude."""
    multiplied: int
    """No row is folded more often."""
    rebased: Rebased | None
    _idle: list[Accumulated] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fits(self, columns: Sequence[Column | None], rows: int) -> bool:
        """Whether these rows can be folded."""
        if _folded(rows, self.multiplied) > LARGEST_SUM // self.largest:
            return False
        return self.rebased is None or _are_addressable(self._slots_of(columns), rows, len(self.accumulators))

    def take(self, columns: Sequence[Column | None], rows: int) -> tuple[Accumulated, Batch | None]:
        """States to which `rows` more can be added, and what had to be put out before that is so."""
        if self.rebased is not None:
            return self._rebased_states(columns, self.rebased), None
        with self._lock:
            taken = self._idle.pop() if self._idle else None
        if taken is None:
            return self._fresh(self.slots), None
        if (taken.rows + _folded(rows, self.multiplied)) * self.largest < LARGEST_SUM:
            return taken, None
        return self._fresh(self.slots), self._batch(taken)

    def give_back(self, states: Accumulated) -> Batch | None:
        """After a run; what it leaves to put out at once."""
        if self.rebased is not None:
            return self._batch(states)
        with self._lock:
            self._idle.append(states)
        return None

    def finish(self) -> Iterator[Batch]:
        """All states, as partial batches."""
        with self._lock:
            idle, self._idle[:] = list(self._idle), []
        for states in idle:
            batch = self._batch(states)
            if batch is not None:
                yield batch

    def _slots_of(self, columns: Sequence[Column | None]) -> int:
        low, high = self._range_of(columns)
        return (high - low + 1) * (self.slots // self.keys[0].span)

    def _range_of(self, columns: Sequence[Column | None]) -> Bounds:
        assert self.rebased is not None
        column = columns[self.rebased.position]
        assert isinstance(column, FixedColumn)
        assert column.bounds is not None
        return column.bounds

    def _rebased_states(self, columns: Sequence[Column | None], rebased: Rebased) -> Accumulated:
        slots, (low, _) = self._slots_of(columns), self._range_of(columns)
        fresh = self._fresh(slots)
        fresh.low = low
        fresh.changes = (
            Change(rebased.offset, "y", -low),
            *(Change(number, "x", slots) for number in rebased.folds),
        )
        return fresh

    def _fresh(self, slots: int) -> Accumulated:
        size = slots * WAYS if slots <= FEW_SLOTS else slots
        return Accumulated([_filled(size, accumulator) for accumulator in self.accumulators], slots)

    def _batch(self, states: Accumulated) -> Batch | None:
        whole = [
            _joined(accumulator, values, states.slots)
            for accumulator, values in zip(self.accumulators, states.states, strict=True)
        ]
        used = primitives(torch.device("cpu")).indices_of_true(whole[0] != 0)
        if used.shape[0] == 0:
            return None
        if used.shape[0] < states.slots:
            whole = [values.index_select(0, used) for values in whole]
        columns: list[Column] = []
        rest = used
        for number, key in reversed(tuple(enumerate(self.keys))):
            if number == 0:
                columns.append(key.column(rest, key.low if self.rebased is None else states.low))
                break
            columns.append(key.column(rest % key.span, key.low))
            rest = torch.div(rest, key.span, rounding_mode="floor")
        columns.reverse()
        columns = [columns[self.order.index(number)] for number in range(len(columns))]
        for column in self.columns:
            validity = None
            if column.present is not None:
                validity = whole[column.present] != 0
                validity = None if bool(validity.all()) else validity
            values = whole[column.values]
            if validity is not None:
                values = torch.where(validity, values, 0)
            columns.append(FixedColumn(column.type, values.to(column.dtype), validity, column.bounds))
        return Batch(tuple(columns), used.shape[0], None)


def _folded(rows: int, multiplied: int) -> int:
    """A run of so many rows folds no more than this: it ends where expansions have made enough."""
    return rows if multiplied == 1 else min(rows * multiplied, MOST_EXPANDED + VECTOR_ROWS * multiplied)


def _filled(size: int, accumulator: Accumulator) -> torch.Tensor:
    if accumulator.initial == 0:
        return torch.zeros(size, dtype=accumulator.dtype)
    return torch.full((size,), accumulator.initial, dtype=accumulator.dtype)


def _joined(accumulator: Accumulator, values: torch.Tensor, slots: int) -> torch.Tensor:
    """The copies of the ways as one."""
    if slots > FEW_SLOTS:
        return values
    ways = values.view(WAYS, slots)
    match accumulator.operation:
        case Operation.FOLD_MINIMUM:
            return ways.amin(0)
        case Operation.FOLD_MAXIMUM:
            return ways.amax(0)
        case _:
            return ways.sum(0)


def _are_addressable(slots: int, rows: int, accumulators: int) -> bool:
    return slots <= max(_FEWEST_SLOTS, _SLOTS_PER_ROW * rows) and 8 * slots * accumulators <= _MOST_STATE_BYTES


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
    rebased = not _are_addressable(slots, trace.rows, accumulators)
    order = list(range(len(symbols)))
    if rebased:
        # The widest key comes first, then the other digits do not depend on its range.
        first = symbols[widest]
        if (
            not isinstance(first.values, Input)
            or first.valid is not None
            or first.form is not Form.INTEGER
            or slots // span > _FEWEST_SLOTS
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
    return symbol.bounds[1] - symbol.bounds[0] + 1 + (symbol.valid is not None)


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
        digits = trace.values(symbol)
        if low or not is_shared:
            digits = compute(Operation.SCALE, digits, x=1, y=-low, is_shared=is_shared)
        bounds = None if symbol.form is Form.CODES else symbol.bounds
        key = GroupKey(symbol.type, symbol.dtype, low, _span(symbol), nullable, bounds, symbol.dictionary)
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
                if self.largest * _folded(self._trace.rows, self._trace.multiplied) * 4 >= LARGEST_SUM:
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
