"""How the C library treats freed memory: a fresh page costs microseconds, a reused one nothing."""

from __future__ import annotations

import ctypes
import platform

from pystachio.machine import usable_cores

# From malloc.h; the numbers are part of glibc's ABI.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

REUSED_BYTES = 32 << 20
"""Blocks up to this size come from the heap and are used again; the most that glibc accepts. A batch's columns and
temporaries are a few MiB each; by default glibc maps each anew, and every page of it faults."""
KEPT_BYTES = 512 << 20
"""How much free memory at the end of the heap may stay with the process."""
_CORES_OF_HEAP = 4
"""So many cores share a heap: what one thread has freed the next one uses again, while it is still in a cache. With a
heap for each thread, as by default, each keeps the free memory of its own largest plan."""


def keep_freed_memory() -> bool:
    """Let the process reuse freed blocks instead of returning them to the kernel at once, and keep them in few heaps;
    True when it took effect. Threads that have a heap of their own by then keep it.

    For the whole process, so called by whoever owns it or embeds a node. Only glibc has the settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    wanted = {
        _M_MMAP_THRESHOLD: REUSED_BYTES,
        _M_TRIM_THRESHOLD: KEPT_BYTES,
        _M_ARENA_MAX: -(-usable_cores() // _CORES_OF_HEAP),
    }
    return all(mallopt(option, value) == 1 for option, value in wanted.items())
