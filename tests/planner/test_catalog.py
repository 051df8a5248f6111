"""What a source means, and what happens when it changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import DataError, InvalidRequest, NodeLost, NotFound, Unauthorized, Unsupported
from pystachio.operators.parquet.footer import read_footers
from pystachio.operators.table import FileVersion, ParquetFile
from pystachio.planner.catalog import Catalog
from pystachio.planner.local_files import local_files
from tests.operators.parquet_sources import reading


class CountingReader:
    """Reads footers on a loop of its own, and counts them."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, versions: Sequence[FileVersion]) -> list[ParquetFile]:
        self.read.extend(version.path for version in versions)

        async def read() -> list[ParquetFile]:
            async with reading() as client:
                return await read_footers(client, versions)

        return asyncio.run(read())


@pytest.fixture
def reader() -> CountingReader:
    return CountingReader()


@pytest.fixture
def catalog(reader: CountingReader) -> Catalog:
    return Catalog(reader)


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns or {"a": [1, 2]}), path)
    return path


def test_a_file(catalog: Catalog, tmp_path: Path) -> None:
    catalog.register("t", write(tmp_path / "x.parquet", a=[1], b=["x"]))
    table = catalog.table("t")
    assert [field.name for field in table.schema] == ["a", "b"]
    assert table.rows == 1
    assert table.files[0].path == str(tmp_path / "x.parquet")


def test_a_folder_leaves_out_what_is_no_data(catalog: Catalog, tmp_path: Path) -> None:
    for name in ("b.parquet", "a.PARQUET", "_tmp.parquet", ".hidden.parquet", "sub/c.parquet"):
        write(tmp_path / name)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.txt").write_text("not a table")
    catalog.register("t", str(tmp_path))
    assert [Path(file.path).name for file in catalog.table("t").files] == ["a.PARQUET", "b.parquet"]


def test_globs_and_lists(catalog: Catalog, tmp_path: Path) -> None:
    for name in ("1/x.parquet", "2/x.parquet", "2/y.parquet"):
        write(tmp_path / name)
    catalog.register("glob", str(tmp_path / "*" / "x.parquet"))
    catalog.register("deep", str(tmp_path / "**" / "*.parquet"))
    catalog.register("list", [tmp_path / "2" / "y.parquet", str(tmp_path / "1")])
    assert catalog.table("glob").rows == 4
    assert catalog.table("deep").rows == 6
    assert [Path(file.path).name for file in catalog.table("list").files] == ["y.parquet", "x.parquet"]


def test_a_file_url_and_a_name_with_glob_characters(catalog: Catalog, tmp_path: Path) -> None:
    odd = write(tmp_path / "a[1].parquet")
    catalog.register("url", f"file://{write(tmp_path / 'x.parquet')}")
    catalog.register("odd", odd)
    assert catalog.table("url").rows == catalog.table("odd").rows == 2


def test_a_relative_path_stays_where_it_was(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x.parquet")
    monkeypatch.chdir(tmp_path)
    catalog.register("t", "x.parquet")
    monkeypatch.chdir("/")
    assert catalog.refresh().tables["t"].rows == 2


@pytest.mark.parametrize("source", ["s3://bucket/x.parquet", "gs://b/x", "https://host/x.parquet", "abfss://c@a/x"])
def test_object_stores_are_unsupported(catalog: Catalog, source: str) -> None:
    with pytest.raises(Unsupported, match="object stores") as caught:
        catalog.register("t", source)
    assert caught.value.hint


@pytest.mark.parametrize("source", ["", [], "a\0b", [""], b"bytes"])
def test_sources_that_are_none(catalog: Catalog, source: Any) -> None:
    with pytest.raises(InvalidRequest):
        catalog.register("t", source)


@pytest.mark.parametrize("name", ["", "\udcff", "a\0b", None])
def test_names_that_are_none(catalog: Catalog, tmp_path: Path, name: Any) -> None:
    with pytest.raises(InvalidRequest):
        catalog.register(name, write(tmp_path / "x.parquet"))
    assert not catalog.tables()


def test_what_is_not_there(catalog: Catalog, tmp_path: Path) -> None:
    write(tmp_path / "lineage.parquet")
    with pytest.raises(NotFound, match="no such file") as caught:
        catalog.register("t", tmp_path / "linage.parquet")
    assert caught.value.hint is not None
    assert "lineage.parquet" in caught.value.hint
    with pytest.raises(NotFound, match="no file matches"):
        catalog.register("t", str(tmp_path / "*.csv"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no Parquet files in the folder"):
        catalog.register("t", tmp_path / "empty")
    with pytest.raises(NotFound) as elsewhere:
        catalog.register("t", tmp_path / "no" / "such" / "folder.parquet")
    assert "does not exist either" in str(elsewhere.value)
    assert not catalog.tables()


def test_partition_folders_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    write(tmp_path / "year=2024" / "x.parquet")
    with pytest.raises(Unsupported, match="Hive partition"):
        catalog.register("t", tmp_path)
    catalog.register("one", tmp_path / "year=2024")


def test_no_permission(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> Any:
        raise PermissionError(13, "denied", path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(Unauthorized):
        catalog.register("t", tmp_path)


def test_files_that_are_not_parquet(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("this is no Parquet file at all")
    with pytest.raises(DataError, match="not a Parquet file"):
        catalog.register("t", tmp_path)


def test_a_folder_of_different_schemas(catalog: Catalog, tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", a=[1])
    write(tmp_path / "2.parquet", a=["x"])
    with pytest.raises(DataError, match=r"1\.parquet and string in .*2\.parquet"):
        catalog.register("t", tmp_path)


def test_names_without_quotes_ignore_case(catalog: Catalog, tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.parquet"), write(tmp_path / "2.parquet", a=[1])
    catalog.register("Sales", one)
    assert catalog.table("SALES") is catalog.table("Sales")
    assert catalog.snapshot().tables["sales"] is catalog.table("Sales")
    assert list(catalog.tables()) == ["Sales"]
    catalog.register("sales", two)
    assert catalog.table("sales").rows == 1
    assert catalog.snapshot().tables["Sales"].rows == 2
    with pytest.raises(NotFound):
        catalog.table("SALES")


def test_unknown_tables_get_a_hint(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing is registered"):
        catalog.table("orders")
    catalog.register("orders", write(tmp_path / "x.parquet"))
    with pytest.raises(NotFound, match="did you mean orders"):
        catalog.table("ordres")
    with pytest.raises(NotFound, match="there are: orders"):
        catalog.unregister("zebra")


def test_footers_are_read_once(catalog: Catalog, reader: CountingReader, tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet")
    catalog.register("a", path)
    version = catalog.snapshot().version
    catalog.register("b", [path, path])
    assert catalog.table("b").rows == 4
    assert len(reader.read) == 1
    assert catalog.refresh().version == version + 1, "nothing changed since the second registration"


def test_changes_are_seen(catalog: Catalog, reader: CountingReader, tmp_path: Path) -> None:
    write(tmp_path / "1.parquet")
    catalog.register("t", tmp_path)
    before = catalog.snapshot()
    write(tmp_path / "2.parquet")
    grown = catalog.refresh()
    assert grown.version > before.version
    assert grown.tables["t"].rows == 4
    assert before.tables["t"].rows == 2, "a snapshot is of its moment"
    write(tmp_path / "1.parquet", a=[7, 8, 9])
    assert catalog.refresh().tables["t"].rows == 5
    assert [Path(path).name for path in reader.read] == ["1.parquet", "2.parquet", "1.parquet"]


def test_a_table_that_became_unreadable_stays_and_says_why(catalog: Catalog, tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet")
    catalog.register("T", path)
    catalog.register("other", write(tmp_path / "other.parquet"))
    catalog.register("OTHER", path)
    version = catalog.snapshot().version
    path.write_text("broken" * 10)
    broken = catalog.refresh()
    assert broken.version == version
    assert broken.tables["T"].rows == 2
    for name in ("T", "t"):
        with pytest.raises(DataError, match=r"not a Parquet file.*x\.parquet"):
            broken.require_readable([name])
    broken.require_readable(["other"])
    with pytest.raises(DataError):
        broken.require_readable(["OTHER"])
    path.unlink()
    with pytest.raises(NotFound, match=r"x\.parquet"):
        catalog.refresh().require_readable(["t"])
    write(path, a=[1, 2, 3])
    mended = catalog.refresh()
    mended.require_readable(["t"])
    assert mended.tables["t"].rows == 3


def test_a_file_of_another_schema_is_named(catalog: Catalog, tmp_path: Path) -> None:
    write(tmp_path / "1.parquet")
    write(tmp_path / "2.parquet")
    catalog.register("t", tmp_path)
    write(tmp_path / "2.parquet", a=["x"])
    with pytest.raises(DataError, match=r"different schemas.*2\.parquet"):
        catalog.refresh().require_readable(["t"])


def test_a_file_that_changes_while_it_is_looked_at_is_looked_at_again(reader: CountingReader, tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet")
    catalog = Catalog(lambda versions: (mend(), reader(versions))[1])
    fresh: list[int] = []

    def mend() -> None:
        if fresh:
            write(path, a=fresh)
            fresh.clear()

    catalog.register("t", path)
    path.write_text("broken" * 10)
    fresh += [1, 2, 3]
    looked = catalog.refresh()
    looked.require_readable(["t"])
    assert looked.tables["t"].rows == 3


def test_only_the_tables_that_are_asked_for_are_looked_at(reader: CountingReader, tmp_path: Path) -> None:
    looked_at: list[str] = []

    def find(paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]:
        looked_at.extend(paths)
        return local_files(paths)

    catalog = Catalog(reader, find)
    for name in ("Mine", "other"):
        catalog.register(name, write(tmp_path / f"{name}.parquet"))
    before = catalog.snapshot()
    for name in ("Mine", "other"):
        write(tmp_path / f"{name}.parquet", a=[1, 2, 3])
    looked_at.clear()
    # By the name that SQL makes of it, too.
    looked = catalog.refresh({"mine"})
    assert looked_at == [str(tmp_path / "Mine.parquet")]
    assert (looked.tables["Mine"].rows, looked.tables["other"].rows) == (3, 2)
    assert looked.version > before.version
    assert catalog.refresh().tables["other"].rows == 3


def test_a_node_that_does_not_answer_makes_nothing_unreadable(reader: CountingReader, tmp_path: Path) -> None:
    answers = True

    def find(paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]:
        if not answers:
            raise NodeLost("a node does not say which files it has")
        return local_files(paths)

    catalog = Catalog(reader, find)
    catalog.register("t", write(tmp_path / "x.parquet"))
    answers = False
    catalog.refresh().require_readable(["t"])


def test_tables_of_another_catalog(catalog: Catalog, reader: CountingReader, tmp_path: Path) -> None:
    """They are there without a look at their files, and each catalog sees their changes by itself."""
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet")
    catalog.register("a", tmp_path / "a.parquet")
    reader.read.clear()
    looked_at: list[str] = []

    def find(paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]:
        looked_at.extend(paths)
        return local_files(paths)

    other = Catalog(reader, find)
    other.adopt(catalog)
    assert other.table("a") is catalog.table("a")
    assert not reader.read
    assert not looked_at
    other.register("b", tmp_path / "b.parquet")
    assert list(other.tables()) == ["a", "b"]
    assert list(catalog.tables()) == ["a"]
    write(tmp_path / "a.parquet", a=[7, 8, 9])
    assert other.refresh().tables["a"] is not catalog.table("a")
    assert str(tmp_path / "a.parquet") in looked_at


def test_unregister(catalog: Catalog, tmp_path: Path) -> None:
    catalog.register("T", write(tmp_path / "x.parquet"))
    version = catalog.snapshot().version
    catalog.unregister("t")
    assert not catalog.tables()
    assert catalog.snapshot().version == version + 1
