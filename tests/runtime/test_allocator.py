"""Freed memory stays with the process, where the C library lets us say so."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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


def page_faults() -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_temporaries_of_a_batch_do_not_fault_again() -> None:
    """1,500 pages are new in each of the 200 rounds where glibc trims its heap, which depends on the layout."""
    assert page_faults() < 2000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()
