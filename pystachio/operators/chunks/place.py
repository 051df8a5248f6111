"""Where a decoded column is stored: a folder for each version of a Parquet file, a name in it, and the key inside."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import xxhash

from pystachio.operators.chunks.format import ChunkKey
from pystachio.operators.table import ParquetFile

SUFFIX = ".chunk"


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """A decoded column of some row groups. `form` names how it was decoded, where there is a choice."""

    file: ParquetFile
    groups: tuple[int, ...]
    column: int
    rows: int
    form: str


class ChunkNames:
    """Names below the folder `root`. Safe for several threads; touches no disk."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._versions: WeakKeyDictionary[ParquetFile, str] = WeakKeyDictionary()

    def folder(self, file: ParquetFile) -> str:
        return f"{self._root}/{self._version(file)}"

    def path(self, place: ChunkPlace) -> str:
        folder, name, _ = self.located(place)
        return f"{folder}/{name}"

    def key(self, place: ChunkPlace) -> ChunkKey:
        return self.located(place)[2]

    def located(self, place: ChunkPlace) -> tuple[str, str, ChunkKey]:
        """The folder, the name in it, and the key."""
        version, groups = self._version(place.file), ",".join(map(str, place.groups))
        identity = xxhash.xxh3_128_hexdigest(f"{version} {place.column} {place.form} {groups}".encode())
        key = ChunkKey(identity, place.file.fields[place.column].type, place.rows)
        return f"{self._root}/{version}", f"{place.column}-{identity}{SUFFIX}", key

    def _version(self, file: ParquetFile) -> str:
        """Another one for another path, size, time of modification or footer."""
        with self._lock:
            version = self._versions.get(file)
        if version is None:
            status = f"{os.path.abspath(file.path)}\0{file.size}\0{file.mtime_ns}\0"
            version = xxhash.xxh3_128_hexdigest(status.encode(errors="surrogateescape") + file.footer)
            with self._lock:
                self._versions[file] = version
        return version
