"""Freed memory stays with the process, where the C library lets us say so."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from pystachio.machine import usable_cores
from pystachio.runtime.allocator import keep_freed_memory

FAULTS = """
import resource, torch
from pystachio.runtime.allocator import keep_freed_memory
assert keep_freed_memory()
torch.set_num_threads(1)
def work():
    column = torch.ones(1 << 18, dtype=torch.int64)
    return ((column + 1) * 2 - column).sum()
for _ in range(20):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


HEAPS = """
import ctypes, os, threading
from pystachio.runtime.allocator import keep_freed_memory
assert keep_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
started = threading.Barrier(40)
def work():
    c.malloc(100_000)
    started.wait()
threads = [threading.Thread(target=work) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
c.fdopen.restype = ctypes.c_void_p
c.malloc_info(0, ctypes.c_void_p(c.fdopen(os.dup(1), b"w")))
c.fflush(None)
"""


SESSION = """
import ctypes, os, pystachio
with pystachio.connect(threads=2) as session:
    session.sql("select 1 as one").to_arrow()
    c = ctypes.CDLL(None)
    c.fdopen.restype = ctypes.c_void_p
    c.malloc_info(0, ctypes.c_void_p(c.fdopen(os.dup(1), b"w")))
    c.fflush(None)
"""


def printed(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def page_faults() -> int:
    return int(printed(FAULTS))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_temporaries_of_a_batch_do_not_fault_again() -> None:
    """1,500 pages are new in each of the 200 rounds where glibc trims its heap, which depends on the layout."""
    assert page_faults() < 2000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
@pytest.mark.parametrize("program", [HEAPS, SESSION], ids=["threads", "a session"])
def test_threads_share_heaps(program: str) -> None:
    """Those of libraries too, which start some when they are imported."""
    assert 1 <= printed(program).count("<heap ") <= -(-usable_cores() // 4)


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()
