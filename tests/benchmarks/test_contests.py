"""The benchmarks beside DuckDB at a tiny scale: statements are answered rightly, and what is not is in the table."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import contest, engines, hostile, hostile_data, results, star, star_data, wide, wide_data
from benchmarks.cold import forget
from benchmarks.consumption import consumption
from benchmarks.figures import Figure
from benchmarks.report import Report
from benchmarks.results import record

SCALE = 0.002

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (star_data, wide_data, hostile_data):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "source"), [(star, star_data), (wide, wide_data), (hostile, hostile_data)], ids=lambda m: m.__name__
)
def test_every_statement_is_answered_rightly(benchmark: ModuleType, source: ModuleType, tmp_path: Path) -> None:
    queries = benchmark.QUERIES
    found = contest.contest(source.folder(SCALE), queries, repetitions=1)
    assert (found.figures[0].name, found.figures[0].value) == ("statements not answered rightly", 0), found.table
    assert len(found.table.splitlines()) == 2 + len(queries)
    assert found.chart is not None
    found.chart(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_data_is_the_same_for_the_same_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hostile_data.folder(SCALE)
    monkeypatch.setattr(hostile_data, "ROOT", tmp_path / "again")
    second = hostile_data.folder(SCALE)
    for path in first.glob("*.parquet"):
        assert pq.read_table(path).equals(pq.read_table(second / path.name))


def test_the_wide_table_is_wide() -> None:
    assert len(pq.read_schema(wide_data.folder(SCALE) / "hits.parquet")) == 100


def test_what_is_unsupported_or_wrong_stands_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "numbers"
    folder.mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3]}), folder / "t.parquet")
    monkeypatch.setattr(
        engines, "_ours", lambda session, tables: lambda sql: pa.table({"s": [7]} if "sum" in sql else {"n": [3]})
    )
    queries = {"right": "select max(n) as n from t", "wrong": "select sum(n) as s from t"}
    found = contest.contest(folder, queries, repetitions=1)
    assert found.figures[0].value == 1
    right, wrong = found.table.splitlines()[2:]
    assert "wrong" not in right
    assert "pystachio: wrong answer: (7,) instead of (6,)" in wrong


def test_a_report_is_recorded_with_its_chart(tmp_path: Path) -> None:
    found = Report(
        [Figure("a figure", 1.0, "s")], "| a | b |\n", ["a note"], lambda path: path.write_bytes(b"chart") and None
    )
    record("example", found, "command")
    record("example", found, "command again")
    page, picture = sorted((tmp_path / "results").iterdir())
    if page.suffix == ".png":
        page, picture = picture, page
    text = page.read_text()
    assert text.count("## example") == 1
    assert f"![example]({picture.name})" in text
    assert "| a figure | 1 s |" in text
    assert "- a note" in text
    assert picture.read_bytes() == b"chart"


def test_a_process_of_its_own_says_what_it_used(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "t.parquet")
    used = consumption(engines.DUCKDB_PARQUET, tmp_path, {"q": "select sum(n) as s from t"})
    assert used.peak >= used.imported > 0
    assert used.processor_seconds > 0


def test_forgetting_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    forget([tmp_path / "file", tmp_path / "no such file"])
    assert (tmp_path / "file").read_bytes() == b"content"
