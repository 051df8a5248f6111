"""Programs for the interpreter in native/program.c, as they are run on tensors."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from pystachio.operators.kernels import native
from pystachio.operators.kernels.instructions import VECTOR_ROWS, signed

MOST_EXPANDED: Final = 1 << 22
"""A run ends behind the vector with which expansions have made more rows, so that a plan can be cancelled."""

_ALIGNMENT: Final = 64


class _Part(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("put", ctypes.c_int64),
    )


class _Run(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("parts", ctypes.c_void_p),
        ("part_count", ctypes.c_int64),
        ("tables", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("counters", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("boundaries", ctypes.c_int64),
        ("bank", ctypes.c_int64),
        ("registers", ctypes.c_int64),
        ("part", ctypes.c_int64),
        ("begin", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("most", ctypes.c_int64),
        ("put", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
    )


class _Scratch(threading.local):
    """The registers of a thread, kept between runs."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)
        self._pointer = 0

    def pointer(self, nbytes: int) -> int:
        if len(self._bytes) < nbytes + _ALIGNMENT:
            self._bytes = np.empty(nbytes + _ALIGNMENT, dtype=np.uint8)
            self._pointer = -(-self._bytes.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        return self._pointer


_scratch = _Scratch()


class Change(NamedTuple):
    """Another value of the `constant` ("x" or "y") of an instruction, by its number, for one run."""

    instruction: int
    constant: str
    value: int


class InputRows(NamedTuple):
    """`length` rows of columns at the addresses `inputs`: those at the positions `rows` (int32 [length]), or without
    them the first ones."""

    inputs: Sequence[int]
    length: int
    rows: torch.Tensor | None = None


class ProgramRun(NamedTuple):
    """How many rows reached the end, how many of them by the end of each part that was begun, where the next run goes
    on (a row of a part), and the counters: rows and ticks of each boundary."""

    put: int
    ends: list[int]
    part: int
    begin: int
    counters: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Ready to run, by several threads at once; it holds the tables, of which some are `fixed`: those of any other run
    would be the same."""

    code: np.ndarray
    address: int
    """Of the code."""
    tables: tuple[torch.Tensor, ...]
    fixed: tuple[bool, ...]
    outputs: tuple[torch.dtype, ...]
    registers: int
    masks: int
    boundaries: int
    expansions: int
    step: int

    def with_tables(self, tables: tuple[torch.Tensor, ...]) -> Program:
        """The same program on other tables, which look like its own."""
        return Program(
            self.code,
            self.address,
            tables,
            self.fixed,
            self.outputs,
            self.registers,
            self.masks,
            self.boundaries,
            self.expansions,
            self.step,
        )

    def run(
        self,
        parts: Sequence[InputRows],
        part: int = 0,
        begin: int = 0,
        *,
        outputs: Sequence[torch.Tensor] = (),
        capacity: int = 0,
        states: Sequence[torch.Tensor] = (),
        changes: Sequence[Change] = (),
    ) -> ProgramRun:
        """Process the `parts` from row `begin` of `part` on, as far as the `capacity` of the outputs allows."""
        # How much there is to do for rows that expansions make, nobody knows.
        rows = sum([each.length for each in parts])
        library = native.library(None if self.expansions else rows)
        assert library is not None, "asked before the program was made"
        code, address = self.code, self.address
        if changes:
            code = code.copy()
            address = code.ctypes.data
            for change in changes:
                code[change.instruction][change.constant] = signed(change.value)
        bank = (self.registers * 8 + self.masks) * VECTOR_ROWS
        counters = (ctypes.c_int64 * max(1, 2 * self.boundaries))()
        # These are kept until the call returns.
        inputs = _addresses([address for each in parts for address in each.inputs])
        tables = _addresses([table.data_ptr() for table in self.tables])
        put_into = _addresses([output.data_ptr() for output in outputs])
        folded = _addresses([state.data_ptr() for state in states])
        described = (_Part * len(parts))()
        place, width = ctypes.addressof(inputs), len(parts[0].inputs) * ctypes.sizeof(ctypes.c_void_p) if parts else 0
        for one, each in zip(described, parts, strict=True):
            one.inputs, one.count = place, each.length
            place += width
            if each.rows is not None:
                one.rows = each.rows.data_ptr()
        run = _Run(
            address,
            len(code),
            ctypes.addressof(described),
            len(parts),
            ctypes.addressof(tables),
            ctypes.addressof(put_into),
            ctypes.addressof(folded),
            ctypes.addressof(counters),
            _scratch.pointer(bank * (1 + self.expansions)),
            self.boundaries,
            bank,
            self.registers,
            part,
            begin,
            self.step,
            capacity if outputs else rows * VECTOR_ROWS,
            MOST_EXPANDED,
            0,
            None,
        )
        library.pystachio_run_program(ctypes.byref(run))
        ends = [0] * part + [one.put for one in described[part : run.part]]
        if run.part < len(parts):
            ends.append(run.put)
        return ProgramRun(run.put, ends, run.part, run.begin, list(counters))


def _addresses(pointers: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(pointers)))(*pointers)


def is_available() -> bool:
    """Whether programs can run here."""
    return native.library() is not None
