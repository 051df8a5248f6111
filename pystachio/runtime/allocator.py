"""How the C library treats freed memory: a fresh page costs microseconds, a reused one nothing."""

from __future__ import annotations

import ctypes
import platform

# From malloc.h; the numbers are part of glibc's ABI.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

REUSED_BYTES = 32 << 20
"""Blocks up to this size come from the heap and are used again; the most that glibc accepts. A batch's columns and
temporaries are a few MiB each; by default glibc maps each anew, and every page of it faults."""
KEPT_BYTES = 512 << 20
"""How much free memory at the end of the heap may stay with the process."""


def keep_freed_memory() -> bool:
    """Let the process reuse freed blocks instead of returning them to the kernel at once; True when it took effect.

    For the whole process, so called by whoever owns it or embeds a node. Only glibc has the settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
