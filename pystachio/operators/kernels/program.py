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
                code[change.instruction][change.constant] = signed(change.value)
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
