"""The library's reading of footers against the one in Python, on footers of many writers and on bytes that lie."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import DataError, Unsupported
from pystachio.operators.kernels import native
from pystachio.operators.parquet.chunks import ChunkDescription, describe_chunks, find_chunks, read_chunks
from tests.operators.parquet_sources import every_type, write

Described = dict[int, list[ChunkDescription]]

NESTED = pa.table(
    {
        "list": [[1, 2], None, []],
        "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}],
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "plain": ["a", "b", None],
    }
)
WRITTEN: dict[str, tuple[pa.Table, dict[str, object]]] = {
    "every type": (every_type(300), {}),
    "row groups": (every_type(300), {"row_group_size": 7}),
    "no statistics": (every_type(50), {"write_statistics": False}),
    "page index": (every_type(50), {"write_page_index": True, "data_page_version": "2.0"}),
    "no dictionary": (every_type(50), {"use_dictionary": False, "compression": "zstd"}),
    "small dictionaries": (every_type(2000), {"dictionary_pagesize_limit": 64, "data_page_size": 256}),
    "old": (every_type(50), {"version": "1.0", "use_deprecated_int96_timestamps": True, "compression": "gzip"}),
    "integers": (every_type(50), {"store_decimal_as_integer": True, "store_schema": False}),
    "nested": (NESTED, {"row_group_size": 2}),
    "no rows": (every_type(0), {}),
    "no columns": (pa.table({}), {}),
    "wide": (pa.table({f"column {i}": [i, None] for i in range(300)}), {"row_group_size": 1}),
    "NULLs": (pa.table({"a": pa.nulls(10, pa.string()), "b": pa.nulls(10, pa.float64())}), {}),
}
COPIED = {
    "DuckDB": "select i, i % 7 as k, 'text ' || i as t, i::decimal(18, 2) as d, [i] as l from range(50000) t(i)",
    "DuckDB's types": "select uuid(), now(), 1::hugeint h, 'a'::blob b, {'x': [1], 'y': 'z'} s, map {'k': 1} m",
}


def trailer_less(content: bytes) -> bytes:
    return content[-8 - int.from_bytes(content[-8:-4], "little") :]


def written(name: str, folder: Path) -> tuple[bytes, int, int]:
    """A footer with its numbers of primitive columns and row groups."""
    path = folder / "t.parquet"
    if name in WRITTEN:
        table, options = WRITTEN[name]
        write(table, path, **options)
    else:
        duckdb.sql(f"copy ({COPIED[name]}) to '{path}' (format parquet, row_group_size 10000)")
    metadata = pq.read_metadata(path)
    return trailer_less(path.read_bytes()), metadata.num_columns, metadata.num_row_groups


def compiled(footer: bytes, leaves: int, groups: int) -> Described | None:
    library = native.library()
    if library is None:
        pytest.skip("the library was not built")
    found = find_chunks(library, footer, leaves, groups)
    return None if found is None else dict(found)


def by_reference(footer: bytes, leaves: int) -> Described | None:
    try:
        return read_chunks("f", footer, leaves)
    except (DataError, Unsupported):
        return None


@pytest.mark.parametrize("name", [*WRITTEN, *COPIED])
def test_real_footers(name: str, tmp_path: Path) -> None:
    footer, leaves, groups = written(name, tmp_path)
    found = compiled(footer, leaves, groups)
    assert found is not None
    assert found == by_reference(footer, leaves)
    assert compiled(footer, leaves, groups + 1) is None
    assert compiled(footer, leaves + 1, groups) is None or not groups


@pytest.mark.parametrize("name", ["every type", "nested", "page index", "DuckDB"])
def test_mutated_footers(name: str, tmp_path: Path) -> None:
    """What the library accepts is what the reference reads; it leaves little else to it."""
    footer, leaves, groups = written(name, tmp_path)
    chance = random.Random(name)
    accepted = left = 0
    for _ in range(1000):
        mutated = bytearray(footer)
        for _ in range(chance.randrange(1, 4)):
            mutated[chance.randrange(len(mutated))] = chance.choice([chance.randrange(256), 0x0C, 0x1C, 0xFF, 0x19])
        found, expected = compiled(bytes(mutated), leaves, groups), by_reference(bytes(mutated), leaves)
        if found is not None:
            assert found == expected
            accepted += 1
        left += found is None and expected is not None
    assert accepted > 200
    assert left < 100


def test_truncated_footers(tmp_path: Path) -> None:
    footer, leaves, groups = written("nested", tmp_path)
    for length in range(len(footer)):
        cut = footer[:length]
        assert compiled(cut, leaves, groups) == by_reference(cut, leaves)


def struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Thrift's encoding of fields given as number, type and bytes."""
    return b"".join(bytes([kind]) + bytes([number * 2]) + value for number, kind, value in fields) + b"\0"


def number(value: int) -> bytes:
    value *= 2
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])


def one_chunk(
    *, chunk: tuple[tuple[int, int, bytes], ...] = (), more: tuple[tuple[int, int, bytes], ...] = ()
) -> bytes:
    """A footer of one chunk; further fields of the chunk and of its metadata."""
    required = [(field, 6, number(field * 100)) for field in (5, 6, 7, 9)]
    metadata = struct((1, 5, number(2)), (4, 5, number(1)), *required, *more)
    group = struct((1, 9, b"\x1c" + struct((3, 12, metadata), *chunk)))
    return struct((4, 9, b"\x1c" + group), (7, 9, b"\x1c" + struct((1, 12, b"\0"))))


def test_a_footer_made_by_hand() -> None:
    limits = struct((3, 6, number(4)), (5, 8, b"\x01z"), (6, 8, b"\0"), (7, 2, b""), (8, 1, b""))
    pages = b"\x2c" + struct((1, 5, number(2)), (2, 5, number(0))) + struct((1, 5, number(3)), (2, 5, number(8)))
    footer = one_chunk(
        more=((11, 6, number(77)), (12, 12, limits), (13, 9, pages), (16, 12, struct((1, 6, number(9)))))
    )
    expected = ChunkDescription(
        *("INT64", 1, 900, 77, 700, 600, 500, True, 9, 4, b"", b"z", None, None), exact_low=True, exact_high=False
    )
    assert compiled(footer, 1, 1) == {0: [expected]} == by_reference(footer, 1)


@pytest.mark.parametrize(
    "footer",
    [
        one_chunk(more=((20, 11, b"\x01\x88\x01a\x01b"),)),
        one_chunk(more=((20, 9, b"\x1b\x01\x88\x01a\x01b"),)),
        one_chunk(more=((20, 9, b"\x21\x01\x02"), (21, 7, b"01234567"), (22, 3, b"\xff"), (23, 4, b"\x02"))),
        one_chunk(more=((20, 13, bytes(16)),)),
        one_chunk(more=((9, 6, number(5)),)),
        one_chunk(more=((9, 5, number(5)),)),
        one_chunk(more=((9, 8, b"\x01a"),)),
        one_chunk(more=((1, 5, b"\x01"),)),
        one_chunk(more=((11, 6, b"\xff" * 9 + b"\x01"),)),
        one_chunk(more=((11, 6, b"\xff" * 9 + b"\x02"),)),
        one_chunk(more=((20, 6, b"\x80" * 9 + b"\x7f"),)),
        one_chunk(more=((20, 8, b"\x80" * 9 + b"\x02"),)),
        one_chunk(more=((12, 12, struct((5, 9, b"\x05"))),)),
        one_chunk(more=((13, 9, b"\x05"), (16, 12, b"\0"))),
        one_chunk(more=((13, 9, b"\x1c\0"),)),
        one_chunk(more=((20, 9, b"\xfc\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),)),
        one_chunk(chunk=((1, 8, b"\0"),)),
        one_chunk(chunk=((1, 8, b"\x01f"),)),
        *(one_chunk(more=((20, 12, b"\x1c" * depth + b"\0" * (depth + 1)),)) for depth in range(30)),
        *(one_chunk(more=((20, 9, b"\x19" * depth + b"\x15\0"),)) for depth in range(30)),
        *(one_chunk(more=((20, 9, b"\x1c\x19" * depth + b"\x15\0" + b"\0" * depth),)) for depth in range(30)),
        *(one_chunk(more=((20, 11, b"\x01\xbb\x01\xbb" * depth + bytes(3 * depth + 1)),)) for depth in range(30)),
        b"\x19" * 100,
        b"\x1c" * 5000,
        b"\x19\x1c" * 5000,
        b"\x1b\x01\xcc" * 5000,
        b"\x1b\x01\xbb" * 5000,
        b"\x19\x1c" + b"\x19\x1c" * 11 + b"\x1c" * 5000,
        b"\0",
        b"",
    ],
)
def test_odd_footers(footer: bytes) -> None:
    found = compiled(footer, 1, 1)
    assert found is None or found == by_reference(footer, 1)
    by_reference(footer, 1)


def test_what_the_library_leaves_is_said_as_before() -> None:
    with pytest.raises(Unsupported, match="column chunks in other files: p"):
        describe_chunks("p", one_chunk(chunk=((1, 8, b"\x01f"),)), 1, 1)
    with pytest.raises(DataError, match="lacks columns: p"):
        describe_chunks("p", one_chunk(), 2, 1)
    with pytest.raises(DataError, match="cannot read the Parquet footer: p: ThriftError: nested too deep"):
        describe_chunks("p", b"\x1c" * 100, 1, 1)
    twice = one_chunk(more=((9, 6, number(5)),))
    assert compiled(twice, 1, 1) is None
    assert describe_chunks("p", twice, 1, 1)[0][0].data_offset == 5, "the last one holds"


def test_claims_of_many_chunks_take_no_memory() -> None:
    assert compiled(one_chunk(), 1 << 30, 1 << 30) is None
