"""Limits and offsets near the highest number of 64 bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import InvalidRequest

HIGHEST = 2**63 - 1


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pystachio.Session]:
    path: Path = tmp_path_factory.mktemp("limits") / "t.parquet"
    pq.write_table(pa.table({"i": [1, 2, None]}), path)
    with pystachio.connect(threads=1) as session:
        session.register("t", path)
        yield session


@pytest.mark.parametrize("order", ["", " order by i"])
@pytest.mark.parametrize(
    "bounds",
    [
        f"limit {HIGHEST}",
        f"limit {HIGHEST} offset 1",
        f"limit {HIGHEST - 100} offset 101",
        f"limit {HIGHEST} offset {HIGHEST}",
        f"limit 1 offset {HIGHEST}",
        f"offset {HIGHEST}",
    ],
)
def test_limits_near_the_highest_number(session: pystachio.Session, order: str, bounds: str) -> None:
    found = session.sql(f"select i from t{order} {bounds}").to_arrow()
    offset = int(bounds.rsplit("offset ", 1)[1]) if "offset" in bounds else 0
    assert found.num_rows == max(0, 3 - offset)


def test_limits_in_limits_that_add_up_to_more(session: pystachio.Session) -> None:
    """DataFusion adds them, and then refuses them."""
    nested = f"select i from (select i from t limit {HIGHEST} offset 1) q limit {HIGHEST} offset {HIGHEST}"
    with pytest.raises(InvalidRequest, match="OFFSET"):
        session.sql(nested).to_arrow()
