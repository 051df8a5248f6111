"""Programs under test: their inputs, their outputs, and numbers to put through them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest
import torch

from pystachio.operators.kernels.assembler import Assembler
from pystachio.operators.kernels.instructions import Operation, Register, kind_of
from pystachio.operators.kernels.program import InputRows, Program

LOWEST, HIGHEST = -(2**63), 2**63 - 1
LENGTHS: Final = [0, 1, 1023, 1024, 1025, 5000]
INTEGERS: Final = [torch.int8, torch.int16, torch.int32, torch.int64]
WHICH: Final = ["all", "some", "none", "repeated"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def numbers(chance: np.random.Generator, count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Anything that the dtype holds, its ends often."""
    limits = torch.iinfo(dtype)
    ends = np.array([limits.min, limits.max, 0, -1, 1, limits.min + 1], dtype=np.int64)
    values = chance.integers(limits.min, limits.max, count, dtype=np.int64, endpoint=True)
    return torch.from_numpy(np.where(chance.random(count) < 0.4, chance.choice(ends, count), values)).to(dtype)


def fractions(chance: np.random.Generator, count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, 5e-324])
    values = np.where(chance.random(count) < 0.5, chance.choice(special, count), chance.normal(size=count))
    return torch.from_numpy(values).to(dtype)


def masks(chance: np.random.Generator, count: int, share: float = 0.5) -> torch.Tensor:
    return torch.from_numpy(chance.random(count) < share)


def positions(which: str, count: int) -> torch.Tensor | None:
    """Which rows of a column of `count` are processed."""
    chance = rng(count)
    match which:
        case "all":
            return None
        case "some":
            return torch.from_numpy(np.flatnonzero(chance.random(count) < 0.3).astype(np.int32))
        case "none":
            return torch.empty(0, dtype=torch.int32)
        case _:
            return torch.from_numpy(chance.integers(0, max(1, count), count, dtype=np.int32))


class Written:
    """An assembler with its inputs and outputs."""

    def __init__(self) -> None:
        self.assembler = Assembler()
        self.inputs: list[torch.Tensor] = []
        self.put = self.assembler.perform
        self.compute = self.assembler.compute

    def input(self, values: torch.Tensor) -> int:
        self.inputs.append(values.contiguous())
        return len(self.inputs) - 1

    def load(self, values: torch.Tensor) -> Register:
        if values.dtype == torch.bool:
            return self.compute(Operation.LOAD_MASK, self.input(values), is_mask=True)
        operation = Operation.LOAD_FLOAT if values.dtype.is_floating_point else Operation.LOAD_INTEGER
        return self.compute(operation, self.input(values), kind=kind_of(values.dtype))

    def filter(self, mask: torch.Tensor | Register) -> None:
        self.put(Operation.FILTER, 0, mask if isinstance(mask, Register) else self.load(mask))

    def out(self, register: Register, dtype: torch.dtype = torch.int64) -> None:
        operation = (
            Operation.PUT_MASK
            if register.is_mask
            else Operation.PUT_FLOAT
            if dtype.is_floating_point
            else Operation.PUT_INTEGER
        )
        number = self.assembler.output(torch.bool if register.is_mask else dtype)
        self.put(operation, number, register, kind=kind_of(dtype))

    def assemble(self) -> Program:
        self.put(Operation.BOUNDARY, 0)
        return self.assembler.assemble(1)

    def run(self, count: int, rows: torch.Tensor | None = None, *, capacity: int | None = None) -> list[np.ndarray]:
        """All outputs, from as many runs as the capacity needs."""
        program = self.assemble()
        parts = list(runs(program, self.inputs, count, rows, capacity))
        return [np.concatenate([part[i] for part in parts]) for i in range(len(program.outputs))]


def runs(
    program: Program, inputs: list[torch.Tensor], count: int, rows: torch.Tensor | None, capacity: int | None
) -> Iterator[list[np.ndarray]]:
    size = count if rows is None else len(rows)
    room = max(size, 1) if capacity is None else capacity
    begin, reached = 0, 0
    addresses = [values.data_ptr() for values in inputs]
    yield [torch.empty(0, dtype=dtype).numpy() for dtype in program.outputs]
    while begin < size:
        outputs = [torch.full((room + 8,), 77, dtype=torch.int64).to(dtype) for dtype in program.outputs]
        run = program.run([InputRows(addresses, size, rows)], 0, begin, outputs=outputs, capacity=room)
        assert 0 <= run.put <= room
        assert run.part == 1 or run.begin > begin or run.put == 0
        for output in outputs:
            assert (output[room:] == torch.full((1,), 77).to(output.dtype)).all(), "written behind the end"
        assert run.counters[0] == run.put
        reached += run.put
        yield [output[: run.put].numpy() for output in outputs]
        if run.part == 1:
            break
        if run.begin == begin:
            room *= 2
        begin = run.begin


def chosen(values: torch.Tensor, rows: torch.Tensor | None) -> np.ndarray:
    array: np.ndarray = values.numpy()
    return array if rows is None else array[rows.numpy()]


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(found, wanted)


every_length = pytest.mark.parametrize("count", LENGTHS)
every_choice = pytest.mark.parametrize("which", WHICH)
