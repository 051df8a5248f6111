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
from pystachio.operators.fusion.trace import Form, NotTraceable, Symbol, Trace
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.program import FEW_SLOTS, WAYS, Operation, Register

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

    def column(self, digits: torch.Tensor) -> Column:
        """The keys of groups."""
        validity = None
        if self.nullable:
            validity = digits != self.span - 1
            digits = torch.where(validity, digits, 0)
            validity = None if bool(validity.all()) else validity
        if self.dictionary is not None:
            return DictionaryColumn(self.type, digits.to(self.dtype), self.dictionary, validity)
        return FixedColumn(self.type, (digits + self.low).to(self.dtype), validity, self.bounds)


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


@dataclass(slots=True, eq=False)
class Accumulated:
    """The states of a thread, and how many rows are in them."""

    states: list[torch.Tensor]
    rows: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FoldedGroups:
    """What the folds of a program fill. Threads take a set of states for a run and give it back."""

    keys: tuple[GroupKey, ...]
    slots: int
    accumulators: tuple[Accumulator, ...]
    columns: tuple[StateColumn, ...]
    largest: int
    """No summand is larger, in magnitude."""
    _idle: list[Accumulated] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, rows: int) -> tuple[Accumulated, Batch | None]:
        """States to which `rows` more can be added, and what had to be put out before that is so."""
        with self._lock:
            taken = self._idle.pop() if self._idle else None
        if taken is None:
            return Accumulated([torch.full((self._size,), a.initial, dtype=a.dtype) for a in self.accumulators]), None
        if (taken.rows + rows) * self.largest < LARGEST_SUM:
            return taken, None
        full = self._batch(taken)
        return Accumulated([torch.full((self._size,), a.initial, dtype=a.dtype) for a in self.accumulators]), full

    def give_back(self, states: Accumulated) -> None:
        with self._lock:
            self._idle.append(states)

    def finish(self) -> Iterator[Batch]:
        """All states, as partial batches."""
        with self._lock:
            idle, self._idle[:] = list(self._idle), []
        for states in idle:
            batch = self._batch(states)
            if batch is not None:
                yield batch

    @property
    def _size(self) -> int:
        return self.slots * WAYS if self.slots <= FEW_SLOTS else self.slots

    def _batch(self, states: Accumulated) -> Batch | None:
        whole = [
            self._joined(accumulator, values)
            for accumulator, values in zip(self.accumulators, states.states, strict=True)
        ]
        used = primitives(torch.device("cpu")).indices_of_true(whole[0] != 0)
        if used.shape[0] == 0:
            return None
        if used.shape[0] < self.slots:
            whole = [values.index_select(0, used) for values in whole]
        columns: list[Column] = []
        rest = used
        for key in reversed(self.keys):
            columns.append(key.column(rest % key.span))
            rest = torch.div(rest, key.span, rounding_mode="floor")
        columns.reverse()
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

    def _joined(self, accumulator: Accumulator, values: torch.Tensor) -> torch.Tensor:
        if self.slots > FEW_SLOTS:
            return values
        ways = values.view(WAYS, self.slots)
        match accumulator.operation:
            case Operation.FOLD_MINIMUM:
                return ways.amin(0)
            case Operation.FOLD_MAXIMUM:
                return ways.amax(0)
            case _:
                return ways.sum(0)


def fold(trace: Trace, partial: PartialFold, fields: Sequence[Symbol | None]) -> FoldedGroups:
    """Put every row into its group's states. NotTraceable for what has no addressable groups or other states."""
    plan = partial.plan
    if plan.sets or plan.lists or plan.tagged or not partial.allow_direct:
        raise NotTraceable("grouping sets or distinct values")
    keys: list[GroupKey] = []
    code: Register | None = None
    slots = 1
    for position in plan.keys:
        key, digits = _key(trace, fields[position])
        keys.append(key)
        slots *= key.span
        if slots > max(_FEWEST_SLOTS, _SLOTS_PER_ROW * trace.rows):
            raise NotTraceable("too many groups to address")
        code = digits if code is None else trace.assembler.compute(Operation.APPEND, code, digits, x=key.span)
    writer = _Writer(trace, code, slots, fields)
    writer.count(None)
    for state in plan.states:
        writer.state(state)
    if 8 * slots * len(writer.accumulators) > _MOST_STATE_BYTES:
        raise NotTraceable("too many groups for the cache")
    return FoldedGroups(tuple(keys), slots, tuple(writer.accumulators), tuple(writer.columns), writer.largest)


def _key(trace: Trace, symbol: Symbol | None) -> tuple[GroupKey, Register]:
    if symbol is None or symbol.form not in (Form.INTEGER, Form.CODES, Form.BOOLEAN):
        raise NotTraceable("a key that is no integer")
    compute = trace.assembler.compute
    valid = trace.valid(symbol)
    nullable = valid is not None
    if symbol.form is Form.BOOLEAN:
        digits = compute(Operation.FROM_MASK, trace.values(symbol))
        key = GroupKey(symbol.type, torch.bool, 0, 2 + nullable, nullable, None, None)
    else:
        assert symbol.bounds is not None
        low, high = symbol.bounds
        span = high - low + 1
        digits = trace.values(symbol)
        if low:
            digits = compute(Operation.SCALE, digits, x=1, y=-low)
        bounds = None if symbol.form is Form.CODES else symbol.bounds
        key = GroupKey(symbol.type, symbol.dtype, low, span + nullable, nullable, bounds, symbol.dictionary)
    if valid is not None:
        digits = compute(Operation.CHOOSE, valid, digits, trace.constant(key.span - 1))
    return key, digits


class _Writer:
    """The folds of one aggregate."""

    def __init__(
        self, trace: Trace, code: Register | None, slots: int, fields: Sequence[Symbol | None]
    ) -> None:
        self._trace = trace
        self._code = code
        self._slots = slots
        self._fields = fields
        self._counts: dict[Register | None, int] = {}
        self.accumulators: list[Accumulator] = []
        self.columns: list[StateColumn] = []
        self.largest = 1

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
                if self.largest * self._trace.rows * 4 >= LARGEST_SUM:
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
        symbol = self._fields[position]
        if symbol is None:
            raise NotTraceable("an argument that is not there")
        return symbol

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
        self._trace.assembler.perform(
            operation, number, -1 if self._code is None else self._code, values, -1 if mask is None else mask, x=self._slots
        )
        return number

    def _column(
        self, state: State, values: int, present: int | None, dtype: torch.dtype, bounds: Bounds | None = None
    ) -> None:
        self.columns.append(StateColumn(state.types[0], values, present, dtype, bounds))


def _integer_bounds(symbol: Symbol) -> Bounds:
    if symbol.form is not Form.INTEGER or symbol.bounds is None:
        raise NotTraceable(f"a fold of {symbol.type}")
    return symbol.bounds
