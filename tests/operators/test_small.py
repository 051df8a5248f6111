"""What is small enough for the loop: few rows, bytes and columns, and no large dictionary."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.expressions import Call, Expression, FieldReference, IfThen, InList, Literal
from pystachio.operators.kernels.selection import take_late
from pystachio.operators.small import MOST_COLUMNS, are_short, are_small, is_light, is_small


def integers(rows: int, columns: int = 1) -> Batch:
    column = column_from_arrow(pa.array(range(rows), pa.int64()))
    return Batch((column,) * columns, rows, None)


@pytest.mark.parametrize(
    ("batches", "small"),
    [
        ([], True),
        ([integers(0)], True),
        ([integers(1024)], True),
        ([integers(1025)], False),
        ([integers(600), integers(600)], False),
        ([integers(1024, 9)], False),
        ([integers(1, MOST_COLUMNS)], True),
        ([integers(1, MOST_COLUMNS), integers(1)], False),
    ],
)
def test_rows_bytes_and_columns_of_all_batches_count(batches: list[Batch], small: bool) -> None:
    assert is_small(batches) is small


def test_what_is_done_with_codes_may_be_done_with_all_values() -> None:
    def coded(values: int) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(map(str, range(values))))

    assert are_small([column_from_arrow(coded(4096))])
    assert not are_small([column_from_arrow(coded(4097))])


def test_what_is_done_with_codes_may_be_done_with_all_bytes_of_their_values() -> None:
    def coded(length: int) -> pa.Array:
        values = pa.array([str(number) * length for number in range(10)])
        return pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), values)

    assert are_small([column_from_arrow(coded(100_000))])
    assert not are_small([column_from_arrow(coded(110_000))])


def test_long_texts_are_not_small() -> None:
    assert are_small([column_from_arrow(pa.array(["short"]))])
    assert not are_small([column_from_arrow(pa.array(["x" * 70_000]))])


def test_columns_of_which_few_rows_are_not_long() -> None:
    number, short, long = (column_from_arrow(pa.array(values)) for values in ([1] * 10**6, ["a"], ["x" * 2_000_000]))
    coded = column_from_arrow(pa.array(["x" * 2_000_000]).dictionary_encode())
    assert are_short([number, short])
    assert not are_short([number, long])
    assert not are_short([coded])
    assert not are_short([take_late(long, torch.zeros(1, dtype=torch.int64))])


NUMBER = FieldReference(0, pa.int64())
TEXT = FieldReference(1, pa.string())
IS_ONE = Call("equal", (NUMBER, Literal(1, pa.int64())), pa.bool_())


MONEY, RATIO = FieldReference(2, pa.decimal128(15, 2)), FieldReference(3, pa.decimal128(38, 2))


def many_cases(count: int) -> Expression:
    return IfThen(((IS_ONE, NUMBER),) * count, NUMBER, pa.int64())


@pytest.mark.parametrize(
    ("expressions", "light"),
    [
        ((), True),
        ((NUMBER, TEXT), True),
        ((IS_ONE,), True),
        ((Call("equal", (TEXT, Literal("a", pa.string())), pa.bool_()),), True),
        ((InList(TEXT, (Literal("a", pa.string()), Literal("b", pa.string())), pa.bool_()),), True),
        ((InList(NUMBER, (Literal(1, pa.int64()),) * 100, pa.bool_()),), False),
        ((Call("like", (TEXT, Literal("%a%", pa.string())), pa.bool_()),), False),
        ((Call("length", (TEXT,), pa.int64()),), False),
        ((Call("concat", (TEXT, TEXT), pa.string()),), False),
        ((Call("add", (RATIO, RATIO), pa.decimal128(38, 2)),), True),
        ((Call("multiply", (MONEY, NUMBER), pa.decimal128(18, 2)),), True),
        ((Call("multiply", (MONEY, MONEY), pa.decimal128(31, 4)),), False),
        ((Call("divide", (RATIO, NUMBER), pa.decimal128(38, 6)),), False),
        ((IS_ONE, Call("gt", (Call("divide", (RATIO, NUMBER), pa.decimal128(38, 6)), RATIO), pa.bool_())), False),
        ((many_cases(2),), True),
        ((many_cases(600),), False),
        ((IS_ONE,) * 9, False),
    ],
)
def test_few_steps_over_numbers_are_light(expressions: tuple[Expression, ...], light: bool) -> None:
    assert is_light(expressions) is light
