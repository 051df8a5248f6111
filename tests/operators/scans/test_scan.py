"""Scans against pyarrow: what is read, what is pruned, what survives; and what goes wrong."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pystachio.errors import DataError, NotFound
from pystachio.io_scheduler.client import HostBuffer, TransferClient
from pystachio.io_scheduler.core.request import Extent, Link
from pystachio.io_scheduler.prefetch import Prefetch
from pystachio.operators.arrow import batch_to_arrow, column_from_arrow, schema_to_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.column import BytesColumn, Dictionary, DictionaryColumn
from pystachio.operators.expressions import Call, Expression, FieldReference, InList, Literal, ScalarSubquery
from pystachio.operators.kernels import native
from pystachio.operators.runtime_filter import RuntimeFilter, filter_of_keys
from pystachio.operators.scans.scan import Scan, ScanFilter
from pystachio.operators.table import Table
from pystachio.runtime.slots import Slot
from tests.operators.conftest import Harness
from tests.operators.parquet_sources import every_type, open_table, reading, write

ROWS = 5000
GROUP = 400


@dataclass
class CountingClient:
    """Passes reads on and remembers them."""

    client: TransferClient
    extents: list[Extent] = field(default_factory=list)
    reads: int = 0

    def link(self, path: str) -> Link | None:
        return self.client.link(path)

    def memory(self, lengths: Sequence[int]) -> list[memoryview]:
        return self.client.memory(lengths)

    async def read(
        self, path: str, extents: Sequence[Extent], *, criticality: int = 0, prefetch: Prefetch | None = None
    ) -> list[HostBuffer]:
        self.extents.extend(extents)
        self.reads += 1
        return await self.client.read(path, extents, criticality=criticality, prefetch=prefetch)

    @property
    def nbytes(self) -> int:
        return sum(extent.length for extent in self.extents)


@pytest.fixture
async def client() -> AsyncIterator[CountingClient]:
    async with reading() as client:
        yield CountingClient(client)


def source_table(rows: int = ROWS) -> pa.Table:
    start = datetime.date(2000, 1, 1)
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "key": pa.array([(i * 7919) % 1000 if i % 11 else None for i in range(rows)], pa.int32()),
            "day": pa.array([start + datetime.timedelta(days=i // 10) for i in range(rows)], pa.date32()),
            "word": pa.array([f"word {i % 17}" for i in range(rows)]),
            "text": pa.array([f"{i:05} is text number {i}" for i in range(rows)]),
            "price": pa.array([decimal.Decimal(i * 100 + 5).scaleb(-2) for i in range(rows)], pa.decimal128(15, 2)),
        }
    )


async def table_of(client: CountingClient, path: Path, table: pa.Table | None = None, **options: Any) -> Table:
    write(source_table() if table is None else table, path, **{"row_group_size": GROUP, **options})
    opened = await open_table(client.client, path)
    return opened


async def run(
    client: Any,
    scan: Scan,
    slots: dict[tuple[str, int], object] | None = None,
    counts: dict[str, int] | None = None,
    **settings: Any,
) -> list[Batch]:
    harness = Harness()
    for key, value in (slots or {}).items():
        harness.slots[key] = Slot()
        harness.slots[key].set(value)
    ctx = dataclasses.replace(harness.context(**settings), transfers=client)
    batches = await harness._run(scan, ctx)
    assert harness.memory.held == 0, "every reservation is released"
    if counts is not None:
        counts.update(ctx.metrics.snapshot().counts)
    return batches


def arrow(scan: Scan, batches: Sequence[Batch]) -> pa.Table:
    schema = schema_to_arrow(scan.schema)
    return pa.Table.from_batches([batch_to_arrow(batch, schema) for batch in batches], schema)


def scan_of(
    table: Table, columns: Sequence[str], predicate: Expression | None = None, output: Sequence[str] | None = None
) -> Scan:
    names = [f.name for f in table.schema]
    wanted = columns if output is None else output
    return Scan(table, tuple(names.index(c) for c in columns), predicate, tuple(columns.index(c) for c in wanted))


def compare(function: str, index: int, type_: pa.DataType, value: Any) -> Call:
    return Call(function, (FieldReference(index, type_), Literal(value, type_)), pa.bool_())


async def test_columns_in_the_order_asked_for(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    scan = scan_of(table, ["price", "id", "word"], output=["word", "price"])
    result = arrow(scan, await run(client, scan))
    assert result.sort_by("price").equals(source_table().select(["word", "price"]).cast(result.schema))
    lengths = [c.length for f in table.files for name in (3, 5) for c in f.chunks(name)]
    assert client.nbytes == sum(lengths), "a column that nobody needs is not read"


@pytest.mark.parametrize("batch_rows", [1, 100, 1 << 18])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("codes", [True, False])
async def test_every_type_under_settings(
    client: CountingClient, tmp_path: Path, batch_rows: int, workers: int, codes: bool
) -> None:
    original = every_type(150)
    table = await table_of(client, tmp_path / "t.parquet", original, row_group_size=50)
    names = [f.name for f in table.schema if f.name not in ("f32", "f64")]
    scan = scan_of(table, names)
    batches = await run(client, scan, batch_rows=batch_rows, workers=workers, dictionary_codes=codes)
    if workers == 1:
        assert arrow(scan, batches).equals(original.select(names).cast(arrow(scan, batches).schema))
    assert sum(batch.length for batch in batches) == 150
    kinds = {type(batch.columns[names.index("word")]) for batch in batches}
    assert kinds == {DictionaryColumn if codes else BytesColumn}


async def test_pruned_row_groups_are_not_read(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    predicate = compare("lt", 0, pa.int64(), GROUP + 1)
    scan = scan_of(table, ["id", "text"], predicate, output=["text"])
    counts: dict[str, int] = {}
    result = arrow(scan, await run(client, scan, counts=counts))
    assert result.num_rows == GROUP + 1
    assert counts["row groups pruned"] == len(table.files[0].row_group_rows) - 2
    assert counts["bytes read"] == client.nbytes
    assert counts["bytes read"] + counts["bytes not read"] == sum(
        c.length for i in (0, 4) for c in table.files[0].chunks(i)
    )
    chunks = [table.files[0].chunks(column)[group] for column in (0, 4) for group in (0, 1)]
    assert client.nbytes == sum(chunk.length for chunk in chunks)


@pytest.mark.parametrize(("compression", "through_pyarrow"), [("snappy", 0), ("zstd", 2)])
async def test_columns_that_pyarrow_decodes_are_counted(
    client: CountingClient, tmp_path: Path, compression: str, through_pyarrow: int
) -> None:
    if native.library() is None:
        pytest.skip(native.load().problem)
    table = await table_of(client, tmp_path / "t.parquet", compression=compression, row_group_size=ROWS)
    counts: dict[str, int] = {}
    scan = scan_of(table, ["id", "price"])
    assert arrow(scan, await run(client, scan, counts=counts)).num_rows == ROWS
    assert counts.get("columns decoded by pyarrow", 0) == through_pyarrow


async def test_nothing_survives_and_nothing_is_read(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    scan = scan_of(table, ["id"], compare("gt", 0, pa.int64(), ROWS))
    assert await run(client, scan) == []
    assert client.reads == 0


async def test_the_rest_is_read_only_where_rows_survive(client: CountingClient, tmp_path: Path) -> None:
    """The predicate's column is unsorted, so nothing is pruned; after a few dead units the text is read on demand."""
    values = [1_000_000 * (i % 2) for i in range(ROWS)]
    values[ROWS - 1] = 7
    original = source_table().append_column("sparse", pa.array(values, pa.int64()))
    table = await table_of(client, tmp_path / "t.parquet", original)
    scan = scan_of(table, ["sparse", "text"], compare("equal", 0, pa.int64(), 7), output=["text"])
    result = arrow(scan, await run(client, scan, batch_rows=GROUP))
    assert result.column("text").to_pylist() == [f"{ROWS - 1:05} is text number {ROWS - 1}"]
    file = table.files[0]
    # The harness reads everything ahead at once, so how much is saved is up to the order of events; never more is read.
    assert client.nbytes <= sum(
        chunk.length for name in ("sparse", "text") for chunk in file.chunks(file.positions[name])
    )


async def test_a_filter_prunes_row_groups_and_rows(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    keys = filter_of_keys([column_from_arrow(pa.array([3, 5, 700, 701]))])
    assert keys is not None
    scan = dataclasses.replace(scan_of(table, ["id", "text"], output=["id"]), filters=(ScanFilter(4, 0),))
    result = arrow(scan, await run(client, scan, {("filter", 4): keys}))
    assert result.column("id").to_pylist() == [3, 5, 700, 701]
    chunks = [table.files[0].chunks(column)[group] for column in (0,) for group in (0, 1)]
    assert client.nbytes == sum(chunk.length for chunk in chunks), "text is neither put out nor needed"


async def test_an_empty_filter_reads_nothing(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    scan = dataclasses.replace(scan_of(table, ["id"]), filters=(ScanFilter(0, 0),))
    assert await run(client, scan, {("filter", 0): RuntimeFilter(pa.int64(), empty=True)}) == []
    assert client.reads == 0


async def test_a_filter_and_a_predicate_together(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    keys = filter_of_keys([column_from_arrow(pa.array(range(0, 1000, 3), pa.int32()))])
    predicate = compare("gte", 1, pa.date32(), (datetime.date(2001, 1, 1) - datetime.date(1970, 1, 1)).days)
    scan = dataclasses.replace(scan_of(table, ["key", "day", "id"], predicate, ["id"]), filters=(ScanFilter(1, 0),))
    found = sorted(arrow(scan, await run(client, scan, {("filter", 1): keys}, batch_rows=123)).column("id").to_pylist())
    original = source_table()
    mask = pc.and_(
        pc.is_in(original["key"], pa.array(range(0, 1000, 3), pa.int32())),
        pc.greater_equal(original["day"], datetime.date(2001, 1, 1)),
    )
    assert found == original.filter(mask)["id"].to_pylist()


async def test_runs_with_and_without_a_filter(client: CountingClient, tmp_path: Path) -> None:
    """One scan runs many times; in which order it reads its columns depends on the filters that a run has."""
    table = await table_of(client, tmp_path / "t.parquet")
    keys = filter_of_keys([column_from_arrow(pa.array([3, 5, 700], pa.int64()))])
    predicate = compare("lt", 1, pa.int64(), 600)
    scan = dataclasses.replace(scan_of(table, ["text", "id"], predicate, ["text"]), filters=(ScanFilter(2, 1),))
    texts = [f"{i:05} is text number {i}" for i in range(600)]
    for _ in range(2):
        assert sorted(arrow(scan, await run(client, scan, {("filter", 2): None}))["text"].to_pylist()) == texts
        found = arrow(scan, await run(client, scan, {("filter", 2): keys}))
        assert found["text"].to_pylist() == [texts[3], texts[5]]
    on_text = dataclasses.replace(scan, predicate=None, filters=(ScanFilter(2, 1),))
    for _ in range(2):
        assert len(arrow(on_text, await run(client, on_text, {("filter", 2): keys}))) == 3


async def test_a_string_filter(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    values = column_from_arrow(pa.array(["word 3", "word 99", "word 16"]))
    assert isinstance(values, BytesColumn)
    scan = dataclasses.replace(scan_of(table, ["word", "id"]), filters=(ScanFilter(1, 0),))
    filters = {("filter", 1): RuntimeFilter(pa.string(), values=Dictionary(values))}
    result = arrow(scan, await run(client, scan, filters))
    assert set(result["word"].to_pylist()) == {"word 3", "word 16"}
    assert result.num_rows == sum(1 for i in range(ROWS) if i % 17 in (3, 16))
    wanted = ["00003 is text number 3", "00400 is text number 400", "no text"]
    on_texts = dataclasses.replace(scan_of(table, ["text", "id"], output=["id"]), filters=(ScanFilter(1, 0),))
    filters = {("filter", 1): filter_of_keys([column_from_arrow(pa.array(wanted))])}
    assert sorted(arrow(on_texts, await run(client, on_texts, filters))["id"].to_pylist()) == [3, 400]


async def test_scalar_subqueries_are_bound(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    predicate = Call("equal", (FieldReference(0, pa.int64()), ScalarSubquery(2, pa.int64())), pa.bool_())
    scan = scan_of(table, ["id"], predicate)
    result = arrow(scan, await run(client, scan, {("scalar", 2): Literal(4321, pa.int64())}))
    assert result["id"].to_pylist() == [4321]
    assert client.reads == 1, "the bound value prunes"


async def test_no_columns_only_a_count(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    batches = await run(client, Scan(table, (), None, ()))
    assert sum(batch.length for batch in batches) == ROWS
    assert client.reads == 0


async def test_batches_share_one_dictionary(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")
    first = await run(client, scan_of(table, ["word"]), batch_rows=GROUP)
    again = await run(client, scan_of(table, ["word"]), batch_rows=GROUP)
    dictionaries = {
        batch.columns[0].dictionary for batch in (*first, *again) if isinstance(batch.columns[0], DictionaryColumn)
    }
    assert len(dictionaries) == 1
    assert len(dictionaries.pop()) == 17


async def test_large_row_groups_are_spread_over_the_workers(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet", row_group_size=ROWS)
    predicate = compare("lt", 1, pa.int32(), 500)
    scan = scan_of(table, ["id", "key", "text"], predicate, ["id", "text"])
    batches = await run(client, scan, batch_rows=500, workers=4)
    assert len(batches) == 10
    original = source_table()
    expected = original.filter(pc.less(original["key"], 500)).select(["id", "text"])
    assert arrow(scan, batches).sort_by("id").equals(expected.cast(arrow(scan, batches).schema))


async def test_files_with_columns_in_another_order(client: CountingClient, tmp_path: Path) -> None:
    write(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "1.parquet")
    write(pa.table({"b": ["z"], "a": [3]}), tmp_path / "2.parquet")
    table = await open_table(client.client, tmp_path / "1.parquet", tmp_path / "2.parquet")
    scan = scan_of(table, ["b", "a"], compare("gte", 1, pa.int64(), 2))
    assert arrow(scan, await run(client, scan)).to_pylist() == [{"b": "y", "a": 2}, {"b": "z", "a": 3}]


@pytest.mark.parametrize("rows", [0, 1])
async def test_tiny_tables(client: CountingClient, tmp_path: Path, rows: int) -> None:
    original = source_table(rows)
    table = await table_of(client, tmp_path / "t.parquet", original)
    scan = scan_of(table, original.column_names)
    assert arrow(scan, await run(client, scan)).num_rows == rows


async def test_zero_row_groups(client: CountingClient, tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "t.parquet", source_table().schema):
        pass
    table = await open_table(client.client, tmp_path / "t.parquet")
    assert table.files[0].row_group_rows == ()
    assert await run(client, scan_of(table, ["id", "word"], compare("lt", 0, pa.int64(), 5))) == []


async def test_a_changed_file_is_a_data_error(client: CountingClient, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = await table_of(client, path)
    scan = scan_of(table, ["id"])
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="changed"):
        await run(client, scan)
    path.unlink()
    with pytest.raises(NotFound):
        await run(client, scan)


async def test_a_failing_read_releases_everything(client: CountingClient, tmp_path: Path) -> None:
    table = await table_of(client, tmp_path / "t.parquet")

    @dataclass
    class FailsLate:
        reads: int = 0

        def link(self, path: str) -> Link | None:
            return client.link(path)

        def memory(self, lengths: Sequence[int]) -> list[memoryview]:
            return client.memory(lengths)

        async def read(
            self, path: str, extents: Sequence[Extent], *, criticality: int = 0, prefetch: Prefetch | None = None
        ) -> list[HostBuffer]:
            self.reads += 1
            if self.reads > 3:
                raise DataError("the disk said no")
            return await client.read(path, extents, criticality=criticality, prefetch=prefetch)

    with pytest.raises(DataError, match="the disk said no"):
        await run(FailsLate(), scan_of(table, ["id", "text"]), batch_rows=GROUP)


async def test_files_written_by_duckdb(client: CountingClient, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "d.parquet"
    connection = duckdb.connect()
    connection.execute(
        "copy (select i::integer as id, case when i % 7 > 0 then i * 3.25::decimal(12, 2) end as amount,"
        " date '1995-01-01' + (i // 100)::integer as day, 'name ' || (i % 40) as name, i % 3 = 0 as flag,"
        f" i / 3.0::double as ratio from range(20000) r(i)) to '{path}' (format parquet, row_group_size 4096)"
    )
    table = await open_table(client.client, path)
    limit = (datetime.date(1995, 2, 1) - datetime.date(1970, 1, 1)).days
    predicate = Call(
        "and",
        (
            compare("lt", 2, pa.date32(), limit),
            InList(
                FieldReference(3, pa.string()), tuple(Literal(f"name {i}", pa.string()) for i in (1, 5, 70)), pa.bool_()
            ),
        ),
        pa.bool_(),
    )
    scan = scan_of(table, ["id", "amount", "day", "name", "flag", "ratio"], predicate)
    result = arrow(scan, await run(client, scan)).sort_by("id")
    rows = connection.execute(
        f"select * from '{path}' where day < date '1995-02-01' and name in ('name 1', 'name 5', 'name 70') order by id"
    ).fetchall()
    assert [tuple(row.values()) for row in result.to_pylist()] == rows
    assert client.nbytes < sum(c.length for i in range(6) for c in table.files[0].chunks(i)), "later days are pruned"
