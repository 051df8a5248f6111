"""Freed memory stays with the process, where the C library lets us say so."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from pystachio.runtime.allocator import keep_freed_memory

FAULTS = """
import resource, sys, torch
from pystachio.runtime.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.set_num_threads(1)
def work():
    column = torch.ones(1 << 18, dtype=torch.int64)
    return ((column + 1) * 2 - column).sum()
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_temporaries_of_a_batch_do_not_fault_again() -> None:
    assert page_faults("keep") < page_faults("default") / 10


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()
