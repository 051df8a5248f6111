"""Rows that are dropped, multiplied and folded by programs; runs that stop and go on; what a program can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import torch

from pystachio.operators.kernels import native
from pystachio.operators.kernels import program as programs
from pystachio.operators.kernels.assembler import Assembler, TooManyRegisters
from pystachio.operators.kernels.instructions import FEW_SLOTS, WAYS, Operation, kind_of
from pystachio.operators.kernels.program import Change, InputRows
from tests.operators.kernels.written import (
    HIGHEST,
    LOWEST,
    Written,
    chosen,
    every_choice,
    every_length,
    fractions,
    masks,
    numbers,
    positions,
    rng,
    runs,
    same,
)

pytestmark = [
    pytest.mark.skipif(not programs.is_available(), reason="without the compiled library"),
    pytest.mark.usefixtures("instructions"),
]


@every_length
@every_choice
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_registers_stay_aligned_across_filters(count: int, which: str, share: float) -> None:
    chance, rows, written = rng(9), positions(which, count), Written()
    values, real, flags = numbers(chance, count), fractions(chance, count), masks(chance, count)
    kept = [masks(chance, count, share), masks(chance, count, 0.7)]
    a, b, c = (written.load(column) for column in (values, real, flags))
    written.filter(kept[0])
    later = written.load(values)
    written.filter(kept[1])
    written.out(a)
    written.out(b, torch.float64)
    written.out(c)
    written.out(later)
    written.put(Operation.PUT_ROW, written.assembler.output(torch.int32))
    stay = chosen(kept[0], rows) & chosen(kept[1], rows)
    place = np.arange(count) if rows is None else rows.numpy()
    wanted = (chosen(values, rows), chosen(real, rows), chosen(flags, rows), chosen(values, rows), place)
    for found, expected in zip(written.run(count, rows), wanted, strict=True):
        same(found, expected[stay])


def expanded(
    groups: np.ndarray, counts: np.ndarray, order: np.ndarray | None, everything: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The row and the number of each pair."""
    offsets = np.concatenate(([0], np.cumsum(counts)))
    of, found = [], []
    for row, group in enumerate(groups):
        matches = np.arange(offsets[group], offsets[group + 1])
        numbers = 1 + (matches if order is None else order[matches])
        if everything and not len(numbers):
            numbers = np.zeros(1, dtype=np.int64)
        of += [row] * len(numbers)
        found += numbers.tolist()
    return np.array(of, dtype=np.int64), np.array(found, dtype=np.int64)


@every_length
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("with_order", [False, True])
@pytest.mark.parametrize("shape", ["few", "none", "many", "one each"])
def test_expansions(count: int, everything: bool, dtype: torch.dtype, with_order: bool, shape: str) -> None:
    chance, written = rng(10), Written()
    counts = {
        "few": chance.integers(0, 4, 20),
        "none": np.zeros(20, dtype=np.int64),
        "many": np.where(chance.random(20) < 0.9, 0, 1500),
        "one each": np.ones(20, dtype=np.int64),
    }[shape]
    order = chance.permutation(int(counts.sum())) if with_order else None
    groups, values, flags = chance.integers(0, 20, count), numbers(chance, count), masks(chance, count)
    kept = masks(chance, count, 0.8)
    registers = [written.load(torch.from_numpy(groups)), written.load(values), written.load(flags)]
    written.filter(kept)
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(counts)))).to(dtype)
    pair = written.compute(
        Operation.EXPAND_ALL if everything else Operation.EXPAND,
        registers[0],
        written.assembler.table(offsets),
        -1 if order is None else written.assembler.table(torch.from_numpy(order).to(dtype)),
        kind=kind_of(dtype),
        is_shared=False,
    )
    odd = written.compute(Operation.RANGE, registers[1], x=LOWEST, y=5, is_mask=True)
    written.filter(odd)
    written.out(pair)
    written.out(registers[1])
    written.out(registers[2])
    written.put(Operation.PUT_ROW, written.assembler.output(torch.int32))
    place = np.flatnonzero(kept.numpy())
    of, found = expanded(groups[place], counts, order, everything)
    place = place[of] if len(of) else np.empty(0, dtype=np.int64)
    stay = values.numpy()[place] <= 5
    place, found = place[stay], found[stay]
    wanted = (found, values.numpy()[place], flags.numpy()[place], place)
    program = written.assemble()
    for capacity in (None, 1):
        parts = list(runs(program, written.inputs, count, None, capacity))
        for column, expected in enumerate(wanted):
            same(np.concatenate([part[column] for part in parts]), expected)


def test_expansions_of_expansions_and_flags() -> None:
    chance, written = rng(11), Written()
    first, second = chance.integers(0, 5, 10), chance.integers(0, 40, 60)
    groups = torch.from_numpy(chance.integers(0, 10, 3000))
    flags = torch.zeros(1 + int(second.sum()), dtype=torch.uint8)
    tables = [torch.from_numpy(np.concatenate(([0], np.cumsum(counts)))) for counts in (first, second)]
    outer, carried = written.load(groups), written.load(torch.arange(3000))
    for table in tables:
        outer = written.compute(
            Operation.EXPAND, outer, written.assembler.table(table), -1, kind=kind_of(torch.int64), is_shared=False
        )
    written.put(Operation.FLAG, 0, outer, written.assembler.table(flags), x=0)
    written.out(outer)
    written.out(carried)
    of, found = expanded(groups.numpy(), first, None, False)
    of_found, last = expanded(found, second, None, False)
    numbers_, rows = written.run(3000)
    same(numbers_, last)
    same(rows, of[of_found])
    same(np.flatnonzero(flags.numpy()), np.unique(last))


def test_a_run_ends_when_expansions_have_made_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MOST_EXPANDED", 5000)
    written = Written()
    offsets = torch.tensor([0, 10])
    group = written.load(torch.zeros(4000, dtype=torch.int64))
    written.compute(Operation.EXPAND, group, written.assembler.table(offsets), -1, kind=3, is_shared=False)
    program = written.assemble()
    rows = [InputRows([written.inputs[0].data_ptr()], 4000)]
    run = program.run(rows)
    assert (run.begin, run.put) == (1024, 10_240)
    run = program.run(rows, 0, run.begin)
    assert (run.begin, run.put) == (2048, 10_240)


def test_few_rows_keep_the_interpreter_unless_they_may_become_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    library = native.library

    def noted(rows: int | None = None) -> object:
        asked.append(rows)
        return library(rows)

    plain, expanding = Written(), Written()
    for written in (plain, expanding):
        group = written.load(torch.zeros(10, dtype=torch.int64))
        if written is expanding:
            table = written.assembler.table(torch.tensor([0, 10]))
            written.compute(Operation.EXPAND, group, table, -1, kind=3, is_shared=False)
    monkeypatch.setattr(native, "library", noted)
    for written in (plain, expanding):
        written.assemble().run([InputRows([written.inputs[0].data_ptr()], 10)])
    assert asked == [10, None]


def test_a_full_run_goes_on_where_it_stopped() -> None:
    written = Written()
    values = torch.arange(5000)
    written.out(written.load(values))
    program = written.assemble()
    output = torch.empty(2500, dtype=torch.int64)
    rows = [InputRows([values.data_ptr()], 5000)]
    begins, begin, part = [], 0, 0
    while part == 0:
        run = program.run(rows, 0, begin, outputs=[output], capacity=2500)
        part = run.part
        same(output[: run.put].numpy(), np.arange(begin, begin + run.put))
        begin += run.put
        begins.append((run.part, run.begin))
    assert begins == [(0, 2048), (0, 4096), (1, 0)]
    run = program.run(rows, outputs=[output], capacity=1023)
    assert (run.put, run.part, run.begin) == (0, 0, 0)


def test_parts_are_worked_on_in_turn() -> None:
    """Whole ones, chosen rows and none, with room for some of them at a time."""
    written = Written()
    written.out(written.load(torch.zeros(1, dtype=torch.int64)))
    program = written.assemble()
    columns = [torch.arange(5000), torch.arange(5000, 5100), torch.arange(9000, 9003), torch.arange(10_000, 13_000)]
    chosen = torch.tensor([2, 0, 2], dtype=torch.int32)
    rows = [
        InputRows([columns[0].data_ptr()], 5000),
        InputRows([columns[1].data_ptr()], 0),
        InputRows([columns[2].data_ptr()], 3, chosen),
        InputRows([columns[3].data_ptr()], 3000),
    ]
    wanted = np.concatenate([columns[0], columns[2][chosen.long()], columns[3]])
    for capacity in (1024, 3000, 10_000):
        output, found, part, begin = torch.empty(capacity, dtype=torch.int64), [], 0, 0
        while part < len(rows):
            run = program.run(rows, part, begin, outputs=[output], capacity=capacity)
            assert run.ends[:part] == [0] * part
            assert run.ends[-1] == run.put
            part, begin = run.part, run.begin
            found.append(output[: run.put].numpy().copy())
        same(np.concatenate(found), wanted)
    assert run.ends == [5000, 5000, 5003, 8003]


FOLDS: Final[dict[Operation, tuple[int, Callable[..., Any]]]] = {
    Operation.FOLD_COUNT: (0, np.add.at),
    Operation.FOLD_SUM: (0, np.add.at),
    Operation.FOLD_MINIMUM: (HIGHEST, np.minimum.at),
    Operation.FOLD_MAXIMUM: (LOWEST, np.maximum.at),
    Operation.FOLD_SUM_FLOATS: (0, np.add.at),
}


@every_length
@pytest.mark.parametrize("slots", [1, 2, 3, 5, 6, 8, 9, FEW_SLOTS, FEW_SLOTS + 1, 100_000])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_folds(count: int, slots: int, masked: bool, coded: bool, changed: bool) -> None:
    if not coded and slots > 1:
        slots = 1
    chance, written = rng(12), Written()
    codes = chance.integers(0, slots, count)
    codes[chance.random(count) < 0.2] = slots - 1
    whole, real = numbers(chance, count), torch.from_numpy(chance.integers(-99, 99, count) / 4)
    mask = masks(chance, count)
    kept = masks(chance, count, 0.9)
    code = written.load(torch.from_numpy(codes)) if coded else -1
    counted = written.load(mask) if masked else -1
    registers = {Operation.FOLD_SUM_FLOATS: written.load(real)}
    other = written.load(whole)
    written.filter(kept)
    states, wanted, changes = [], [], []
    size = slots * WAYS if slots <= FEW_SLOTS else slots
    stay = (kept & mask if masked else kept).numpy()
    at = codes[stay] if coded else np.zeros(int(stay.sum()), dtype=np.int64)
    for state, (operation, (initial, put)) in enumerate(FOLDS.items()):
        dtype = np.float64 if operation is Operation.FOLD_SUM_FLOATS else np.int64
        changes.append(Change(written.assembler.length, "x", slots))
        written.put(operation, state, code, registers.get(operation, other), counted, x=0 if changed else slots)
        states.append(torch.from_numpy(np.full(size, initial, dtype=dtype)))
        expected = np.full(slots, initial, dtype=dtype)
        values = (real if dtype is np.float64 else whole).numpy()[stay]
        put(expected, at, 1 if operation is Operation.FOLD_COUNT else values)
        wanted.append(expected)
    program = written.assemble()
    addresses = [values.data_ptr() for values in written.inputs]
    run = program.run([InputRows(addresses, count)], states=states, changes=changes if changed else ())
    assert run.put == int(kept.sum())
    for operation, state, expected in zip(FOLDS, states, wanted, strict=True):
        values = state.numpy()
        if slots <= FEW_SLOTS:
            ways = values.reshape(WAYS, slots)
            joins = {Operation.FOLD_MINIMUM: np.min, Operation.FOLD_MAXIMUM: np.max}
            values = joins.get(operation, np.sum)(ways, axis=0)
        same(values, expected)


def test_equal_instructions_are_there_once() -> None:
    written = Written()
    a = written.load(torch.arange(3))
    assert written.compute(Operation.SCALE, a, x=2) is written.compute(Operation.SCALE, a, x=2)
    assert written.compute(Operation.SCALE, a, x=2) is not written.compute(Operation.SCALE, a, x=2, y=1)
    assert written.compute(Operation.SCALE, a, x=2) is not written.compute(Operation.SCALE, a, x=2, is_shared=False)


def test_what_was_written_is_forgotten() -> None:
    written = Written()
    values = torch.arange(2000)
    a = written.load(values)
    saved = written.assembler.saved()
    written.out(written.compute(Operation.SCALE, a, x=3))
    written.assembler.table(values)
    written.assembler.step = 1
    written.assembler.restore(saved)
    assert (written.assembler.tables, written.assembler.outputs, written.assembler.step) == ([], [], 1024)
    written.out(written.compute(Operation.SCALE, a, x=5))
    same(written.run(2000)[0], np.arange(2000) * 5)


@pytest.mark.parametrize("is_mask", [False, True])
def test_at_most_64_registers(is_mask: bool) -> None:
    """All of which stay across a filter."""
    columns = [torch.arange(3000) * factor for factor in range(66)]
    if is_mask:
        columns = [column % 7 < 3 for column in columns]
    kept = masks(rng(13), 3000)
    for live in (63, 64, 65):
        written = Written()
        registers = [written.load(column) for column in columns[:live]]
        if is_mask:
            written.filter(written.compute(Operation.RANGE, written.load(kept.long()), x=1, y=1, is_mask=True))
        else:
            written.filter(kept)
        for register in registers:
            written.out(register)
        if live + is_mask > 64:
            with pytest.raises(TooManyRegisters):
                written.assemble()
        else:
            for found, column in zip(written.run(3000), columns, strict=False):
                same(found, column.numpy()[kept.numpy()])


def test_at_most_64_boundaries() -> None:
    assert Assembler().assemble(64).boundaries == 64
    with pytest.raises(TooManyRegisters):
        Assembler().assemble(65)


def test_a_change_may_be_the_ends_of_int64() -> None:
    written = Written()
    values = torch.tensor([LOWEST, LOWEST + 5])
    written.out(written.compute(Operation.SCALE, written.load(values), x=1))
    output = torch.empty(2, dtype=torch.int64)
    changes = [Change(1, "y", -LOWEST)]
    written.assemble().run([InputRows([values.data_ptr()], 2)], outputs=[output], capacity=2, changes=changes)
    assert output.tolist() == [0, 5]
