"""Every operation of the interpreter on single rows against numpy, on whole vectors, parts of them and chosen rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pystachio.operators.kernels import program as programs
from pystachio.operators.kernels import ranks
from pystachio.operators.kernels.hash_compiled import KeyTable
from pystachio.operators.kernels.hash_table import number
from pystachio.operators.kernels.instructions import Comparison, Operation, Register, kind_of
from pystachio.operators.kernels.key_sets import BitSet, BloomFilter, key_set
from tests.operators.kernels.written import (
    INTEGERS,
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
    same,
)

pytestmark = [
    pytest.mark.skipif(not programs.is_available(), reason="without the compiled library"),
    pytest.mark.usefixtures("instructions"),
]


@every_length
@every_choice
@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32, torch.float64, torch.bool])
def test_columns_come_and_go(count: int, which: str, dtype: torch.dtype) -> None:
    chance, rows, written = rng(1), positions(which, count), Written()
    if dtype == torch.bool:
        values = masks(chance, count)
    else:
        values = fractions(chance, count, dtype) if dtype.is_floating_point else numbers(chance, count, dtype)
    written.out(written.load(values), dtype)
    written.put(Operation.PUT_INPUT, written.assembler.output(dtype), 0, kind=kind_of(dtype))
    written.put(Operation.PUT_ROW, written.assembler.output(torch.int32))
    loaded, copied, row = written.run(count, rows)
    same(loaded, chosen(values, rows))
    same(copied, chosen(values, rows))
    same(row, np.arange(count) if rows is None else rows.numpy())


@every_length
@every_choice
@pytest.mark.parametrize("dtype", INTEGERS)
def test_ranges_and_members(count: int, which: str, dtype: torch.dtype) -> None:
    chance, rows = rng(2), positions(which, count)
    values, limits = numbers(chance, count, dtype), torch.iinfo(dtype)
    some = sorted(int(number) for number in numbers(chance, 6, dtype))
    ranges = [(limits.min, limits.max), (limits.min, limits.min), (limits.max, limits.max), (some[1], some[4])]
    table = masks(chance, 100)
    written, wanted, kind = Written(), [], kind_of(dtype)
    register, column = written.load(values), 0
    here = chosen(values, rows).astype(object)
    for low, high in ranges:
        expected = np.array([low <= value <= high for value in here], dtype=bool)
        written.out(written.compute(Operation.RANGE, register, x=low, y=high, is_mask=True))
        written.out(written.compute(Operation.INPUT_RANGE, column, x=low, y=high, kind=kind, is_mask=True))
        wanted += [expected, expected]
    looked_up = written.assembler.table(table)
    for low in (-50, limits.min, limits.max - 99):
        expected = np.array([0 <= value - low < 100 and bool(table[value - low]) for value in here], dtype=bool)
        written.out(written.compute(Operation.MEMBER, register, looked_up, x=low, y=100, is_mask=True))
        written.out(written.compute(Operation.INPUT_MEMBER, column, looked_up, x=low, y=100, kind=kind, is_mask=True))
        wanted += [expected, expected]
    for found, expected in zip(written.run(count, rows), wanted, strict=True):
        same(found, expected)


@every_length
@every_choice
def test_comparisons(count: int, which: str) -> None:
    chance, rows, written = rng(3), positions(which, count), Written()
    whole = [numbers(chance, count), numbers(chance, count)]
    real = [fractions(chance, count), fractions(chance, count)]
    wanted = []
    for pair, operation in ((whole, Operation.COMPARE), (real, Operation.COMPARE_FLOATS)):
        a, b = (written.load(side) for side in pair)
        x, y = (chosen(side, rows) for side in pair)
        # NaN equals itself and is above all others.
        equal = (x == y) | ((x != x) & (y != y))
        less = (x < y) | ((y != y) & (x == x))
        for comparison, expected in zip(Comparison, (equal, ~equal, less, less | equal), strict=True):
            written.out(written.compute(operation, a, b, kind=comparison, is_mask=True))
            wanted.append(expected)
    for found, expected in zip(written.run(count, rows), wanted, strict=True):
        same(found, expected)


@every_length
@every_choice
@pytest.mark.parametrize("dtype", INTEGERS)
def test_comparisons_of_columns(count: int, which: str, dtype: torch.dtype) -> None:
    chance, rows, written = rng(14), positions(which, count), Written()
    left, right = numbers(chance, count, dtype), numbers(chance, count, dtype)
    alike = torch.from_numpy(chance.random(count) < 0.3)
    right = torch.where(alike, left, right)
    columns = written.input(left), written.input(right)
    x, y = chosen(left, rows), chosen(right, rows)
    wanted = [x == y, x != y, x < y, x <= y]
    for comparison in Comparison:
        compared = written.compute(Operation.INPUT_COMPARE, *columns, comparison, kind=kind_of(dtype), is_mask=True)
        written.out(compared)
    for found, expected in zip(written.run(count, rows), wanted, strict=True):
        same(found, expected)


@every_length
@every_choice
@pytest.mark.parametrize("span", [1, 2, 63, 64, 65, 100, 127, 128])
def test_members_of_short_tables(count: int, which: str, span: int) -> None:
    chance, rows, written = rng(15), positions(which, count), Written()
    values, table = numbers(chance, count, torch.int8), masks(chance, span)
    column, wanted = written.input(values), []
    looked_up = written.assembler.table(table)
    here = chosen(values, rows).astype(object)
    for low in (-128, -100, -1, 0, 1, 127, 128, 1000):
        expected = np.array([0 <= value - low < span and bool(table[value - low]) for value in here], dtype=bool)
        kind = kind_of(torch.int8)
        written.out(written.compute(Operation.INPUT_MEMBER, column, looked_up, x=low, y=span, kind=kind, is_mask=True))
        wanted.append(expected)
    for found, expected in zip(written.run(count, rows), wanted, strict=True):
        same(found, expected)


@every_length
@every_choice
def test_arithmetic_on_integers_wraps(count: int, which: str) -> None:
    chance, rows, written = rng(4), positions(which, count), Written()
    values = [numbers(chance, count), numbers(chance, count)]
    a, b = (written.load(side) for side in values)
    x, y = (chosen(side, rows) for side in values)
    factor, term = np.int64(-(2**62) - 3), np.int64(LOWEST)
    offset = np.array([v + 5 if 0 <= v + 5 < 9 else 9 for v in x.astype(object)], dtype=np.int64)
    cases: list[tuple[Register, Any]] = [
        (written.compute(Operation.ADD, a, b), lambda: x + y),
        (written.compute(Operation.SUBTRACT, a, b), lambda: x - y),
        (written.compute(Operation.MULTIPLY, a, b), lambda: x * y),
        (written.compute(Operation.SCALE, a, x=int(factor), y=int(term)), lambda: x * factor + term),
        (written.compute(Operation.APPEND, a, b, x=int(factor)), lambda: x * factor + y),
        (written.compute(Operation.OFFSET, a, x=-5, y=9), lambda: offset),
        (written.compute(Operation.CONSTANT, x=LOWEST), lambda: np.full(len(x), LOWEST)),
    ]
    for register, _ in cases:
        written.out(register)
    with np.errstate(over="ignore"):
        for found, (_, expected) in zip(written.run(count, rows), cases, strict=True):
            same(found, expected())


@every_length
@every_choice
def test_arithmetic_on_floats(count: int, which: str) -> None:
    chance, rows, written = rng(5), positions(which, count), Written()
    values, whole = [fractions(chance, count), fractions(chance, count)], numbers(chance, count)
    a, b = (written.load(side) for side in values)
    x, y = (chosen(side, rows) for side in values)
    one, hundred = (int(np.float64(number).view(np.int64)) for number in (1, 100))
    exact = chosen(whole, rows).astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = [x + y, x - y, x * y, x / y, exact / 100, exact]
    for operation in ("ADD", "SUBTRACT", "MULTIPLY", "DIVIDE"):
        written.out(written.compute(Operation[f"{operation}_FLOATS"], a, b), torch.float64)
    for divisor in (hundred, one):
        written.out(written.compute(Operation.TO_FLOAT, written.load(whole), x=divisor), torch.float64)
    for found, expected in zip(written.run(count, rows), wanted, strict=True):
        same(found, expected)


@every_length
@every_choice
def test_masks_and_choices(count: int, which: str) -> None:
    chance, rows, written = rng(6), positions(which, count), Written()
    flags, values = [masks(chance, count), masks(chance, count)], [numbers(chance, count), numbers(chance, count)]
    a, b = (written.load(side) for side in flags)
    x, y = (chosen(side, rows) for side in flags)
    p, q = (chosen(side, rows) for side in values)
    written.out(written.compute(Operation.AND, a, b, is_mask=True))
    written.out(written.compute(Operation.OR, a, b, is_mask=True))
    written.out(written.compute(Operation.NOT, a, is_mask=True))
    written.out(written.compute(Operation.FROM_MASK, a))
    written.out(written.compute(Operation.CHOOSE, a, *(written.load(side) for side in values)))
    for found, expected in zip(written.run(count, rows), (x & y, x | y, ~x, x, np.where(x, p, q)), strict=True):
        same(found, expected)


@every_length
@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32, torch.float64, torch.bool])
def test_tables(count: int, dtype: torch.dtype) -> None:
    chance, written = rng(7), Written()
    if dtype == torch.bool:
        table = masks(chance, 50)
    else:
        table = fractions(chance, 50, dtype) if dtype.is_floating_point else numbers(chance, 50, dtype)
    index = torch.from_numpy(chance.integers(-7, 43, count))
    at, place = written.load(index), written.assembler.table(table)
    operation = Operation.GATHER_FLOAT if dtype.is_floating_point else Operation.GATHER
    written.out(written.compute(operation, at, place, x=7, kind=kind_of(dtype)), dtype)
    written.put(Operation.PUT_TABLE, written.assembler.output(dtype), at, place, x=7, kind=kind_of(dtype))
    for found in written.run(count):
        same(found, table.numpy()[index.numpy() + 7])


@every_length
@pytest.mark.parametrize("keys", [1, 100, 3000])
def test_hash_tables(count: int, keys: int) -> None:
    chance, written = rng(8), Written()
    held = torch.unique(numbers(chance, keys))
    table = number(held).table()
    assert isinstance(table, KeyTable)
    wanted = torch.cat((held, numbers(chance, 5000)))[:count] if count < keys else numbers(chance, count)
    wanted = torch.where(masks(chance, count), held[torch.from_numpy(chance.integers(0, len(held), count))], wanted)
    slots = written.assembler.table(table.slots)
    written.out(written.compute(Operation.HASH_FIND, written.load(wanted), slots, x=len(table.slots)))
    (found,) = written.run(count)
    same(found, table.lookup(wanted).numpy())


@every_length
@pytest.mark.parametrize("by", [2, 3, 1000, 2**52, 2**53 + 1, 2**63 - 1])
def test_division(count: int, by: int) -> None:
    chance, written = rng(16), Written()
    wide, narrow = numbers(chance, count), numbers(chance, count) >> 11
    wanted = []
    for values, exact in ((wide, 0), (narrow, 2)):
        if exact and by > 2**52:
            continue
        register = written.load(values)
        down = [int(value) // by for value in values]
        for kind in (0, 1):
            written.out(written.compute(Operation.DIVIDE, register, x=by, kind=kind + exact))
            towards_zero = [q + (kind and q < 0 and q * by != int(v)) for q, v in zip(down, values, strict=True)]
            wanted.append(np.array(towards_zero, dtype=np.int64))
    for found, expected in zip(written.run(count), wanted, strict=True):
        same(found, expected)


@every_length
@pytest.mark.parametrize("span", [1, 63, 64, 65, 5000])
def test_ranks(count: int, span: int) -> None:
    chance, written = rng(15), Written()
    held = np.flatnonzero(chance.random(span) < 0.3)
    table = ranks.number(torch.from_numpy(held), span).table()
    codes = torch.from_numpy(chance.integers(0, span + 1, count))
    written.out(written.compute(Operation.RANK, written.load(codes), written.assembler.table(table.words)))
    (found,) = written.run(count)
    positions_held = {code: rank + 1 for rank, code in enumerate(held.tolist())}
    same(found, np.array([positions_held.get(code, 0) for code in codes.tolist()]))


@every_length
@every_choice
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("low", [-(2**31), -100, 0, 5, 2**31 - 8000])
def test_bits_of_columns(count: int, which: str, dtype: torch.dtype, low: int) -> None:
    """Straight from a column, whose values may be as far from the set as their type allows."""
    chance, rows, written = rng(17), positions(which, count), Written()
    values = numbers(chance, count, dtype)
    span = 7000
    near = torch.from_numpy(chance.integers(low - 20, low + span + 20, count))
    limits = torch.iinfo(dtype)
    values = torch.where(masks(chance, count), near.clamp(limits.min, limits.max).to(dtype), values)
    held = low + np.flatnonzero(chance.random(span) < 0.4)
    keys = key_set((held,), (low, low + span - 1))
    assert isinstance(keys, BitSet)
    written.load(values)
    table = written.assembler.table(keys.bits)
    written.out(written.compute(Operation.INPUT_BIT, 0, table, x=low, y=span, kind=kind_of(dtype), is_mask=True))
    (found,) = written.run(count, rows)
    same(found, keys.contains(chosen(values, rows).astype(np.int64)))


@every_length
@pytest.mark.parametrize("span", [1, 7, 100, 2**40, 2**64 - 1])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_sets_of_keys(count: int, span: int, share: float) -> None:
    """Bits where the range is narrow, else a Bloom filter: with no key missing, and hardly another one found."""
    chance, written = rng(14), Written()
    low = LOWEST if span > 2**41 else -3
    ends = [low, low + span - 1]
    held = np.array([*ends, *(low + int(chance.random() * span) for _ in range(50 if span > 8 else 0))], dtype=np.int64)
    keys = key_set((held,), (low, low + span - 1))
    values = torch.where(
        masks(chance, count, share), torch.from_numpy(chance.choice(held, count)), numbers(chance, count)
    )
    register = written.load(values)
    match keys:
        case None:
            assert span == 1
            return
        case BitSet(bits=bits):
            table = written.assembler.table(bits)
            mask = written.compute(Operation.BIT, register, table, x=keys.low, y=keys.span, is_mask=True)
        case BloomFilter(words=words):
            table = written.assembler.table(words)
            mask = written.compute(Operation.BLOOM, register, table, x=keys.shift, is_mask=True)
    written.out(mask)
    (found,) = written.run(count)
    same(found, keys.contains(values.numpy()))
    present = np.isin(values.numpy(), held)
    assert found[present].all()
    others = found[~present]
    assert others.sum() <= (0 if isinstance(keys, BitSet) else 2 + 0.02 * len(others))
