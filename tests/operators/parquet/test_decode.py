"""Decoding against pyarrow's own reader: every type, every layout of pages, every mutilation."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import pystachio
from pystachio.errors import DataError, PystachioError, Unsupported
from pystachio.io_scheduler.core.request import Extent
from pystachio.operators.arrow import column_to_arrow, dictionary_to_arrow
from pystachio.operators.column import BytesColumn, DictionaryColumn, FixedColumn, normalise_type
from pystachio.operators.kernels.selection import concat
from pystachio.operators.parquet.decode import FetchedExtents, RowGroupDecoder
from pystachio.operators.parquet.dictionary import SharedDictionary
from tests.operators.parquet_sources import decode, every_type, open_file, open_table, reading, write

LAYOUTS: dict[str, dict[str, object]] = {
    "default": {},
    "plain": {"use_dictionary": False, "compression": "none"},
    "version 2 pages": {"data_page_version": "2.0", "compression": "zstd", "write_page_checksum": True},
    "many pages": {"data_page_size": 512, "write_page_checksum": True, "compression": "gzip"},
    "no statistics": {"write_statistics": False, "store_schema": False},
    "overflowing dictionary": {"dictionary_pagesize_limit": 256, "data_page_size": 1024},
    "small row groups": {"row_group_size": 37},
}


def same(left: pa.Array, right: pa.Array) -> bool:
    """Equal, NaN with itself too."""
    if not pa.types.is_floating(left.type):
        return bool(left.equals(right))
    numbers = [array.fill_null(7.5).to_numpy(zero_copy_only=False) for array in (left, right)]
    return bool(left.is_null().equals(right.is_null()) and np.array_equal(*numbers, equal_nan=True))


def expected(path: Path, name: str, type_: pa.DataType) -> pa.Array:
    """The column as pyarrow reads it, in the engine's type."""
    array = pq.read_table(path, columns=[name]).column(0).combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == type_ else array.cast(type_)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_every_type_in_every_layout(tmp_path: Path, layout: str) -> None:
    path = write(every_type(), tmp_path / "t.parquet", **LAYOUTS[layout])
    async with reading() as client:
        file = await open_file(client, path)
        groups = range(len(file.row_group_rows))
        for index, field in enumerate(file.fields):
            column = await decode(client, file, groups, index)
            assert column.type == field.type == normalise_type(field.type)
            assert same(column_to_arrow(column), expected(path, field.name, field.type)), field.name


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_strings_as_codes(tmp_path: Path, layout: str) -> None:
    path = write(every_type(), tmp_path / "t.parquet", **LAYOUTS[layout])
    async with reading() as client:
        file = await open_file(client, path)
        for name in ("word", "text", "view", "large", "coded", "bytes"):
            index = file.positions[name]
            column = await decode(client, file, range(len(file.row_group_rows)), index, SharedDictionary())
            assert column_to_arrow(column).equals(expected(path, name, file.fields[index].type)), name
            if layout == "default" and name in ("word", "view", "coded"):
                assert isinstance(column, DictionaryColumn)


async def test_layouts_of_strings_without_anything_else_to_know(tmp_path: Path) -> None:
    path = write(every_type().select(["view", "large", "coded", "word", "i64"]), tmp_path / "t.parquet")
    async with reading() as client:
        file = await open_file(client, path)
        assert all(field.type == pa.string() for field in file.metadata.schema.to_arrow_schema() if field.name != "i64")
        for index, field in enumerate(file.fields):
            column = await decode(client, file, [0], index)
            assert same(column_to_arrow(column), expected(path, field.name, field.type)), field.name


@pytest.mark.parametrize("rows", [0, 1])
async def test_tiny_files(tmp_path: Path, rows: int) -> None:
    path = write(every_type(rows, nulls=0), tmp_path / "t.parquet")
    async with reading() as client:
        file = await open_file(client, path)
        assert file.rows == rows
        for index, field in enumerate(file.fields if rows else ()):
            column = await decode(client, file, [0], index)
            assert same(column_to_arrow(column), expected(path, field.name, field.type))


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
async def test_strings_whose_lengths_are_differences(tmp_path: Path, encoding: str) -> None:
    words = ["apple", None, "", "apple pie"] * 50
    path = write(
        pa.table({"word": words}),
        tmp_path / "t.parquet",
        use_dictionary=False,
        column_encoding={"word": encoding},
        row_group_size=80,
    )
    async with reading() as client:
        file = await open_file(client, path)
        column = await decode(client, file, range(3), 0, SharedDictionary())
        assert column_to_arrow(column).to_pylist() == words


async def test_moments_are_those_of_utc(tmp_path: Path) -> None:
    moments = pa.array([0, None, -5], pa.timestamp("us", tz="Europe/Berlin"))
    path = write(pa.table({"t": moments}), tmp_path / "t.parquet")
    async with reading() as client:
        file = await open_file(client, path)
        column = await decode(client, file, [0], 0)
        assert file.fields[0].type == column.type == pa.timestamp("us", tz="UTC")
        assert column_to_arrow(column).equals(moments.cast(column.type))


async def test_all_null(tmp_path: Path) -> None:
    path = write(every_type(50, nulls=1.0), tmp_path / "t.parquet")
    async with reading() as client:
        file = await open_file(client, path)
        for index, field in enumerate(file.fields):
            column = await decode(client, file, [0], index, SharedDictionary() if field.name == "word" else None)
            assert column_to_arrow(column).null_count == 50, field.name
            assert file.chunks(index)[0].statistics.low is None


async def test_uint64_beyond_int64_is_unsupported(tmp_path: Path) -> None:
    path = write(pa.table({"u": pa.array([1, 2**63], pa.uint64())}), tmp_path / "t.parquet")
    async with reading() as client:
        file = await open_file(client, path)
        assert file.chunks(0)[0].statistics.high == 2**63
        with pytest.raises(Unsupported, match="column 'u'") as caught:
            await decode(client, file, [0], 0)
        assert "decimal(20, 0)" in (caught.value.hint or "")


async def test_nested_columns_are_known_but_not_read(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": [[1], [2, 3]],
            "s": [{"x": 1, "y": ["z"]}, None],
            "m": pa.array([[(1, "x")], []], pa.map_(pa.int64(), pa.string())),
            "b": [10, 20],
        }
    )
    path = write(table, tmp_path / "t.parquet")
    async with reading() as client:
        file = await open_file(client, path)
        assert [field.leaf for field in file.fields] == [None, None, None, 5]
        column = await decode(client, file, [0], 3)
        assert isinstance(column, FixedColumn)
        assert column.values.tolist() == [10, 20]
        with pytest.raises(Unsupported, match="nested column 'a'"):
            file.chunks(0)


async def test_dotted_and_odd_names(tmp_path: Path) -> None:
    path = write(pa.table({"a.b": ["x", "y"], "": [1, 2], "naïve": [3, 4]}), tmp_path / "t.parquet")
    async with reading() as client:
        file = await open_file(client, path)
        coded = await decode(client, file, [0], 0, SharedDictionary())
        assert column_to_arrow(coded).to_pylist() == ["x", "y"]
        plain = await decode(client, file, [0], file.positions["naïve"])
        assert column_to_arrow(plain).to_pylist() == [3, 4]


@pytest.mark.parametrize("compression", ["none", "snappy"])
async def test_columns_do_not_refer_to_the_fetched_bytes(tmp_path: Path, compression: str) -> None:
    table = every_type(nulls=0)
    path = write(table, tmp_path / "t.parquet", compression=compression, use_dictionary=False)
    async with reading() as client:
        file = await open_file(client, path)
        columns = []
        for index in range(len(file.fields)):
            chunk = file.chunks(index)[0]
            fetched = bytearray((await client.read(str(path), [Extent(chunk.offset, chunk.length)]))[0].view)
            source = FetchedExtents(str(path), file.size, [(chunk.offset, memoryview(fetched))])
            columns.append(RowGroupDecoder(file, [0], source).decode(index))
            fetched[:] = b"\xff" * len(fetched)
        for column, field in zip(columns, file.fields, strict=True):
            assert same(column_to_arrow(column), expected(path, field.name, field.type)), field.name


async def test_row_groups_share_one_dictionary(tmp_path: Path) -> None:
    words = ["b", "a"] * 10 + ["c", "b"] * 10 + ["a", "c"] * 10
    path = write(pa.table({"w": words}), tmp_path / "t.parquet", row_group_size=20)
    async with reading() as client:
        table = await open_table(client, path)
        shared = table.dictionary(0)
        first, second, third = [await decode(client, table.files[0], [group], 0, shared) for group in range(3)]
        assert isinstance(first, DictionaryColumn)
        assert isinstance(second, DictionaryColumn)
        assert isinstance(third, DictionaryColumn)
        assert dictionary_to_arrow(first.dictionary).to_pylist() == ["b", "a"]
        assert dictionary_to_arrow(second.dictionary).to_pylist() == ["b", "a", "c"]
        assert third.dictionary is second.dictionary
        assert [column_to_arrow(c).to_pylist() for c in (first, second, third)] == [
            words[:20],
            words[20:40],
            words[40:],
        ]
        assert third.codes.dtype == torch.int8


async def test_a_large_dictionary_falls_back_to_bytes(tmp_path: Path) -> None:
    words = [f"word {i}" for i in range(1000)]
    path = write(pa.table({"w": words * 2}), tmp_path / "t.parquet", row_group_size=1000)
    async with reading() as client:
        file = await open_file(client, path)
        shared = SharedDictionary(most_values=999)
        column = await decode(client, file, [0, 1], 0, shared)
        assert isinstance(column, BytesColumn)
        assert shared.overflowed
        assert column_to_arrow(column).to_pylist() == words * 2


async def test_which_columns_are_read_as_codes(tmp_path: Path) -> None:
    rows = 40_000
    table = pa.table(
        {
            "few": [f"value {i % 7}" for i in range(rows)],
            "unique": [f"{i:020}" for i in range(rows)],
            "plain": ["x"] * rows,
            "number": range(rows),
        }
    )
    path = write(table, tmp_path / "t.parquet", use_dictionary=["few", "unique"])
    small = write(table.slice(0, 100), tmp_path / "small.parquet")
    async with reading() as client:
        large = await open_table(client, path)
        assert [large.holds_codes(column) for column in range(4)] == [True, False, False, False]
        assert [large.codes_pay(column) for column in range(4)] == [True, True, True, False]
        for index, name in enumerate(("few", "unique", "plain")):
            column = await decode(client, large.files[0], [0], index, large.dictionary(index))
            assert isinstance(column, DictionaryColumn) is (name != "unique"), "values of their own are not worth codes"
            assert column_to_arrow(column).equals(expected(path, name, pa.string()))
        assert [large.codes_pay(column) for column in range(4)] == [True, False, True, False]
        little = await open_table(client, small)
        assert [little.holds_codes(column) for column in range(4)] == [True, True, True, False]


async def test_plain_strings_become_codes_of_one_dictionary(tmp_path: Path) -> None:
    """Row groups of which each adds values, one of them of NULLs only."""
    words = [None if i % 7 == 0 else f"word {i * i % (500 + i // 50)}" for i in range(60_000)] + [None] * 20_000
    path = write(pa.table({"w": pa.array(words, pa.string())}), tmp_path / "t.parquet", row_group_size=20_000)
    plain = write(pq.read_table(path), tmp_path / "p.parquet", row_group_size=20_000, use_dictionary=False)
    async with reading() as client:
        file = await open_file(client, plain)
        shared = SharedDictionary()
        columns = [await decode(client, file, groups, 0, shared) for groups in ([0], [1, 2], [3], [0, 1, 2, 3])]
    assert all(isinstance(column, DictionaryColumn) for column in columns)
    whole = concat([columns[0], columns[1], columns[2]])
    assert isinstance(whole, DictionaryColumn)
    assert whole.dictionary is shared.current
    assert column_to_arrow(whole).to_pylist() == column_to_arrow(columns[3]).to_pylist() == words


@pytest.mark.parametrize(("plain", "pays"), [(2_000, True), (20_000, False)])
def test_a_few_plain_strings_do_not_cost_a_column_its_codes(tmp_path: Path, plain: int, pays: bool) -> None:
    """A writer decides for each row group, and the last one is short."""
    coded = pa.table({"word": [f"word {i % 500}" for i in range(40_000)], "n": range(40_000)})
    last = pa.table({"word": [f"word {i % 700}" for i in range(plain)], "n": range(40_000, 40_000 + plain)})
    write(coded, tmp_path / "0.parquet")
    write(last, tmp_path / "1.parquet", use_dictionary=False)
    everything = pa.concat_tables([coded, last])
    with pystachio.connect(threads=1, chunk_cache=False) as session:
        session.register("t", tmp_path)
        table = session._catalog.refresh().tables["t"]
        assert table.holds_codes(0) is pays
        for sql in (
            "select word, count(*) as n, max(n) as m from t where word <> 'word 3' group by word order by word",
            "select word, n from t where word like '%99' order by word, n",
        ):
            expected = duckdb.sql(sql.replace("from t", "from everything")).to_arrow_table()
            assert session.sql(sql).to_arrow().to_pylist() == expected.to_pylist()
    assert everything.num_rows == 40_000 + plain


async def test_bit_flips_never_crash(tmp_path: Path) -> None:
    """With checksums a flip inside a page is an error; without them, any answer will do."""
    table = every_type(400).select(["i32", "i64", "d18", "d38", "flag", "f64", "word", "text", "view", "date", "bytes"])
    outcomes = {"right": 0, "error": 0, "wrong": 0}
    for layout, checksums in (({"write_page_checksum": True}, True), ({"use_dictionary": False}, False), ({}, False)):
        path = write(table, tmp_path / "t.parquet", row_group_size=150, **layout)
        original = path.read_bytes()
        rng = random.Random(7)
        for _ in range(70):
            mutated = bytearray(original)
            for _ in range(rng.choice([1, 1, 4])):
                mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
            path.write_bytes(mutated)
            outcomes[await _outcome(path, table)] += 1
        path.write_bytes(original)
        assert await _outcome(path, table) == "right"
        if checksums:
            assert outcomes["wrong"] <= 3, "a page's header and the footer have no checksum, everything else has"
    assert outcomes["error"] > 50


async def _outcome(path: Path, table: pa.Table) -> str:
    try:
        async with reading() as client:
            file = await open_file(client, path)
            groups = range(len(file.row_group_rows))
            for index, field in enumerate(file.fields):
                shared = SharedDictionary() if field.name in ("word", "view") else None
                array = column_to_arrow(await decode(client, file, groups, index, shared))
                original = table.column(field.name).combine_chunks()
                if not same(array, original.cast(field.type)):
                    return "wrong"
    except (PystachioError, KeyError, pa.ArrowInvalid):
        return "error"
    return "right"


@pytest.mark.parametrize("cut", [0, 1, 7, 11, 200, 5000])
async def test_truncated_files(tmp_path: Path, cut: int) -> None:
    path = write(every_type(200), tmp_path / "t.parquet")
    path.write_bytes(path.read_bytes()[:cut])
    async with reading() as client:
        with pytest.raises(DataError, match=r"t\.parquet"):
            await open_file(client, path)


async def test_an_error_names_file_row_group_and_column(tmp_path: Path) -> None:
    path = write(every_type(200), tmp_path / "t.parquet", row_group_size=100, write_page_checksum=True)
    async with reading() as client:
        file = await open_file(client, path)
        index = file.positions["i64"]
        chunk = file.chunks(index)[1]
        content = bytearray(path.read_bytes())
        content[chunk.offset + chunk.length - 10] ^= 4
        path.write_bytes(content)
        await decode(client, file, [0], index)
        with pytest.raises(DataError, match=r"t\.parquet, row group 1, column 'i64'"):
            await decode(client, file, [1], index)


async def test_reads_outside_of_what_was_fetched_are_refused() -> None:
    source = FetchedExtents("f", 100, [(50, memoryview(b"x" * 10)), (10, memoryview(b"abcdef"))])
    source.seek(11)
    assert bytes(source.read(3)) == b"bcd"
    assert source.tell() == 14
    with pytest.raises(DataError, match="bytes 14 to 17"):
        source.read(3)
    source.seek(0, 2)
    assert source.tell() == 100
