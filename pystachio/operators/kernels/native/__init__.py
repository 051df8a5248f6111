"""The library of compiled inner loops, from the C files beside this module (decode.h, footer.h, folds.h).

It is optional: where no compiler was at hand at installation, `library()` is None, pyarrow decodes everything, Python
reads footers and torch folds.
"""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum
from functools import cache
from pathlib import Path

from pystachio.compiled import CompiledLibrary, load_library

INTERFACE_VERSION = 40
_NAME = "_native"

FEW_ROWS = 1 << 12
"""What is done with so many takes less time than to have the interpreter back (`kernels.host_memory`)."""

LOWEST = -(2**63)
HIGHEST = 2**63 - 1


class Instructions(IntEnum):
    """What loops use that are written for a processor's vector instructions (wide.h)."""

    PLAIN = 0
    AVX2 = 1
    AVX512 = 2

    def __str__(self) -> str:
        return {Instructions.AVX2: "AVX2", Instructions.AVX512: "AVX-512"}.get(self, "no vector instructions")


class Status(IntEnum):
    OK = 0
    NOT_HANDLED = 1
    CORRUPT = 2
    TOO_NARROW = 3
    NO_MEMORY = 4


class Conversion(IntEnum):
    """How stored values become numbers."""

    SIGNED = 0
    UNSIGNED = 1
    RAW = 2
    BOOLEAN = 3
    DECIMAL = 4
    CODES = 5


class Chunk(ctypes.Structure):
    """A fetched column chunk; the first `wanted` of its rows are decoded."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("wanted", ctypes.c_int64),
        ("physical_type", ctypes.c_int32),
        ("type_length", ctypes.c_int32),
        ("codec", ctypes.c_int32),
        ("optional", ctypes.c_int32),
    )


class Failure(ctypes.Structure):
    _fields_ = (("message", ctypes.c_char_p), ("page", ctypes.c_int64))

    def __str__(self) -> str:
        return f"{(self.message or b'').decode()} (page {self.page})"


class Survey(ctypes.Structure):
    """Sizes from a chunk's page headers."""

    _fields_ = (
        ("dictionary_values", ctypes.c_int64),
        ("dictionary_bytes", ctypes.c_int64),
        ("coded_rows", ctypes.c_int64),
        ("plain_rows", ctypes.c_int64),
        ("plain_bytes", ctypes.c_int64),
        ("failure", Failure),
    )


class Fixed(ctypes.Structure):
    """Where values of fixed width go."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("validity", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("table_length", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("nulls", ctypes.c_int64),
        ("low", ctypes.c_int64),
        ("high", ctypes.c_int64),
        ("width", ctypes.c_int32),
        ("conversion", ctypes.c_int32),
        ("failure", Failure),
    )


class Strings(ctypes.Structure):
    """Where values of variable length go."""

    _fields_ = (
        ("offsets", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("data_capacity", ctypes.c_int64),
        ("validity", ctypes.c_void_p),
        ("row", ctypes.c_int64),
        ("nulls", ctypes.c_int64),
        ("codes", ctypes.c_void_p),
        ("entries", ctypes.c_int64),
        ("entry_capacity", ctypes.c_int64),
        ("failure", Failure),
    )


class Segment(ctypes.Structure):
    """A part of a file that is read back (segments.h)."""

    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("nbytes", ctypes.c_int64),
        ("values", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("divisor", ctypes.c_uint64),
        ("checksum", ctypes.c_uint64),
        ("low", ctypes.c_int64),
        ("high", ctypes.c_int64),
        ("width", ctypes.c_int32),
        ("status", ctypes.c_int32),
    )


@cache
def load() -> CompiledLibrary:
    """The library from this folder, loaded once per process."""
    return load_from(Path(__file__).parent)


def load_from(folder: Path) -> CompiledLibrary:
    if sys.byteorder != "little":
        return CompiledLibrary(None, "it is only made for little-endian processors")
    version = "pystachio_interface_version", INTERFACE_VERSION
    return load_library(folder, _NAME, version=version, declare=_declare)


def library(rows: int | None = None) -> ctypes.CDLL | None:
    """The library, if there is one. For calls that do something for each of FEW_ROWS or less, and nothing else that
    takes time: one that keeps the interpreter meanwhile."""
    loaded = load()
    brief = loaded.brief if rows is not None and rows <= FEW_ROWS else None
    return loaded.library if brief is None else brief


def instructions() -> Instructions | None:
    """Which the library's loops use; None without the library."""
    loaded = load().library
    return None if loaded is None else Instructions(loaded.pystachio_instructions())


def use_instructions(most: Instructions = Instructions.AVX512) -> Instructions | None:
    """Which the library's loops use from here on: `most`, or what the processor has; None without the library. For
    tests, while nothing runs."""
    loaded = load().library
    return None if loaded is None else Instructions(loaded.pystachio_use_instructions(most))


def _declare(loaded: ctypes.CDLL) -> None:
    pointer = ctypes.c_void_p
    for name, out in (
        ("survey", Survey),
        ("decode_fixed", Fixed),
        ("decode_strings", Strings),
        ("decode_dictionary", Strings),
    ):
        function = getattr(loaded, f"pystachio_{name}")
        function.argtypes = (ctypes.POINTER(Chunk), ctypes.POINTER(out))
        function.restype = ctypes.c_int32
    loaded.pystachio_decode_fixed_all.argtypes = (pointer, ctypes.c_int64, ctypes.POINTER(Fixed), ctypes.c_void_p)
    loaded.pystachio_decode_fixed_all.restype = ctypes.c_int32
    loaded.pystachio_text_offsets.argtypes = (pointer, pointer, ctypes.c_int64, pointer, pointer)
    loaded.pystachio_text_offsets.restype = ctypes.c_int64
    gather = loaded.pystachio_text_gather
    gather.argtypes = (pointer, ctypes.c_int64, pointer, pointer, ctypes.c_int64, pointer, pointer, ctypes.c_int64)
    gather.restype = None
    number, width = ctypes.c_int64, ctypes.c_int32
    loaded.pystachio_group_sums.argtypes = (pointer, width, pointer, width, number, number, pointer)
    loaded.pystachio_group_rows.argtypes = (pointer, width, number, number, pointer, pointer)
    loaded.pystachio_any_bits.argtypes = (pointer, number, number, pointer, pointer, number, pointer)
    loaded.pystachio_any_bits.restype = None
    loaded.pystachio_set_bloom.argtypes = (pointer, number, pointer, width)
    loaded.pystachio_set_bloom.restype = None
    loaded.pystachio_regex_replace.argtypes = (
        *(pointer, pointer, number, pointer, width),
        *(pointer, width, pointer, pointer, pointer),
    )
    loaded.pystachio_regex_replace.restype = None
    loaded.pystachio_run_program.argtypes = (pointer,)
    loaded.pystachio_run_program.restype = None
    _declare_arrays(loaded)


def _declare_arrays(loaded: ctypes.CDLL) -> None:
    pointer, number, width = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    arguments = {
        "find_chunks": (pointer, number, number, number, pointer, pointer),
        "describe_chunks": (pointer, number, pointer, number, pointer),
        "instructions": (),
        "use_instructions": (width,),
        "use_large_pages": (pointer, number),
        "clear": (pointer, number),
        "grow_keys": (pointer, number, pointer, number),
        "find_keys": (pointer, number, pointer, number, pointer),
        "grow_texts": (pointer, number, pointer, number),
        "enter_texts": (pointer, pointer, number, number, pointer, number),
        "find_texts": (pointer, pointer, pointer, number, pointer, number, pointer, pointer, pointer),
        "hash_texts": (pointer, pointer, number, pointer),
        "match_pieces": (pointer, pointer, number, number, pointer, pointer, number, pointer),
        "match_beginnings": (pointer, pointer, number, number, width, pointer, width, pointer),
        "text_lengths": (pointer, pointer, number, number, pointer),
        "regex_spans": (pointer, pointer, pointer, number, number, pointer),
        "set_bits": (pointer, width, number, number, pointer),
        "find_ranks": (pointer, number, pointer, width, number, pointer),
        "ranges": (pointer, width, number, number, pointer, pointer, pointer),
        "ranges_of": (pointer, number, pointer, width, number, pointer, pointer),
        "gather_offsets": (pointer, number, pointer, width, number, pointer),
        "gather_bytes": (pointer, pointer, number, pointer, width, number, pointer, pointer, number),
        "mix_hashes": (pointer, width, pointer, number, pointer),
        "split_rows": (pointer, pointer, number, width, width, pointer, pointer),
        "parts_of_values": (*(pointer,) * 3, width, pointer, number, width, width, pointer, pointer),
        "scatter": (pointer, width, pointer, number, pointer, width, pointer),
        "group_extremes": (pointer, width, pointer, width, number, width, pointer),
        "value_range": (pointer, width, number, pointer),
        "hash_views": (pointer, number, pointer),
        "copy_views": (pointer, number, pointer, pointer),
        "same_views": (pointer, pointer, number, pointer, width),
        "pack_offsets": (pointer, number, pointer, pointer),
        "text_extremes": (*(pointer,) * 5, width, number, number, width, pointer),
        "order_floats": (pointer, width, number, pointer),
        "whole_floats": (pointer, width, pointer, number, pointer, pointer),
        "float_extremes": (pointer, width, pointer, pointer, width, number, number, width, pointer),
        "group_float_sums": (pointer, width, pointer, pointer, width, number, number, pointer),
        "group_moments": (pointer, pointer, pointer, width, number, number, *(pointer,) * 3),
    }
    counting = {
        "view_texts": (pointer, pointer, number, pointer, width, number, pointer),
        "block_offsets": (pointer, pointer, number, number, pointer),
        "view_blocks": (pointer, pointer, pointer, number, pointer, width, number, pointer),
        "take_views": (pointer, number, pointer, width, number, pointer),
        "number_keys": (pointer, number, number, pointer, number, pointer, pointer, pointer),
        "number_texts": (*(pointer,) * 3, number, number, pointer, number, *(pointer,) * 4),
        "number_words": (pointer, width, number, number, pointer, number, *(pointer,) * 5),
        "number_key_runs": (pointer, pointer, number, number, pointer, number, *(pointer,) * 3),
        "number_word_runs": (pointer, width, pointer, number, number, pointer, number, *(pointer,) * 4),
        "number_codes": (pointer, width, number, number, pointer, pointer, pointer),
        "rank_codes": (pointer, width, number, number, pointer, pointer, pointer),
        "rank_ascending": (pointer, width, number, number, pointer, pointer),
        "check_chunks": (pointer, number, pointer, number, pointer, pointer, pointer),
        "coded_rows": (pointer, width, number, pointer, number, pointer, number),
        "pairs": (pointer, pointer, number, pointer, number, number, pointer, pointer, pointer),
        "pack": (pointer, width, number, pointer, ctypes.c_uint64, pointer, number),
        "sort_split": (pointer, number, number, pointer, pointer),
    }
    for name, types in (arguments | counting).items():
        function = getattr(loaded, f"pystachio_{name}")
        function.argtypes = types
        function.restype = number if name in counting else width
    loaded.pystachio_sort_part.argtypes = (pointer, number, pointer, pointer, number, number, pointer)
    loaded.pystachio_sort_part.restype = None
    loaded.pystachio_read_segments.argtypes = (pointer, number)
    loaded.pystachio_read_segments.restype = None
    loaded.pystachio_common_divisor.argtypes = (pointer, width, number, pointer)
    loaded.pystachio_common_divisor.restype = ctypes.c_uint64
