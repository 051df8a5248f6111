"""The library of compiled disk threads, from the C files beside this module (disk.h).

It is optional: where no compiler was at hand at installation, or the system is not Linux, there is none and
Python's threads move chunks.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from pathlib import Path

from pystachio.compiled import CompiledLibrary, load_library

INTERFACE_VERSION = 2
_NAME = "_disk"

ABANDONED = -1
"""In place of an error's number: nobody wanted the chunk any more before it began."""

END = "=qqdii"
"""What became of a chunk, for `struct`: its number, bytes, seconds, error and way."""


class Way(IntEnum):
    """What is asked of a chunk: by way of the page cache, around it, or around it unless half of it is there."""

    BUFFERED = 0
    DIRECT = 1
    SPARING = 2


@cache
def load() -> CompiledLibrary:
    """The library from this folder, loaded once per process. Calls of `brief` take less time than to have the
    interpreter back."""
    version = "pystachio_disk_interface_version", INTERFACE_VERSION
    return load_library(Path(__file__).parent, _NAME, version=version, declare=_declare)


def _declare(library: ctypes.CDLL) -> None:
    pointer, number, width = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name, arguments, result in (
        ("open", (width, width, width), pointer),
        ("close", (pointer,), None),
        ("file", (ctypes.c_char_p, width), pointer),
        ("series", (ctypes.c_char_p, pointer, width, width), pointer),
        ("close_file", (pointer, pointer), None),
        ("start", (pointer, pointer, number, number, pointer, number, number, width), width),
        ("abandon", (pointer, number), None),
        ("ended", (pointer, pointer, number), number),
        ("list", (ctypes.c_char_p, pointer, number), number),
    ):
        function = getattr(library, f"pystachio_disk_{name}")
        function.argtypes = arguments
        function.restype = result
