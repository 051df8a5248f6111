"""What `kernels` measures: for each primitive its arguments, for each larger kernel two ways to run it.

A new primitive of `kernels.Primitives` needs one line in `PRIMITIVES`; the benchmark names those that have none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pystachio.operators.column import BytesColumn, FixedColumn
from pystachio.operators.kernels import direct, hash_table, keys, row_index, selection, strings
from pystachio.operators.kernels.native import library
from pystachio.operators.parquet.decode import FetchedExtents, RowGroupDecoder
from pystachio.operators.parquet.footer import file_version, parse_footer

Run = Callable[[], object]
Arguments = Callable[[int, np.random.Generator], tuple[Any, ...]]

HOST, PORTABLE = "host", "portable"
GROUPS = 1000


def _mask(rows: int, random: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(random.random(rows) < 0.5)


def _numbers(rows: int, random: np.random.Generator, top: int = 1 << 40) -> torch.Tensor:
    return torch.from_numpy(random.integers(0, top, rows))


def _codes(rows: int, random: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(random.integers(0, GROUPS, rows, np.int32))


PRIMITIVES: Mapping[str, tuple[float, Arguments]] = {
    "compare": (9, lambda rows, random: ("lt", _numbers(rows, random), 1 << 39)),
    "arithmetic": (24, lambda rows, random: ("add", _numbers(rows, random), _numbers(rows, random), torch.int64)),
    "indices_of_true": (5, lambda rows, random: (_mask(rows, random),)),
    "compact": (22, lambda rows, random: (_mask(rows, random), [_numbers(rows, random), _codes(rows, random)])),
    "lookup_within": (
        16,
        lambda rows, random: (torch.arange(GROUPS + 1, dtype=torch.int32), _numbers(rows, random, 2 * GROUPS), 0),
    ),
    "minimum_and_maximum": (8, lambda rows, random: (_numbers(rows, random),)),
    "all_true": (1, lambda rows, _: (torch.ones(rows, dtype=torch.bool),)),
    "any_true": (1, lambda rows, _: (torch.zeros(rows, dtype=torch.bool),)),
    "offsets_within": (16, lambda rows, random: (_numbers(rows, random), 1 << 20, 1 << 39)),
    "group_sums": (12, lambda rows, random: (_numbers(rows, random), _codes(rows, random), GROUPS)),
    "group_rows": (4, lambda rows, random: (_codes(rows, random), GROUPS)),
    "number_codes": (8, lambda rows, random: (_codes(rows, random), GROUPS)),
    "ranges": (12, lambda rows, random: (_codes(rows, random), GROUPS)),
    "ranges_of": (20, lambda rows, random: (torch.arange(0, 2 * GROUPS + 2, 2), _codes(rows, random))),
}
"""For each primitive the bytes that a row reads and writes at least, and its arguments."""


def larger(rows: int, random: np.random.Generator) -> dict[str, tuple[float, dict[str, Run]]]:
    """Kernels above the primitives: bytes per row at least, and the ways to run them (compiled, or not)."""
    column = FixedColumn(pa.int64(), _numbers(rows, random))
    order = torch.from_numpy(random.permutation(rows))
    unique = torch.from_numpy(np.unique(random.integers(-(2**62), 2**62, rows)))
    drawn = unique.index_select(0, torch.from_numpy(random.integers(0, len(unique), rows)))
    table = hash_table.number(unique).table()
    few = FixedColumn(pa.int64(), _numbers(rows, random, GROUPS))
    text = _text([f"text number {number:012d}" for number in random.integers(0, GROUPS, rows).tolist()])
    encoding, codes = keys.encode_build([FixedColumn(pa.int64(), unique)], (False,))
    index = row_index.index_rows(codes, allow_direct=True)
    probe = [FixedColumn(pa.int64(), drawn)]
    ways: dict[str, tuple[float, Run]] = {
        "take int64, random order": (24, lambda: selection.take(column, order)),
        "take text of 24 bytes": (60, lambda: selection.take(text, order)),
        "text to codes": (40, lambda: strings.to_codes(text)),
        "hash numbering, random keys": (12, lambda: hash_table.number(unique)),
        "hash lookup, random keys": (20, lambda: table.lookup(drawn)),
        "direct numbering": (12, lambda: direct.number(few.values, GROUPS)),
        "group words, one column": (12, lambda: keys.group_words([few])),
        "group words, two columns": (20, lambda: keys.group_words([column, few])),
        "join build, random keys": (12, lambda: row_index.index_rows(codes, allow_direct=True)),
        "join probe, random keys": (20, partial(_probe, index, encoding, probe)),
    }
    found = {name: (width, {HOST: run}) for name, (width, run) in ways.items()}
    return found | _decoding(rows, random)


def _probe(index: row_index.RowIndex, encoding: keys.KeyEncoding, columns: list[FixedColumn]) -> object:
    assert isinstance(index, row_index.UniqueIndex)
    return index.find(encoding.encode(columns))


def _text(values: list[str]) -> BytesColumn:
    array = pa.array(values, pa.large_string())
    _, offsets, data = array.buffers()
    return BytesColumn(
        pa.string(),
        torch.from_numpy(np.frombuffer(offsets, np.int64)[: len(values) + 1].copy()),
        torch.from_numpy(np.frombuffer(data, np.uint8).copy()),
    )


def _decoding(rows: int, random: np.random.Generator) -> dict[str, tuple[float, dict[str, Run]]]:
    """Column chunks in memory to columns, by the compiled library and by pyarrow."""
    wide, few = random.integers(0, 2**40, rows), random.integers(0, GROUPS, rows)
    missing = random.random(rows) < 0.5
    words = [f"text number {number:012d}" for number in few.tolist()]
    layouts: dict[str, tuple[float, pa.Array, dict[str, Any]]] = {
        "decode int64, plain": (16, pa.array(wide), {"use_dictionary": False, "compression": "none"}),
        "decode int64, plain, Snappy": (16, pa.array(wide), {"use_dictionary": False, "compression": "snappy"}),
        "decode int64, dictionary": (9.25, pa.array(few), {"compression": "none"}),
        "decode int64, half NULL": (13, pa.array(wide, mask=missing), {"use_dictionary": False}),
        "decode text, plain": (60, pa.array(words), {"use_dictionary": False, "compression": "none"}),
        "decode text, dictionary": (33, pa.array(words), {"compression": "none"}),
    }
    return {name: (width, _decoders(array, options)) for name, (width, array, options) in layouts.items()}


def _decoders(array: pa.Array, options: dict[str, Any]) -> dict[str, Run]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "column.parquet"
        pq.write_table(pa.table({"c": array}), path, row_group_size=len(array), **options)
        content = path.read_bytes()
        length = int.from_bytes(content[-8:-4], "little") + 8
        file = parse_footer(file_version(str(path)), content[-length:])
    held = memoryview(bytearray(content))

    def decode(compiled: bool) -> object:
        source = FetchedExtents(file.path, file.size, [(0, held)])
        return RowGroupDecoder(file, [0], source, compiled=compiled).decode(0)

    ways: dict[str, Run] = {PORTABLE: partial(decode, False)}
    return ways if library() is None else {HOST: partial(decode, True), **ways}
