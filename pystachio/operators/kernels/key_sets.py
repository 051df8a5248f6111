"""Sets of integers that scans ask whether a row's key may be in: a bit per value of a range, or a Bloom filter.

The Bloom filter is register-blocked (Lang, Neumann, Kemper and Boncz, "Performance-Optimal Filtering: Bloom Overtakes
Cuckoo at High Throughput", 2019): all bits of a key are in one word of 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from pystachio.operators.column import Bounds
from pystachio.operators.kernels import native
from pystachio.operators.kernels.host_memory import zeros

_FEWEST_BYTES: Final = 1 << 20
_BYTES_PER_KEY: Final = 32
"""A set of bits may take so much, whatever the number of keys, and so much for each."""

_WORD_BYTES: Final = 8
"""Sets of bits are whole words, which programs read."""

_BLOOM_BITS_PER_KEY: Final = 16
_MOST_BLOOM_KEYS: Final = 1 << 24
FEWEST_BLOOM_WORDS: Final = 64

_FIRST_FACTOR: Final = 0x9E3779B97F4A7C15
_SECOND_FACTOR: Final = 0xD6E8FEB86659FD93


@dataclass(frozen=True, slots=True, eq=False)
class BitSet:
    """Bit `value - low` of `bits` (uint8, lowest bit first) is set for each value in the set; `span` bits count."""

    low: int
    span: int
    bits: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    def contains(self, values: np.ndarray) -> np.ndarray:
        """bool per value."""
        at = np.subtract(values, self.low, dtype=np.int64)
        inside = (at >= 0) & (at < self.span)
        at[~inside] = 0
        found: np.ndarray = ((self.bits.numpy()[at >> 3] >> (at & 7).astype(np.uint8)) & 1).view(np.bool_)
        found &= inside
        return found

    def may_have(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """For each of these inclusive ranges (int64) a bool: False when no value of it is in the set."""
        library = native.library()
        if library is None:
            top = self.low + self.span - 1
            ranges = zip(np.maximum(low, self.low).tolist(), np.minimum(high, top).tolist(), strict=True)
            return np.array([self._has(first - self.low, last - self.low) for first, last in ranges], dtype=np.bool_)
        found = np.empty(len(low), dtype=np.bool_)
        lows, highs = np.ascontiguousarray(low), np.ascontiguousarray(high)
        library.pystachio_any_bits(
            self.bits.data_ptr(), self.low, self.span, lows.ctypes.data, highs.ctypes.data, len(lows), found.ctypes.data
        )
        return found

    def _has(self, first: int, last: int) -> bool:
        """Whether one of the bits from `first` to `last` is set."""
        if first > last:
            return False
        view = self.bits.numpy()
        # numpy's `any` stops at the first one.
        if view[(first >> 3) + 1 : last >> 3].view(np.bool_).any():
            return True
        edges = {first >> 3: 0xFF << (first & 7) & 0xFF}
        edges[last >> 3] = edges.get(last >> 3, 0xFF) & 0xFF >> (7 - (last & 7))
        return any(int(view[at]) & mask for at, mask in edges.items())


@dataclass(frozen=True, slots=True, eq=False)
class BloomFilter:
    """`words` (int64 [a power of two]): a value may be in the set when all its bits of its word are set."""

    words: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    @property
    def shift(self) -> int:
        """A hash shifted right by so many bits is the number of its word."""
        return 65 - self.words.shape[0].bit_length()

    def contains(self, values: np.ndarray) -> np.ndarray:
        """bool per value: False only where it is not in the set."""
        with np.errstate(over="ignore"):
            mixed = values.astype(np.int64).view(np.uint64) * np.uint64(_FIRST_FACTOR)
            mixed ^= mixed >> np.uint64(32)
            mixed *= np.uint64(_SECOND_FACTOR)
        one = np.uint64(1)
        wanted = np.zeros_like(mixed)
        for step in (0, 6, 12):
            wanted |= one << ((mixed >> np.uint64(step)) & np.uint64(63))
        words = self.words.numpy().view(np.uint64)[mixed >> np.uint64(self.shift)]
        result: np.ndarray = (words & wanted) == wanted
        return result

    def may_have(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """It cannot tell."""
        return np.ones(len(low), dtype=np.bool_)


KeySet = BitSet | BloomFilter


def key_set(keys: Sequence[np.ndarray], bounds: Bounds, parts: int = 1) -> KeySet | None:
    """The set of the integers in all of `keys`, which are in `bounds`; one of so many `parts`, about as large as each
    other, of which there will be a union.

    None when that is all values of the range, or when a set would be too large or too slow to make.
    """
    low, high = bounds
    span, count = high - low + 1, sum(map(len, keys))
    if span <= 8 * max(_FEWEST_BYTES, _BYTES_PER_KEY * count * parts):
        return bit_set(keys, low, span)
    if native.library() is None or count * parts > _MOST_BLOOM_KEYS:
        return None
    return bloom_filter(np.concatenate(keys), bloom_words(count * parts))


def bloom_words(keys: int) -> int:
    """How many words a Bloom filter of so many keys takes."""
    return 1 << max(FEWEST_BLOOM_WORDS.bit_length() - 1, (keys * _BLOOM_BITS_PER_KEY // 64 - 1).bit_length())


def bloom_filter(keys: np.ndarray, words: int) -> BloomFilter | None:
    """Of any integers; None where it would be too slow to make."""
    library = native.library(len(keys))
    if library is None:
        return None
    bloom = BloomFilter(zeros(words, torch.int64))
    wide = np.ascontiguousarray(keys, dtype=np.int64)
    library.pystachio_set_bloom(wide.ctypes.data, len(wide), bloom.words.data_ptr(), bloom.shift)
    return bloom


def bits_bytes(span: int) -> int:
    """What the bits of a set over so many values take."""
    return _WORD_BYTES * -(-span // (8 * _WORD_BYTES))


def bit_set(keys: Sequence[np.ndarray], low: int, span: int) -> BitSet | None:
    """Of the integers in all of `keys`, from `low` on; None when those are all `span` of them."""
    nbytes, count = bits_bytes(span), sum(map(len, keys))
    library = native.library(count)
    if library is None:
        flags = np.zeros(8 * nbytes, dtype=np.bool_)
        for values in keys:
            flags[np.subtract(values, low, dtype=np.int64)] = True
        bits = torch.from_numpy(np.packbits(flags, bitorder="little"))
    else:
        bits = zeros(nbytes, torch.uint8)
        for values in keys:
            signed = np.ascontiguousarray(values if values.dtype.kind == "i" else values.astype(np.int64))
            status = library.pystachio_set_bits(signed.ctypes.data, signed.itemsize, len(signed), low, bits.data_ptr())
            assert status == native.Status.OK, "widths of integers"
    is_full = count >= span and int(np.bitwise_count(bits.numpy().view(np.uint64)).sum()) == span
    return None if is_full else BitSet(low, span, bits)
