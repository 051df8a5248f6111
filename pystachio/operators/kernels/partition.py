"""Rows by node: where the rows of equal keys meet, whatever columns look like on the node they come from.

Equal values have equal hashes in every representation (codes, plain texts, narrow and wide integers, limbs), in every
process of one build. The hash is another one than that which splits groups inside a node, or all rows of a node would
fall into the same of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from xxhash import xxh3_64_intdigest

from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels import native
from pystachio.operators.kernels.hash_rounds import FIRST_MULTIPLIER, SECOND_MULTIPLIER
from pystachio.operators.kernels.key_parts import float_bits
from pystachio.operators.kernels.parts import mix_hashes, rows_by_part
from pystachio.operators.kernels.selection import plain
from pystachio.operators.kernels.strings import index
from pystachio.operators.kernels.texts import hash_texts

_SEED: Final = 0x2545F4914F6CDD1D
_HIGH_LIMB: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_NULL: Final = 0x165667B19E3779F9
_BITS: Final = 23
"""Of the hash, that choose the node."""
_MOST_IN_C: Final = 64

PARTITIONING: Final = 1
"""Counts the ways in which keys were hashed. Nodes that hash otherwise must not work on one plan; see `hashing`."""


def hashing() -> str:
    """What must be the same on all nodes of a plan."""
    return f"{PARTITIONING}{'c' if native.library() is not None else 'p'}"


def hash_rows(keys: Sequence[Column], rows: int) -> torch.Tensor:
    """int64 [rows], on a CPU: equal where all `keys` are; NULLs are equal to each other."""
    hashes = torch.full((rows,), _SEED, dtype=torch.int64)
    for key in keys:
        values, validity = _integers(key), key.validity
        if native.library() is not None:
            mix_hashes(hashes, values, validity)
        else:
            hashes = _mix(hashes, values.to(torch.int64), validity)
    return hashes


def rows_by_node(hashes: torch.Tensor, nodes: int) -> list[torch.Tensor]:
    """The rows (integers) that go to each node, in their order."""
    if nodes == 1:
        return [torch.arange(len(hashes))]
    above = (((hashes >> (64 - _BITS)) & ((1 << _BITS) - 1)) * nodes) >> _BITS
    if native.library() is not None and nodes <= _MOST_IN_C:
        edges, order = rows_by_part(hashes, 0, above, nodes)
    else:
        order = torch.sort(above, stable=True).indices
        edges = [0, *torch.cumsum(torch.bincount(above, minlength=nodes), 0).tolist()]
    return [order[start:stop] for start, stop in pairwise(edges)]


def without_heavy(hashes: torch.Tensor, heavy: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows (int64, ascending) whose hash is not one of the `heavy`, and those whose hash is."""
    found = torch.isin(hashes, torch.tensor(heavy, dtype=torch.int64))
    return (~found).nonzero().flatten(), found.nonzero().flatten()


def _integers(column: Column) -> torch.Tensor:
    """Integers [rows] that are equal where values are, in whatever representation; anything under NULLs."""
    match column:
        case DictionaryColumn(codes=codes, dictionary=dictionary):
            if len(dictionary) == 0:
                return torch.zeros(len(column), dtype=torch.int64)
            return _of_dictionary(dictionary).index_select(0, index(codes))
        case BytesColumn() | ViewColumn():
            return _of_texts(column)
        case FixedColumn(values=values):
            return float_bits(values) if values.dtype.is_floating_point else values
        case WideDecimalColumn(high=high, low=low):
            # What fits one limb is hashed like the number in one.
            return low ^ ((high - (low >> 63)) * _HIGH_LIMB)


def _of_dictionary(dictionary: Dictionary) -> torch.Tensor:
    known = dictionary.derived.get("hashes of partitioning")
    if known is None:
        hashes = _integers(dictionary.values).to(torch.int64)
        known = dictionary.derived.setdefault("hashes of partitioning", hashes)
    assert isinstance(known, torch.Tensor)
    return known


def _of_texts(column: BytesColumn | ViewColumn) -> torch.Tensor:
    if native.library() is not None:
        return hash_texts(column)
    texts = plain(column)
    assert isinstance(texts, BytesColumn)
    data, offsets = texts.data.numpy().tobytes(), texts.offsets.tolist()
    hashes = [xxh3_64_intdigest(data[start:stop]) - (1 << 63) for start, stop in pairwise(offsets)]
    return torch.tensor(hashes, dtype=torch.int64)


def _mix(hashes: torch.Tensor, values: torch.Tensor, validity: torch.Tensor | None) -> torch.Tensor:
    """After the finaliser of MurmurHash3 (Appleby)."""
    mixed = (values if validity is None else torch.where(validity, values, _NULL)) * FIRST_MULTIPLIER
    mixed = (hashes ^ mixed ^ _shifted(mixed, 32)) * SECOND_MULTIPLIER
    return mixed ^ _shifted(mixed, 29)


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Without copies of the sign from above."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
