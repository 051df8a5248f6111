"""Footers: how many reads they take, and the lies that are found before anything believes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import DataError, NotFound, Unauthorized, Unsupported
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.parquet.footer import file_version, parse_footer, read_footer, read_footers
from pystachio.operators.table import FileVersion, table_of_files
from tests.operators.parquet_sources import every_type, open_file, reading, write


class Bytes:
    """A client over one file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.extents: list[Extent] = []

    async def read(self, path: str, extents: Sequence[Extent], *, criticality: int = 0) -> list[Any]:
        self.extents.extend(extents)

        class Buffer:
            def __init__(self, view: memoryview) -> None:
                self.view = view

            def release(self) -> None:
                pass

        return [Buffer(memoryview(self.content)[e.offset : e.offset + e.length]) for e in extents]


def content_of(table: pa.Table, path: Path, **options: object) -> bytes:
    return write(table, path, **options).read_bytes()


async def read_bytes(content: bytes) -> Any:
    client: Any = Bytes(content)
    return await read_footer(client, FileVersion("f.parquet", len(content), 1))


async def test_a_small_footer_takes_one_read(tmp_path: Path) -> None:
    content = content_of(pa.table({"a": range(100_000)}), tmp_path / "t.parquet", use_dictionary=False)
    client: Any = Bytes(content)
    file = await read_footer(client, FileVersion("f.parquet", len(content), 1))
    assert file.rows == 100_000
    assert client.extents == [Extent(len(content) - 65536, 65536)]


async def test_a_large_footer_takes_two(tmp_path: Path) -> None:
    wide = pa.table({f"a rather long column name {i}": [1, 2] for i in range(600)})
    content = content_of(wide, tmp_path / "t.parquet", row_group_size=1)
    client: Any = Bytes(content)
    file = await read_footer(client, FileVersion("f.parquet", len(content), 1))
    assert len(file.fields) == 600
    assert file.chunks(599)[1].statistics.high == 2
    assert len(client.extents) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"PAR1", "too short"),
        (b"hello, I am a text file", "not a Parquet file"),
        (b"PAR1" + b"\0" * 50 + b"\xff\xff\xff\xffPAR1", "outside the file"),
        (b"PAR1" + b"\0" * 50 + b"\0\0\0\0PAR1", "outside the file"),
        (b"PAR1" + b"\x15\x02\x19\xfc" * 12 + b"\x20\0\0\0PAR1", "cannot read the Parquet footer"),
    ],
)
async def test_not_parquet(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        await read_bytes(content)


async def test_a_footer_that_says_it_fills_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.parquet"
    with path.open("wb") as file:
        file.truncate(3 << 30)
        file.seek(0, os.SEEK_END)
        file.write((2 << 30).to_bytes(4, "little") + b"PAR1")
    async with reading() as client:
        with pytest.raises(Unsupported, match="a Parquet footer of 2147483648 bytes"):
            await read_footer(client, file_version(str(path)))


async def test_encrypted_files_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="encrypted"):
        await read_bytes(b"PARE" + b"\0" * 50 + b"\x10\0\0\0PARE")


@pytest.mark.parametrize(
    ("fieldname", "delta"),
    [("data_offset", 1 << 40), ("data_offset", -(1 << 20)), ("length", 1 << 40), ("length", -(1 << 30)), ("values", 5)],
)
async def test_a_footer_that_lies_about_a_chunk(tmp_path: Path, fieldname: str, delta: int) -> None:
    async with reading() as client:
        file = await open_file(client, write(every_type(100), tmp_path / "t.parquet"))
        description = file._descriptions[1][0]
        lie = description._replace(**{fieldname: getattr(description, fieldname) + delta})
        file.__dict__["_descriptions"] = {0: file._descriptions[0], 1: [lie]}
        with pytest.raises(DataError, match=r"contradicts the file: .*row group 0, column 'i16'"):
            file.chunks(1)
        assert file.chunks(0)


async def test_row_counts_that_do_not_add_up(tmp_path: Path) -> None:
    content = content_of(pa.table({"a": range(1000)}), tmp_path / "t.parquet", store_schema=False)
    length = int.from_bytes(content[-8:-4], "little")
    footer = bytearray(content[-8 - length :])
    honest = bytes([0xD0, 0x0F])  # 1000 as a zigzag varint: in the file's count, the row group's and the chunk's
    at = footer.index(honest)
    footer[at : at + 2] = bytes([0xD2, 0x0F])
    with pytest.raises(DataError, match="row counts"):
        parse_footer(FileVersion("f", len(content), 1), bytes(footer))


async def test_string_views_are_read_as_strings(tmp_path: Path) -> None:
    """A stored Arrow schema is hidden from the decoder where it says nothing but the layout."""
    views = pa.table({"v": pa.array(["a"], pa.string_view()), "d": pa.array(["x"]).dictionary_encode()})
    zoned = views.append_column("t", pa.array([0], pa.timestamp("us", "Asia/Tokyo")))
    async with reading() as client:
        plain = await open_file(client, write(views, tmp_path / "views.parquet"))
        assert plain.metadata.schema.to_arrow_schema().field("v").type == pa.string()
        kept = await open_file(client, write(zoned, tmp_path / "zoned.parquet"))
        assert kept.fields[2].type == pa.timestamp("us", "UTC"), "the moment, whatever the zone"
        assert kept.fields[0].type == pa.string()


async def test_statistics_of_unsigned_and_decimal_columns(tmp_path: Path) -> None:
    async with reading() as client:
        file = await open_file(client, write(every_type(500, nulls=0), tmp_path / "t.parquet"))
        for name, low, high in (
            ("u32", 0, 2**32 - 1),
            ("i8", -128, 127),
            ("d18", -(10**18) + 1, 10**18 - 1),
            ("d38", -(10**38) + 1, 10**38 - 1),
            ("f64", -1e300, None),
            ("interval", None, None),
            ("fixed", None, None),
        ):
            statistics = file.chunks(file.positions[name])[0].statistics
            assert statistics.low == low, name
            assert high is None or statistics.high == high, name


async def test_old_string_statistics_are_not_trusted(tmp_path: Path) -> None:
    """The deprecated fields were compared as signed bytes; for numbers they are right."""
    async with reading() as client:
        file = await open_file(client, write(pa.table({"s": ["a", "é"], "i": [1, 2]}), tmp_path / "t.parquet"))
        new = [file._descriptions[leaf][0] for leaf in range(2)]
        old = [d._replace(legacy_low=d.low, legacy_high=d.high, low=None, high=None) for d in new]
        file.__dict__["_descriptions"] = {leaf: [description] for leaf, description in enumerate(old)}
        assert file.chunks(0)[0].statistics.low is None
        assert file.chunks(1)[0].statistics.low == 1


def test_what_is_not_a_readable_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        file_version(str(tmp_path / "missing"))
    with pytest.raises(DataError, match="regular"):
        file_version(str(tmp_path))
    if os.geteuid():
        locked = tmp_path / "locked"
        locked.mkdir(mode=0)
        with pytest.raises(Unauthorized):
            file_version(str(locked / "file"))


async def test_many_footers_and_one_that_is_broken(tmp_path: Path) -> None:
    paths = [write(pa.table({"a": [i]}), tmp_path / f"{i:03}.parquet") for i in range(40)]
    async with reading() as client:
        files = await read_footers(client, [file_version(str(path)) for path in paths])
        assert [file.path for file in files] == [str(path) for path in paths]
        paths[17].write_bytes(b"broken" * 10)
        with pytest.raises(DataError, match=r"017\.parquet"):
            await read_footers(client, [file_version(str(path)) for path in paths])


async def test_files_of_different_schemas_do_not_make_a_table(tmp_path: Path) -> None:
    async with reading() as client:
        first = await open_file(client, write(pa.table({"a": [1], "b": ["x"]}), tmp_path / "1.parquet"))
        other = await open_file(client, write(pa.table({"a": [1.5], "b": ["x"]}), tmp_path / "2.parquet"))
        fewer = await open_file(client, write(pa.table({"a": [1]}), tmp_path / "3.parquet"))
        with pytest.raises(DataError, match=r"'a' is int64 in .*1\.parquet and double in .*2\.parquet"):
            table_of_files("t", [first, other])
        with pytest.raises(DataError, match=r"'b' is string in .*1\.parquet and absent in .*3\.parquet"):
            table_of_files("t", [first, fewer])


async def test_nullable_in_one_file_is_nullable_in_the_table(tmp_path: Path) -> None:
    required = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    async with reading() as client:
        first = await open_file(client, write(pa.table({"a": [1]}, required), tmp_path / "1.parquet"))
        other = await open_file(client, write(pa.table({"a": [None, 1]}), tmp_path / "2.parquet"))
        assert not table_of_files("t", [first]).schema[0].nullable
        assert table_of_files("t", [first, other]).schema[0].nullable
        assert table_of_files("t", [first]) == table_of_files("t", [first])
        assert table_of_files("t", [first]) != table_of_files("t", [other])


async def test_equal_column_names_are_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "t.parquet")
    async with reading() as client:
        with pytest.raises(DataError, match="several columns of one name"):
            table_of_files("t", [await open_file(client, tmp_path / "t.parquet")])
