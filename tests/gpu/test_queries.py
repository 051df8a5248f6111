"""Statements on a device against DuckDB: the answers, the waits of the host, the copies back to it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import torch

import pystachio
from pystachio.cli import tpch as standard
from pystachio.cli.oracle import DuckDB, disagreement
from pystachio.operators.column import Dictionary, FixedColumn
from pystachio.operators.functions import dates as date_tables
from pystachio.operators.placement import table_on
from pystachio.runtime.devices import device_place
from pystachio.runtime.pinned_staging import BUFFER_BYTES
from tests.fake_device import FakeStream
from tests.gpu.conftest import Device
from tests.queries.tables import duckdb_over, register, statements, write_tables

SCALE = 0.02

MOST_WAITS = {"q01": 20, "q03": 18, "q05": 20, "q06": 3, "q09": 27, "q18": 25}
"""How often the host may wait for the device; a job's own end is not among them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    write_tables(path)
    return path


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_over(folder) as connection:
        yield connection


@contextmanager
def session_on(device: Device, folder: Path, **settings: object) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=2, device=str(device.torch_device), **settings) as session:
        register(session, folder)
        yield session


@pytest.fixture(scope="module")
def session(device: Device, folder: Path) -> Iterator[pystachio.Session]:
    with session_on(device, folder, batch_rows=2000) as session:
        yield session


@pytest.fixture(scope="module")
def plain_session(device: Device, folder: Path) -> Iterator[pystachio.Session]:
    switches = {"dictionary_codes": False, "direct_addressing": False, "batch_rows": 500}
    with session_on(device, folder, **switches) as session:
        yield session


def require_equal(answer: pa.Table, expected: list[tuple[object, ...]], sql: str) -> None:
    assert disagreement(answer, expected, sql) is None


@pytest.mark.parametrize("sql", statements())
def test_statements(device: Device, session: pystachio.Session, oracle: duckdb.DuckDBPyConnection, sql: str) -> None:
    require_equal(session.sql(sql).to_arrow(), oracle.execute(sql).fetchall(), sql)
    device.require_no_misuse()


@pytest.mark.parametrize("sql", statements()[::3])
def test_statements_without_codes_and_direct_addresses(
    device: Device, plain_session: pystachio.Session, oracle: duckdb.DuckDBPyConnection, sql: str
) -> None:
    require_equal(plain_session.sql(sql).to_arrow(), oracle.execute(sql).fetchall(), sql)
    device.require_no_misuse()


@pytest.mark.parametrize("sql", statements()[::2])
def test_plans_on_streams_of_their_own_share_what_is_kept_of_tables(
    device: Device, session: pystachio.Session, oracle: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """Interactive plans compute on another stream than the rest: nothing that one writes is read by the other."""
    results = [session.sql(sql, priority=priority) for priority in ("interactive", "normal", "interactive", "batch")]
    expected = oracle.execute(sql).fetchall()
    for result in results:
        require_equal(result.to_arrow(), expected, sql)
    device.require_no_misuse()


def test_tables_are_kept_for_each_stream(device: Device) -> None:
    """A stream does not see when another one has written."""
    if device.stand_in is None:
        pytest.skip("a real device does not tell what it got away with")
    values = torch.tensor([3, 1, 2])
    dictionary = Dictionary(FixedColumn(pa.int64(), values, None, (1, 3)))
    used: list[Any] = []
    for stream in (FakeStream("urgent"), device.stand_in.default):
        with device.stand_in.stream(stream):
            codes = torch.tensor([2, 0]).to(device.torch_device)
            ranks = table_on(dictionary, "ranks", values, device.torch_device)
            used.append(ranks.index_select(0, codes))
            used.append(
                date_tables._table("year", 0, 511, device.torch_device, device_place(device.torch_device))[0] + 0
            )
    assert [tensor.numbers.tolist()[0] for tensor in used] == [2, 1970, 2, 1970]
    device.require_no_misuse()


def test_copies_to_the_host_are_shown(session: pystachio.Session) -> None:
    numbers = session.sql("select skewed, sum(price) from facts group by skewed")
    texts = session.sql("select upper(text) from facts")
    for result in (numbers, texts):
        result.to_arrow()
    assert "copied to the device" in numbers.explain(analyze=True)
    assert "copied to the host" not in numbers.explain(analyze=True)
    assert "copied to the host" in texts.explain(analyze=True)


def test_results_come_back_in_one_wait_whatever_their_columns(device: Device, plain_session: pystachio.Session) -> None:
    found = []
    for columns in ("key", "key, flag, ratio, skewed, big"):
        with waits_counted(device) as waits:
            plain_session.sql(f"select {columns} from facts where skewed is not null").to_arrow()
        found.append(len(waits))
    assert 0 < found[0] == found[1]


def test_copies_between_host_and_device_do_not_make_the_host_wait(device: Device, session: pystachio.Session) -> None:
    """Batches, constants and tables go through pinned memory."""
    with waits_counted(device) as waits:
        session.sql("select count(*) from facts where key in (1, 2, 5, 9, 10) and text like '%a%'").to_arrow()
    assert not [place for place in waits if place.startswith(("to ", "tensor ", "copy_ "))]


def test_pinned_memory_is_bounded(device: Device, session: pystachio.Session) -> None:
    session.sql("select sum(price), max(text) from facts").to_arrow()
    if device.stand_in is None:
        pytest.skip("a real device's pinned memory is torch's to count")
    assert 0 < device.stand_in.pinned.nbytes <= 16 * BUFFER_BYTES


def test_nothing_is_left_behind(device: Device, session: pystachio.Session) -> None:
    session.sql("select f.word, count(*) from facts f join dimension d on f.key = d.key group by f.word").to_arrow()
    statistics = session.statistics()
    assert (statistics.running_plans, statistics.reserved_bytes, statistics.leaks) == (0, 0, 0)
    device.require_no_misuse()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tpch")
    standard.generate(SCALE, folder)
    return standard.table_files(folder)


@pytest.fixture(scope="module")
def tpch_oracle(files: list[Path]) -> Iterator[DuckDB]:
    oracle = DuckDB(files)
    yield oracle
    oracle.close()


@pytest.fixture(scope="module")
def tpch(device: Device, files: list[Path]) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=2, device=str(device.torch_device)) as session:
        for file in files:
            session.register(file.stem, str(file))
        yield session


@contextmanager
def waits_counted(device: Device) -> Iterator[list[str]]:
    """Where the host waited for the device, filled at the end."""
    places: list[str] = []
    if device.stand_in is not None:
        before = device.stand_in.waits_at.copy()
        yield places
        places.extend((device.stand_in.waits_at - before).elements())
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places.extend(f"{warning.filename}:{warning.lineno}" for warning in caught if "synchroniz" in str(warning.message))


@pytest.mark.parametrize(("name", "sql"), standard.statements().items(), ids=standard.statements().keys())
def test_tpch(device: Device, tpch: pystachio.Session, tpch_oracle: DuckDB, name: str, sql: str) -> None:
    with waits_counted(device) as waits:
        answer = tpch.sql(sql).to_arrow()
    require_equal(answer, tpch_oracle.rows(sql), sql)
    device.require_no_misuse()
    most = MOST_WAITS.get(name)
    if most is not None:
        assert len(waits) <= (most if device.stand_in is not None else 2 * most), waits
