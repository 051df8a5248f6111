"""Searching many strings at once. In C each by itself; without the library the bytes of a whole column are one text,
in which each piece is found everywhere: several times faster than a search per string for pieces that are rare, as
those of selective predicates are. In UTF-8 no character's bytes occur inside another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystachio.operators.kernels import native

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_BEGINNING: Final = 7

# Scratch of this size stays in the second-level cache.
_BLOCK: Final = 1 << 17
# Comparing more leading bytes everywhere costs more than checking the candidates.
_LEADING: Final = 3


def find_all(data: Bytes, piece: bytes) -> Positions:
    """Where `piece` (not empty) starts in `data`, ascending, overlaps included."""
    leading = np.frombuffer(piece[:_LEADING], np.uint8)
    limit = len(data) - len(piece) + 1
    hits, scratch = np.empty(_BLOCK, np.bool_), np.empty(_BLOCK, np.bool_)
    found = [np.empty(0, np.int64)]
    for start in range(0, limit, _BLOCK):
        size = min(_BLOCK, limit - start)
        np.equal(data[start : start + size], leading[0], out=hits[:size])
        for ahead in range(1, len(leading)):
            np.equal(data[start + ahead : start + ahead + size], leading[ahead], out=scratch[:size])
            np.logical_and(hits[:size], scratch[:size], out=hits[:size])
        found.append(np.flatnonzero(hits[:size]) + start)
    positions = np.concatenate(found)
    for ahead in range(_LEADING, len(piece)):
        positions = positions[data[positions + ahead] == piece[ahead]]
    return positions


def match_pieces(offsets: Positions, data: Bytes, prefix: bytes, pieces: Sequence[bytes], suffix: bytes) -> Mask:
    """Per string whether it is `prefix`, then anything with the `pieces` in that order in it, then `suffix`.

    String i is data[offsets[i]:offsets[i + 1]]. Taking the earliest place for each piece leaves the most room for the
    rest, so one pass decides.
    """
    library = native.library()
    if library is None:
        return _match_everywhere(offsets, data, prefix, pieces, suffix)
    texts = (prefix, *pieces, suffix)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    matches = np.empty(len(offsets) - 1, np.bool_)
    status = library.pystachio_match_pieces(
        offsets.ctypes.data,
        data.ctypes.data,
        len(data),
        len(matches),
        b"".join(texts),
        ends.ctypes.data,
        len(texts),
        matches.ctypes.data,
    )
    assert status == native.Status.OK, "offsets within the data"
    return matches


def match_beginnings(offsets: Positions, data: Bytes, most: int, texts: Sequence[bytes]) -> Mask:
    """Per string whether its first `most` bytes (MOST_BEGINNING at the most), of which it may have fewer, are one of
    the `texts`, of at most so many each. Where there is a library."""
    library = native.library(len(offsets) - 1)
    assert library is not None, "asked before"
    assert most <= MOST_BEGINNING
    assert all(len(text) <= most for text in texts)
    words = np.full(-(-len(texts) // 8) * 8, 2**64 - 1, dtype=np.uint64)  # what is left is as long as no text
    words[: len(texts)] = [int.from_bytes(text, "little") | len(text) << 56 for text in texts]
    matches = np.empty(len(offsets) - 1, np.bool_)
    status = library.pystachio_match_beginnings(
        offsets.ctypes.data,
        data.ctypes.data,
        len(data),
        len(matches),
        most,
        words.ctypes.data,
        len(words),
        matches.ctypes.data,
    )
    assert status == native.Status.OK, "offsets within the data"
    return matches


def _match_everywhere(offsets: Positions, data: Bytes, prefix: bytes, pieces: Sequence[bytes], suffix: bytes) -> Mask:
    """In rounds over the whole column; after the first piece only the strings that have it are searched."""
    rows = np.flatnonzero(np.diff(offsets) >= len(prefix) + len(suffix)) if not pieces else np.arange(len(offsets) - 1)
    limits, text, used = offsets, data, np.broadcast_to(np.int64(len(prefix)), len(rows))
    for number, piece in enumerate(pieces):
        if number > 0:
            limits, text = _taken(offsets, data, rows)
        found, used = _first_in_each(limits, text, piece, used, len(suffix))
        rows = rows[found]
    rows = rows[_begins_with(data, offsets[rows], prefix)]
    rows = rows[_begins_with(data, offsets[rows + 1] - len(suffix), suffix)]
    matches = np.zeros(len(offsets) - 1, np.bool_)
    matches[rows] = True
    return matches


def _first_in_each(
    offsets: Positions, data: Bytes, piece: bytes, used: Positions, kept: int
) -> tuple[Positions, Positions]:
    """The strings that hold `piece` behind their first `used` and before their last `kept` bytes.

    With them, how many of their bytes are used up to the end of the first such place.
    """
    base = int(offsets[0])
    hits = find_all(data[base : int(offsets[-1])], piece) + base
    rows = np.searchsorted(offsets, hits, side="right") - 1
    inside = (hits >= offsets[rows] + used[rows]) & (hits + len(piece) <= offsets[rows + 1] - kept)
    hits, rows = hits[inside], rows[inside]
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    rows = rows[first]
    return rows, hits[first] + len(piece) - offsets[rows]


def _taken(offsets: Positions, data: Bytes, rows: Positions) -> tuple[Positions, Bytes]:
    """Offsets and bytes of some of the strings."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    taken = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers).take(pa.array(rows))
    _, limits, text = taken.buffers()
    return np.frombuffer(limits, np.int64, len(rows) + 1), np.frombuffer(text or b"", np.uint8)


def _begins_with(data: Bytes, starts: Positions, piece: bytes) -> Mask:
    """Whether `piece` is at each of the positions, which must leave room for it."""
    equal = np.ones(len(starts), np.bool_)
    for ahead, byte in enumerate(piece):
        equal &= data[starts + ahead] == byte
    return equal
