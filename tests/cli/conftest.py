from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables as files, one as a folder of files."""
    folder = tmp_path_factory.mktemp("data")
    people = pa.table({"id": pa.array([1, 2, 3, 4], pa.int64()), "name": ["Ada", None, "Edsger", ""]})
    pq.write_table(people, folder / "people.parquet")
    prices = [Decimal("9.99"), Decimal("20.00"), None]
    days = [dt.date(2024, 1, 2), None, dt.date(2024, 2, 29)]
    sales = pa.table({"person": pa.array([1, 2, 1]), "price": pa.array(prices, pa.decimal128(12, 2)), "day": days})
    pq.write_table(sales, folder / "sales.parquet")
    (folder / "numbers").mkdir()
    for part in range(3):
        rows = pa.table({"n": pa.array(range(part * 100_000, (part + 1) * 100_000), pa.int64())})
        pq.write_table(rows, folder / "numbers" / f"{part}.parquet", row_group_size=10_000)
    (folder / "notes.txt").write_text("not a table")
    (folder / "empty").mkdir()
    return folder
