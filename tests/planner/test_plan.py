from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import InvalidRequest, NotFound, SqlSyntaxError
from pystachio.operators.parquet.footer import read_footers
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.table import FileVersion, ParquetFile
from pystachio.planner.catalog import Catalog, CatalogSnapshot
from pystachio.planner.explain import render
from pystachio.planner.plan import Planner
from pystachio.planner.sql.statement import plan_sql
from pystachio.planner.statistics import StatisticsCache
from tests.operators.parquet_sources import reading


def footers(versions: Sequence[FileVersion]) -> Sequence[ParquetFile]:
    async def read() -> Sequence[ParquetFile]:
        async with reading() as client:
            return await read_footers(client, versions)

    return asyncio.run(read())


def refuse(path: str, extents: object) -> list[object]:
    raise NotFound("no samples here")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    pq.write_table(pa.table({"k": [1, 2, 3], "v": [10, 20, 30]}), tmp_path / "t.parquet")
    made = Catalog(footers)
    made.register("t", tmp_path / "t.parquet")
    return made


@pytest.fixture
def planner() -> Planner:
    return Planner(StatisticsCache(refuse))


def test_a_statement_is_planned_once(planner: Planner, catalog: Catalog) -> None:
    snapshot = catalog.snapshot()
    first = planner.plan("select v from t where k = 2", snapshot)
    assert first.names == ("v",)
    assert planner.plan("select v from t where k = 2", snapshot) is first
    assert planner.plan("select v from t where k = 3", snapshot) is not first


def test_settings_and_parameters_are_part_of_the_statement(planner: Planner, catalog: Catalog) -> None:
    def planned(*parameters: object, join_reordering: bool = True) -> PhysicalPlan:
        return planner.plan(
            "select v from t where k = $1", catalog.snapshot(), parameters=parameters, join_reordering=join_reordering
        )

    first = planned(1)
    assert planned(1) is first
    assert planned(2) is not first
    assert planned(1.0) is not first
    assert planned(1, join_reordering=False) is not first


def test_a_new_catalog_makes_new_plans(planner: Planner, catalog: Catalog, tmp_path: Path) -> None:
    before = catalog.snapshot()
    first = planner.plan("select count(*) from t", before)
    assert planner.plan("select count(*) from t", replace(before)) is first
    pq.write_table(pa.table({"k": [1], "w": [1]}), tmp_path / "u.parquet")
    catalog.register("u", tmp_path / "u.parquet")
    assert planner.plan("select count(*) from t", catalog.snapshot()) is not first
    assert planner.plan("select w from u", catalog.snapshot()).names == ("w",)


def test_substrait_bytes_are_statements_too(planner: Planner, catalog: Catalog) -> None:
    snapshot = catalog.snapshot()
    made = plan_sql("select k, v as w from t", {"t": snapshot.tables["t"].schema}).substrait
    first = planner.plan(made, snapshot)
    assert first.names == ("k", "w")
    assert planner.plan(made, snapshot) is first


def test_the_tables_of_a_statement_are_known_while_its_plan_is_kept(
    planner: Planner, catalog: Catalog, tmp_path: Path
) -> None:
    catalog.register("other", tmp_path / "t.parquet")
    sql = "select k from t where v > $1"
    assert planner.tables_known(sql, parameters=(5,)) is None
    planner.plan(sql, catalog.snapshot(), parameters=(5,))
    assert planner.tables_known(sql, parameters=(5,)) == {"t"}
    assert planner.tables_known(sql, parameters=(6,)) is None
    with pytest.raises(InvalidRequest):
        planner.tables_known(sql, parameters=(object(),))
    catalog.unregister("other")
    planner.plan("select 1", catalog.snapshot())
    assert planner.tables_known(sql, parameters=(5,)) is None


def test_what_changes_with_time_is_planned_every_time(planner: Planner, catalog: Catalog) -> None:
    snapshot: CatalogSnapshot = catalog.snapshot()
    first = planner.plan("select k from t where now() > timestamp '2020-01-01 00:00:00'", snapshot)
    assert planner.plan("select k from t where now() > timestamp '2020-01-01 00:00:00'", snapshot) is not first


def test_reordering_can_be_left_out(planner: Planner, catalog: Catalog) -> None:
    sql = "select a.v from t a join t b on a.k = b.k join t c on b.v = c.v where c.k = 1"
    kept = render(planner.plan(sql, catalog.snapshot(), join_reordering=False))
    assert kept.index("k = k") > kept.index("v = v")


@pytest.mark.parametrize(("sql", "error"), [("selec 1", SqlSyntaxError), ("select * from nowhere", NotFound)])
def test_errors_are_not_kept(planner: Planner, catalog: Catalog, sql: str, error: type[Exception]) -> None:
    for _ in range(2):
        with pytest.raises(error):
            planner.plan(sql, catalog.snapshot())
