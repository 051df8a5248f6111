"""The states of the groups that a program's folds fill: arrays addressed by the group's number, a set per thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from pystachio.operators.batch import Batch
from pystachio.operators.column import Bounds, Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.kernels.host_memory import NUMPY, zeros
from pystachio.operators.kernels.instructions import FEW_SLOTS, VECTOR_ROWS, WAYS, Operation
from pystachio.operators.kernels.program import MOST_EXPANDED, Change
from pystachio.operators.kernels.selection import take_late, take_or_null
from pystachio.operators.kernels.slots import as_tensor, keys_at, states_at, used_slots

FEWEST_SLOTS: Final = 4096
_SLOTS_PER_ROW: Final = 2
_MOST_STATE_BYTES: Final = 8 << 20
_PART_STATE_BYTES: Final = 3 * _MOST_STATE_BYTES // 4
_MOST_JOINED_BYTES: Final = 64 << 20
"""Sets of states that are larger, all together, are merged as partial batches, by several threads."""

LARGEST_SUM: Final = 2**62

_Array = np.ndarray[Any, Any]
"""States are few and end in numpy: see `kernels.host_memory`."""

_UNITE: Final = {Operation.FOLD_MINIMUM: np.minimum, Operation.FOLD_MAXIMUM: np.maximum}
"""How two states of a fold become one; those that are not here are sums."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A digit of the slot: (value - `low`) / `step`, or a code; the last of `span` is NULL's where `nullable`. The key
    is the one at `position`."""

    position: int
    type: pa.DataType
    dtype: torch.dtype
    low: int
    span: int
    nullable: bool
    bounds: Bounds | None
    dictionary: Dictionary | None
    step: int = 1

    @property
    def positions(self) -> tuple[int, ...]:
        return (self.position,)

    def columns(self, digits: _Array, low: int) -> tuple[Column, ...]:
        """The keys of groups, whose digits count from `low`."""
        return (self._column(digits, low),)

    def _column(self, digits: _Array, low: int) -> Column:
        validity: torch.Tensor | None = None
        if self.nullable:
            valid = digits != self.span - 1
            digits, validity = np.where(valid, digits, 0), _validity(valid)
        if self.dictionary is not None:
            return DictionaryColumn(self.type, as_tensor(digits, self.dtype), self.dictionary, validity)
        return FixedColumn(self.type, keys_at(digits, self.step, low, self.dtype), validity, self.bounds)


@dataclass(frozen=True, slots=True)
class RowKey:
    """A digit that is the number of a row, of which several keys (at `positions`) are the `of` columns: rows of equal
    values make partial groups of their own. The last of `span` is that of no row where `nullable`."""

    positions: tuple[int, ...]
    of: tuple[Column, ...] = field(compare=False)
    span: int
    nullable: bool

    @property
    def low(self) -> int:
        return 0

    def columns(self, digits: _Array, low: int) -> tuple[Column, ...]:
        """The keys of groups with these digits."""
        if not self.nullable:
            rows = torch.from_numpy(digits)
            return tuple(take_late(column, rows) for column in self.of)
        rows = torch.from_numpy(np.where(digits < self.span - 1, digits, -1))
        return tuple(take_or_null(column, rows) for column in self.of)


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

    keys: tuple[GroupKey | RowKey, ...]
    slots: int
    accumulators: tuple[Accumulator, ...]
    columns: tuple[StateColumn, ...]
    largest: int
    """No summand is larger, in magnitude."""
    multiplied: int
    """No row is folded more often."""
    rebased: Rebased | None
    stay: bool = False
    """Nothing is put out before the end."""
    _full: list[Batch] = field(default_factory=list, init=False)
    _idle: list[Accumulated] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def nbytes(self) -> int:
        """Of a thread's states, where they stay from run to run."""
        return 0 if self.rebased is not None else _state_bytes(self.slots, len(self.accumulators))

    @property
    def is_large(self) -> bool:
        """Whether its states are more than any program may have."""
        return self.nbytes > _MOST_STATE_BYTES

    @property
    def rows_in_states(self) -> int:
        """Before they are put out."""
        return sum(states.rows for states in self._idle)

    @property
    def rows(self) -> list[tuple[Column, ...]]:
        """The columns of each RowKey."""
        return [key.of for key in self.keys if isinstance(key, RowKey)]

    def without_states(self, rows: Iterable[tuple[Column, ...]]) -> FoldedGroups:
        """For another run of the same plan, whose `rows` are these."""
        own = iter(rows)
        return FoldedGroups(
            tuple(replace(key, of=next(own)) if isinstance(key, RowKey) else key for key in self.keys),
            self.slots,
            self.accumulators,
            self.columns,
            self.largest,
            self.multiplied,
            self.rebased,
            self.stay,
        )

    def fits(self, columns: Sequence[Column | None], rows: int) -> bool:
        """Whether these rows can be folded."""
        if folded_rows(rows, self.multiplied) > LARGEST_SUM // self.largest:
            return False
        return self.rebased is None or are_addressable(self._slots_of(columns), rows, len(self.accumulators))

    def parts_that_fit(self, columns: Sequence[Column | None], rows: int) -> int:
        """Into how many parts rows that do not fit should go for each to fit, if their groups are in order; 1: none."""
        if self.rebased is None:
            return 1
        slots = self._slots_of(columns)
        return -(-_state_bytes(slots, len(self.accumulators)) // _PART_STATE_BYTES) if _is_dense(slots, rows) else 1

    def take(self, columns: Sequence[Column | None], rows: int) -> tuple[Accumulated, Batch | None]:
        """States to which `rows` more can be added, and what had to be put out before that is so."""
        if self.rebased is not None:
            return self._rebased_states(columns, self.rebased), None
        with self._lock:
            taken = self._idle.pop() if self._idle else None
        if taken is None:
            return self._fresh(self.slots), None
        if (taken.rows + folded_rows(rows, self.multiplied)) * self.largest < LARGEST_SUM:
            return taken, None
        full = self._batch(taken)
        if full is not None and self.stay:
            with self._lock:
                self._full.append(full)
            full = None
        return self._fresh(self.slots), full

    def give_back(self, states: Accumulated) -> Batch | None:
        """After a run; what it leaves to put out at once."""
        if self.rebased is not None:
            return self._batch(states)
        with self._lock:
            self._idle.append(states)
        return None

    def finish(self) -> Iterator[Batch]:
        """All states, as partial batches: as one, where sums have room for what all threads have added."""
        with self._lock:
            idle, self._idle[:] = list(self._idle), []
            full, self._full[:] = list(self._full), []
        yield from full
        few = sum(values.nbytes for states in idle for values in states.states) <= _MOST_JOINED_BYTES
        together: list[Accumulated] = []
        for states in idle:
            if together and few and (together[-1].rows + states.rows) * self.largest < LARGEST_SUM:
                self._join(together[-1], states)
            else:
                together.append(states)
        for states in together:
            batch = self._batch(states)
            if batch is not None:
                yield batch

    def _join(self, states: Accumulated, others: Accumulated) -> None:
        """The other states into `states`, which have the same slots."""
        for accumulator, into, values in zip(self.accumulators, states.states, others.states, strict=True):
            held = into.numpy()
            _UNITE.get(accumulator.operation, np.add)(held, values.numpy(), out=held)
        states.rows += others.rows

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
        used = used_slots(whole[0])
        if not len(used):
            return None
        if len(used) < states.slots:
            whole = [states_at(values, used) for values in whole]
        by_position: dict[int, Column] = {}
        digits, rest = used, used
        for number, key in reversed(tuple(enumerate(self.keys))):
            low = key.low
            if number > 0:
                rest, digits = np.divmod(rest, key.span)
            else:
                digits, low = rest, low if self.rebased is None else states.low
            by_position.update(zip(key.positions, key.columns(digits, low), strict=True))
        columns = [by_position[position] for position in range(len(by_position))]
        for column in self.columns:
            values = whole[column.values]
            validity: torch.Tensor | None = None
            if column.present is not None:
                present = whole[column.present] != 0
                validity = _validity(present)
                values = values if validity is None else np.where(present, values, 0)
            columns.append(FixedColumn(column.type, as_tensor(values, column.dtype), validity, column.bounds))
        return Batch(tuple(columns), len(used), None)


def folded_rows(rows: int, multiplied: int) -> int:
    """A run of so many rows folds no more than this: it ends where expansions have made enough."""
    return rows if multiplied == 1 else min(rows * multiplied, MOST_EXPANDED + VECTOR_ROWS * multiplied)


def _filled(size: int, accumulator: Accumulator) -> torch.Tensor:
    if accumulator.initial == 0:
        return zeros(size, accumulator.dtype)
    return torch.from_numpy(np.full(size, accumulator.initial, NUMPY[accumulator.dtype]))


def _joined(accumulator: Accumulator, states: torch.Tensor, slots: int) -> _Array:
    """The copies of the ways as one."""
    values: _Array = states.numpy()
    return (
        _UNITE.get(accumulator.operation, np.add).reduce(values.reshape(WAYS, slots)) if slots <= FEW_SLOTS else values
    )


def _validity(valid: _Array) -> torch.Tensor | None:
    return None if valid.all() else torch.from_numpy(valid)


def are_addressable(slots: int, rows: int, accumulators: int) -> bool:
    return _is_dense(slots, rows) and _state_bytes(slots, accumulators) <= _MOST_STATE_BYTES


def pay_in_the_end(slots: int, expected: int, accumulators: int, most_bytes: int) -> bool:
    """Whether to address more slots than one run fills: states stay from run to run, of `expected` rows."""
    return _is_dense(slots, expected) and _state_bytes(slots, accumulators) <= most_bytes


def _is_dense(slots: int, rows: int) -> bool:
    return slots <= max(FEWEST_SLOTS, _SLOTS_PER_ROW * rows)


def _state_bytes(slots: int, accumulators: int) -> int:
    return 8 * slots * accumulators
