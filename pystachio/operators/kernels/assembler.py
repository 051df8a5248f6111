"""Programs are assembled from instructions over virtual registers.

Registers are assigned by linear scan (Poletto and Sarkar, "Linear scan register allocation", 1999); a filter compacts
those that are read behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from pystachio.operators.kernels.instructions import INSTRUCTION, VECTOR_ROWS, Operation, Register, signed
from pystachio.operators.kernels.program import Program

_MOST_REGISTERS: Final = 64
_MOST_BOUNDARIES: Final = 64


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
        self._fixed: set[int] = set()
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

    def table(self, values: torch.Tensor, *, is_fixed: bool = False) -> int:
        """The number of a tensor that the program looks up; one that `is_fixed` is the same in each run that has this
        program."""
        values = values.contiguous()  # itself, if it is
        for number, table in enumerate(self.tables):
            if table is values:
                return number
        self.tables.append(values)
        number = len(self.tables) - 1
        (self._fixed.add if is_fixed else self._fixed.discard)(number)
        return number

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
            code.append((step.operation, step.kind, out_place, *operands, signed(x), signed(y)))
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
        instructions = np.array(code, dtype=INSTRUCTION)
        return Program(
            instructions,
            instructions.ctypes.data,
            tuple(self.tables),
            tuple(number in self._fixed for number in range(len(self.tables))),
            tuple(self.outputs),
            used[False],
            used[True],
            boundaries,
            expansions,
            self.step,
        )
