"""Where the control sockets of this user's nodes lie: a folder that nobody else may enter."""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pystachio.errors import Unauthorized

SUFFIX = ".sock"


class ControlSocket(NamedTuple):
    path: Path
    pid: int


def control_folders(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where nodes put their sockets, the first choice first: a client looks into all, a node takes the first."""
    fallback = Path(tempfile.gettempdir()) / f"pystachio-{os.getuid()}"
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime) / "pystachio", fallback
    return (fallback,)


def prepare(folder: Path) -> None:
    """Make the folder, for this user alone. Raises Unauthorized when another made it or may enter it, and OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise Unauthorized(
            f"the folder of the control sockets is not this user's alone: {folder}",
            hint="remove it, or set XDG_RUNTIME_DIR",
        )


def new_socket_path(folder: Path) -> Path:
    return folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}{SUFFIX}"


def control_sockets(folders: tuple[Path, ...]) -> list[ControlSocket]:
    """The sockets in those folders that are this user's alone, dead ones among them."""
    found = []
    for folder in folders:
        try:
            prepare(folder)
            paths = sorted(folder.iterdir())
        except (Unauthorized, OSError):
            continue  # whatever lies there was not put there by this user's nodes
        for path in paths:
            pid = path.name.partition("-")[0]
            if path.suffix == SUFFIX and pid.isascii() and pid.isdigit():
                found.append(ControlSocket(path, int(pid)))
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
