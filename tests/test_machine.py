from __future__ import annotations

import os
from pathlib import Path

import pytest

from pystachio import machine

MEMINFO = (
    "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\nHugepagesize:      2048 kB\nHugePages_Total:       0\n"
)
GIB = 1 << 30


def fake_root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8 * GIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 8 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{3 * GIB}\n"}, 3 * GIB),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": f"{5 * GIB}",
                "sys/fs/cgroup/memory.max": f"{2 * GIB}",
            },
            2 * GIB,
        ),
        ({"proc/self/cgroup": "0::/gone\n", "sys/fs/cgroup/memory.max": f"{GIB}"}, GIB),
        ({"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{GIB}"}, GIB),
        (
            {"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
            8 * GIB,
        ),
    ],
)
def test_memory_limit(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    assert machine.memory_limit(fake_root(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "150000",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
)
def test_usable_cores(files: dict[str, str], quota: int | None, tmp_path: Path) -> None:
    affinity = len(os.sched_getaffinity(0))
    assert machine.usable_cores(fake_root(tmp_path, files)) == (affinity if quota is None else min(quota, affinity))


def test_pages_and_available_memory(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"})
    assert machine.pages(root) == machine.Pages(os.sysconf("SC_PAGE_SIZE"), 2 << 20, "madvise")
    assert machine.available_memory(root) == 4 * GIB


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert machine.memory_limit(tmp_path) > 0
    assert machine.usable_cores(tmp_path) >= 1
    assert machine.available_memory(tmp_path) == 0
    assert machine.pages(tmp_path).transparent == ""


def test_free_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert machine.free_disk(tmp_path / "not" / "yet") > 0
