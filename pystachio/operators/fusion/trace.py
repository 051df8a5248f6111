"""Columns as they are while a program is written: where their values come from, and the registers they are in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import pyarrow as pa
import torch

from pystachio.operators.column import (
    Bounds,
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels.assembler import Assembler, SavedAssembler
from pystachio.operators.kernels.bounds import cheap_bounds, with_measured_bounds
from pystachio.operators.kernels.instructions import Operation, Register, kind_of


class NotTraceable(Exception):
    """A program cannot do this; the operators themselves can."""


class Form(Enum):
    """INTEGER: anything stored as integers. CODES: of a dictionary. OPAQUE: known by its row only."""

    INTEGER = auto()
    FLOAT = auto()
    BOOLEAN = auto()
    CODES = auto()
    OPAQUE = auto()


class Part(Enum):
    """A tensor of a column that is an input."""

    VALUES = auto()
    VALIDITY = auto()


@dataclass(frozen=True, slots=True)
class Input:
    """Comes with each run: `part` of the column at `position`."""

    position: int
    part: Part


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """`values[index + shift]`; `is_fixed` as in `Assembler.table`."""

    values: torch.Tensor
    index: Register
    shift: int
    is_fixed: bool = False


Origin = Input | Lookup | Register


@dataclass(frozen=True, slots=True, eq=False)
class TableRow:
    """Row `index + shift` of a `column` that is there before the program runs; NULL where the mask `exists` is false
    (None: nowhere)."""

    column: Column
    index: Register
    shift: int
    exists: Register | None


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A column of the rows that are left. `valid` is where its validity comes from (None: no NULLs).

    `bounds` hold all valid values of an INTEGER, and the codes. An OPAQUE one is the row of its input, or, with a
    `column`, that column's rows whose numbers are in the register `values`. `row`: what it is a row of, if anything.
    """

    type: pa.DataType
    form: Form
    dtype: torch.dtype
    values: Origin
    valid: Origin | None = None
    bounds: Bounds | None = None
    dictionary: Dictionary | None = None
    column: Column | None = None
    step: int = 1
    """All valid values of an INTEGER are multiples of it."""
    row: TableRow | None = None


@dataclass(slots=True, eq=False)
class Trace:
    """The program so far. `rows` is how many a run has, about; `boundaries` counts the stages that are over.

    No row becomes more than `multiplied`. `of_rows` are the columns that expressions make of a build side's rows: from
    then on the program may depend on the values of this very build side.
    """

    rows: int
    assembler: Assembler = field(default_factory=Assembler)
    inputs: list[Input] = field(default_factory=list)
    boundaries: int = 0
    multiplied: int = 1
    of_rows: dict[Hashable, Column] = field(default_factory=dict)

    def load(self, origin: Origin, form: Form, dtype: torch.dtype) -> Register:
        """The values in a register: masks for BOOLEAN, doubles for FLOAT, int64 for others."""
        if isinstance(origin, Register):
            return origin
        if isinstance(origin, Input):
            number = self.input(origin)
            match form:
                case Form.BOOLEAN:
                    return self.assembler.compute(Operation.LOAD_MASK, number, is_mask=True)
                case Form.FLOAT:
                    return self.assembler.compute(Operation.LOAD_FLOAT, number, kind=kind_of(dtype))
                case _:
                    return self.assembler.compute(Operation.LOAD_INTEGER, number, kind=kind_of(dtype))
        table = self.assembler.table(origin.values, is_fixed=origin.is_fixed)
        if form is Form.FLOAT:
            return self.assembler.compute(
                Operation.GATHER_FLOAT, origin.index, table, x=origin.shift, kind=kind_of(dtype)
            )
        if form is Form.BOOLEAN:
            size = origin.values.shape[0]
            return self.assembler.compute(Operation.MEMBER, origin.index, table, x=-origin.shift, y=size, is_mask=True)
        return self.assembler.compute(Operation.GATHER, origin.index, table, x=origin.shift, kind=kind_of(dtype))

    def values(self, symbol: Symbol) -> Register:
        if symbol.form is Form.OPAQUE:
            raise NotTraceable(f"values of {symbol.type}")
        return self.load(symbol.values, symbol.form, symbol.dtype)

    def valid(self, symbol: Symbol) -> Register | None:
        """The mask of the rows that are not NULL; None when that is all."""
        return None if symbol.valid is None else self.load(symbol.valid, Form.BOOLEAN, torch.bool)

    def input(self, origin: Input) -> int:
        if origin not in self.inputs:
            self.inputs.append(origin)
        return self.inputs.index(origin)

    def filter(self, mask: Register | bool) -> None:
        """Only the rows of `mask` go on."""
        if mask is not True:
            self.assembler.perform(Operation.FILTER, self.boundaries, self.mask(mask))

    def boundary(self) -> None:
        """A stage ends here: its rows are counted, and the time that it took."""
        self.assembler.perform(Operation.BOUNDARY, self.boundaries)
        self.boundaries += 1

    def saved(self) -> tuple[SavedAssembler, int, int, int]:
        """The state to which `restore` goes back."""
        return self.assembler.saved(), len(self.inputs), self.boundaries, self.multiplied

    def restore(self, saved: tuple[SavedAssembler, int, int, int]) -> None:
        """Forget what was written since."""
        assembler, inputs, self.boundaries, self.multiplied = saved
        self.assembler.restore(assembler)
        del self.inputs[inputs:]

    def mask(self, mask: Register | bool) -> Register:
        if isinstance(mask, Register):
            return mask
        constant = self.assembler.compute(Operation.CONSTANT, x=int(mask))
        return self.assembler.compute(Operation.RANGE, constant, x=1, y=1, is_mask=True)

    def both(self, left: Register | bool | None, right: Register | bool | None) -> Register | bool:
        """left and right; None is True."""
        left, right = (True if side is None else side for side in (left, right))
        if isinstance(left, bool):
            return right if left else False
        if isinstance(right, bool):
            return left if right else False
        return left if left is right else self.assembler.compute(Operation.AND, left, right, is_mask=True)

    def either(self, left: Register | bool, right: Register | bool) -> Register | bool:
        if isinstance(left, bool):
            return True if left else right
        if isinstance(right, bool):
            return True if right else left
        return left if left is right else self.assembler.compute(Operation.OR, left, right, is_mask=True)

    def inverse(self, mask: Register | bool) -> Register | bool:
        return not mask if isinstance(mask, bool) else self.assembler.compute(Operation.NOT, mask, is_mask=True)

    def constant(self, value: int) -> Register:
        return self.assembler.compute(Operation.CONSTANT, x=value)


def input_symbols(columns: Sequence[Column | None]) -> list[Symbol | None]:
    """The columns that a run is given, by position; None for those that nobody reads."""
    return [None if column is None else _input_symbol(position, column) for position, column in enumerate(columns)]


def _input_symbol(position: int, column: Column) -> Symbol:
    values = Input(position, Part.VALUES)
    valid = None if column.validity is None else Input(position, Part.VALIDITY)
    return _symbol(with_measured_bounds(column), values, valid)


def table_symbol(trace: Trace, column: Column, index: Register, shift: int, extra: Register | None = None) -> Symbol:
    """Rows `index + shift` of a column that is there before the program runs; `extra` is a mask of those that exist."""
    row = TableRow(column, index, shift, extra)
    column = with_measured_bounds(column)
    match column:
        case FixedColumn(values=values) | DictionaryColumn(codes=values):
            origin: Origin = Lookup(values.contiguous(), index, shift)
        case _:
            origin = trace.assembler.compute(Operation.SCALE, index, x=1, y=shift)
    valid: Origin | None = extra
    if column.validity is not None:
        present = Lookup(column.validity.contiguous(), index, shift)
        valid = (
            present if extra is None else trace.mask(trace.both(extra, trace.load(present, Form.BOOLEAN, torch.bool)))
        )
    symbol = _symbol(column, origin, valid)
    return replace(symbol, column=column if symbol.form is Form.OPAQUE else None, row=row)


def _symbol(column: Column, values: Origin, valid: Origin | None) -> Symbol:
    match column:
        case FixedColumn(type=type_, values=tensor) if tensor.dtype == torch.bool:
            return Symbol(type_, Form.BOOLEAN, torch.bool, values, valid)
        case FixedColumn(type=type_, values=tensor) if tensor.dtype.is_floating_point:
            return Symbol(type_, Form.FLOAT, tensor.dtype, values, valid)
        case FixedColumn(type=type_, values=tensor):
            return Symbol(type_, Form.INTEGER, tensor.dtype, values, valid, _within_dtype(cheap_bounds(column), tensor))
        case DictionaryColumn(type=type_, codes=codes, dictionary=dictionary):
            # The dictionary may have grown since the codes were stored: what they cannot say is not looked for in them.
            bounds = (0, min(max(0, len(dictionary) - 1), torch.iinfo(codes.dtype).max))
            return Symbol(type_, Form.CODES, codes.dtype, values, valid, bounds, dictionary)
        case WideDecimalColumn(type=type_) | BytesColumn(type=type_) | ViewColumn(type=type_):
            return Symbol(type_, Form.OPAQUE, torch.int64, values, valid)


def _within_dtype(bounds: Bounds | None, values: torch.Tensor) -> Bounds:
    """Known ranges need not be tight, but instructions compare in the dtype."""
    limits = torch.iinfo(values.dtype)
    if bounds is None or bounds[0] < limits.min or bounds[1] > limits.max:
        return limits.min, limits.max
    return bounds
