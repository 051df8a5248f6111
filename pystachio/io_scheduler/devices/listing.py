"""The files of a folder with their sizes and times, without letting go of the interpreter for each of them."""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

from pystachio.io_scheduler.devices import native

_USUAL_BYTES = 1 << 16


class ListedFile(NamedTuple):
    name: str
    nbytes: int
    changed_ns: int


def list_files(folder: str) -> list[ListedFile]:
    """Those that are no links. Raises OSError when the folder cannot be read; what goes meanwhile is left out."""
    library = native.load().library
    if library is None:
        return _listed(folder)
    room = _USUAL_BYTES
    while True:
        out = ctypes.create_string_buffer(room)
        needed = library.pystachio_disk_list(os.fsencode(folder), out, room)
        if needed < 0:
            raise OSError(-needed, os.strerror(-needed), folder)
        if needed <= room:
            break
        room = 2 * needed
    found = []
    for line in out.raw[:needed].split(b"\0")[:-1]:
        nbytes, changed_ns, name = line.split(b" ", 2)
        found.append(ListedFile(os.fsdecode(name), int(nbytes), int(changed_ns)))
    return found


def _listed(folder: str) -> list[ListedFile]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append(ListedFile(entry.name, status.st_size, status.st_mtime_ns))
            except OSError:  # removed meanwhile
                continue
    return found
