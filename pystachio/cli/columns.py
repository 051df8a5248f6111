"""Tables of short texts for people, in aligned columns: the same on a terminal and in a file."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST_LINK = 28
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_IN_LINES = re.compile(r"(?![\n\t])[\x00-\x1f\x7f-\x9f]")


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines that end with a line feed; the headings alone when there are no rows. Control characters are escaped."""
    lines = [headings, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join(padded) + "\n"


def printable(text: str) -> str:
    """Control characters escaped: a value must not move the cursor of a terminal or break a row."""
    return _CONTROL.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return _CONTROL_IN_LINES.sub(_escaped, text.replace("\r\n", "\n"))


def _escaped(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()


def shortened(text: str, longest: int) -> str:
    """In one line without control characters."""
    text = printable(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def link_text(link: str) -> str:
    """A link's name; of the path of an emulated disk the end is enough."""
    if len(link) <= _LONGEST_LINK:
        return link
    medium, _, rest = link.partition(" ")
    name, _, direction = rest.rpartition(" ")
    return f"{medium} …/{name.rstrip('/').rsplit('/', 1)[-1]} {direction}" if "/" in name else link
