"""TPC-H on clusters, and joins and groups by every kind of key, against DuckDB on the same files."""

from __future__ import annotations

import decimal
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.cli import tpch
from pystachio.cli.oracle import DuckDB, disagreement
from pystachio.planner.distribution.distribution import Preference
from pystachio.session import Session
from tests.cluster.local_cluster import local_cluster, session_on

SCALE = 0.02
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "two nodes": {"count": 2},
    "three nodes that shuffle": {"count": 3, "preference": Preference.SHUFFLE, "batch_rows": 4096},
    "four nodes over ucx": {"count": 4, "transport": "ucx"},
}
KEYS = ["text", "code", "price", "wide", "real", "day", "flag", "number", "heavy", "nothing"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tpch")
    tpch.generate(SCALE, folder)
    for name, rows, seed in (("big", 6000, 1), ("small", 500, 2)):
        pq.write_table(keyed(rows, seed), folder / f"{name}.parquet", row_group_size=700)
    return sorted(folder.glob("*.parquet"))


@pytest.fixture(scope="module")
def oracle(files: list[Path]) -> Iterator[DuckDB]:
    oracle = DuckDB(files)
    yield oracle
    oracle.close()


@pytest.fixture(scope="module", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def session(request: pytest.FixtureRequest, files: list[Path]) -> Iterator[Session]:
    with local_cluster(**request.param) as nodes:
        session = session_on(nodes[0])
        for file in files:
            session.register(file.stem, file)
        yield session


def keyed(rows: int, seed: int) -> pa.Table:
    """Keys of every kind, a tenth of them NULL; half of the rows have one value in `heavy`, all NULL in `nothing`."""
    chance = random.Random(seed)

    def maybe(value: object) -> object:
        return None if chance.random() < 0.1 else value

    numbers = [chance.randrange(300) for _ in range(rows)]
    cents = [decimal.Decimal(n).scaleb(-2) for n in numbers]
    return pa.table(
        {
            "id": range(rows),
            "text": [maybe(f"a text that is as long as number {n}") for n in numbers],
            "code": pa.array([maybe(f"code {n % 7}") for n in numbers]).dictionary_encode(),
            "price": pa.array([maybe(c) for c in cents], pa.decimal128(9, 2)),
            "wide": pa.array([maybe(decimal.Decimal(10**25) * c) for c in cents], pa.decimal128(38, 2)),
            "real": pa.array([maybe(n / 8) for n in numbers], pa.float64()),
            "day": pa.array([maybe(n) for n in numbers], pa.int32()).cast(pa.date32()),
            "flag": [maybe(n % 2 == 0) for n in numbers],
            "number": pa.array([maybe(n * 10**15) for n in numbers], pa.int64()),
            "heavy": [maybe(7 if chance.random() < 0.5 else n) for n in numbers],
            "nothing": pa.array([None] * rows, pa.int32()),
        }
    )


@pytest.mark.parametrize("sql", tpch.statements().values(), ids=tpch.statements().keys())
def test_tpch(session: Session, oracle: DuckDB, sql: str) -> None:
    assert disagreement(session.sql(sql).to_arrow(), oracle.rows(sql), sql) is None


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "sql",
    [
        "select {key}, count(*), sum(id), min(text) from big group by {key}",
        "select big.{key}, count(*), sum(small.id) from big join small on big.{key} = small.{key} group by big.{key}",
        "select count(*), count(small.id), sum(small.id) from big left join small on big.{key} = small.{key}",
        "select count(*), count(big.id), count(small.id) from big full join small on big.{key} = small.{key}",
        "select count(*), sum(id) from big where {key} in (select {key} from small where id < 50)",
        "select count(*), sum(id) from big where {key} not in (select {key} from small where {key} is not null)",
        "select distinct {key} from big order by {key} nulls first",
        "select id, {key} from big order by {key} desc nulls last, id limit 40",
        "select count(distinct {key}), count({key}) from big",
    ],
)
def test_keys(session: Session, oracle: DuckDB, sql: str, key: str) -> None:
    statement = sql.format(key=key)
    assert disagreement(session.sql(statement).to_arrow(), oracle.rows(statement), statement) is None


def test_more_nodes_than_row_groups_and_tables_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(100), "text": ["x", "y"] * 50}), tmp_path / "one.parquet")
    pq.write_table(
        pa.table({"n": pa.array([], pa.int64()), "text": pa.array([], pa.string())}), tmp_path / "no.parquet"
    )
    statements = [
        "select text, sum(n) from one group by text order by text",
        "select count(*), sum(n) from no",
        "select text, count(*) from no group by text",
        "select count(*) from one a join one b on a.n = b.n left join no on no.n = a.n",
        "select n from one where n > 95 order by n desc",
        "select count(*) from (select n from one limit 9223372036854775807 offset 1)",
        "select (select max(n) from one) as most, (select max(n) from no) as none",
    ]
    with duckdb.connect() as oracle, local_cluster(4, preference=Preference.SHUFFLE) as nodes:
        session = session_on(nodes[3])
        for name in ("one", "no"):
            session.register(name, tmp_path / f"{name}.parquet")
            oracle.execute(f"create view {name} as from '{tmp_path / name}.parquet'")
        for sql in statements:
            assert disagreement(session.sql(sql).to_arrow(), oracle.execute(sql).fetchall(), sql) is None
