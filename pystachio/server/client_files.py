"""Which files clients may name: those below some folders, whatever links and patterns lead to them.

A path is judged before it is opened: who can rename links below the folders meanwhile can lead the node elsewhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pystachio.data_folder import tables_of_folder
from pystachio.errors import Unauthorized
from pystachio.planner.file_patterns import fixed_folder, time_left
from pystachio.planner.local_files import FoundFiles, look_for

_WAIT_SECONDS = 1.0
_WAIT_SHARE = 0.25
"""Of the time that is left: so long is waited for a folder on another mount, once until it answers."""


class NotAllowed(Unauthorized):
    """The node would read the file, but not for clients."""

    def __init__(self, path: str, folders: Sequence[str]) -> None:
        where = ", ".join(folders) or "no folder"
        super().__init__(
            f"clients may not name this file: {path}",
            hint=f"clients of this node may name files in {where}: who runs it adds the folder to client_folders under "
            "[cluster], or makes it one of data",
        )


def files_in(folders: Sequence[str], paths: Sequence[str]) -> FoundFiles:
    """`look_for` absolute paths and patterns, as if nothing were there but what lies below the folders. Blocks.

    Raises NotAllowed for a path that leads out of them, whether anything is there or not.
    """
    allowed = _Allowed(folders)
    for path in paths:
        allowed.require(path if os.path.lexists(path) else fixed_folder(path), named=path)
    return look_for(paths, admits=allowed.holds)


def tables_in(folders: Sequence[str] | None, folder: str) -> dict[str, Path]:
    """`tables_of_folder`, of a folder below the folders; None: of any. Blocks. Raises NotAllowed."""
    folder = os.path.abspath(folder)
    if folders is not None:
        _Allowed(folders).require(folder, named=folder)
    return tables_of_folder(Path(folder))


class _Allowed:
    """Clients' folders while one source is looked at. Where one leads is found out when it matters: it may hang."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._led_to: dict[str, str | None] = {}

    def require(self, path: str, *, named: str) -> None:
        if not self.holds(path):
            raise NotAllowed(named, self._folders)

    def holds(self, path: str) -> bool:
        """Whether the path leads below one of the folders."""
        leads = os.path.realpath(path)
        inside = set(_itself_and_above(leads))
        above = inside.union(_itself_and_above(path))
        # Where the path goes through a folder's name, that is on its way: who can look at the one can at the other.
        near = [folder for folder in self._folders if os.path.abspath(folder) in above]
        if any(self._lead_on_the_way(folder) in inside for folder in near):
            return True
        return any(self._lead_aside(folder) in inside for folder in self._folders if folder not in near)

    def _lead_on_the_way(self, folder: str) -> str | None:
        if self._led_to.get(folder) is None:
            self._led_to[folder] = os.path.realpath(folder)
        return self._led_to[folder]

    def _lead_aside(self, folder: str) -> str | None:
        """None where it cannot be told."""
        if folder not in self._led_to:
            self._led_to[folder] = _leads.to(folder)
        return self._led_to[folder]


class _Leads:
    """Where folders lead that may hang, each on a thread of its own: at most one is lost. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._underway: dict[str, threading.Event] = {}
        self._hanging: set[str] = set()

    def to(self, folder: str) -> str | None:
        """What it leads to; what it led to when it answered last, if it hangs; None if it never did."""
        with self._lock:
            done = self._underway.get(folder)
            if done is None:
                done = threading.Event()
                threading.Thread(target=self._find, args=(folder, done), name="pystachio-folder", daemon=True).start()
                self._underway[folder] = done
            is_waited_for = folder not in self._hanging
        if is_waited_for:
            left = time_left()
            if not done.wait(_WAIT_SECONDS if left is None else min(_WAIT_SECONDS, left * _WAIT_SHARE)):
                with self._lock:
                    if not done.is_set():
                        self._hanging.add(folder)
        with self._lock:
            return self._known.get(folder)

    def _find(self, folder: str, done: threading.Event) -> None:
        found = os.path.realpath(folder)
        with self._lock:
            self._known[folder] = found
            del self._underway[folder]
            self._hanging.discard(folder)
            done.set()


_leads = _Leads()


def _itself_and_above(path: str) -> Iterator[str]:
    yield path
    while (parent := os.path.dirname(path)) != path:
        yield (path := parent)
