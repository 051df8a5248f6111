"""Unions of sets of integers that several nodes made, each of its part of the keys.

What a union has no room for is left out of the set's knowledge, never out of the set: a union may hold more than its
parts, and holds all that they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from pystachio.operators.column import Bounds
from pystachio.operators.kernels.key_sets import (
    BitSet,
    BloomFilter,
    KeySet,
    bits_bytes,
    bloom_filter,
    bloom_words,
)

MOST_SET_BYTES: Final = 4 << 20
"""A set of more is not worth its way to other nodes."""


@dataclass(frozen=True, slots=True)
class Part:
    """The integers of an inclusive range that are in `keys`; None: all of them may be in the part."""

    bounds: Bounds
    keys: KeySet | None


def union_of(parts: Sequence[Part]) -> Part:
    """A set that has whatever any of the parts has; there is at least one. The result shares memory with a part only
    when that is the union."""
    if len(parts) == 1:
        return parts[0]
    bounds = min(part.bounds[0] for part in parts), max(part.bounds[1] for part in parts)
    if all(part.keys is None or isinstance(part.keys, BitSet) for part in parts):
        span = bounds[1] - bounds[0] + 1
        if bits_bytes(span) <= MOST_SET_BYTES:
            return Part(bounds, _union_of_bits(parts, bounds[0], span))
    return Part(bounds, _union_of_blooms(parts))


def members(keys: BitSet) -> np.ndarray:
    """int64, ascending: the integers in the set."""
    found = np.flatnonzero(np.unpackbits(keys.bits.numpy(), bitorder="little", count=keys.span))
    return found.astype(np.int64) + keys.low


def _union_of_bits(parts: Sequence[Part], low: int, span: int) -> BitSet | None:
    """None when every value of the range is in it."""
    bits = np.zeros(bits_bytes(span), dtype=np.uint8)
    for part in parts:
        if part.keys is None:
            _set_range(bits, part.bounds[0] - low, part.bounds[1] - low)
        elif isinstance(part.keys, BitSet):
            _set_bits(bits, part.keys, part.keys.low - low)
    rest = span % 8
    full = bool((bits[: span // 8] == 0xFF).all()) and (not rest or bits[span // 8] == (1 << rest) - 1)
    return None if full else BitSet(low, span, torch.from_numpy(bits))


def _set_bits(bits: np.ndarray, keys: BitSet, offset: int) -> None:
    """The bits of `keys`, moved up by `offset`."""
    source, (start, shift) = keys.bits.numpy()[: -(-keys.span // 8)], divmod(offset, 8)
    bits[start : start + len(source)] |= source << np.uint8(shift)
    if shift:
        above = source[: len(bits) - start - 1] >> np.uint8(8 - shift)
        bits[start + 1 : start + 1 + len(above)] |= above


def _set_range(bits: np.ndarray, first: int, last: int) -> None:
    bits[(first >> 3) + 1 : last >> 3] = 0xFF
    edges = {first >> 3: 0xFF << (first & 7) & 0xFF}
    edges[last >> 3] = edges.get(last >> 3, 0xFF) & 0xFF >> (7 - (last & 7))
    for at, mask in edges.items():
        bits[at] |= mask


def _union_of_blooms(parts: Sequence[Part]) -> BloomFilter | None:
    """Sets of bits become Bloom filters too. A hash's first bits are the number of its word, so that each word of a
    small filter stands for adjacent words of a large one."""
    exact = [part.keys for part in parts if isinstance(part.keys, BitSet)]
    blooms = [part.keys for part in parts if isinstance(part.keys, BloomFilter)]
    if len(exact) + len(blooms) < len(parts):
        return None
    values = [members(keys) for keys in exact]
    if values:
        joined = np.concatenate(values)
        size = max([bloom_words(len(joined)), *(bloom.words.shape[0] for bloom in blooms)])
        made = bloom_filter(joined, size) if 8 * size <= MOST_SET_BYTES else None
        if made is None:
            return None
        blooms.append(made)
    size = max(bloom.words.shape[0] for bloom in blooms)
    words = torch.zeros(size, dtype=torch.int64)
    for bloom in blooms:
        words |= bloom.words.repeat_interleave(size // bloom.words.shape[0])
    return BloomFilter(words)
