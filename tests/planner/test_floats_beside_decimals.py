"""Comparing a float with a decimal literal, and choosing between the two, is done in floats."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio

VALUES = [0.1, math.nextafter(0.1, 1), 1e-17, 1e20, 0.0, math.inf]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select x from floats where x = 0.1", [0.1]),
        ("select x from floats where x in (0.0, 0.1)", [0.1, 0.0]),
        ("select x from floats where x > 0.5", [1e20, math.inf]),
        ("select x from floats where x <= 0.1 and x <> 0.0", [0.1, 1e-17]),
        ("select coalesce(x, 0.5) as x from floats", VALUES),
        ("select least(x, 0.5) as x from floats where x > 0.5", [0.5, 0.5]),
        ("select f.x from floats f join (select 0.1 as y) as d on f.x = d.y", [0.1]),
    ],
)
def test_nothing_is_rounded(tmp_path: Path, sql: str, expected: list[float]) -> None:
    pq.write_table(pa.table({"x": VALUES}), tmp_path / "floats.parquet")
    with pystachio.connect(threads=1, device="cpu") as session:
        session.register("floats", str(tmp_path / "floats.parquet"))
        assert session.sql(sql).to_arrow()["x"].to_pylist() == expected
