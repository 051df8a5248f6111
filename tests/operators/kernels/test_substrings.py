"""Searching in many strings at once against Python's own searches."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.operators.kernels import substrings
from pystachio.operators.kernels.patterns import Text, Wildcard, match_like, parse_like

LETTERS = st.text("abé", max_size=12)
PIECES = st.text("abé", min_size=1, max_size=5)


@given(
    st.binary(max_size=60).map(lambda data: bytes(byte % 3 for byte in data)), st.integers(1, 6), st.integers(0, 300)
)
def test_every_occurrence_is_found(data: bytes, length: int, seed: int) -> None:
    piece = bytes((seed // 3**i) % 3 for i in range(length))
    found = substrings.find_all(np.frombuffer(data, np.uint8), piece)
    assert found.tolist() == [i for i in range(len(data)) if data.startswith(piece, i)]


def test_occurrences_across_blocks_are_found() -> None:
    data = b"needle" * 60_000
    found = substrings.find_all(np.frombuffer(data, np.uint8), b"needle")
    assert found.tolist() == list(range(0, len(data), 6))


@given(st.lists(st.none() | LETTERS, max_size=8), st.lists(PIECES, max_size=3), st.booleans(), st.booleans())
def test_pieces_in_order(texts: list[str | None], pieces: list[str], open_start: bool, open_end: bool) -> None:
    pattern = "%" * open_start + "%".join(pieces) + "%" * open_end
    expression = re.compile(".*".join(map(re.escape, pattern.split("%"))), re.DOTALL)
    for array in (pa.array(texts, pa.large_string()), pa.array(["ab", *texts, "b"], pa.large_string())[1:-1]):
        found = match_like(array, parse_like(pattern, None)).to_pylist()
        assert found == [None if text is None else expression.fullmatch(text) is not None for text in texts]


BYTES = st.binary(max_size=70).map(lambda data: bytes(97 + byte % 2 for byte in data))


@given(
    st.lists(BYTES, max_size=12),
    st.lists(BYTES.map(lambda data: data[:20]).filter(bool), max_size=3),
    BYTES.map(lambda data: data[:3]),
    BYTES.map(lambda data: data[:3]),
)
def test_compiled_searches_are_those_of_numpy(
    texts: list[bytes], pieces: list[bytes], prefix: bytes, suffix: bytes
) -> None:
    offsets = np.cumsum([2, *map(len, texts)], dtype=np.int64)
    data = np.frombuffer(b"ab" + b"".join(texts) + b"ab", np.uint8)
    found = substrings.match_pieces(offsets, data, prefix, pieces, suffix)
    expression = re.compile(re.escape(prefix) + b"".join(b".*" + re.escape(piece) for piece in pieces) + b".*" + suffix)
    assert found.tolist() == [expression.fullmatch(text) is not None for text in texts]
    assert found.tolist() == substrings._match_everywhere(offsets, data, prefix, pieces, suffix).tolist()


@pytest.mark.parametrize(
    ("pattern", "escape", "parsed"),
    [
        ("a%b", None, (Text("a"), Wildcard.ANY, Text("b"))),
        ("%%a", None, (Wildcard.ANY, Text("a"))),
        ("50\\%", "\\", (Text("50%"),)),
        ("__", None, (Wildcard.ONE, Wildcard.ONE)),
        ("\\\\", "\\", (Text("\\"),)),
        ("", None, ()),
    ],
)
def test_patterns_are_text_and_wildcards(pattern: str, escape: str | None, parsed: tuple[object, ...]) -> None:
    assert parse_like(pattern, escape) == parsed
