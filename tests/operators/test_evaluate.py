"""The interpreter itself: selection, constants, evaluation on distinct values, errors in rows that do not count."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from pystachio.errors import DataError, InternalError, InvalidRequest
from pystachio.operators.arrow import batch_from_arrow, column_to_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.column import DictionaryColumn, FixedColumn
from pystachio.operators.distinct import DistinctResult
from pystachio.operators.evaluate import bind_scalars, bound_again, evaluate, select
from pystachio.operators.expressions import (
    Call,
    Cast,
    Expression,
    FieldReference,
    IfThen,
    InList,
    Literal,
    ScalarSubquery,
)
from pystachio.runtime.context import Context
from pystachio.runtime.slots import Slot

COLORS = ["red", "green", None, "blue", "red", "red", "green", None] * 4
NUMBERS = [1, 2, 3, None, 5, 0, 7, 8] * 4
TABLE = pa.table(
    {
        "color": pa.array(COLORS).dictionary_encode(),
        "number": pa.array(NUMBERS, pa.int32()),
        "text": pa.array([f"row {i}" for i in range(len(COLORS))]),
    }
)
COLOR = FieldReference(0, pa.string())
NUMBER = FieldReference(1, pa.int32())
TEXT = FieldReference(2, pa.string())


def call(function: str, *arguments: Expression, type_: pa.DataType | None = None) -> Call:
    return Call(function, arguments, type_ or pa.bool_())


def text(value: str | None) -> Literal:
    return Literal(value, pa.string())


def number(value: int) -> Literal:
    return Literal(value, pa.int32())


def batch(table: pa.Table = TABLE) -> Batch:
    return batch_from_arrow(table)


def values(expression: Expression, rows: Batch) -> list[Any]:
    found: list[Any] = column_to_arrow(evaluate(expression, rows)).to_pylist()
    return found


def rows_where(predicate: Callable[[Any, Any], bool | None]) -> list[int]:
    return [i for i, (color, n) in enumerate(zip(COLORS, NUMBERS, strict=True)) if predicate(color, n)]


class TestSelect:
    def test_rows_that_are_true_are_kept_and_null_is_not_true(self) -> None:
        rows = select(call("gt", NUMBER, number(2)), batch())
        assert rows is not None
        assert rows.tolist() == rows_where(lambda _, n: n is not None and n > 2)

    def test_all_rows_are_none(self) -> None:
        assert select(call("is_not_null", TEXT), batch()) is None
        assert select(call("or", call("is_null", NUMBER), call("lt", NUMBER, number(1000))), batch()) is None

    def test_no_row_is_an_empty_selection(self) -> None:
        for predicate in (Literal(None, pa.bool_()), Literal(False, pa.bool_()), call("lt", NUMBER, number(-5))):
            rows = select(predicate, batch())
            assert rows is not None
            assert rows.tolist() == []

    def test_conjuncts_over_bytes_run_on_the_rows_that_are_left(self) -> None:
        # The second conjunct fails on rows that the first one removes.
        parsed = Cast(call("substring", TEXT, number(5), type_=pa.string()), pa.int64())
        few = TABLE.set_column(2, "text", pa.array(["row x"] + [f"row {i}" for i in range(1, 32)]))
        predicate = call("and", call("gte", parsed, number(8)), call("gt", NUMBER, number(1)))
        rows = select(predicate, batch(few))
        assert rows is not None
        assert rows.tolist() == [i for i in range(8, 32) if (NUMBERS[i] or 0) > 1]

    def test_division_by_zero_behind_its_guard(self) -> None:
        ratio = call("divide", number(10), NUMBER, type_=pa.int32())
        guarded = call("and", call("gt", ratio, number(1)), call("not_equal", NUMBER, number(0)))
        rows = select(guarded, batch())
        assert rows is not None
        assert rows.tolist() == rows_where(lambda _, n: n not in (None, 0) and 10 // n > 1)
        with pytest.raises(DataError, match="division by zero"):
            select(call("gt", ratio, number(1)), batch())

    def test_a_batch_without_columns_has_rows(self) -> None:
        assert select(Literal(True, pa.bool_()), Batch((), 5, None)) is None


class TestConstants:
    @pytest.mark.parametrize(
        "literal",
        [
            Literal(True, pa.bool_()),
            Literal(7, pa.int64()),
            Literal(1.5, pa.float32()),
            Literal("ü", pa.string()),
            Literal(b"\x00\xff", pa.binary()),
            Literal(10**30, pa.decimal128(38, 0)),
            Literal(None, pa.string()),
            Literal(None, pa.decimal128(20, 2)),
            Literal(None, pa.null()),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("rows", [0, 1, 3])
    def test_a_literal_is_a_column_of_it(self, literal: Literal, rows: int) -> None:
        column = evaluate(literal, Batch((), rows, None))
        assert len(column) == rows
        assert column_to_arrow(column).to_pylist() == [literal.value] * rows
        assert column.type == literal.type

    def test_batches_share_the_dictionary_of_a_constant_string(self) -> None:
        first, second = evaluate(text("x"), batch()), evaluate(text("x"), batch())
        assert isinstance(first, DictionaryColumn)
        assert isinstance(second, DictionaryColumn)
        assert first.dictionary is second.dictionary


class TestDistinct:
    def test_strings_stay_codes_of_a_dictionary_that_batches_share(self) -> None:
        rows, expression = batch(), call("substring", COLOR, number(1), number(1), type_=pa.string())
        first, second = evaluate(expression, rows), evaluate(expression, rows)
        assert isinstance(first, DictionaryColumn)
        assert isinstance(second, DictionaryColumn)
        assert first.dictionary is second.dictionary
        assert column_to_arrow(first).to_pylist() == [color and color[0] for color in COLORS]

    def test_equal_results_have_equal_codes(self) -> None:
        result = evaluate(call("char_length", COLOR, type_=pa.int64()), batch())
        assert column_to_arrow(result).to_pylist() == [color and len(color) for color in COLORS]
        same = evaluate(call("left", COLOR, number(0), type_=pa.string()), batch())
        assert isinstance(same, DictionaryColumn)
        assert len(same.dictionary) == 1

    @pytest.mark.parametrize(
        ("expression", "wanted"),
        [
            (call("equal", COLOR, text("red")), lambda c: None if c is None else c == "red"),
            (call("not_equal", COLOR, text("red")), lambda c: None if c is None else c != "red"),
            (call("equal", COLOR, text("white")), lambda c: None if c is None else False),
            (call("gte", COLOR, text("blue")), lambda c: None if c is None else True),
            (call("is_null", COLOR), lambda c: c is None),
            (call("coalesce", COLOR, text("none"), type_=pa.string()), lambda c: c or "none"),
            (call("is_distinct_from", COLOR, text("red")), lambda c: c != "red"),
            (
                InList(COLOR, (text("red"), text("blue")), pa.bool_()),
                lambda c: None if c is None else c in ("red", "blue"),
            ),
            (InList(COLOR, (text("red"), text(None)), pa.bool_()), lambda c: True if c == "red" else None),
            (
                IfThen(((call("equal", COLOR, text("red")), number(1)),), number(2), pa.int32()),
                lambda c: 1 if c == "red" else 2,
            ),
            (call("nullif", COLOR, text("red"), type_=pa.string()), lambda c: None if c == "red" else c),
            (call("like", COLOR, text("%e%")), lambda c: None if c is None else "e" in c),
        ],
        ids=lambda value: None if callable(value) else str(value)[:40],
    )
    def test_results_per_row(self, expression: Expression, wanted: Callable[[Any], Any]) -> None:
        rows = batch()
        for _ in range(2):
            assert values(expression, rows) == [wanted(color) for color in COLORS]
        plain = batch(TABLE.set_column(0, "color", pa.array(COLORS)))
        assert values(expression, plain) == [wanted(color) for color in COLORS]

    def test_a_value_that_fails_and_is_not_in_the_batch_does_no_harm(self) -> None:
        codes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1]), pa.array(["1", "2", "x"]))
        rows = batch(pa.table({"color": codes}))
        assert values(Cast(COLOR, pa.int32()), rows) == [1, 2, 1, 2]
        bad = Batch((DictionaryColumn(pa.string(), *_codes(rows, [2, 2, 0, 0])),), 4, None)
        with pytest.raises(DataError):
            evaluate(Cast(COLOR, pa.int32()), bad)

    def test_a_value_that_is_refused_and_is_not_in_the_batch_does_no_harm(self) -> None:
        codes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1]), pa.array(["r.d", "blue", "("]))
        rows = batch(pa.table({"color": codes}))
        matches = call("regexp_like", text("red"), COLOR)
        assert values(matches, rows) == [True, False, True, False]
        bad = Batch((DictionaryColumn(pa.string(), *_codes(rows, [2, 2, 0, 0])),), 4, None)
        with pytest.raises(InvalidRequest):
            evaluate(matches, bad)

    def test_results_of_old_plans_do_not_pile_up(self) -> None:
        rows = batch()
        column = rows.columns[0]
        assert isinstance(column, DictionaryColumn)
        for prefix in range(300):
            evaluate(call("starts_with", COLOR, text(str(prefix))), rows)
        kept = [value for value in column.dictionary.derived.values() if isinstance(value, DistinctResult)]
        assert len(kept) <= 64

    @pytest.mark.parametrize(
        ("size", "length", "rows", "is_kept"),
        [(1023, 3, 2, True), (1024, 3, 2, False), (500, 200, 2, False), (500, 200, 501, True), (3, 3, 0, False)],
    )
    def test_a_large_dictionary_is_left_alone_by_a_batch_that_is_no_larger(
        self, size: int, length: int, rows: int, is_kept: bool
    ) -> None:
        """In values or in bytes. What a small one says is there for the next run."""
        words = pa.array([f"{number:{length}}" for number in range(size)])
        numbers = [number % size for number in range(rows)]
        one = batch(pa.table({"color": pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), words)}))
        column = one.columns[0]
        assert isinstance(column, DictionaryColumn)
        assert len(column.dictionary) == size
        assert values(call("equal", COLOR, text(f"{1:{length}}")), one) == [number == 1 for number in numbers]
        assert bool(column.dictionary.derived) == is_kept


def _codes(rows: Batch, codes: list[int]) -> tuple[Any, Any]:
    column = rows.columns[0]
    assert isinstance(column, DictionaryColumn)
    return column.codes.new_tensor(codes), column.dictionary


def test_zeros_of_different_sign_are_different_constants() -> None:
    zero, minus = Literal(0.0, pa.float64()), Literal(-0.0, pa.float64())
    assert zero != minus
    assert zero == Literal(0.0, pa.float64())
    assert Literal(1, pa.int32()) != Literal(1, pa.int64())
    assert len({call("divide", NUMBER, zero), call("divide", NUMBER, minus), call("divide", NUMBER, zero)}) == 2


class TestScalars:
    @staticmethod
    def context(**slots: Literal) -> Context:
        filled: dict[tuple[str, int], Slot[object]] = {}
        for name, value in slots.items():
            slot: Slot[object] = Slot()
            slot.set(value)
            filled["scalar", int(name.removeprefix("s"))] = slot
        return cast(Context, SimpleNamespace(slots=filled))

    async def test_subqueries_become_literals(self) -> None:
        predicate = call("gt", NUMBER, ScalarSubquery(0, pa.int32()))
        bound = await bind_scalars(self.context(s0=number(3)), predicate)
        assert bound == call("gt", NUMBER, number(3))

    async def test_a_value_of_another_type_is_converted(self) -> None:
        bound = await bind_scalars(
            self.context(s1=Literal(150, pa.decimal128(10, 2))), ScalarSubquery(1, pa.decimal128(20, 4))
        )
        assert bound == Literal(15000, pa.decimal128(20, 4))

    async def test_without_subqueries_the_expression_is_the_same_object(self) -> None:
        predicate = call("gt", NUMBER, number(1))
        assert await bind_scalars(self.context(), predicate) is predicate

    async def test_what_is_bound_to_the_same_values_again_is_the_same_object(self) -> None:
        predicate = call("gt", NUMBER, ScalarSubquery(0, pa.int32()))
        first = await bound_again(self.context(s0=number(3)), predicate, None)
        assert (await bound_again(self.context(s0=number(3)), predicate, first)).expression is first.expression
        for other in (number(4), Literal(None, pa.int32())):
            bound = (await bound_again(self.context(s0=other), predicate, first)).expression
            assert bound == call("gt", NUMBER, other)
            assert bound is not first.expression

    @pytest.mark.parametrize(
        ("before", "now", "same"),
        [(0.0, 0.0, True), (1.5, 1.5, True), (0.0, -0.0, False), (1.5, 2.5, False), (math.nan, math.nan, False)],
    )
    async def test_floats_are_the_same_with_all_their_bits(self, before: float, now: float, same: bool) -> None:
        subquery = ScalarSubquery(0, pa.float64())
        first = await bound_again(self.context(s0=Literal(before, pa.float64())), subquery, None)
        bound = await bound_again(self.context(s0=Literal(now, pa.float64())), subquery, first)
        assert (bound is first) == same
        assert isinstance(bound.expression, Literal)
        assert repr(bound.expression.value) == repr(now)

    def test_an_unbound_subquery_is_a_defect(self) -> None:
        with pytest.raises(InternalError):
            evaluate(ScalarSubquery(0, pa.int32()), batch())


def test_case_evaluates_a_branch_only_where_it_is_reached() -> None:
    parsed = Cast(TEXT, pa.int64())
    table = TABLE.set_column(2, "text", pa.array(["12" if n == 7 else "no number" for n in NUMBERS]))
    expression = IfThen(((call("equal", NUMBER, number(7)), parsed),), Literal(None, pa.int64()), pa.int64())
    assert values(expression, batch(table)) == [12 if n == 7 else None for n in NUMBERS]


def test_columns_of_type_null_give_null() -> None:
    rows = batch(pa.table({"n": pa.nulls(3)}))
    assert values(call("equal", FieldReference(0, pa.null()), number(1)), rows) == [None] * 3


def test_known_ranges_decide_comparisons() -> None:
    column = FixedColumn(pa.int32(), cast(FixedColumn, batch().columns[1]).values, None, (0, 8))
    rows = Batch((batch().columns[0], column, batch().columns[2]), 32, None)
    assert select(call("lte", NUMBER, number(8)), rows) is None
    nothing = select(call("gt", NUMBER, number(8)), rows)
    assert nothing is not None
    assert nothing.tolist() == []
