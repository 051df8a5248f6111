"""Build sides of many rows: their filters and their index are made beside each other, by two jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pystachio
from pystachio.errors import DataError
from pystachio.operators.arrow import column_from_arrow, column_to_arrow
from pystachio.operators.batch import Batch, Field
from pystachio.operators.collected import Collected
from pystachio.operators.column import BytesColumn, FixedColumn
from pystachio.operators.joins import build
from pystachio.operators.joins.build import _Reading
from pystachio.operators.kernels.row_index import UniqueIndex
from pystachio.operators.kernels.selection import take_late
from pystachio.operators.kernels.strings import to_codes
from pystachio.runtime.settings import ExecutionSettings

BUILD = 90_000
PROBE = 250_000
TABLES = {
    "small": pa.table(
        {
            "k": pa.array([None if i % 11 == 0 else i * 3 for i in range(BUILD)], pa.int64()),
            "j": pa.array([i % 5 for i in range(BUILD)], pa.int32()),
            "r": pa.array([i % 20_000 for i in range(BUILD)], pa.int32()),
            "w": pa.array([f"word {i % 300}" for i in range(BUILD)]),
        }
    ),
    "large": pa.table(
        {
            "k": pa.array([None if i % 13 == 0 else i for i in range(PROBE)], pa.int64()),
            "j": pa.array([i % 7 for i in range(PROBE)], pa.int32()),
            "v": pa.array([i * 7919 % 100_003 for i in range(PROBE)], pa.int64()),
        }
    ),
}
STATEMENTS = [
    "select count(*) as n, sum(v) as s from large join small on large.k = small.k where w <> 'word 7'",
    "select count(*) as n, sum(v) as s from large join small on large.k = small.k and large.j = small.j where w <> 'x'",
    "select count(*) as n, sum(v) as s from large join small on large.k = small.r where w <> 'word 7'",
    "select count(*) as n, sum(v) as s from large where k in (select k from small where w <> 'word 7')",
    "select count(*) as n, sum(v) as s from large where k not in (select k from small where k is not null)",
    "select w, count(*) as n, sum(v) as s from large join small on large.k = small.k group by w order by w",
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pystachio.Session]:
    folder = tmp_path_factory.mktemp("tables")
    with pystachio.connect(threads=2) as session:
        for name, table in TABLES.items():
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=30_000)
            session.register(name, folder / f"{name}.parquet")
        yield session


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which jobs have run that are made beside each other."""
    ran: list[str] = []
    filters, read = _Reading.filters, _Reading.read
    monkeypatch.setattr(_Reading, "filters", lambda self, *given: ran.append("filters") or filters(self, *given))
    monkeypatch.setattr(_Reading, "read", lambda self, *given: ran.append("read") or read(self, *given))
    monkeypatch.setattr(_Reading, "read_with_filters", _never)
    return ran


def _never(*given: object) -> None:
    raise AssertionError("all in one job")


@pytest.mark.parametrize("sql", STATEMENTS)
@pytest.mark.parametrize("few_rows", [build._FEW_ROWS, 0])
def test_the_answer_is_the_same(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch, sql: str, few_rows: int
) -> None:
    monkeypatch.setattr(build, "_FEW_ROWS", few_rows)
    with duckdb.connect() as database:
        for name, table in TABLES.items():
            database.register(name, table)
        expected = database.sql(sql).to_arrow_table().to_pylist()
    assert session.sql(sql).to_arrow().to_pylist() == expected


@pytest.mark.parametrize("sql", STATEMENTS[1:3])
def test_two_jobs_make_it(session: pystachio.Session, apart: list[str], sql: str) -> None:
    """The planner wants filters of these: they leave little of the other side."""
    session.sql(sql).to_arrow()
    assert sorted(apart) == ["filters", "read"]


@pytest.mark.parametrize("fails", ["filters", "_read"])
def test_a_job_that_fails_ends_the_plan_with_its_error(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(*given: object) -> None:
        raise DataError("this is what failed")

    with monkeypatch.context() as patch:
        patch.setattr(_Reading, fails, fail)
        with pytest.raises(DataError, match="this is what failed"):
            session.sql(STATEMENTS[0]).to_arrow()
    assert session.sql(STATEMENTS[0]).to_arrow().num_rows == 1


@pytest.mark.parametrize("wrong_way", [False, True])
def test_batches_are_put_in_the_order_of_their_first_key(wrong_way: bool) -> None:
    """Then keys ascend where tables are stored in their order, whichever worker was first."""
    pieces = [Batch((numbers(range(start, start + 300, 3)), numbers(range(100))), 100, None) for start in (0, 300, 600)]
    pieces.insert(1, Batch((numbers([]), numbers([])), 0, None))
    schema = (Field("k", pa.int64()), Field("v", pa.int64()))
    rows = Collected(pieces[::-1] if wrong_way else pieces, 300, schema, torch.device("cpu"), Mock())
    ctx = Mock(stream=Mock(device=torch.device("cpu")), settings=ExecutionSettings())
    layout = Mock(flags_matches=False, null_aware=False, needs_pairs=True)
    index = _Reading(ctx, layout, (0,), (False,), 1).read(rows).index
    assert isinstance(index, UniqueIndex)
    assert index.rows is None, "the number of a key is that of its row"


def numbers(values: Iterable[int]) -> FixedColumn:
    return FixedColumn(pa.int64(), torch.tensor(list(values), dtype=torch.int64))


def test_text_keys_in_pieces_are_one_filter() -> None:
    """Codes of several dictionaries, views, and more plain texts than a filter is made of."""
    coded = [to_codes(texts(["a", "b", None])), to_codes(texts(["c", "b"]))]
    whole = build._filter(coded, False, 1)
    assert whole is not None
    assert whole.values is not None
    assert sorted(column_to_arrow(whole.values.values).to_pylist()) == ["a", "b", "c"]
    plain = texts([str(number) for number in range(build._FEW_ROWS)])
    for pieces in ((plain, texts(["x"])), (take_late(plain, torch.arange(len(plain))), texts(["x"]))):
        found = build._filter(pieces, False, 1)
        assert found is not None
        assert (found.values, found.keys, found.empty) == (None, None, False)
    assert build._filter((texts(["x"]), texts([None])), True, 1) is None


def texts(values: list[str | None]) -> BytesColumn:
    column = column_from_arrow(pa.array(values, pa.string()))
    assert isinstance(column, BytesColumn)
    return column


def test_without_room_for_the_index_it_is_waited_for(
    session: pystachio.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is made behind the filters then, under a reservation that waits."""
    expected = session.sql(STATEMENTS[0]).to_arrow()
    made = []
    indexed = build._indexed
    monkeypatch.setattr(build, "_indexed", lambda *given: made.append(1) or indexed(*given))
    read = _Reading._read

    def without_room(self: _Reading, rows: object) -> object:
        found = read(self, rows)  # type: ignore[arg-type]
        if found.index_reservation is not None:
            found.index_reservation.release()
        return build._Read(found.rows, found.null_keys, found.matched, found.encoding, found.codes)

    monkeypatch.setattr(_Reading, "_read", without_room)
    assert session.sql(STATEMENTS[0]).to_arrow() == expected
    assert made == [1]
