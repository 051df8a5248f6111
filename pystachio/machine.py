"""What this machine offers to the process: cores, memory, huge pages, disk space; read from /proc and /sys."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60
"""Control groups write "no limit" as a huge number (version 1) or as `max` (version 2)."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Page sizes in bytes; `transparent` is the kernel's mode for huge pages (always, madvise, never) or ""."""

    size: int
    huge_size: int
    transparent: str


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its affinity, cut to the CPU quota of its control groups. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the physical memory, cut to the limit of its control groups."""
    limits = [_physical_memory(root)]
    for directory in _cgroup_directories(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(directory / name)
            if text.isdigit() and 0 < int(text) < _UNLIMITED:
                limits.append(int(text))
    return min(limits)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that the kernel would hand out now without swapping; 0 when it does not say."""
    return _meminfo(root).get("MemAvailable", 0)


def pages(root: Path = Path("/")) -> Pages:
    mode = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = mode[mode.find("[") + 1 : mode.find("]")] if "[" in mode else ""
    return Pages(os.sysconf("SC_PAGE_SIZE"), _meminfo(root).get("Hugepagesize", 0), chosen)


def free_disk(directory: Path) -> int:
    """Free bytes on the disk that holds `directory`, or its nearest parent that exists."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def _physical_memory(root: Path) -> int:
    total = _meminfo(root).get("MemTotal")
    return total if total is not None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes by name."""
    sizes: dict[str, int] = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            sizes[name] = int(words[0]) * 1024
    return sizes


def _cpu_quota(root: Path) -> float | None:
    """Cores' worth of CPU time that the tightest control group allows, None without a limit."""
    quotas: list[float] = []
    for directory in _cgroup_directories(root, "cpu"):
        quota, _, period = _read(directory / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _cgroup_directories(root: Path, controller: str) -> list[Path]:
    """The process's control group of both versions, and all the groups above it: a limit anywhere on the way counts."""
    directories: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = base / path.lstrip("/")
        # In a container the path is the host's and does not exist here: the base is then the container's own group.
        directories += [group, *(parent for parent in group.parents if parent.is_relative_to(base))]
    return directories


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
