"""The protocol against pyarrow's reading of real footers, and against bytes that lie."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import PystachioError
from pystachio.operators.parquet.chunks import describe_chunks
from pystachio.operators.parquet.thrift_compact import ThriftError, read_struct
from tests.operators.parquet_sources import every_type


def footer_of(table: pa.Table, **options: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    content = file.getvalue()
    length = int.from_bytes(content[-8:-4], "little")
    return content[-8 - length : -8]


def test_scalars() -> None:
    data = b"".join(
        [
            b"\x11\x12",  # fields 1 and 2: true, false
            b"\x15\x03",  # 3: i32 -2
            b"\x16\x80\x01",  # 4: i64 64
            b"\x18\x02ab",  # 5: binary
            b"\x17\0\0\0\0\0\0\xf0\x3f",  # 6: double
            b"\x19\x25\x02\x04",  # 7: list of two i32
            b"\x1b\x01\x85\x01a\x02",  # 8: a map, left out
            b"\x05\x28\x0a",  # field id 20 in full: i32 5
            b"\x1c\x15\x02\0",  # 21: struct
            b"\0",
        ]
    )
    expected = {1: True, 2: False, 3: -2, 4: 64, 5: b"ab", 6: 1.0, 7: [1, 2], 20: 5, 21: {1: 1}}
    assert read_struct(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15",
        b"\x18\x7fabc",
        b"\x19\xf5\xff\xff\xff\xff\x0f",
        b"\x16" + b"\xff" * 12,
        b"\x1c" * 100,
        b"\x19\x19" * 100,
        b"\x1b\x7f\x88\x01",
        b"\x1e\x00",
        b"\x17\x00",
    ],
)
def test_lies_are_errors(data: bytes) -> None:
    with pytest.raises(ThriftError):
        read_struct(data)


def test_chunks_as_pyarrow_sees_them() -> None:
    table = every_type(300)
    footer = footer_of(table, row_group_size=100)
    metadata = pq.read_metadata(pa.BufferReader(footer + len(footer).to_bytes(4, "little") + b"PAR1"))
    chunks = describe_chunks("f", footer, metadata.num_columns, metadata.num_row_groups)
    for leaf in range(metadata.num_columns):
        for group in range(metadata.num_row_groups):
            ours, theirs = chunks[leaf][group], metadata.row_group(group).column(leaf)
            assert ours.physical_type == theirs.physical_type
            assert ours.data_offset == theirs.data_page_offset
            assert ours.dictionary_offset == theirs.dictionary_page_offset
            assert ours.length == theirs.total_compressed_size
            assert ours.decoded == theirs.total_uncompressed_size
            assert ours.values == theirs.num_values
            assert ours.nulls == theirs.statistics.null_count
            if theirs.physical_type in ("INT32", "INT64") and theirs.statistics.has_min_max and ours.low is not None:
                assert int.from_bytes(ours.low, "little", signed=True) == theirs.statistics.min_raw


def test_mutated_footers_are_read_or_refused() -> None:
    footer = footer_of(every_type(50))
    rng = random.Random(5)
    refused = 0
    for _ in range(400):
        mutated = bytearray(footer)
        for _ in range(rng.randrange(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        try:
            describe_chunks("f", bytes(mutated), 28, 1)
        except PystachioError:
            refused += 1
    assert 0 < refused < 400
