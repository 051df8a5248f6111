"""Tables of short texts for people, in aligned columns: the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_LINK = 28


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines that end with a line feed; the headings alone when there are no rows."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join(padded) + "\n"


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def link_text(link: str) -> str:
    """A link's name; of the path of an emulated disk the end is enough."""
    if len(link) <= _LONGEST_LINK:
        return link
    medium, _, rest = link.partition(" ")
    name, _, direction = rest.rpartition(" ")
    return f"{medium} …/{name.rstrip('/').rsplit('/', 1)[-1]} {direction}" if "/" in name else link
