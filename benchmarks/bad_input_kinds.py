"""The kinds of bad input: each function does one wrong thing with a session, at a path of its own, chosen by `rng`."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_NOBODY = 65534


def _table(rows: int, seed: int = 0) -> pa.Table:
    rng = random.Random(seed)
    return pa.table(
        {
            "a": pa.array([rng.randrange(1000) for _ in range(rows)], pa.int64()),
            "b": pa.array([rng.random() for _ in range(rows)], pa.float64()),
            "c": pa.array([rng.choice(["x", "yy", "zzz"]) for _ in range(rows)], pa.string()),
            "d": pa.array([f"text {rng.random()}" for _ in range(rows)], pa.string()),
        }
    )


def write_table(path: Path, rows: int = 5000, seed: int = 0) -> Path:
    pq.write_table(_table(rows, seed), path, row_group_size=1000, write_page_checksum=True)
    return path


def _read_all(session: Any, path: Path) -> None:
    session.register("t", str(path))
    session.sql("select sum(a), sum(b), min(c), max(d) from t").to_arrow()


def missing_path(session: Any, path: Path, rng: random.Random) -> None:
    _read_all(session, path / "nowhere.parquet")


def empty_path(session: Any, path: Path, rng: random.Random) -> None:
    path.mkdir()
    session.register("t", rng.choice(["", str(path), []]))


def empty_file(session: Any, path: Path, rng: random.Random) -> None:
    path.write_bytes(b"" if rng.random() < 0.5 else b"PAR1")
    _read_all(session, path)


def mixed_schemas(session: Any, path: Path, rng: random.Random) -> None:
    path.mkdir()
    write_table(path / "one.parquet")
    pq.write_table(pa.table({"a": ["text"], "b": [1.0], "c": [1], "d": ["x"]}), path / "two.parquet")
    _read_all(session, path)


def endless_footer(session: Any, path: Path, rng: random.Random) -> None:
    """A sparse file whose footer is said to take gigabytes."""
    size = rng.randrange(1 << 30, 3 << 30)
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(0, os.SEEK_END)
        file.write((size - rng.randrange(100, 1 << 20)).to_bytes(4, "little") + b"PAR1")
    _read_all(session, path)


def name_that_is_no_text(session: Any, path: Path, rng: random.Random) -> None:
    session.register(rng.choice(["\udcff", "a\0b", ""]), str(write_table(path)))


def not_parquet(session: Any, path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.randrange(1, 10_000)))
    _read_all(session, path)


def truncated(session: Any, path: Path, rng: random.Random) -> None:
    data = write_table(path).read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])
    _read_all(session, path)


def flipped_bits(session: Any, path: Path, rng: random.Random) -> None:
    data = bytearray(write_table(path).read_bytes())
    column = pq.read_metadata(path).row_group(rng.randrange(5)).column(rng.randrange(4))
    begin = column.dictionary_page_offset or column.data_page_offset
    first, last = column.data_page_offset + 40, begin + column.total_compressed_size - 40
    at = rng.randrange(first, max(first + 1, last))
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    _read_all(session, path)


def lying_footer(session: Any, path: Path, rng: random.Random) -> None:
    """Cut bytes out of the middle, so that every later offset and size in the footer is wrong."""
    data = write_table(path).read_bytes()
    at = rng.randrange(4, len(data) // 2)
    path.write_bytes(data[:at] + data[at + rng.randrange(500, len(data) // 3) :])
    _read_all(session, path)


def changed_after_registration(session: Any, path: Path, rng: random.Random) -> None:
    session.register("t", str(write_table(path)))
    os.truncate(path, path.stat().st_size // 2)
    session.sql("select sum(a), sum(b), min(c), max(d) from t").to_arrow()


def vanished_after_registration(session: Any, path: Path, rng: random.Random) -> None:
    session.register("t", str(write_table(path)))
    path.unlink()
    session.sql("select sum(a), sum(b), min(c), max(d) from t").to_arrow()


def no_permission(session: Any, path: Path, rng: random.Random) -> None:
    write_table(path).chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(_NOBODY)
    try:
        _read_all(session, path)
    finally:
        if root:
            os.seteuid(0)


def unknown_name(session: Any, path: Path, rng: random.Random) -> None:
    session.sql(
        rng.choice(
            ["select x from good", "select a from goood", "select good.z from good", "select nofunc(a) from good"]
        )
    ).to_arrow()


def syntax(session: Any, path: Path, rng: random.Random) -> None:
    words = ["select", "from", "good", "where", "(", ")", "a", "'", ",", "group", "by", "==", "\x00", "🌰", ";"]
    session.sql("select " + " ".join(rng.choice(words) for _ in range(rng.randrange(3, 30))) + " ((").to_arrow()


def ambiguous(session: Any, path: Path, rng: random.Random) -> None:
    session.sql("select a from good x, good y").to_arrow()


def type_error(session: Any, path: Path, rng: random.Random) -> None:
    statements = [
        "select a + c from good where c = 'x'",
        "select sum(c) from good",
        "select cast(d as bigint) from good",
        "select date '2020-13-45'",
    ]
    session.sql(rng.choice(statements)).to_arrow()


def overflow(session: Any, path: Path, rng: random.Random) -> None:
    statements = [
        "select a + 9223372036854775807 from good where a > 0",
        "select sum(a + 9223372036854770000) from good where a < 500",
        "select a / 0 from good",
        "select cast(a * 1000000 as smallint) from good where a > 0",
    ]
    session.sql(rng.choice(statements)).to_arrow()


def unsupported(session: Any, path: Path, rng: random.Random) -> None:
    statements = [
        "with recursive r as (select 1 as n union all select n + 1 from r where n < 5) select * from r",
        "select unnest([1, 2, 3])",
        "select array_agg(a) from good",
        "select * from good tablesample (10)",
        "select {'a': 1}",
    ]
    session.sql(rng.choice(statements)).to_arrow()


def not_a_query(session: Any, path: Path, rng: random.Random) -> None:
    statements = [
        f"copy good to '{path}'",
        "create table x as select 1",
        "insert into good values (1, 2, 'x', 'y')",
        "drop table good",
        "delete from good",
        "set x = 1",
        "select 1; select 2",
        "",
        "   -- nothing",
    ]
    session.sql(rng.choice(statements)).to_arrow()


def random_plan(session: Any, path: Path, rng: random.Random) -> None:
    session.execute(rng.randbytes(rng.randrange(1, 5000))).to_arrow()


def mutated_plan(session: Any, path: Path, rng: random.Random) -> None:
    """Field references beyond the schema, in an otherwise good plan."""
    from substrait import algebra_pb2, plan_pb2

    plan = plan_pb2.Plan()
    relation = algebra_pb2.Rel()
    relation.read.named_table.names.append("good")
    relation.read.base_schema.names.extend(["a"])
    relation.read.base_schema.struct.types.add().i64.nullability = 1
    projection = algebra_pb2.Rel()
    projection.project.input.CopyFrom(relation)
    projection.project.expressions.add().selection.direct_reference.struct_field.field = rng.randrange(5, 2**31 - 1)
    plan.relations.add().root.input.CopyFrom(projection)
    session.execute(plan.SerializeToString()).to_arrow()


def unfit_arguments(session: Any, path: Path, rng: random.Random) -> None:
    """Calls whose arguments are of types that the function cannot take, in an otherwise good plan."""
    from substrait import algebra_pb2, plan_pb2

    plan = plan_pb2.Plan()
    name, count = rng.choice([("like", 2), ("substring", 3), ("split_part", 3), ("extract", 2), ("make_date", 3)])
    plan.extensions.add().extension_function.name = name
    relation = algebra_pb2.Rel()
    relation.read.named_table.names.append("good")
    relation.read.base_schema.names.extend(["a", "c"])
    relation.read.base_schema.struct.types.add().i64.nullability = 1
    relation.read.base_schema.struct.types.add().string.nullability = 1
    projection = algebra_pb2.Rel()
    projection.project.input.CopyFrom(relation)
    call = projection.project.expressions.add().scalar_function
    call.output_type.string.nullability = 1
    for _ in range(count):
        reference = call.arguments.add().value.selection
        reference.direct_reference.struct_field.field = 0 if name != "make_date" else 1
        reference.root_reference.SetInParent()
    plan.relations.add().root.input.CopyFrom(projection)
    session.execute(plan.SerializeToString()).to_arrow()


def deep_plan(session: Any, path: Path, rng: random.Random) -> None:
    """A plan nested up to 100,000 deep, as raw protobuf: each level is a Rel.filter whose input is the next."""
    headers: list[bytes] = []
    size = 0
    for _ in range(rng.choice([3_000, 100_000])):
        inner = _header(2, size)  # FilterRel.input
        outer = _header(3, size + len(inner))  # Rel.filter
        headers.append(outer + inner)
        size += len(outer) + len(inner)
    relation = b"".join(reversed(headers))
    root = _header(1, size) + relation  # RelRoot.input
    plan_relation = _header(2, len(root)) + root  # PlanRel.root
    session.execute(_header(3, len(plan_relation)) + plan_relation).to_arrow()  # Plan.relations


def deep_sql(session: Any, path: Path, rng: random.Random) -> None:
    depth = rng.choice([10_000, 100_000])
    shape = rng.choice(
        ["(" * depth + "1" + ")" * depth, "not " * depth + "true", "-" + " -" * depth + "1", "1" + "+(1" * depth]
    )
    session.sql(f"select {shape}").to_arrow()


def too_little_memory(session: Any, path: Path, rng: random.Random) -> None:
    import pystachio

    write_table(path, rows=200_000)
    with pystachio.connect(threads=1, memory="1MiB") as small:
        small.register("t", str(path))
        small.sql("select * from t order by d").to_arrow()


def _header(number: int, size: int) -> bytes:
    """Tag and length of a length-delimited protobuf field."""
    length = bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | 2]) + bytes(length)


KINDS: list[Callable[[Any, Path, random.Random], None]] = [
    missing_path,
    empty_path,
    empty_file,
    mixed_schemas,
    not_parquet,
    truncated,
    flipped_bits,
    lying_footer,
    endless_footer,
    name_that_is_no_text,
    changed_after_registration,
    vanished_after_registration,
    no_permission,
    unknown_name,
    syntax,
    ambiguous,
    type_error,
    overflow,
    unsupported,
    not_a_query,
    random_plan,
    mutated_plan,
    unfit_arguments,
    deep_plan,
    deep_sql,
    too_little_memory,
]
