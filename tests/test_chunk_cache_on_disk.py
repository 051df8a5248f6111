"""Columns that are stored on disk: the next process decodes nothing, and nothing that happens to the files shows."""

from __future__ import annotations

import datetime as dt
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.compiled import CompiledLibrary
from pystachio.errors import DataError, InvalidRequest, NotFound, PystachioError, ResourceExhausted
from pystachio.io_scheduler.devices import native
from pystachio.operators.chunks import cache as chunk_cache
from pystachio.operators.chunks import store as store_module
from pystachio.operators.chunks.header import VERSION
from pystachio.operators.chunks.store import ChunkStore
from pystachio.operators.kernels import native as kernels
from pystachio.operators.scans import run as scan_run
from pystachio.operators.scans.rows import Piece, ScanRows, UnitRows
from pystachio.operators.scans.units import Unit
from pystachio.operators.table import ParquetFile

ROWS = 60_000
GROUP = 20_000
QUERY = "select word, count(*) as n, cast(sum(id) as bigint) as s, max(text) as t, sum(price) as p, "
QUERY += "min(day) as d, count(flag) as f from t where id % 3 = 0 group by word order by word nulls last"


def rows(first: int = 0) -> pa.Table:
    """Numbers, codes, texts, decimals, dates and NULLs."""
    numbers = range(first, first + ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "word": pa.array([None if i % 13 == 0 else f"word {i % 7}" for i in numbers]),
            "text": pa.array([f"{i * 7919 % 100_003:06} is a text" for i in numbers]),
            "price": pa.array([Decimal(i % 10_000).scaleb(-2) for i in numbers], pa.decimal128(12, 2)),
            "day": pa.array([dt.date(2000, 1, 1) + dt.timedelta(days=i % 5000) for i in numbers]),
            "flag": pa.array([None if i % 5 == 0 else i % 2 == 0 for i in numbers]),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(rows(), tmp_path / "t.parquet", row_group_size=GROUP)
    return tmp_path


@contextmanager
def connected(folder: Path, **settings: Any) -> Iterator[pystachio.Session]:
    chosen = {"threads": 2, "chunk_cache_dir": folder / "cache", "chunk_cache_bytes": "1GiB", **settings}
    with pystachio.connect(**chosen) as session:
        session.register("t", folder / "t.parquet")
        yield session


def warm(folder: Path) -> None:
    with connected(folder, batch_rows=GROUP) as session:
        for row in session.warm("t").to_arrow().to_pylist():
            assert row["stored"] + row["present"] == 6


def chunks(folder: Path) -> list[Path]:
    return sorted((folder / "cache").rglob("*.chunk"))


def oracle(folder: Path, sql: str = QUERY) -> list[dict[str, object]]:
    with duckdb.connect() as database:
        return database.sql(sql.replace(" t ", f" '{folder}/t.parquet' ")).to_arrow_table().to_pylist()


def answer(session: pystachio.Session, sql: str = QUERY) -> tuple[list[dict[str, object]], dict[str, int]]:
    """The rows; and the scan's counts of bytes by what they are called."""
    result = session.sql(sql)
    table = result.to_arrow().to_pylist()
    counts: dict[str, int] = {}
    for line in result.explain(analyze=True).splitlines():
        if "Scan t" in line:
            for part in line.rstrip(")").split(", "):
                number, _, name = part.partition(" ")
                if name.startswith("bytes"):
                    counts[name] = int(number.replace(",", ""))
    return table, counts


def cold(folder: Path, **settings: Any) -> tuple[list[dict[str, object]], dict[str, int]]:
    """In a session that has nothing in memory."""
    with connected(folder, batch_rows=GROUP, **settings) as session:
        return answer(session)


def overwrite_parquet_data(path: Path) -> None:
    """Everything but the footer, without a trace in size or time: whoever reads it, fails."""
    status, footer = path.stat(), int.from_bytes(path.read_bytes()[-8:-4], "little") + 8
    with path.open("r+b") as file:
        file.write(b"\xff" * (status.st_size - footer))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def grow(path: Path, size: int) -> None:
    """Nothing between the data and the footer changes what the file says."""
    content = path.read_bytes()
    start = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    path.write_bytes(content[:start] + bytes(size - len(content)) + content[start:])


def settled(session: pystachio.Session) -> chunk_cache.ChunkCacheStatistics:
    """When all that was accepted is stored."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = session.statistics().chunks
        assert found is not None
        if not found.waiting_bytes:
            return found
        time.sleep(0.005)
    raise AssertionError("the writer did not end")


@pytest.fixture
def everything_is_worth_storing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_cache, "is_worth_storing", lambda *_: True)


def test_the_next_process_reads_no_byte_of_the_parquet_data(folder: Path) -> None:
    expected = oracle(folder)
    warm(folder)
    overwrite_parquet_data(folder / "t.parquet")
    program = (
        "import sys, pystachio\n"
        f"with pystachio.connect(threads=2, batch_rows={GROUP}, chunk_cache_dir={str(folder / 'cache')!r}, "
        "chunk_cache_bytes='1GiB') as session:\n"
        f"    session.register('t', {str(folder / 't.parquet')!r})\n"
        f"    result = session.sql({QUERY!r})\n"
        "    print(result.to_arrow().to_pylist())\n"
        "    print(result.metrics().bytes_read)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found, read = done.stdout.splitlines()
    assert found == repr(expected)
    assert int(read) == sum(path.stat().st_size for path in chunks(folder))


def test_what_queries_decode_is_stored_behind_them(folder: Path, everything_is_worth_storing: None) -> None:
    expected = oracle(folder)
    with connected(folder, batch_rows=GROUP) as session:
        first, counts = answer(session)
        assert settled(session).store.written == len(chunks(folder)) == 18
    assert first == expected
    assert set(counts) == {"bytes read"}
    again, counts = cold(folder)
    assert again == expected
    assert counts == {"bytes from chunk cache": sum(path.stat().st_size for path in chunks(folder))}


def test_what_is_stored_is_known_before_a_scan_asks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged footer, which is told of when somebody reads the file, does not end what stores columns."""
    pq.write_table(rows(), folder / "damaged.parquet", row_group_size=GROUP)
    warm(folder)
    looked: list[tuple[str, str]] = []
    look, describe = ChunkStore.look, ParquetFile.describe

    def watched(store: ChunkStore, file: ParquetFile) -> None:
        look(store, file)
        looked.append((Path(file.path).name, threading.current_thread().name))

    def described(file: ParquetFile) -> None:
        if "damaged" in file.path:
            raise DataError("a damaged footer")
        describe(file)

    monkeypatch.setattr(ChunkStore, "look", watched)
    monkeypatch.setattr(ParquetFile, "describe", described)
    with connected(folder) as session:
        session.register("damaged", folder / "damaged.parquet")
        session.register("again", folder / "t.parquet")
        end = time.monotonic() + 20
        while len(looked) < 2 and time.monotonic() < end:
            time.sleep(0.005)
        assert [name for name, _ in looked] == ["t.parquet", "damaged.parquet"], "once for each version of a file"
        assert all("chunks" in thread for _, thread in looked)
        files = [file for table in session._catalog.tables().values() for file in table.files]
        assert ["_descriptions" in vars(file) for file in files] == [True, False, True]
        assert sum(session.warm("damaged").to_arrow()["stored"].to_pylist()) == 6


def test_what_is_read_from_disk_stays_in_memory(folder: Path) -> None:
    warm(folder)
    with connected(folder, batch_rows=GROUP) as session:
        assert set(answer(session)[1]) == {"bytes from chunk cache"}
        assert set(answer(session)[1]) == {"bytes from memory"}


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_cache": False},
        {"chunk_cache_bytes": 0},
        {"dictionary_codes": False},
        {"threads": 1},
        {"batch_rows": 1000},
        {"batch_rows": 1 << 20},
    ],
)
def test_answers_are_the_same_under_all_settings(folder: Path, settings: dict[str, Any]) -> None:
    expected = oracle(folder)
    warm(folder)
    with connected(folder, **settings) as session:
        assert answer(session)[0] == expected
    assert cold(folder)[0] == expected


def test_columns_that_are_only_put_out_are_read_where_rows_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most row groups have no matching row, which their statistics do not tell."""
    monkeypatch.setattr(scan_run, "_READ_AHEAD_BYTES", 0)
    sparse = pa.array([7 if i == ROWS - 1 else 1_000_000 * (i % 2) for i in range(ROWS)])
    pq.write_table(rows().append_column("sparse", sparse), tmp_path / "t.parquet", row_group_size=1500)
    sql = "select text, word, price from t where sparse = 7"
    for damaged in (False, True):
        with connected(tmp_path, batch_rows=1500, threads=1) as session:
            session.warm("t").to_arrow()
            if damaged:
                flip_a_byte(max(chunks(tmp_path), key=lambda path: path.stat().st_size))
            found, counts = answer(session, sql)
            assert found == oracle(tmp_path, sql)
            assert counts["bytes not read"] > 0
            stored = sum(path.stat().st_size for path in chunks(tmp_path))
            assert counts["bytes from chunk cache"] + counts["bytes not read"] < stored


def test_the_scan_of_one_large_row_group_is_spread(folder: Path, everything_is_worth_storing: None) -> None:
    pq.write_table(rows(), folder / "t.parquet", row_group_size=ROWS)
    expected = oracle(folder)
    with connected(folder, batch_rows=5000, threads=2) as session:
        assert answer(session)[0] == expected
        assert settled(session).store.written == 6
    with connected(folder, batch_rows=5000, threads=2) as session:
        found, counts = answer(session)
    assert found == expected
    assert set(counts) == {"bytes from chunk cache"}
    for path in chunks(folder):
        flip_a_byte(path)
    with connected(folder, batch_rows=5000, threads=2) as session:
        found, counts = answer(session)
        assert settled(session).store.unusable == 6
    assert found == expected
    assert counts["bytes read"] > 0


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def put_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def forbid(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/1/mem")


@pytest.mark.parametrize("damage", [flip_a_byte, cut, empty, put_zeros, make_a_folder, forbid])
def test_damaged_chunks_are_replaced_by_parquet(
    folder: Path, damage: Callable[[Path], None], everything_is_worth_storing: None
) -> None:
    expected = oracle(folder)
    warm(folder)
    for path in chunks(folder):
        damage(path)
    with connected(folder, batch_rows=GROUP) as session:
        found, counts = answer(session)
        assert found == expected
        assert counts["bytes read"] > 0
        statistics = settled(session)
        assert statistics.store.unusable == 18 or damage in (make_a_folder, forbid)
    if damage is flip_a_byte:
        assert cold(folder) == (expected, {"bytes from chunk cache": sum(p.stat().st_size for p in chunks(folder))})


def test_what_was_seen_a_moment_ago_is_not_looked_at_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_LOOK_SECONDS", 3600)
    looks: list[threading.Thread] = []
    look = ChunkStore.look

    def counted(store: ChunkStore, file: ParquetFile) -> None:
        look(store, file)
        looks.append(threading.current_thread())

    warm(folder)
    monkeypatch.setattr(ChunkStore, "look", counted)
    with connected(folder, batch_rows=GROUP) as session:
        while not looks:
            time.sleep(0.005)
        assert answer(session)[0] == oracle(folder)
    on_workers = [thread for thread in looks if thread is not threading.main_thread()]
    assert len(on_workers) == 1, (
        "when the table was registered, and none for the scan; the planner has looked for samples"
    )


@pytest.mark.parametrize("sql", [QUERY, "select count(text) as n from t where id % 7 < 3", "select id, text from t "])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_workers_share_the_unit_that_would_leave_one_idle(
    folder: Path, sql: str, is_damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[Unit] = []
    share = scan_run.ScanRun._spread

    async def seen(run: scan_run.ScanRun, rows: UnitRows, *more: Any) -> None:
        shared.append(rows.unit)
        await share(run, rows, *more)

    warm(folder)
    if is_damaged:
        for path in chunks(folder)[::2]:
            flip_a_byte(path)
    shares: list[tuple[int, ...]] = []
    put_out = UnitRows.put_out_untested

    def seen_share(rows: UnitRows, piece: Piece) -> Iterator[ScanRows]:
        shares.append((*rows.unit.groups, piece.start, piece.stop))
        return put_out(rows, piece)

    monkeypatch.setattr(scan_run.ScanRun, "_spread", seen)
    monkeypatch.setattr(UnitRows, "put_out_untested", seen_share)
    with connected(folder, batch_rows=GROUP // 4) as session:
        found, _ = answer(session, sql)
    assert kernels.library() is None or sorted(shares)[-2:] == [(2, 0, GROUP // 2), (2, GROUP // 2, GROUP)]
    assert sorted(map(repr, found)) == sorted(map(repr, oracle(folder, sql)))
    assert [unit.groups for unit in shared] == [(2,)], "of three units, beside two workers"


def test_chunks_that_belong_to_other_columns_are_not_taken(folder: Path) -> None:
    expected = oracle(folder)
    warm(folder)
    found = chunks(folder)
    contents = [path.read_bytes() for path in found]
    for path, content in zip(found, contents[1:] + contents[:1]):
        path.write_bytes(content)
    assert cold(folder)[0] == expected


def test_chunks_may_vanish_while_a_query_runs(folder: Path) -> None:
    expected = oracle(folder)
    for _ in range(4):
        warm(folder)
        with connected(folder, batch_rows=GROUP, threads=1) as session:
            result = session.sql(QUERY)
            for path in chunks(folder):
                path.unlink(missing_ok=True)
            assert result.to_arrow().to_pylist() == expected


def test_a_file_that_is_replaced_by_one_of_its_size_and_time_is_read_anew(folder: Path) -> None:
    """Its footer differs."""
    before = oracle(folder)
    table = rows().set_column(0, "id", pa.array(range(ROWS - 1, -1, -1), pa.int64()))
    path, size = folder / "t.parquet", 0
    for name in ("t.parquet", "new.parquet"):
        pq.write_table(rows() if name == "t.parquet" else table, folder / name, row_group_size=GROUP)
        size = max(size, (folder / name).stat().st_size) + 64
    grow(path, size)
    warm(folder)
    grow(folder / "new.parquet", size)
    os.utime(folder / "new.parquet", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(folder / "new.parquet", path)
    assert path.stat().st_size == size
    found, counts = cold(folder)
    assert found == oracle(folder) != before
    assert set(counts) == {"bytes read"}


def test_half_a_file_of_a_crashed_writer_is_not_taken_and_removed_when_old(folder: Path) -> None:
    warm(folder)
    whole = chunks(folder)[0]
    young, old = (whole.with_name(f"77-{number}-0.unfinished") for number in (1, 2))
    for path in (young, old):
        path.write_bytes(whole.read_bytes()[:4096])
    os.utime(old, (1, 1))
    whole.unlink()
    warm(folder)
    assert young.exists()
    assert not old.exists()
    assert cold(folder)[0] == oracle(folder)


def test_a_process_that_is_killed_while_it_writes(folder: Path) -> None:
    program = (
        "import os, signal, sys, time, pystachio\n"
        "from pystachio.operators.chunks import cache as chunk_cache\n"
        "chunk_cache.is_worth_storing = lambda *_: True\n"
        f"session = pystachio.connect(threads=2, batch_rows={GROUP}, chunk_cache_dir={str(folder / 'cache')!r}, "
        "chunk_cache_bytes='1GiB')\n"
        f"session.register('t', {str(folder / 't.parquet')!r})\n"
        f"session.sql({QUERY!r}).to_arrow()\n"
        "time.sleep(float(sys.argv[1]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for seconds in ("0", "0.004"):
        assert subprocess.run([sys.executable, "-c", program, seconds]).returncode == -signal.SIGKILL
        with connected(folder, batch_rows=GROUP) as session:
            assert answer(session)[0] == oracle(folder)
            statistics = settled(session)
        assert statistics.store.unusable == 0


def test_the_budget_is_kept(folder: Path, everything_is_worth_storing: None) -> None:
    expected = oracle(folder)
    warm(folder)
    budget = sum(path.stat().st_size for path in chunks(folder)) // 2
    (folder / "u").mkdir()
    pq.write_table(rows(first=7), folder / "u" / "t.parquet", row_group_size=GROUP)
    for _ in range(3):
        with connected(folder, chunk_cache_bytes=budget, batch_rows=GROUP) as session:
            assert answer(session)[0] == expected
            session.register("t", folder / "u" / "t.parquet")
            assert answer(session)[0] == oracle(folder / "u")
            statistics = settled(session)
    assert statistics.store.nbytes == sum(path.stat().st_size for path in chunks(folder)) <= budget
    assert cold(folder)[0] == expected


def test_warming_leaves_out_what_has_no_room(folder: Path) -> None:
    with connected(folder, chunk_cache_bytes="1MiB", batch_rows=GROUP) as session:
        found = session.warm("t").to_arrow().to_pydict()
        assert sum(found["left_out"]) > 0
        assert sum(found["stored"]) + sum(found["left_out"]) == 18
        assert sum(found["bytes"]) == sum(path.stat().st_size for path in chunks(folder)) <= 1 << 20


def test_only_its_user_may_read_it(folder: Path) -> None:
    warm(folder)
    for path in (folder / "cache", folder / "cache" / f"chunks-{VERSION}", chunks(folder)[0].parent):
        assert path.stat().st_mode & 0o777 == 0o700
    assert chunks(folder)[0].stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_folder_of_somebody_else_is_not_trusted(folder: Path, everything_is_worth_storing: None) -> None:
    warm(folder)
    overwrite_parquet_data(folder / "t.parquet")
    pq.write_table(rows(), folder / "t.parquet", row_group_size=GROUP)
    os.chown(folder / "cache" / f"chunks-{VERSION}", 12345, 12345)
    with connected(folder, batch_rows=GROUP) as session:
        found, counts = answer(session)
        assert found == oracle(folder)
        assert set(counts) == {"bytes read"}
        assert not settled(session).store.writing


def test_a_folder_that_cannot_be_made_stops_writing_and_nothing_else(
    folder: Path, everything_is_worth_storing: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "cache").write_text("a file where the folder should be")
    with connected(folder, batch_rows=GROUP) as session:
        assert answer(session)[0] == oracle(folder)
        statistics = settled(session)
        assert not statistics.store.writing
        assert statistics.dropped > 0
        with pytest.raises(PystachioError):
            session.warm("t").to_arrow()
        assert answer(session)[0] == oracle(folder)


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    mount = folder / "cache"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", str(mount)]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip("not allowed to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.usefixtures("everything_is_worth_storing")
def test_a_full_disk_stops_writing_and_nothing_else(small_disk: Path) -> None:
    expected = oracle(small_disk)
    with connected(small_disk, batch_rows=GROUP) as session:
        assert answer(session)[0] == expected
        assert not settled(session).store.writing
    assert list((small_disk / "cache").rglob("*.unfinished")) == []
    assert cold(small_disk)[0] == expected
    with connected(small_disk, batch_rows=GROUP) as session, pytest.raises(ResourceExhausted):
        session.warm("t").to_arrow()


@pytest.fixture
def python_moves_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions can be made to fail."""
    monkeypatch.setattr(native, "load", lambda: CompiledLibrary(None, "not asked for"))


@pytest.mark.usefixtures("everything_is_worth_storing", "python_moves_chunks")
def test_a_disk_that_takes_no_more_stops_writing_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one above, where no file system may be mounted."""

    def full(descriptor: int, buffers: object, offset: int) -> int:
        raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os, "pwritev", full)
    with connected(folder, batch_rows=GROUP) as session:
        assert answer(session)[0] == oracle(folder)
        assert not settled(session).store.writing
        assert answer(session)[0] == oracle(folder)
    assert [path for path in (folder / "cache").rglob("*") if path.is_file()] == []


def test_two_processes_at_once(folder: Path) -> None:
    expected = oracle(folder)
    program = (
        "import pystachio\n"
        "from pystachio.operators.chunks import cache as chunk_cache\n"
        "chunk_cache.is_worth_storing = lambda *_: True\n"
        "for _ in range(4):\n"
        f"    with pystachio.connect(threads=2, batch_rows={GROUP}, chunk_cache_dir={str(folder / 'cache')!r}, "
        "chunk_cache_bytes='3MiB') as session:\n"
        f"        session.register('t', {str(folder / 't.parquet')!r})\n"
        f"        for _ in range(3): print(session.sql({QUERY!r}).to_arrow().to_pylist())\n"
        "        session.warm('t').to_arrow()\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        assert set(out.splitlines()) == {repr(expected)}
    assert cold(folder)[0] == expected


@pytest.mark.usefixtures("everything_is_worth_storing", "python_moves_chunks")
def test_closing_while_writes_are_under_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev
    begun = threading.Event()

    def slow(descriptor: int, buffers: Any, offset: int) -> int:
        begun.set()
        time.sleep(0.05)
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", slow)
    with connected(folder, batch_rows=GROUP) as session:
        answer(session)
        assert begun.wait(10)
        started = time.monotonic()
    assert time.monotonic() - started < 5
    assert list((folder / "cache").rglob("*.unfinished")) == []
    monkeypatch.undo()
    assert cold(folder)[0] == oracle(folder)


def test_warming_needs_a_folder(folder: Path) -> None:
    with connected(folder, chunk_cache_bytes=0) as session:
        with pytest.raises(InvalidRequest, match="no chunk cache on disk"):
            session.warm("t").to_arrow()
        with pytest.raises(NotFound):
            session.warm("unknown")
        assert session.statistics().chunks is None
