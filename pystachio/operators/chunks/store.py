"""The folder of decoded columns: names, what is there, how much, and what goes first.

    <folder>/chunks-2/<version of a Parquet file>/<column>-<digest>.chunk

A chunk is written under a temporary name and renamed, so it is whole or not there. Nothing is locked: several processes
may share the folder, each with the same budget. A chunk that another one removed is missed, one that two of them write
is the same. What is used is touched, at most once a minute, and the least recently used goes first, in a sweep that
also removes what crashed writers left. Another process's chunks count from the next sweep on, which is due when this
one has written a sixteenth of the budget: so far may the folder grow beyond it for each process that writes.

While there is room, everything is stored that is offered. When there is none, a chunk displaces others when it is
offered for the second time: a scan of more than the budget holds does not rewrite the folder again and again.

The methods that touch the disk are for worker threads.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from pystachio.errors import Unauthorized
from pystachio.io_scheduler.devices.listing import list_files
from pystachio.operators.chunks.format import ChunkKey
from pystachio.operators.chunks.header import VERSION
from pystachio.operators.chunks.place import SUFFIX, ChunkNames, ChunkPlace
from pystachio.operators.table import ParquetFile

_ROOT = "chunks-"
UNFINISHED = ".unfinished"
"""How the names of files end that are being written; a sweep removes those that nobody completed."""
_UNFINISHED_SECONDS = 3600
"""So old is what a crashed writer left: no write takes an hour."""
_TOUCH_SECONDS = 60
_LOOK_SECONDS = 1
"""So long nobody looks again what others have stored or removed: of the one, a scan decodes once more what is there, of
the other it decodes what is gone."""
_SWEEPS_PER_BUDGET = 16
_KEPT_SHARE = 0.9
"""Of the budget, after a sweep that had to make room: the next one is then some time away."""
_MOST_REMEMBERED = 1 << 16
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A file that was there when somebody looked."""

    path: str
    nbytes: int
    key: ChunkKey
    used_ns: int


@dataclass(frozen=True, slots=True)
class ChunkStoreStatistics:
    """`nbytes` is None until the first sweep. `unusable` chunks had wrong bytes and were removed."""

    nbytes: int | None
    written: int
    evicted: int
    unusable: int
    writing: bool


@dataclass(slots=True, eq=False)
class _Listing:
    """The chunks of one file version, sizes and times of use by name, as of `changed_ns` of their folder."""

    changed_ns: int
    looked_ns: int
    chunks: dict[str, tuple[int, int]] = field(default_factory=dict)


class ChunkStore:
    """At most `most_bytes` in `folder`. Safe for several threads."""

    def __init__(self, folder: Path, most_bytes: int, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._parent = folder
        self.root = str(folder / f"{_ROOT}{VERSION}")
        self.names = ChunkNames(self.root)
        self._most_bytes = most_bytes
        self.clock_ns = clock_ns
        self._lock = threading.Lock()
        self._room = threading.Lock()
        self._listings: dict[str, _Listing] = {}
        self._refused: dict[str, None] = {}
        self._sequence = count()
        self._trusted = False
        self._nbytes: int | None = None
        self._coming: dict[str, tuple[str, int]] = {}
        """What is being written, by its temporary path: the path it will have, and its bytes."""
        self._changed: dict[str, int] | None = None
        """While a sweep counts: the bytes of what was published since it began, and 0 for what was discarded."""
        self._unswept = 0
        self._written = 0
        self._evicted = 0
        self._unusable = 0
        self._writing = True
        self._closed = False

    @property
    def writing(self) -> bool:
        return self._writing

    @property
    def most_bytes(self) -> int:
        return self._most_bytes

    def statistics(self) -> ChunkStoreStatistics:
        with self._lock:
            return ChunkStoreStatistics(self._nbytes, self._written, self._evicted, self._unusable, self._writing)

    def look(self, file: ParquetFile) -> None:
        """See which chunks of the file version are there. Raises Unauthorized as `prepare` does."""
        folder, now = self.names.folder(file), self.clock_ns()
        try:
            changed_ns = os.stat(folder).st_mtime_ns
            known = self._listings.get(folder)
            if known is not None and known.changed_ns == changed_ns:
                known.looked_ns = now
                return
            self.require_own()
            listing = _Listing(changed_ns, now)
            for name, nbytes, used_ns in list_files(folder):
                if name.endswith(SUFFIX):
                    listing.chunks[name] = nbytes, used_ns
        except OSError:
            listing = _Listing(-1, now)
        with self._lock:
            if len(self._listings) >= _MOST_REMEMBERED:
                self._listings.clear()
            self._listings[folder] = listing

    def is_known(self, file: ParquetFile) -> bool:
        """Whether somebody has looked a moment ago. Touches no disk."""
        listing = self._listings.get(self.names.folder(file))
        return listing is not None and 0 <= self.clock_ns() - listing.looked_ns < _LOOK_SECONDS * _SECOND

    def find(self, place: ChunkPlace) -> StoredChunk | None:
        """What `look` saw, and what was written since. Touches no disk."""
        folder, name, key = self.names.located(place)
        with self._lock:
            listing = self._listings.get(folder)
            known = None if listing is None else listing.chunks.get(name)
        return None if known is None else StoredChunk(f"{folder}/{name}", known[0], key, known[1])

    def used(self, chunk: StoredChunk) -> None:
        """The chunk was read: it stays for longer."""
        now = self.clock_ns()
        if now - chunk.used_ns > _TOUCH_SECONDS * _SECOND:
            with suppress(OSError):
                os.utime(chunk.path, ns=(now, now))
                self._note(chunk.path, chunk.nbytes, now)

    def forget(self, chunk: StoredChunk) -> None:
        """The chunk could not be read: it is not there any more. Touches no disk."""
        folder, name = os.path.split(chunk.path)
        with self._lock:
            if folder in self._listings:
                self._listings[folder].chunks.pop(name, None)

    def discard(self, chunk: StoredChunk) -> None:
        """The chunk's bytes are wrong: remove it."""
        self.forget(chunk)
        with self._lock:
            self._unusable += 1
            if self._nbytes is not None:
                self._nbytes -= chunk.nbytes
            if self._changed is not None:
                self._changed[chunk.path] = 0
        with suppress(OSError):
            os.unlink(chunk.path)

    def admits(self, place: ChunkPlace, nbytes: int) -> bool:
        """Whether a chunk of that size, which was decoded now, is to be stored. Touches no disk."""
        if not self._writing or nbytes > self._most_bytes or self.find(place) is not None:
            return False
        name = self.names.path(place)
        with self._lock:
            if self._nbytes is None or self._nbytes + nbytes <= self._most_bytes:
                return True
            if name in self._refused:
                return True
            if len(self._refused) >= _MOST_REMEMBERED:
                del self._refused[next(iter(self._refused))]
            self._refused[name] = None
            return False

    def temporary(self, place: ChunkPlace) -> str:
        """A path to write the chunk to, which nobody else has. Touches no disk."""
        return f"{self.names.folder(place.file)}/{os.getpid()}-{next(self._sequence)}-{self.clock_ns()}{UNFINISHED}"

    def prepare(self, temporary: str, place: ChunkPlace, nbytes: int, *, displace_before_ns: int | None = None) -> bool:
        """Make the folder and room in it for the chunk, until `publish` or `abandon`; says whether there is room.

        Only chunks that were last used before `displace_before_ns` make room, None: any. Raises OSError, and
        Unauthorized when the folder belongs to somebody else.
        """
        self._prepare_root()
        with self._room:
            due = self._nbytes is None or self._unswept + nbytes > self._most_bytes // _SWEEPS_PER_BUDGET
            if due or not self._fits(nbytes):
                self._sweep(nbytes, displace_before_ns)
            if self._closed or not self._fits(nbytes):
                return False
            with self._lock:
                self._coming[temporary] = self.names.path(place), nbytes
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(temporary), 0o700)
        return True

    def prepare_folder(self, folder: str) -> None:
        """Make a folder beside those of the file versions, for what takes no room to speak of. Raises as `prepare`."""
        self._prepare_root()
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)

    def publish(self, temporary: str, place: ChunkPlace) -> None:
        """The temporary file is complete: others may read it. Raises OSError."""
        path = self.names.path(place)
        os.rename(temporary, path)
        with self._lock:
            _, nbytes = self._coming.pop(temporary)
            self._written += 1
            self._unswept += nbytes
            self._nbytes = (self._nbytes or 0) + nbytes
            if self._changed is not None:
                self._changed[path] = nbytes
            self._refused.pop(path, None)
        self._note(path, nbytes, self.clock_ns())

    def abandon(self, temporary: str) -> None:
        """The file will not be complete. After `publish` this does nothing."""
        with self._lock:
            prepared = self._coming.pop(temporary, None)
        if prepared is not None:
            with suppress(OSError):
                os.unlink(temporary)

    def stop_writing(self) -> None:
        """The folder takes no more, or should not."""
        self._writing = False

    def close(self) -> None:
        """A sweep that is under way ends early: nobody waits for it."""
        self._closed = True

    def _fits(self, nbytes: int) -> bool:
        with self._lock:
            return (self._nbytes or 0) + self._coming_nbytes() + nbytes <= self._most_bytes

    def _coming_nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self._coming.values())

    def _note(self, path: str, nbytes: int, used_ns: int) -> None:
        folder, name = os.path.split(path)
        with self._lock:
            self._listings.setdefault(folder, _Listing(-1, 0)).chunks[name] = nbytes, used_ns

    def _remove_older_formats(self) -> None:
        """Nobody counts their chunks, and nobody reads them but a process of an older release, which misses them. Of
        folders that only look like them nothing is removed."""
        for version in range(1, VERSION):
            root = f"{self._parent}/{_ROOT}{version}"
            with suppress(OSError):
                status = os.lstat(root)
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                    continue
                for folder in os.listdir(root):
                    if self._closed:
                        return
                    self._remove_chunks(f"{root}/{folder}")
                os.rmdir(root)

    def _remove_chunks(self, folder: str) -> None:
        with suppress(OSError):
            for file in list_files(folder):
                if file.name.endswith((SUFFIX, UNFINISHED)):
                    os.unlink(f"{folder}/{file.name}")
            os.rmdir(folder)

    def _sweep(self, needed: int, displace_before_ns: int | None) -> None:
        """Count what is there, remove what is left over, and what goes first until `needed` bytes fit."""
        if self._nbytes is None:
            self._remove_older_formats()
        with self._lock:
            self._changed = {}
        chunks: dict[str, tuple[int, int]] = {}
        with os.scandir(self.root) as folders:
            for folder in folders:
                if self._closed:
                    return
                with suppress(OSError):
                    self._list_folder(folder.path, chunks)
        with self._lock:
            changed, self._changed = self._changed, None
            # A chunk that is renamed and not yet published may be listed, and is counted with what comes.
            for path in (*changed, *(path for path, _ in self._coming.values())):
                chunks.pop(path, None)
            chunks.update((path, (self.clock_ns(), nbytes)) for path, nbytes in changed.items() if nbytes)
            self._nbytes = stored = sum(nbytes for _, nbytes in chunks.values())
            self._unswept = 0
            needed += self._coming_nbytes()
        if stored + needed <= self._most_bytes:
            return
        for path, (used_ns, nbytes) in sorted(chunks.items(), key=lambda chunk: chunk[1]):
            enough = stored + needed <= _KEPT_SHARE * self._most_bytes
            if enough or (displace_before_ns is not None and used_ns >= displace_before_ns):
                break
            with suppress(OSError):
                os.unlink(path)
            stored -= nbytes
            folder_path, name = os.path.split(path)
            with self._lock:
                self._nbytes -= nbytes
                self._evicted += 1
                if folder_path in self._listings:
                    self._listings[folder_path].chunks.pop(name, None)

    def _list_folder(self, folder: str, chunks: dict[str, tuple[int, int]]) -> None:
        """Add the folder's chunks: time of use and bytes by path. Removes old temporary files, and an old empty
        folder."""
        oldest_ns = self.clock_ns() - _UNFINISHED_SECONDS * _SECOND
        files = 0
        for name, nbytes, changed_ns in list_files(folder):
            files += 1
            path = f"{folder}/{name}"
            if name.endswith(SUFFIX):
                chunks[path] = changed_ns, nbytes
            elif name.endswith(UNFINISHED) and changed_ns < oldest_ns:
                with suppress(OSError):
                    os.unlink(path)
        if not files and os.stat(folder).st_mtime_ns < oldest_ns:
            os.rmdir(folder)

    def _prepare_root(self) -> None:
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(self.root, 0o700)
        self.require_own()

    def require_own(self) -> None:
        """What others can write into is not trusted: its checksums could be theirs. Raises Unauthorized, and OSError
        when nothing is there."""
        if self._trusted:
            return
        status = os.lstat(self.root)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise Unauthorized(f"the folder of the chunk cache belongs to somebody else: {self.root}")
        if status.st_mode & 0o077:
            os.chmod(self.root, 0o700)
        self._trusted = True
