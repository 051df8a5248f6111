"""Tables of other nodes' plans: what of them is kept, and what is read again."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import DataError
from pystachio.io_scheduler.client import TransferClient
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.parquet.footer import file_version, read_footers
from pystachio.operators.plan_codec.codec import TableReference
from pystachio.operators.table import FileVersion, ParquetFile, table_of_files
from pystachio.server import foreign_tables
from pystachio.server.file_looks import FileLooks
from pystachio.server.foreign_tables import MOST_VERSIONS, ForeignTables


@pytest.fixture
async def tables() -> AsyncIterator[ForeignTables]:
    service, looks = IoSchedulerService(), FileLooks(seconds=5)
    await service.start()
    yield ForeignTables(service, looks)
    await service.stop()
    looks.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose footers were read, as it goes on."""
    names: list[str] = []

    async def watched(client: TransferClient, versions: Sequence[FileVersion]) -> list[ParquetFile]:
        names.extend(Path(version.path).stem for version in versions)
        return await read_footers(client, versions)

    monkeypatch.setattr(foreign_tables, "read_footers", watched)
    return names


def written(folder: Path, numbers: Sequence[int]) -> list[FileVersion]:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        if not (folder / f"{number}.parquet").exists():
            pq.write_table(pa.table({"n": [number]}), folder / f"{number}.parquet")
    return [file_version(str(folder / f"{number}.parquet")) for number in numbers]


async def reference(folder: Path, *numbers: int) -> TableReference:
    service = IoSchedulerService()
    await service.start()
    files = await read_footers(service.client("test", PriorityClass.NORMAL), written(folder, numbers))
    await service.stop()
    return TableReference.of(table_of_files("t", files))


async def test_a_table_that_grows_is_not_kept_as_it_always_was(
    tables: ForeignTables, read: list[str], tmp_path: Path
) -> None:
    for count in range(1, 20):
        named = await reference(tmp_path, *range(count))
        opened = await tables.open([named], ())
        assert len(opened[named].files) == count
        assert len(tables) == min(count, MOST_VERSIONS)
        assert (await tables.open([named], ()))[named] is opened[named]
    assert read == [str(number) for number in range(19)]


async def test_tables_of_one_name_elsewhere_are_others(tables: ForeignTables, tmp_path: Path) -> None:
    named = [await reference(tmp_path / str(folder), 0) for folder in range(MOST_VERSIONS + 2)]
    first = await tables.open(named, ())
    assert await tables.open(named, ()) == first
    assert len(tables) == len(named)


async def test_as_many_files_are_kept_as_there_is_room_for(
    tables: ForeignTables, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_tables, "MOST_FILES", 5)
    for folder in range(4):
        await tables.open([await reference(tmp_path / str(folder), 0, 1)], ())
        assert len(tables) == min(folder + 1, 2)
    gc.collect()
    read.clear()
    await tables.open([await reference(tmp_path / "0", 0, 1)], ())
    assert read == ["0", "1"]
    large = await reference(tmp_path / "large", *range(8))
    assert len((await tables.open([large], ()))[large].files) == 8
    assert len(tables) == 1


async def test_a_file_that_is_another_one_here(tables: ForeignTables, tmp_path: Path) -> None:
    named = await reference(tmp_path, 0)
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "0.parquet")
    with pytest.raises(DataError, match="another one than on the coordinator"):
        await tables.open([named], ())
    assert len(tables) == 0
