"""Samples that outlive the process that took them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.operators.chunks.place import ChunkPlace
from pystachio.operators.chunks.samples import ChunkSamples
from pystachio.operators.column import Column
from pystachio.planner import sample

ROWS = 200_000
SQL = "select count(*) from t join u on t.k = u.k where t.text like '%7%' and t.number % 5 = 1 and u.price > 3"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    numbers = range(ROWS)
    for name in ("t", "u"):
        columns = pa.table(
            {
                "k": pa.array([i * 7919 % ROWS for i in numbers], pa.int64()),
                "number": pa.array([None if i % 9 == 4 else i for i in numbers], pa.int32()),
                "text": pa.array([f"text {i}" for i in numbers]),
                "price": pa.array([i % 50 for i in numbers], pa.int32()).cast(pa.decimal128(12, 2)),
            }
        )
        (tmp_path / name).mkdir()
        for part in range(2):
            path = tmp_path / name / f"{part}.parquet"
            pq.write_table(columns.slice(part * ROWS // 2, ROWS // 2), path, row_group_size=5000)
    return tmp_path


def planned(tables: Path, folder: Path, *, wait: bool = False, **settings: Any) -> str:
    """As if it were planned for the first time: kept plans need no samples."""
    for plans in folder.glob("*/plans"):
        shutil.rmtree(plans)
    with pystachio.connect(threads=2, chunk_cache_dir=str(folder), chunk_cache_bytes=64 << 20, **settings) as session:
        for name in ("t", "u"):
            session.register(name, tables / name)
        text = session.explain(SQL)
        if wait:
            _written(session)
        return text


def _written(session: pystachio.Session) -> None:
    for _ in range(500):
        cache = session.statistics().chunks
        assert cache is not None
        if cache.store.written and not cache.waiting_bytes:
            return
        time.sleep(0.01)
    raise AssertionError("nothing was written")


def test_the_next_session_takes_no_sample(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = planned(tables, tmp_path / "cache", wait=True)
    taken: list[Any] = []
    parts = sample._parts

    def noted(table: Any, column: int, runs: Any, fetch: Any) -> Any:
        taken.append((column, len(runs)))
        return parts(table, column, runs, fetch)

    monkeypatch.setattr(sample, "_parts", noted)
    assert planned(tables, tmp_path / "cache") == first
    # Runs of one row group only: those that count distinct values.
    assert all(runs == 1 for _, runs in taken)
    taken.clear()
    assert planned(tables, tmp_path / "cache", chunk_cache=False) == first
    assert any(runs > 1 for _, runs in taken)


def test_samples_that_are_kept_are_read_at_once(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = planned(tables, tmp_path / "cache", wait=True)
    asked: list[list[ChunkPlace]] = []
    ask = ChunkSamples.ask

    def noted(samples: ChunkSamples, places: Sequence[ChunkPlace]) -> Callable[[], list[Column | None]]:
        asked.append(list(places))
        return ask(samples, places)

    monkeypatch.setattr(ChunkSamples, "ask", noted)
    assert planned(tables, tmp_path / "cache") == first
    columns = {(Path(place.file.path).parent.name, place.file.fields[place.column].name) for place in asked[0]}
    assert columns == {("t", "text"), ("t", "number"), ("u", "price"), ("t", "k"), ("u", "k")}
    assert len(asked) == 1, "nothing is asked for a second time"
    for path in (tmp_path / "cache").rglob("*.chunk"):
        path.unlink()
    asked.clear()
    assert planned(tables, tmp_path / "cache") == first
    assert len(asked) > 1, "what is not there is taken one by one"


def test_the_whole_folder_may_be_removed_while_a_session_is_open(tables: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    first = planned(tables, folder, wait=True)
    with pystachio.connect(threads=2, chunk_cache_dir=str(folder), chunk_cache_bytes=64 << 20) as session:
        for name in ("t", "u"):
            session.register(name, tables / name)
        session.explain("select count(*) from t where k < 7")
        while not list(folder.glob("*/plans/*.plan")):  # the folder is quiet from then on
            time.sleep(0.005)
        while folder.exists():  # what is still being written makes it again
            shutil.rmtree(folder, ignore_errors=True)
        for _ in range(2):
            assert session.explain(SQL) == first
            assert session.sql(SQL).to_arrow().num_rows == 1


@pytest.mark.parametrize("damage", ["changed", "truncated", "removed"])
def test_a_damaged_sample_is_taken_again(tables: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "cache"
    first = planned(tables, folder, wait=True)
    found = list(folder.rglob("*.chunk"))
    assert found
    for path in found:
        content = bytearray(path.read_bytes())
        match damage:
            case "changed":
                content[-4096] ^= 0xFF
                path.write_bytes(content)
            case "truncated":
                path.write_bytes(content[:4096])
            case _:
                path.unlink()
    assert planned(tables, folder) == first
