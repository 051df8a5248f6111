"""The first page of a stored column's file: a prefix (magic, version, length of the body, checksum) and a JSON body."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import xxhash

PAGE_BYTES: Final = 4096
VERSION: Final = 2
"""To be raised when the format changes, or when what was decoded before must not be read any more."""

_MAGIC: Final = b"PIOCHUNK"
_PREFIX: Final = struct.Struct("<8sIIQ")
_CHECKED_PREFIX: Final = struct.Struct("<8sII")


class BrokenChunk(Exception):
    """Why the bytes are not usable. It does not leave `decoding`."""


def header_page(header: dict[str, Any]) -> bytes | None:
    """None when the header is too long for a page."""
    body = json.dumps(header).encode()
    if _PREFIX.size + len(body) > PAGE_BYTES:
        return None
    unchecked = (_PREFIX.pack(_MAGIC, VERSION, len(body), 0) + body).ljust(PAGE_BYTES, b"\0")
    return _PREFIX.pack(_MAGIC, VERSION, len(body), _page_checksum(unchecked)) + unchecked[_PREFIX.size :]


def read_header(page: bytes) -> dict[str, Any]:
    """The header of a whole page. Raises BrokenChunk; the values are whatever JSON can say."""
    magic, version, length, checksum = _PREFIX.unpack_from(page)
    if magic != _MAGIC or version != VERSION:
        raise BrokenChunk("of another format")
    if length > PAGE_BYTES - _PREFIX.size:
        raise BrokenChunk("a header of more than a page")
    if checksum != _page_checksum(page):
        raise BrokenChunk("a header with a wrong checksum")
    try:
        header = json.loads(page[_PREFIX.size : _PREFIX.size + length])
    except (ValueError, RecursionError) as error:
        raise BrokenChunk(f"a header that is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise BrokenChunk("a header that is no object")
    found: dict[str, Any] = header
    return found


def _page_checksum(page: bytes) -> int:
    """Of everything in the page but the checksum."""
    checksum = xxhash.xxh3_64(page[: _CHECKED_PREFIX.size])
    checksum.update(page[_PREFIX.size :])
    return checksum.intdigest()
