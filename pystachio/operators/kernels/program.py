"""Programs for the interpreter in native/program.c: assembled from instructions over virtual registers, run on tensors.

Registers are assigned by linear scan (Poletto and Sarkar, "Linear scan register allocation", 1999); a filter compacts
those that are read behind it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final, NamedTuple

import numpy as np
import torch

from pystachio.operators.kernels import native

VECTOR_ROWS: Final = 1024
FEW_SLOTS: Final = 256
WAYS: Final = 4
"""States of at most so many slots have so many copies; as in program.h."""

MOST_EXPANDED: Final = 1 << 22
"""A run ends behind the vector with which expansions have made more rows, so that a plan can be cancelled."""

_MOST_REGISTERS: Final = 64
_MOST_BOUNDARIES: Final = 64
_ALIGNMENT: Final = 64

_KINDS: Final = {
    dtype: number
    for number, dtype in enumerate(
        (torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float32, torch.float64)
    )
} | {torch.uint8: 4}


class Operation(IntEnum):
    """As in program.h, in that order."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    LOAD_INTEGER = auto()
    LOAD_FLOAT = auto()
    LOAD_MASK = auto()
    INPUT_RANGE = auto()
    INPUT_MEMBER = auto()
    BIT = auto()
    BLOOM = auto()
    RANGE = auto()
    MEMBER = auto()
    COMPARE = auto()
    COMPARE_FLOATS = auto()
    AND = auto()
    OR = auto()
    NOT = auto()
    FILTER = auto()
    CONSTANT = auto()
    ADD = auto()
    SUBTRACT = auto()
    MULTIPLY = auto()
    SCALE = auto()
    APPEND = auto()
    ADD_FLOATS = auto()
    SUBTRACT_FLOATS = auto()
    MULTIPLY_FLOATS = auto()
    DIVIDE_FLOATS = auto()
    TO_FLOAT = auto()
    FROM_MASK = auto()
    CHOOSE = auto()
    OFFSET = auto()
    GATHER = auto()
    GATHER_FLOAT = auto()
    HASH_FIND = auto()
    EXPAND = auto()
    EXPAND_ALL = auto()
    FLAG = auto()
    PUT_INPUT = auto()
    PUT_TABLE = auto()
    PUT_INTEGER = auto()
    PUT_FLOAT = auto()
    PUT_MASK = auto()
    PUT_ROW = auto()
    FOLD_COUNT = auto()
    FOLD_SUM = auto()
    FOLD_MINIMUM = auto()
    FOLD_MAXIMUM = auto()
    FOLD_SUM_FLOATS = auto()
    BOUNDARY = auto()


class Comparison(IntEnum):
    EQUAL = 0
    NOT_EQUAL = 1
    LESS = 2
    LESS_EQUAL = 3


_INSTRUCTION: Final = np.dtype(
    [(name, np.int32) for name in ("operation", "kind", "out", "a", "b", "c")] + [("x", np.int64), ("y", np.int64)]
)


class _Run(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("counters", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("boundaries", ctypes.c_int64),
        ("bank", ctypes.c_int64),
        ("registers", ctypes.c_int64),
        ("begin", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("most", ctypes.c_int64),
        ("put", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A value per row; a mask has one byte, any other register eight."""

    is_mask: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Instruction:
    operation: Operation
    kind: int
    out: Register | int
    a: Register | int
    b: Register | int
    c: Register | int
    x: int
    y: int
    read: tuple[Register, ...]
    """The registers among `a`, `b` and `c`."""


class TooManyRegisters(Exception):
    """More values live at once, or more stages, than a program can hold."""


def kind_of(dtype: torch.dtype) -> int:
    """The number of a dtype as an element of columns and tables."""
    return _KINDS[dtype]


@dataclass(frozen=True, slots=True)
class SavedAssembler:
    """How much was written."""

    instructions: int
    known: dict[tuple[object, ...], Register]
    tables: int
    outputs: int
    step: int


class Assembler:
    """Instructions in order; equal ones are there once."""

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._known: dict[tuple[object, ...], Register] = {}
        self.tables: list[torch.Tensor] = []
        self.outputs: list[torch.dtype] = []
        self.step = VECTOR_ROWS
        """Rows in a vector: fewer, where each may become many."""

    def saved(self) -> SavedAssembler:
        """The state to which `restore` goes back."""
        return SavedAssembler(
            len(self._instructions), dict(self._known), len(self.tables), len(self.outputs), self.step
        )

    def restore(self, saved: SavedAssembler) -> None:
        """Forget what was written since."""
        del self._instructions[saved.instructions :]
        self._known = dict(saved.known)
        del self.tables[saved.tables :]
        del self.outputs[saved.outputs :]
        self.step = saved.step

    def table(self, values: torch.Tensor) -> int:
        """The number of a contiguous tensor that the program looks up."""
        for number, table in enumerate(self.tables):
            if table is values:
                return number
        self.tables.append(values)
        return len(self.tables) - 1

    @property
    def length(self) -> int:
        """Instructions so far."""
        return len(self._instructions)

    def output(self, dtype: torch.dtype) -> int:
        """The number of a new output column."""
        self.outputs.append(dtype)
        return len(self.outputs) - 1

    def compute(
        self,
        operation: Operation,
        a: Register | int = 0,
        b: Register | int = 0,
        c: Register | int = 0,
        *,
        x: int = 0,
        y: int = 0,
        kind: int = 0,
        is_mask: bool = False,
        is_shared: bool = True,
    ) -> Register:
        """The register with the result; the instruction is one of its own unless it `is_shared`."""
        key = (operation, kind, a, b, c, x, y)
        known = self._known.get(key) if is_shared else None
        if known is None:
            known = Register(is_mask)
            if is_shared:
                self._known[key] = known
            self._append(operation, kind, known, a, b, c, x, y)
        return known

    def perform(
        self,
        operation: Operation,
        out: int = 0,
        a: Register | int = 0,
        b: Register | int = 0,
        c: Register | int = 0,
        *,
        x: int = 0,
        y: int = 0,
        kind: int = 0,
    ) -> None:
        """An instruction for its effect."""
        self._append(operation, kind, out, a, b, c, x, y)

    def _append(
        self,
        operation: Operation,
        kind: int,
        out: Register | int,
        a: Register | int,
        b: Register | int,
        c: Register | int,
        x: int,
        y: int,
    ) -> None:
        read = tuple([operand for operand in (a, b, c) if isinstance(operand, Register)])
        self._instructions.append(_Instruction(operation, kind, out, a, b, c, x, y, read))

    def assemble(self, boundaries: int) -> Program:
        """Raises TooManyRegisters. `boundaries`: of the counters that the instructions name."""
        last = {register: at for at, step in enumerate(self._instructions) for register in step.read}
        places: dict[Register, int] = {}
        free: dict[bool, list[int]] = {False: [], True: []}
        used = {False: 0, True: 0}
        expansions = 0
        code: list[tuple[int, ...]] = []
        for at, step in enumerate(self._instructions):
            x, y = step.x, step.y
            if step.operation in (Operation.FILTER, Operation.EXPAND, Operation.EXPAND_ALL):
                staying = [(register.is_mask, place) for register, place in places.items() if last[register] > at]
                x, y = (sum(1 << place for is_mask, place in staying if is_mask is wanted) for wanted in (False, True))
                expansions += step.operation is not Operation.FILTER
            out = step.out
            if isinstance(out, Register):
                if not free[out.is_mask]:
                    free[out.is_mask].append(used[out.is_mask])
                    used[out.is_mask] += 1
                out_place = free[out.is_mask].pop()
                if out_place >= _MOST_REGISTERS:
                    raise TooManyRegisters
            else:
                out_place = out
            operands = [places[part] if isinstance(part, Register) else part for part in (step.a, step.b, step.c)]
            code.append((step.operation, step.kind, out_place, *operands, _signed(x), _signed(y)))
            for register in step.read:
                if last[register] == at and register in places:
                    free[register.is_mask].append(places.pop(register))
            if isinstance(out, Register):
                if last.get(out, -1) > at:
                    places[out] = out_place
                else:
                    free[out.is_mask].append(out_place)
        if boundaries > _MOST_BOUNDARIES:
            raise TooManyRegisters
        return Program(
            np.array(code, dtype=_INSTRUCTION),
            tuple(self.tables),
            tuple(self.outputs),
            used[False],
            used[True],
            boundaries,
            expansions,
            self.step,
        )


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


class _Scratch(threading.local):
    """The registers of a thread, kept between runs."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)

    def pointer(self, nbytes: int) -> int:
        if len(self._bytes) < nbytes + _ALIGNMENT:
            self._bytes = np.empty(nbytes + _ALIGNMENT, dtype=np.uint8)
        return -(-self._bytes.ctypes.data // _ALIGNMENT) * _ALIGNMENT


_scratch = _Scratch()


class Change(NamedTuple):
    """Another value of the `constant` ("x" or "y") of an instruction, by its number, for one run."""

    instruction: int
    constant: str
    value: int


class ProgramRun(NamedTuple):
    """How many rows reached the end, where the next run begins, and the counters: rows and ticks of each boundary."""

    put: int
    begin: int
    counters: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Ready to run, by several threads at once; it holds the tables."""

    code: np.ndarray
    tables: tuple[torch.Tensor, ...]
    outputs: tuple[torch.dtype, ...]
    registers: int
    masks: int
    boundaries: int
    expansions: int
    step: int

    def run(
        self,
        inputs: Sequence[int],
        begin: int,
        count: int,
        *,
        rows: torch.Tensor | None = None,
        outputs: Sequence[torch.Tensor] = (),
        capacity: int = 0,
        states: Sequence[torch.Tensor] = (),
        changes: Sequence[Change] = (),
    ) -> ProgramRun:
        """Process the rows [begin, count), as far as the `capacity` of the outputs allows.

        `inputs` are addresses of columns, `rows` (int32 [count]) the positions in them (None: those themselves).
        """
        library = native.library()
        assert library is not None, "asked before the program was made"
        code = self.code
        if changes:
            code = code.copy()
            for change in changes:
                code[change.instruction][change.constant] = _signed(change.value)
        bank = (self.registers * 8 + self.masks) * VECTOR_ROWS
        counters = np.zeros(max(1, 2 * self.boundaries), dtype=np.int64)
        # These are kept until the call returns.
        addresses = [
            _addresses(pointers)
            for pointers in (
                inputs,
                [table.data_ptr() for table in self.tables],
                [output.data_ptr() for output in outputs],
                [state.data_ptr() for state in states],
            )
        ]
        run = _Run(
            code.ctypes.data,
            len(code),
            *(ctypes.addressof(part) for part in addresses),
            None if rows is None else rows.data_ptr(),
            count,
            counters.ctypes.data,
            _scratch.pointer(bank * (1 + self.expansions)),
            self.boundaries,
            bank,
            self.registers,
            begin,
            self.step,
            capacity if outputs else count * VECTOR_ROWS,
            MOST_EXPANDED,
            0,
        )
        library.pystachio_run_program(ctypes.byref(run))
        return ProgramRun(run.put, run.begin, counters.tolist())


def _addresses(pointers: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(pointers)))(*pointers)


def is_available() -> bool:
    """Whether programs can run here."""
    return native.library() is not None
