"""Groups by columns of a build side, folded by the number of its row: against the operators one by one."""

from __future__ import annotations

import random
from typing import Any, Final

import pyarrow as pa
import pytest
import torch

from pystachio.operators.aggregation.aggregate import aggregate
from pystachio.operators.aggregation.partial import PartialFold
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.column import FixedColumn
from pystachio.operators.expressions import AggregateCall, Cast, Expression, FieldReference, JoinKind
from pystachio.operators.filter import Filter
from pystachio.operators.fusion import flow
from pystachio.operators.fusion.groups import RowKey
from pystachio.operators.joins.join import Join
from pystachio.operators.project import Project
from tests.operators.conftest import Source
from tests.operators.fusion.chains import (
    WORDS,
    Given,
    agree,
    batch_of,
    booleans,
    call,
    codes,
    dictionary_of,
    floats,
    integers,
    lit,
    plain,
    schema_of,
)

INT, TEXT = pa.int64(), pa.string()
PROBE: Final = (INT, INT, pa.bool_(), INT)
"""Two keys of joins, what is grouped by, and what is summed."""
BUILD: Final = (INT, TEXT, TEXT, INT, pa.float64())


def ref(position: int) -> Expression:
    """Of the probe side's columns and those of a build side without its key."""
    return FieldReference(position, (*PROBE, *BUILD[1:])[position])


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_FEWEST_ROWS", 0)


@pytest.fixture
def put_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each row key has put out at once."""
    seen: list[int] = []
    inner = RowKey.columns

    def columns(key: RowKey, *arguments: Any) -> Any:
        seen.append(len(key.positions))
        return inner(key, *arguments)

    monkeypatch.setattr(RowKey, "columns", columns)
    return seen


def stored(r: random.Random, rows: int, nulls: float, *, unique: bool) -> Batch:
    """A join's key, which some rows may share, and columns of which several rows may have the same values."""
    key = integers(r, INT, rows, 0, max(1, rows // 2), nulls=nulls)
    if unique:
        key = type(key)(INT, key.values.long().new_tensor(r.sample(range(2 * rows), rows)))
    number = floats(r, rows, nulls)
    # Either zero may stand for a group of both.
    number = type(number)(number.type, number.values + 0.0, number.validity)
    return batch_of(
        key,
        plain(r, rows, TEXT, WORDS[: r.choice([2, len(WORDS)])], nulls),
        codes(r, rows, dictionary_of(WORDS), nulls),
        integers(r, INT, rows, -(10**9), 10**9, nulls=nulls),
        number,
    )


def pushed(r: random.Random, rows: int, distinct: int, nulls: float) -> Batch:
    return batch_of(
        integers(r, INT, rows, 0, distinct, nulls=nulls),
        integers(r, INT, rows, 0, distinct, nulls=nulls),
        booleans(r, rows, nulls),
        integers(r, INT, rows, -100, 100, nulls=nulls),
    )


@pytest.mark.parametrize("first", range(0, 120, 10))
def test_random_groups_behind_joins(harness: Any, put_out: list[int], first: int) -> None:
    for seed in range(first, first + 10):
        check_random_groups(harness, random.Random(seed))
    assert put_out, "some were numbers of rows"


def check_random_groups(harness: Any, r: random.Random) -> None:
    nulls, unique = r.choice([0.0, 0.2]), r.random() < 0.6
    sides = [stored(r, r.choice([1, 7, 40]), nulls, unique=unique) for _ in range(2)]
    source = Given(
        tuple(pushed(r, r.choice([1, 300, 2000]), 50, nulls) for _ in range(r.choice([1, 3]))), schema_of(*PROBE)
    )
    kinds = [r.choice([JoinKind.INNER, JoinKind.INNER, JoinKind.LEFT]) for _ in sides]
    types = (*PROBE, *BUILD[1:], *BUILD[1:])
    keys = tuple(r.sample(range(2, len(types)), r.choice([1, 2, 3, 5])))
    calls = (
        AggregateCall("sum", (3,), pa.decimal128(38, 0)),
        AggregateCall("count", (), INT),
        AggregateCall("min", (3,), INT, filter=2),
    )[r.choice([0, 1]) :]
    chosen: tuple[tuple[int, ...], ...] = ()
    if r.random() < 0.4:
        chosen = tuple(tuple(range(n)) for n in range(len(keys), -1, -1))[: r.choice([1, 2, 6])]
    out = [types[key] for key in keys] + [pa.int32()] * bool(chosen) + [one.type for one in calls]

    def grouped() -> Any:
        joined: Any = source
        for number, (rows, kind) in enumerate(zip(sides, kinds, strict=True)):
            width = len(joined.schema)
            output = (*range(width), *range(width + 1, width + len(BUILD)))
            side = Source((rows,), schema_of(*BUILD))
            joined = Join(joined, side, kind, (number,), (0,), (False,), None, False, "right", output, (None,))
        return aggregate(joined, keys, calls, schema_of(*out), chosen)

    agree(harness, grouped, direct_addressing=r.random() < 0.9, batch_rows=1 << 20)


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.LEFT])
@pytest.mark.parametrize("sets", [(), ((0, 1, 2), (0,), ())])
def test_texts_of_a_build_side_are_one_digit(
    harness: Any, put_out: list[int], kind: JoinKind, sets: tuple[tuple[int, ...], ...]
) -> None:
    """Also where rows without a match have none of them."""
    r = random.Random(4)
    side, source = stored(r, 40, 0.2, unique=True), Given((pushed(r, 3000, 90, 0.1),) * 2, schema_of(*PROBE))
    calls = (AggregateCall("sum", (3,), pa.decimal128(38, 0)),)
    out = schema_of(TEXT, TEXT, INT, *([pa.int32()] * bool(sets)), pa.decimal128(38, 0))

    def grouped() -> Any:
        output = (*range(len(PROBE)), *range(len(PROBE) + 1, len(PROBE) + len(BUILD)))
        given = Source((side,), schema_of(*BUILD))
        joined = Join(source, given, kind, (0,), (0,), (False,), None, False, "right", output, (None,))
        return aggregate(joined, (4, 5, 6), calls, out, sets)

    assert agree(harness, grouped).programs
    assert put_out == [3]


def test_few_values_are_addressed_themselves(harness: Any, put_out: list[int]) -> None:
    """Of many rows: a digit for each row would make many more groups than there are."""
    r = random.Random(5)
    side, source = stored(r, 3000, 0.0, unique=True), Given((pushed(r, 3000, 6000, 0.0),), schema_of(*PROBE))

    def grouped(key: int, type_: pa.DataType) -> Any:
        output = (*range(len(PROBE)), *range(len(PROBE) + 1, len(PROBE) + len(BUILD)))
        given = Source((side,), schema_of(*BUILD))
        joined = Join(source, given, JoinKind.INNER, (0,), (0,), (False,), None, False, "right", output, (None,))
        return aggregate(joined, (key,), (AggregateCall("count", (), INT),), schema_of(type_, INT), ())

    assert agree(harness, lambda: grouped(5, TEXT)).programs
    assert put_out == []
    agree(harness, lambda: grouped(6, INT))
    assert put_out == [1], "a range that is far too wide"


def test_the_range_of_a_small_build_side_is_its_own(harness: Any, put_out: list[int]) -> None:
    """Not that of the table that its rows are from."""
    r = random.Random(7)
    side, source = stored(r, 40, 0.0, unique=True), Given((pushed(r, 3000, 90, 0.0),), schema_of(*PROBE))
    years = FixedColumn(INT, torch.tensor([2001, 2002] * 20), None, (0, 10**12))
    side = batch_of(*side.columns[:3], years, side.columns[4])

    def grouped() -> Any:
        output = (*range(len(PROBE)), *range(len(PROBE) + 1, len(PROBE) + len(BUILD)))
        given = Source((side,), schema_of(*BUILD))
        joined = Join(source, given, JoinKind.INNER, (0,), (0,), (False,), None, False, "right", output, (None,))
        return aggregate(joined, (6,), (AggregateCall("count", (), INT),), schema_of(INT, INT), ())

    assert agree(harness, grouped).programs
    assert put_out == [], "two years are fewer than forty rows"


def test_groups_give_the_columns_of_a_join_back(
    harness: Any, put_out: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all are put out: by then the join has given back their memory."""
    folds: list[PartialFold] = []
    finish = PartialFold.finish

    def finishing(fold: PartialFold) -> Any:
        if fold.kept:
            folds.append(fold)
        return finish(fold)

    monkeypatch.setattr(PartialFold, "finish", finishing)
    test_texts_of_a_build_side_are_one_digit(harness, put_out, JoinKind.INNER, ())
    assert [fold.kept for fold in folds] == [[]]


EXPRESSIONS: Final = {
    "of one text": call("upper", ref(4), type_=TEXT),
    "of several columns": call("concat", ref(4), ref(5), type_=TEXT),
    "of the rows of both sides": call("add", call("char_length", ref(4), type_=INT), ref(1), type_=INT),
    "a condition": call("contains", ref(4), lit("a", TEXT)),
    "not NULL where there is no row": call("coalesce", ref(4), lit("none", TEXT), type_=TEXT),
    "that fails for a row without a match": Cast(ref(4), INT),
    "that is refused for a row without a match": call("split_part", ref(4), lit("1", TEXT), ref(6), type_=TEXT),
}


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.LEFT])
@pytest.mark.parametrize("nulls", [0.0, 0.3])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_over_columns_of_a_build_side(harness: Any, name: str, nulls: float, kind: JoinKind) -> None:
    """Each row of it is looked at once: what fails, or has a value for no row, is left to the operators."""
    r = random.Random(6)
    side, source = stored(r, 40, nulls, unique=True), Given((pushed(r, 3000, 90, nulls),) * 2, schema_of(*PROBE))
    if name.startswith("that "):
        texts = column_from_arrow(pa.array(["x"] + [str(number) for number in range(39)]))
        never = type(side.columns[0])(INT, side.columns[0].values.clone(), None)  # type: ignore[union-attr]
        never.values[0] = 10**6
        numbers = FixedColumn(INT, torch.tensor([0] + [1] * 39))
        side = batch_of(never, texts, side.columns[2], numbers, side.columns[4])
    computed = EXPRESSIONS[name]

    def chain() -> Any:
        output = (*range(len(PROBE)), *range(len(PROBE) + 1, len(PROBE) + len(BUILD)))
        given = Source((side,), schema_of(*BUILD))
        joined: Any = Join(source, given, kind, (0,), (0,), (False,), None, False, "right", output, (None,))
        if computed.type == pa.bool_():
            return Filter(joined, computed)
        return Project(joined, (ref(0), computed), schema_of(INT, computed.type))

    assert agree(harness, chain).stages == (1 if name in LEFT_TO_OPERATORS[kind] else 2)


LEFT_TO_OPERATORS: Final = {
    JoinKind.INNER: {name for name in EXPRESSIONS if name.startswith("that ")},
    # `concat` takes NULL for no text.
    JoinKind.LEFT: {
        *(name for name in EXPRESSIONS if name.startswith("that ")),
        "not NULL where there is no row",
        "of several columns",
    },
}
