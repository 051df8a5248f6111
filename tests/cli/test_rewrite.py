"""Files rewritten are compared with what pyarrow reads from the originals, and errors with what is left behind."""

from __future__ import annotations

import datetime as dt
import errno
import os
import random
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import pystachio
from pystachio.cli.main import app
from pystachio.rewrite import rewrite as rewriting

ROOT = Path(__file__).parents[2]


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["rewrite", *(str(argument) for argument in arguments)])


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def all_types(rows: int = 5000) -> pa.Table:
    rng = random.Random(7)

    def column(make: Any, type_: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.1 else make() for _ in range(rows)], type_)

    def decimal(digits: int) -> Any:
        return lambda: Decimal(rng.randrange(-(10**digits) + 1, 10**digits)).scaleb(-2, _context(digits))

    moment = dt.datetime(2020, 1, 1)
    columns = {
        "i8": column(lambda: rng.randrange(-128, 128), pa.int8()),
        "i16": column(lambda: rng.randrange(-(2**15), 2**15), pa.int16()),
        "i32": column(lambda: rng.randrange(-(2**31), 2**31), pa.int32()),
        "i64": column(lambda: rng.randrange(-(2**63), 2**63), pa.int64()),
        "u8": column(lambda: rng.randrange(256), pa.uint8()),
        "u16": column(lambda: rng.randrange(2**16), pa.uint16()),
        "u32": column(lambda: rng.randrange(2**32), pa.uint32()),
        "u64": column(lambda: rng.randrange(2**64), pa.uint64()),
        "f32": column(lambda: rng.choice([float("nan"), -0.0, 0.0, float("inf"), 1.5]), pa.float32()),
        "f64": column(lambda: rng.choice([float("nan"), -0.0, rng.random()]), pa.float64()),
        "flag": column(lambda: rng.random() < 0.5, pa.bool_()),
        "d5": column(decimal(5), pa.decimal128(5, 2)),
        "d15": column(decimal(15), pa.decimal128(15, 2)),
        "d38": column(decimal(38), pa.decimal128(38, 2)),
        "day": column(lambda: dt.date(2020, 1, 1) + dt.timedelta(rng.randrange(900)), pa.date32()),
        "clock": column(lambda: rng.randrange(86_400_000), pa.time32("ms")),
        "clock_us": column(lambda: rng.randrange(86_400_000_000), pa.time64("us")),
        "at_ms": column(lambda: moment + dt.timedelta(seconds=rng.randrange(9**9)), pa.timestamp("ms")),
        "at_us": column(lambda: moment + dt.timedelta(microseconds=rng.randrange(9**9)), pa.timestamp("us", "UTC")),
        "at_ns": column(lambda: rng.randrange(2**62), pa.timestamp("ns", "Europe/Paris")),
        "lasted": column(lambda: rng.randrange(2**40), pa.duration("us")),
        "text": column(lambda: "é" * rng.randrange(30), pa.string()),
        "few": column(lambda: rng.choice(["a", "b", ""]), pa.string()),
        "large": column(lambda: str(rng.random()), pa.large_string()),
        "view": column(lambda: str(rng.random()), pa.string_view()),
        "raw": column(lambda: rng.randbytes(rng.randrange(9)), pa.binary()),
        "fixed": column(lambda: rng.randbytes(4), pa.binary(4)),
        "nothing": pa.nulls(rows),
        "list": column(lambda: [1, None, 3][: rng.randrange(4)], pa.list_(pa.int64())),
        "pair": column(lambda: {"a": 1, "b.c": "x"}, pa.struct({"a": pa.int32(), "b.c": pa.string()})),
        "map": column(lambda: [("k", rng.randrange(5))], pa.map_(pa.string(), pa.int64())),
        "with.dot": column(lambda: 7, pa.int64()),
    }
    return pa.table(columns).replace_schema_metadata({"made by": "a test"})


def _context(digits: int) -> Any:
    from decimal import Context

    return Context(prec=digits)


def comparable(table: pa.Table) -> list[str]:
    """NaN is no equal of itself; its text is."""
    return [repr(row) for row in table.to_pylist()]


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("types") / "types.parquet"
    pq.write_table(all_types(), path, row_group_size=700)
    return path


@pytest.mark.parametrize(
    "options", [[], ["--compression", "zstd", "--page-bytes", "1KiB"], ["--row-group-rows", "999"]]
)
def test_all_types(types: Path, tmp_path: Path, options: list[str]) -> None:
    done = run(types, "--output", tmp_path / "new", *options)
    assert done.exit_code == 0, done.stderr
    assert "verified" in done.stderr
    before, after = (
        pq.ParquetFile(types),
        pq.ParquetFile(tmp_path / "new" / "types.parquet", page_checksum_verification=True),
    )
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=False)
    assert after.schema_arrow.metadata[b"made by"] == b"a test"
    assert comparable(after.read()) == comparable(before.read())
    assert after.metadata.row_group(0).num_rows == (999 if "999" in options else 5000)
    physical = {after.schema.column(i).path: after.schema.column(i).physical_type for i in range(len(after.schema))}
    assert (physical["d5"], physical["d15"], physical["d38"]) == ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY")
    chunk = after.metadata.row_group(0).column(after.schema_arrow.names.index("i64"))
    assert chunk.has_column_index
    assert chunk.has_offset_index
    assert chunk.statistics.has_min_max


def test_the_engine_reads_the_same(types: Path, tmp_path: Path) -> None:
    assert run(types, "--output", tmp_path, "--quiet").exit_code == 0
    readable = [
        f.name for f in pq.read_schema(types) if not pa.types.is_nested(f.type) and f.name not in ("u64", "nothing")
    ]
    calls = [f'{function}("{name}")' for name in readable for function in ("count", "min")]
    statement = "select " + ", ".join(f"{call} as a{number}" for number, call in enumerate(calls)) + " from t"
    answers = []
    for path in (types, tmp_path / "types.parquet"):
        with pystachio.connect(threads=1, chunk_cache_bytes=0) as session:
            session.register("t", path)
            answers.append([repr(batch.to_pydict()) for batch in session.sql(statement).batches()])
    assert answers[0] == answers[1]


def test_several_sources_in_order(data: Path, tmp_path: Path) -> None:
    done = run(data / "numbers", data / "numbers" / "1.parquet", "--output", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["column", "encoding", "compression", "before", "after"]
    assert done.stderr.startswith(f"{tmp_path}/numbers.parquet: 400,000 rows in 1 row groups")
    expected = [*range(300_000), *range(100_000, 200_000)]
    assert pq.read_table(tmp_path / "numbers.parquet")["n"].to_pylist() == expected


def test_row_groups_are_bounded_in_bytes(data: Path, tmp_path: Path) -> None:
    assert run(data / "numbers", "--output", tmp_path, "--row-group-bytes", "1MiB").exit_code == 0
    footer = pq.read_metadata(tmp_path / "numbers.parquet")
    rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    assert sum(rows) == 300_000
    assert max(rows) <= 2 * (1 << 20) // 8


def test_what_pays(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = 40_000
    table = pa.table(
        {
            "random": pa.array([rng.randrange(2**62) for _ in range(rows)]),
            "few": pa.array([rng.randrange(50) for _ in range(rows)]),
            "words": ["the same words over and over " + str(number) for number in range(rows)],
            "constant": ["x"] * rows,
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    done = run(tmp_path / "t.parquet", "--output", tmp_path / "new")
    chosen = {line.split()[0]: line.split()[1:3] for line in done.stdout.splitlines()[1:]}
    assert chosen["random"] == ["plain", "none"]
    assert chosen["few"] == ["dictionary", "none"]
    assert chosen["words"] == ["plain", "snappy"]
    assert chosen["constant"][0] == "dictionary"
    plain = run(tmp_path / "t.parquet", "--output", tmp_path / "new", "--force", "--compression", "none")
    assert "snappy" not in plain.stdout


@pytest.mark.parametrize("rows", [0, None])
def test_empty_files(tmp_path: Path, rows: int | None) -> None:
    schema = all_types(10).schema
    with pq.ParquetWriter(tmp_path / "empty.parquet", schema) as writer:
        if rows is not None:
            writer.write_table(schema.empty_table())
    done = run(tmp_path / "empty.parquet", "--output", tmp_path / "new")
    assert done.exit_code == 0, done.stderr
    assert pq.read_table(tmp_path / "new" / "empty.parquet").num_rows == 0
    assert pq.read_schema(tmp_path / "new" / "empty.parquet").names == schema.names


@pytest.mark.parametrize("bound", ["4MiB", "16KiB"])
def test_sorted(types: Path, tmp_path: Path, bound: str) -> None:
    done = run(types, "--output", tmp_path, "--sort-by", "few,i32", "--row-group-bytes", bound)
    assert done.exit_code == 0, done.stderr
    before, after = pq.read_table(types), pq.ParquetFile(tmp_path / "types.parquet")
    rows = after.read().to_pylist()
    keys = [(row["few"] is None, row["few"] or "", row["i32"] is None, row["i32"] or 0) for row in rows]
    assert keys == sorted(keys)
    assert sorted(map(repr, rows)) == sorted(comparable(before))
    assert after.metadata.row_group(0).sorting_columns[0].column_index == before.schema.names.index("few")
    assert left_in(tmp_path) == ["types.parquet"]


def test_files_of_different_schemas(data: Path, tmp_path: Path) -> None:
    done = run(data / "people.parquet", data / "sales.parquet", "--output", tmp_path / "new")
    assert done.exit_code == 1
    assert "column 'id' is int64 in" in done.stderr
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 2, "Missing option '--output'"),
        (["--output", "new", "--row-group-rows", "0"], 2, "row-group-rows"),
        (["--output", "new", "--row-group-bytes", "many"], 2, "not a size"),
        (["--output", "new", "--page-bytes", "10"], 1, "a page has 1 KiB"),
        (["--output", "new", "--compression", "gzip"], 2, "gzip"),
        (["--output", "new", "--sort-by", "id,"], 2, "commas"),
        (["--output", "new", "--sort-by", "nope"], 1, "the columns are id, name"),
        (["--output", "new", "--name", "../up"], 1, "not a name of a file"),
        (["--output", "here"], 1, "the output exists"),
    ],
)
def test_bad_arguments(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "people.parquet").write_bytes(b"mine")
    done = run(data / "people.parquet", *options)
    assert done.exit_code == code, done.stderr
    assert words in done.stderr
    assert left_in(tmp_path) == ["here"]
    assert (tmp_path / "here" / "people.parquet").read_bytes() == b"mine"


def test_inputs_are_safe(data: Path, tmp_path: Path) -> None:
    source = tmp_path / "people.parquet"
    source.write_bytes((data / "people.parquet").read_bytes())
    done = run(source, "--output", tmp_path, "--force")
    assert done.exit_code == 1
    assert "one of the files to be read" in done.stderr
    assert source.read_bytes() == (data / "people.parquet").read_bytes()
    within = run(tmp_path, "--output", tmp_path, "--name", "other")
    assert within.exit_code == 1
    assert "a part of the table it is made of" in within.stderr
    assert run(tmp_path / "nothing.parquet", "--output", tmp_path).exit_code == 1


@pytest.mark.parametrize("damage", ["cut", "values", "not parquet"])
def test_unreadable_input(types: Path, tmp_path: Path, damage: str) -> None:
    content = bytearray(types.read_bytes())
    bad = tmp_path / "bad.parquet"
    if damage == "values":
        pq.write_table(pq.read_table(types), bad, write_page_checksum=True, row_group_size=700)
        content = bytearray(bad.read_bytes())
        content[len(content) // 3] ^= 0xFF
    bad.write_bytes({"cut": content[:-100], "values": content, "not parquet": b"a text" * 99}[damage])
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "bad.parquet").write_bytes(b"old")
    done = run(bad, "--output", tmp_path / "new", "--force")
    assert done.exit_code == 1
    assert done.stderr.startswith("data error: cannot read the Parquet file: ")
    assert left_in(tmp_path / "new") == ["bad.parquet"]
    assert (tmp_path / "new" / "bad.parquet").read_bytes() == b"old"


@pytest.mark.parametrize("moment", ["write", "fsync"])
def test_a_full_disk(types: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if moment == "fsync":
        monkeypatch.setattr(rewriting.os, "fsync", full)
    else:
        monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    done = run(types, "--output", tmp_path / "new" / "deep")
    assert done.exit_code == 1
    assert done.stderr.startswith("resource exhausted: no room for the output: ")
    assert left_in(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_real_writer_that_fails(types: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow hands on the error that its sink raises."""
    from contextlib import contextmanager

    @contextmanager
    def full(path: Path) -> Any:
        with open("/dev/full", "wb", buffering=0) as file:
            yield file

    monkeypatch.setattr(rewriting, "replaced_at_end", full)
    done = run(types, "--output", tmp_path / "new")
    assert done.exit_code == 1
    assert "no room for the output" in done.stderr
    assert left_in(tmp_path) == []


def test_what_was_written_is_compared(types: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = pq.ParquetWriter.write_table

    def wrong(self: Any, table: pa.Table, **options: Any) -> None:
        if table.num_columns == 1:  # a trial
            write(self, table, **options)
            return
        place = table.schema.names.index("i32")
        values = table.column(place).to_pylist()
        values[3], values[4] = 1, 2
        write(self, table.set_column(place, table.field(place), pa.array(values, pa.int32())), **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", wrong)
    for options in ([], ["--sort-by", "i64"]):
        done = run(types, "--output", tmp_path / "new", *options)
        assert done.exit_code == 1
        assert "what was written is not what was read" in done.stderr
        assert "columns i32\n" in done.stderr
        assert left_in(tmp_path) == []
    assert run(types, "--output", tmp_path / "new", "--no-verify").exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path: Path, number: int) -> None:
    source = tmp_path / "much.parquet"
    block = pa.table({"text": [f"{i:x} and so on {i * 7919 % 10007}" for i in range(200_000)]})
    with pq.ParquetWriter(source, block.schema) as writer:
        for _ in range(40):
            writer.write_table(block)
    new = tmp_path / "new"
    command = [
        sys.executable,
        "-m",
        "pystachio.cli.main",
        "rewrite",
        source,
        "--output",
        new,
        "--row-group-bytes",
        "4MiB",
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not any(name.endswith(".part") for name in left_in(new)) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "interrupted\n"
    assert left_in(tmp_path) == ["much.parquet"]


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Six times the bound of a row group pass through; what Arrow holds at most is a few of them."""
    source = tmp_path / "much.parquet"
    rows = pa.table({"n": pa.array(range(1 << 20), pa.int64()), "m": pa.array(range(1 << 20), pa.int64())})
    with pq.ParquetWriter(source, rows.schema) as writer:
        for _ in range(6):
            writer.write_table(rows)
    del rows
    program = (
        "import sys, pyarrow as pa\nfrom pathlib import Path\nfrom pystachio.rewrite.rewrite import *\n"
        "layout = Layout(row_group_bytes=8 << 20)\n"
        "rewrite(Rewriting([Path(sys.argv[1])], Path(sys.argv[2]), layout=layout), Progress())\n"
        "print(pa.default_memory_pool().max_memory())"
    )
    command = [sys.executable, "-c", program, str(source), str(tmp_path / "new")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 80 << 20
