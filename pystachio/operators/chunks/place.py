"""Where a decoded column is stored: a folder for each version of a Parquet file, a name in it, and the key inside."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Names below the folder `root`. Touches no disk."""

    def __init__(self, root: str) -> None:
        self._root = root

    def folder(self, file: ParquetFile) -> str:
        return f"{self._root}/{file.digest}"

    def path(self, place: ChunkPlace) -> str:
        folder, name, _ = self.located(place)
        return f"{folder}/{name}"

    def key(self, place: ChunkPlace) -> ChunkKey:
        return self.located(place)[2]

    def located(self, place: ChunkPlace) -> tuple[str, str, ChunkKey]:
        """The folder, the name in it, and the key."""
        file, groups = place.file, ",".join(map(str, place.groups))
        identity = xxhash.xxh3_128_hexdigest(f"{file.digest} {place.column} {place.form} {groups}".encode())
        key = ChunkKey(identity, file.fields[place.column].type, place.rows)
        return f"{self._root}/{file.digest}", f"{place.column}-{identity}{SUFFIX}", key
