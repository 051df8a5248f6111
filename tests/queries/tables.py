"""Small tables with every trap: NULLs, duplicates, negative and huge values, empty strings, skew, no rows at all."""

from __future__ import annotations

import datetime
import decimal
import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio

STATEMENTS = Path(__file__).parent / "statements"
TABLES = ("facts", "dimension", "other", "nothing", "single", "many")
WORDS = ["", "a", "A", "apple", "Apple pie", "50%", "under_score", "naïve", "日本", "zebra crossing", "x" * 40, "a%b"]


def write_tables(folder: Path) -> None:
    """Write the tables as Parquet files, with several row groups and different encodings."""
    pq.write_table(facts(5000, seed=1), folder / "facts.parquet", row_group_size=700, write_page_checksum=True)
    pq.write_table(dimension(200, seed=2), folder / "dimension.parquet", row_group_size=64, use_dictionary=False)
    pq.write_table(other(300, seed=3), folder / "other.parquet", data_page_version="2.0", compression="zstd")
    pq.write_table(facts(0, seed=4), folder / "nothing.parquet")
    pq.write_table(dimension(1, seed=5), folder / "single.parquet")
    many = folder / "many"
    many.mkdir()
    for part in range(3):
        pq.write_table(other(40, seed=10 + part), many / f"part-{part}.parquet")


def register(session: pystachio.Session, folder: Path) -> None:
    for table in TABLES:
        session.register(table, _source(folder, table))


def duckdb_over(folder: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for table in TABLES:
        connection.execute(f"create view {table} as from '{_source(folder, table)}'")
    return connection


def statements() -> list[pytest.ParameterSet]:
    """The lines of the files of statements, named by file and line."""
    return [
        pytest.param(line.rstrip().removesuffix(";"), id=f"{path.stem}-{number}")
        for path in sorted(STATEMENTS.glob("*.sql"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if line.strip()
    ]


def _source(folder: Path, table: str) -> str:
    path = folder / f"{table}.parquet"
    return str(path if path.exists() else folder / table / "*.parquet")


def facts(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)

    def maybe(value: object, share: float = 0.1) -> object:
        return None if rng.random() < share else value

    day = datetime.date(1995, 1, 1)
    data = {
        "id": pa.array(range(rows), pa.int64()),
        "key": pa.array([maybe(rng.randrange(-20, 220)) for _ in range(rows)], pa.int32()),
        "skewed": pa.array([0 if rng.random() < 0.7 else rng.randrange(1000) for _ in range(rows)], pa.int16()),
        "big": pa.array([maybe(rng.randrange(-(2**62), 2**62)) for _ in range(rows)], pa.int64()),
        "small": pa.array([maybe(rng.randrange(-128, 128)) for _ in range(rows)], pa.int8()),
        "flag": pa.array([maybe(rng.random() < 0.5) for _ in range(rows)], pa.bool_()),
        "ratio": pa.array(
            [maybe(rng.choice([0.0, -0.5, 1e300, 3.25, rng.random()])) for _ in range(rows)], pa.float64()
        ),
        "price": pa.array(
            [maybe(decimal.Decimal(rng.randrange(-(10**7), 10**7)).scaleb(-2)) for _ in range(rows)],
            pa.decimal128(15, 2),
        ),
        "rate": pa.array([decimal.Decimal(rng.randrange(0, 101)).scaleb(-2) for _ in range(rows)], pa.decimal128(5, 2)),
        "wide": pa.array(
            [maybe(decimal.Decimal(rng.randrange(-(10**30), 10**30)).scaleb(-5)) for _ in range(rows)],
            pa.decimal128(38, 5),
        ),
        "day": pa.array(
            [maybe(day + datetime.timedelta(days=rng.randrange(0, 2500))) for _ in range(rows)], pa.date32()
        ),
        "moment": pa.array(
            [
                maybe(datetime.datetime(2001, 1, 1) + datetime.timedelta(seconds=rng.randrange(0, 10**8)))
                for _ in range(rows)
            ],
            pa.timestamp("us"),
        ),
        "word": pa.array([maybe(rng.choice(WORDS)) for _ in range(rows)], pa.string()),
        "text": pa.array([maybe(f"{rng.choice(WORDS)}-{rng.randrange(10**6)}") for _ in range(rows)], pa.string()),
        "nothing": pa.array([None] * rows, pa.int32()),
    }
    return pa.table(data)


def dimension(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    return pa.table(
        {
            "key": pa.array(range(rows), pa.int32()),
            "name": pa.array([rng.choice(WORDS) if rng.random() > 0.05 else None for _ in range(rows)], pa.string()),
            "category": pa.array([rng.randrange(7) for _ in range(rows)], pa.int64()),
            "weight": pa.array(
                [decimal.Decimal(rng.randrange(10**6)).scaleb(-3) for _ in range(rows)], pa.decimal128(12, 3)
            ),
            "since": pa.array(
                [datetime.date(1994, 1, 1) + datetime.timedelta(days=17 * i) for i in range(rows)], pa.date32()
            ),
        }
    )


def other(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    return pa.table(
        {
            "key": pa.array([rng.randrange(0, 250) if rng.random() > 0.1 else None for _ in range(rows)], pa.int64()),
            "category": pa.array([rng.randrange(9) if rng.random() > 0.1 else None for _ in range(rows)], pa.int64()),
            "name": pa.array([rng.choice(WORDS) if rng.random() > 0.1 else None for _ in range(rows)], pa.string()),
            "amount": pa.array([rng.random() * 100 for _ in range(rows)], pa.float64()),
        }
    )
