"""Plans go to bytes and come back as they were."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystachio
from pystachio import operators
from pystachio.cli import tpch
from pystachio.errors import DataError, InternalError, Unsupported
from pystachio.operators.batch import Field
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
from pystachio.operators.limit import Limit
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.classes import CLASSES, OPERATORS
from pystachio.operators.plan_codec.codec import decode_plan, encode_plan, tables_of
from pystachio.operators.plan_codec.fields import forms_of
from pystachio.operators.project import Project
from pystachio.operators.spool import Spool
from pystachio.operators.union_all import UnionAll
from pystachio.planner.catalog import Catalog
from pystachio.planner.plan import Planner
from pystachio.planner.statistics import StatisticsCache
from tests.operators.plan_sources import Planning, over_business, over_traps, require_same, rows_of
from tests.queries.tables import statements


@pytest.fixture(scope="module")
def business(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planning]:
    with over_business(tmp_path_factory.mktemp("tpch")) as planning:
        yield planning


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planning]:
    with over_traps(tmp_path_factory.mktemp("traps")) as planning:
        yield planning


@pytest.mark.parametrize("sql", tpch.statements().values(), ids=tpch.statements().keys())
def test_plans_of_tpch_come_back(business: Planning, sql: str) -> None:
    require_same(business.plan(sql), business.tables)


@pytest.mark.parametrize("sql", statements())
def test_plans_of_statements_come_back(traps: Planning, sql: str) -> None:
    require_same(traps.plan(sql), traps.tables)


def test_a_decoded_plan_gives_the_same_rows(business: Planning) -> None:
    session = business.session
    for sql in list(tpch.statements().values())[:6]:
        expected = session.sql(sql).to_arrow()
        payload = encode_plan(business.plan(sql))
        back = decode_plan(payload, business.tables)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "_plan", lambda *_: back)  # noqa: B023
            assert session.sql(sql).to_arrow().equals(expected)


def test_every_operator_and_expression_is_registered() -> None:
    found = {
        class_
        for class_ in classes_of_the_package()
        if class_.__dataclass_params__.frozen and {"label", "inputs", "schema"} <= members(class_)
    }
    assert found == set(OPERATORS)
    assert set(typing.get_args(Expression)) <= set(CLASSES.values())
    for class_ in CLASSES.values():
        assert [form.name for form in forms_of(class_)], class_


def classes_of_the_package() -> Iterator[Any]:
    for module in pkgutil.walk_packages(operators.__path__, f"{operators.__name__}."):
        if "triton" in module.name or "_native" in module.name:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.name:
                yield value


def members(class_: type) -> set[str]:
    return set(dir(class_)) | set(getattr(class_, "__dataclass_fields__", {}))


def test_a_spool_stays_one_object() -> None:
    spool = Spool(rows_of(pa.int64(), 1), 2)
    both = UnionAll((Limit(spool, 0, 1), spool), spool.schema)
    back = require_same(PhysicalPlan(both, (), ("a",)), {})
    first, second = back.root.inputs
    assert first.inputs == (second,)


def test_equal_operators_that_are_not_one_object_stay_two() -> None:
    both = UnionAll((rows_of(pa.int64(), 1), rows_of(pa.int64(), 1)), (Field("a", pa.int64()),))
    assert len(require_same(PhysicalPlan(both, (), ("a",)), {}).operators) == 3


CONSTANTS = {
    "true": (True, pa.bool_()),
    "one": (1, pa.int64()),
    "one as a float": (1.0, pa.float64()),
    "zero": (0.0, pa.float64()),
    "minus zero": (-0.0, pa.float64()),
    "nan": (float("nan"), pa.float64()),
    "infinity": (float("-inf"), pa.float32()),
    "smallest": (-(2**63), pa.int64()),
    "largest unsigned": (2**64 - 1, pa.uint64()),
    "128 bits": (2**127 - 1, pa.decimal128(38, 3)),
    "128 bits below zero": (-(2**127), pa.decimal128(38, 0)),
    "just beyond 64 bits": (2**64, pa.decimal128(38, 0)),
    "text": ("naïve 日本 \0", pa.string()),
    "bytes": (b"\xff\0", pa.binary()),
    "interval": ((1, -2, 2**62), pa.month_day_nano_interval()),
    "NULL": (None, pa.date32()),
    "NULL of no type": (None, pa.null()),
    "zone": (-1, pa.timestamp("ns", "UTC")),
    "time": (1, pa.time64("us")),
    "duration": (1, pa.duration("ms")),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_come_back(name: str) -> None:
    value, type_ = CONSTANTS[name]
    row = rows_of(type_, value)
    expressions = (Literal(value, type_), FieldReference(0, type_))
    project = Project(row, expressions, (Field("a", type_), Field("b", type_)))
    require_same(PhysicalPlan(project, (), ("a", "b")), {})


def test_text_that_is_not_unicode_is_refused() -> None:
    for plan in (
        PhysicalPlan(rows_of(pa.string(), "\ud800"), (), ("a",)),
        PhysicalPlan(rows_of(pa.int64(), 1), (), ("\ud800",)),
    ):
        with pytest.raises(Unsupported, match="Unicode"):
            encode_plan(plan)


def test_what_is_not_registered_is_refused() -> None:
    @dataclass(frozen=True)
    class Strange:
        input: Any
        inputs: tuple[Any, ...] = ()
        schema: tuple[Field, ...] = ()

    with pytest.raises(InternalError, match="Strange"):
        encode_plan(PhysicalPlan(typing.cast(Any, Strange(None)), (), ()))
    wrong: Any = "many"
    with pytest.raises(InternalError, match=r"Limit\.offset: expected an integer"):
        encode_plan(PhysicalPlan(Limit(rows_of(pa.int64(), 1), wrong, None), (), ("a",)))


def test_a_table_that_is_missing_or_another_is_refused(traps: Planning) -> None:
    payload = encode_plan(traps.plan("select sum(key) from facts"))
    (reference,) = tables_of(payload)
    assert reference.name == "facts"
    with pytest.raises(DataError, match="without one of its tables: 'facts'"):
        decode_plan(payload, {})
    other = next(table for table in traps.tables.values() if table.name == "other")
    with pytest.raises(DataError, match="not the one that was planned with: 'facts'"):
        decode_plan(payload, {reference: other})


def test_tables_with_columns_that_nobody_reads(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    nested = {
        "list": pa.array([[1]]),
        "struct": pa.array([{"a": 1, "b": [b"x"]}]),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
        "fixed": pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
        "plain": pa.array([1]),
    }
    pq.write_table(pa.table(nested), tmp_path / "nested.parquet")
    with pystachio.connect(threads=1) as session:
        session.register("nested", str(tmp_path / "nested.parquet"))
        planning = Planning(session)
        require_same(planning.plan("select plain from nested"), planning.tables)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> Expression:
    type_ = draw(st.sampled_from([pa.int64(), pa.bool_(), pa.string(), pa.decimal128(38, 4)]))
    value: st.SearchStrategy[Any] = {
        pa.int64(): st.integers(-(2**63), 2**63 - 1),
        pa.bool_(): st.booleans(),
        pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        pa.decimal128(38, 4): st.integers(-(2**127), 2**127 - 1),
    }[type_]
    literal = st.builds(Literal, st.none() | value, st.just(type_))
    if depth == 0:
        return draw(literal | st.just(FieldReference(0, pa.int64())))
    below = expressions(depth - 1)
    some = st.lists(below, min_size=1, max_size=3).map(tuple)
    pairs = st.lists(st.tuples(below, below), min_size=1, max_size=2).map(tuple)
    return draw(
        literal
        | st.builds(Call, st.sampled_from(["and", "add", "concat"]), some, st.just(type_))
        | st.builds(Cast, below, st.just(type_), st.booleans())
        | st.builds(IfThen, pairs, below, st.just(type_))
        | st.builds(InList, below, some, st.just(pa.bool_()))
        | st.just(ScalarSubquery(0, pa.int64()))
    )


@given(st.lists(expressions(), max_size=3))
def test_random_expressions_come_back(found: list[Expression]) -> None:
    schema = tuple(Field(str(place), each.type) for place, each in enumerate(found))
    scalar = rows_of(pa.int64(), 7)
    plan = PhysicalPlan(Project(rows_of(pa.int64(), 1), tuple(found), schema), (scalar,), ("x",) * len(found))
    require_same(plan, {})


def test_a_plan_without_tables() -> None:
    plan = Planner(StatisticsCache(lambda *_: [])).plan("select 1 as a", Catalog(lambda _: []).snapshot())
    require_same(plan, {})
