"""The compiled decoder against pyarrow's own reader: random values, NULLs, pages, dictionaries, codecs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.operators.arrow import column_to_arrow
from pystachio.operators.column import BytesColumn, DictionaryColumn, FixedColumn
from pystachio.operators.kernels import native
from pystachio.operators.parquet.dictionary import SharedDictionary
from tests.operators.native.chunks import Opened

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"no compiled library: {native.load().problem}")

HANDLED = (
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.bool_(),
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.duration("us"),
    pa.decimal128(7, 2),
    pa.decimal128(18, 6),
    pa.string(),
    pa.binary(),
)


@dataclass(frozen=True)
class Case:
    """How a column is made and written."""

    type: pa.DataType
    rows: int
    nulls: float
    distinct: int
    run: int
    required: bool
    options: dict[str, object]
    seed: int


def options() -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "snappy"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "data_page_size": st.sampled_from([1, 200, 3000, 1 << 20]),
            "write_batch_size": st.sampled_from([7, 64, 1024]),
            "use_dictionary": st.booleans(),
            "dictionary_pagesize_limit": st.sampled_from([1, 300, 4000, 1 << 20]),
            "row_group_size": st.sampled_from([100, 1024, 1 << 20]),
            "write_page_checksum": st.booleans(),
            "store_decimal_as_integer": st.booleans(),
        }
    )


def cases(types: tuple[pa.DataType, ...] = HANDLED) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        type=st.sampled_from(types),
        rows=st.integers(1, 3000),
        nulls=st.sampled_from([0.0, 0.0, 0.01, 0.5, 0.99, 1.0]),
        distinct=st.sampled_from([1, 2, 16, 17, 200, 5000]),
        run=st.sampled_from([1, 1, 3, 9, 70]),
        required=st.booleans(),
        options=options(),
        seed=st.integers(0, 2**32),
    )


def make(case: Case) -> pa.Array:
    """Values out of `distinct` ones, in runs of up to `run`, over the type's whole range."""
    rng = random.Random(case.seed)
    domain = [value(case.type, rng) for _ in range(case.distinct)]
    values: list[object] = []
    while len(values) < case.rows:
        one = None if rng.random() < case.nulls and not case.required else rng.choice(domain)
        values += [one] * rng.randint(1, case.run)
    array = pa.array(values[: case.rows], storage(case.type))
    return array.cast(case.type) if array.type != case.type else array


def storage(type_: pa.DataType) -> pa.DataType:
    """What random integers are before they become the type."""
    if pa.types.is_temporal(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    return type_


def value(type_: pa.DataType, rng: random.Random) -> object:
    if pa.types.is_boolean(type_):
        return rng.random() < 0.5
    if pa.types.is_floating(type_):
        return rng.choice([0.0, -0.0, float("inf"), float("nan"), float(np.float32(rng.random()))])
    if pa.types.is_string(type_):
        return rng.choice("aé日") * rng.choice([0, 1, 3, 16, 17, 32, 33, 100])
    if pa.types.is_binary(type_):
        return rng.randbytes(rng.randrange(40))
    if pa.types.is_decimal(type_):
        limit = 10**type_.precision - 1
        return pa.scalar(rng.randint(-limit, limit), pa.decimal128(type_.precision, 0)).as_py().scaleb(-type_.scale)
    if pa.types.is_time(type_):
        return rng.randrange(86_400_000)
    bits = type_.bit_width
    low, high = (0, 2**bits - 1) if pa.types.is_unsigned_integer(type_) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return rng.choice([low, high, rng.randint(low, high), rng.randint(0, 100)])


def written(case: Case, folder: Path) -> tuple[Opened, pa.Array]:
    array = make(case)
    field = pa.field("c", case.type, nullable=not case.required)
    path = folder / "c.parquet"
    pq.write_table(pa.table([array], schema=pa.schema([field])), path, **case.options)
    opened = Opened(path)
    return opened, pq.read_table(path).column(0).combine_chunks().cast(opened.file.fields[0].type)


def same(left: pa.Array, right: pa.Array) -> bool:
    """Equal, NaN with itself too."""
    if not pa.types.is_floating(left.type):
        return bool(left.equals(right))
    numbers = [array.fill_null(7.5).to_numpy(zero_copy_only=False) for array in (left, right)]
    return bool(left.is_null().equals(right.is_null()) and np.array_equal(*numbers, equal_nan=True))


def require_sound_bounds(column: FixedColumn) -> None:
    if column.bounds is None or not len(column):
        return
    values = column.values if column.validity is None else column.values[column.validity]
    if len(values):
        assert column.bounds[0] <= int(values.min()) <= int(values.max()) <= column.bounds[1]


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=cases(),
    share=st.one_of(st.none(), st.floats(0, 1)),
    bounds=st.one_of(st.none(), st.tuples(st.integers(-(2**40), 0), st.integers(0, 2**40))),
)
def test_columns_are_what_pyarrow_reads(
    case: Case, share: float | None, bounds: tuple[int, int] | None, tmp_path: Path
) -> None:
    opened, expected = written(case, tmp_path)
    groups = list(range(len(opened.file.row_group_rows)))
    first_rows = None if share is None else int(share * opened.file.row_group_rows[0])
    column, through_pyarrow = opened.decode(0, groups, bounds=bounds, first_rows=first_rows)
    assert through_pyarrow == 0
    assert same(column_to_arrow(column), expected if first_rows is None else expected[:first_rows])
    if isinstance(column, FixedColumn):
        require_sound_bounds(column)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases((pa.string(), pa.binary())), most_values=st.sampled_from([1, 20, 1 << 16]))
def test_strings_as_codes_are_what_pyarrow_reads(case: Case, most_values: int, tmp_path: Path) -> None:
    opened, expected = written(case, tmp_path)
    groups = list(range(len(opened.file.row_group_rows)))
    shared = SharedDictionary(most_values=most_values)
    for _ in range(2):  # the second time from the translation that was kept
        column, _ = opened.decode(0, groups, shared)
        assert same(column_to_arrow(column), expected)
        if isinstance(column, DictionaryColumn) and len(column.dictionary):
            assert 0 <= int(column.codes.min()) <= int(column.codes.max()) < len(column.dictionary)


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_integers_come_in_the_width_of_their_table(tmp_path: Path, compression: str, version: str) -> None:
    numbers = pa.array([5, None, -3, 100] * 500, pa.int64())
    path = tmp_path / "n.parquet"
    pq.write_table(pa.table({"n": numbers}), path, compression=compression, data_page_version=version)
    column, _ = Opened(path).decode(0, [0], bounds=(-3, 100))
    assert isinstance(column, FixedColumn)
    assert column.values.element_size() == 1
    assert column.bounds == (-3, 100)
    assert column_to_arrow(column).equals(numbers)


def test_a_footer_that_promises_too_small_numbers_costs_width_not_truth(tmp_path: Path) -> None:
    numbers = pa.array([1, 2, 300], pa.int64())
    for use_dictionary in (False, True):
        path = tmp_path / "n.parquet"
        pq.write_table(pa.table({"n": numbers}), path, use_dictionary=use_dictionary)
        column, through_pyarrow = Opened(path).decode(0, [0], bounds=(1, 2))
        assert isinstance(column, FixedColumn)
        assert through_pyarrow == 0
        assert (column.bounds, column.values.tolist()) == ((1, 300), [1, 2, 300])


def test_what_it_does_not_handle_goes_through_pyarrow(tmp_path: Path) -> None:
    numbers = pa.table({"n": pa.array(range(1000), pa.int64())})
    wide = pa.table({"n": pa.array([2**100, None], pa.decimal128(38, 0))})
    layouts: list[tuple[pa.Table, dict[str, object]]] = [
        (numbers, {"compression": "zstd"}),
        (numbers, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}),
        (numbers, {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"}),
        (numbers.cast(pa.schema([("n", pa.timestamp("ns"))])), {"use_deprecated_int96_timestamps": True}),
        (wide, {}),
    ]
    for table, layout in layouts:
        path = tmp_path / "n.parquet"
        pq.write_table(table, path, **layout)
        column, through_pyarrow = Opened(path).decode(0, [0])
        assert through_pyarrow == 1, layout
        assert column_to_arrow(column).equals(table.column(0).combine_chunks())


def test_without_the_library_pyarrow_decodes(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    pq.write_table(pa.table({"n": [1, 2]}), path)
    column, through_pyarrow = Opened(path).decode(0, [0], compiled=False)
    assert through_pyarrow == 1
    assert column_to_arrow(column).to_pylist() == [1, 2]


def test_mixed_pages_of_strings(tmp_path: Path) -> None:
    """The dictionary is full half-way: pages of codes, then plain ones."""
    words = pa.array([f"word {i % 700}" if i % 11 else None for i in range(5000)])
    path = tmp_path / "w.parquet"
    pq.write_table(pa.table({"w": words}), path, dictionary_pagesize_limit=4000, data_page_size=1000)
    opened = Opened(path)
    assert "PLAIN" in opened.file.metadata.row_group(0).column(0).encodings
    column, through_pyarrow = opened.decode(0, [0])
    assert isinstance(column, BytesColumn)
    assert through_pyarrow == 0
    assert column_to_arrow(column).equals(words)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_wrong_checksum_is_a_data_error(tmp_path: Path, version: str) -> None:
    path = tmp_path / "n.parquet"
    layout = {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(pa.table({"n": range(1000)}), path, data_page_version=version, **layout)
    opened = Opened(path)
    opened.content[opened.file.chunks(0)[0].offset + 500] ^= 1
    with pytest.raises(DataError, match=r"n\.parquet, row group 0, column 'n': CRC checksum verification failed"):
        opened.decode(0, [0])


def test_pages_must_add_up_to_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    pq.write_table(pa.table({"n": range(1000)}), path, use_dictionary=False, data_page_size=800)
    opened = Opened(path)
    chunk = opened.file.chunks(0)[0]
    for rows, message in ((1001, "fewer values than the row group has rows"), (999, "more values than")):
        opened.file._chunks[0] = (chunk._replace(values=rows),)
        opened.file.row_group_rows = (rows,)
        with pytest.raises(DataError, match=message):
            opened.decode(0, [0])


def test_bounds_of_a_chunk_without_values_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    pq.write_table(pa.table({"n": pa.nulls(10, pa.int64())}), path)
    column, _ = Opened(path).decode(0, [0])
    assert isinstance(column, FixedColumn)
    assert column.bounds is None
    assert pc.sum(column_to_arrow(column)).as_py() is None


@pytest.mark.parametrize("stride", [0, 1, 255, 256, 65_536, 10**12])
@pytest.mark.parametrize("noise", [0, 3, 10**6])
def test_rising_numbers_with_snappy(tmp_path: Path, stride: int, noise: int) -> None:
    """Each number is a copy of the one before but for a few bytes."""
    rng = np.random.default_rng(7)
    steps = rng.integers(0, noise + 1, 20_000) + rng.choice([0, stride], 20_000, p=[0.1, 0.9])
    numbers = pa.table({"n": pa.array(np.cumsum(steps) - 10**6, pa.int64())})
    path = tmp_path / "n.parquet"
    for use_dictionary in (False, True):
        pq.write_table(numbers, path, use_dictionary=use_dictionary, row_group_size=15_001)
        column, through_pyarrow = Opened(path).decode(0, [0, 1])
        assert through_pyarrow == 0
        assert column_to_arrow(column).equals(numbers.column(0).combine_chunks())
