"""The settings of a node, alone or in a cluster."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pystachio import machine
from pystachio.config.quantities import AbsolutePath, Count, Duration, Rate, Size, SizeOrAuto

MEMORY_FRACTION = 0.6
"""Of what the process may use: Python, torch and the page cache need the rest."""

_MOST_CHUNK_CACHE_BYTES = 64 << 30
_FREE_DISK_SHARE = 10

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "resources": ("memory", "device", "threads", "spill_dir"),
    "execution": ("batch_rows", "dictionary_codes", "direct_addressing", "fusion", "join_reordering", "tracing"),
    "cache": ("chunk_cache", "keep_builds", "chunk_cache_dir", "chunk_cache_bytes"),
    "io": ("direct_io", "io_device", "io_policy", "emulated"),
    "node": ("control_socket",),
}
"""The tables of the TOML file. A key's name is the same there, in the environment and as a keyword argument."""


def _cache_folder(environment: Mapping[str, str]) -> Path:
    """A user without a home folder has one among the temporary files."""
    folder = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "pystachio" if os.path.isabs(folder) else Path(tempfile.gettempdir()) / "pystachio-cache"


class EmulatedDisk(BaseModel):
    """A disk of this rate in bytes per second, latency in seconds and depth in place of the one below `path`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: AbsolutePath
    rate: Rate
    latency: Duration = 0.0
    depth: Count = Field(default=32, ge=1, le=4096)


class Settings(BaseModel):
    """Every setting with its type, default and meaning. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory: Size = Field(
        default_factory=lambda: int(machine.memory_limit() * MEMORY_FRACTION),
        description="bytes that running plans may hold together, for example 2GiB",
    )
    device: str = Field(default="auto", description="where operators run: auto (the CPU), cpu, cuda or cuda:N")
    threads: Count = Field(default_factory=machine.usable_cores, ge=1, le=1024, description="worker threads")
    spill_dir: AbsolutePath = Field(
        default_factory=lambda: Path(tempfile.gettempdir()), description="folder for what does not fit into memory"
    )
    batch_rows: Count = Field(default=262_144, ge=1, le=1 << 30, description="rows per batch that operators aim at")
    dictionary_codes: bool = Field(default=True, description="keep strings as dictionary codes")
    direct_addressing: bool = Field(default=True, description="join and group by address where the keys' range allows")
    fusion: bool = Field(
        default=True, description="run chains of operators as one compiled program where that is possible"
    )
    join_reordering: bool = Field(default=True, description="choose the order of joins by statistics")
    tracing: bool = Field(default=True, description="remember what operators and transfers did lately, for traces")
    chunk_cache: bool = Field(default=True, description="keep decoded columns for the queries to come")
    keep_builds: bool = Field(
        default=True, description="keep what joins store of small tables for the statement's next runs"
    )
    chunk_cache_dir: AbsolutePath = Field(
        default_factory=lambda: _cache_folder(os.environ), description="folder for decoded columns, for this user only"
    )
    chunk_cache_bytes: SizeOrAuto = Field(
        default="auto", description="bytes of decoded columns on disk: auto, or for example 20GiB; 0 for none"
    )
    direct_io: Literal["auto", "on", "off"] = Field(default="auto", description="read around the page cache")
    io_device: Literal["auto", "posix", "nvme"] = Field(default="auto", description="what moves bytes from disk")
    io_policy: Literal["pystachio", "strict", "fair", "fifo"] = Field(
        default="pystachio", description="the order of transfers; all but pystachio exist to compare"
    )
    emulated: tuple[EmulatedDisk, ...] = Field(
        default=(), description="slower disks in place of real ones: tables of path, rate, latency and depth"
    )
    control_socket: bool = Field(
        default=True, description="let `pystachio-node ps` and its kin see this process's plans"
    )

    def chunk_cache_limit(self) -> int:
        """Bytes that decoded columns may take on disk. `auto` is a tenth of what is free there now, at most 64 GiB."""
        if not self.chunk_cache:
            return 0
        if self.chunk_cache_bytes != "auto":
            return self.chunk_cache_bytes
        try:
            return min(_MOST_CHUNK_CACHE_BYTES, machine.free_disk(self.chunk_cache_dir) // _FREE_DISK_SHARE)
        except OSError:
            return 0

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if re.fullmatch(r"auto|cpu|cuda(:\d+)?", device) is None:
            raise ValueError("write auto, cpu, cuda or cuda:N")
        return device

    @field_validator("emulated", mode="before")
    @classmethod
    def _tables(cls, value: object) -> object:
        """The environment has room for text only: JSON."""
        if isinstance(value, dict):
            raise ValueError("one table where a list of tables belongs; in a file its name is [[io.emulated]]")
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value.strip() else ()
        except (ValueError, RecursionError):
            raise ValueError('write a list of tables as JSON: [{"path": "/data", "rate": "200MB/s"}]') from None

    @field_validator("emulated")
    @classmethod
    def _each_path_once(cls, disks: tuple[EmulatedDisk, ...]) -> tuple[EmulatedDisk, ...]:
        paths = [disk.path for disk in disks]
        if len(set(paths)) < len(paths):
            raise ValueError("the same path twice")
        return disks
