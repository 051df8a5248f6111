"""Bodies of any sense to others, too long for a frame: sent in parts, put together again."""

from __future__ import annotations

from pystachio.errors import DataError
from pystachio.io_scheduler.network.frames import BodyPart

BODY_BYTES = 16 << 20
"""The longest body."""


class BodyReader:
    """Bodies out of their parts, which come in order; never more memory than what has come of one body."""

    def __init__(self, longest: int = BODY_BYTES) -> None:
        self._longest = longest
        self._parts = bytearray()
        self._left = 0

    def take(self, part: BodyPart) -> bytes | None:
        """The body, when this was the last part of it. Raises DataError for a part that does not fit."""
        whole = len(part.content) + part.left
        if self._left:
            if whole != self._left:
                raise DataError(f"a body's parts do not fit together: {whole:,} bytes are left, not {self._left:,}")
        elif whole > self._longest:
            raise DataError(f"a body is too long: {whole:,} of {self._longest:,} bytes")
        if part.left and not part.content:
            raise DataError("a part of a body is empty")
        self._parts += part.content
        self._left = part.left
        if self._left:
            return None
        body, self._parts = bytes(self._parts), bytearray()
        return body
