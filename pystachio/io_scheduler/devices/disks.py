"""Which disk a file lies on."""

from __future__ import annotations

import os
from pathlib import Path

from pystachio.io_scheduler.os_errors import from_os_error
from pystachio.io_scheduler.request import Link

SYSTEM_DISKS = Path("/sys/dev/block")


def disk_link(path: str, *, system_disks: Path = SYSTEM_DISKS) -> Link:
    """The read link of the disk that holds `path`. Blocks for one stat; raises NotFound, Unauthorized, ...

    Partitions of one disk share its link. A file system without a block device (tmpfs, NFS) is a link of its own.
    """
    try:
        number = os.stat(path).st_dev
    except (OSError, ValueError) as error:
        raise from_os_error(error if isinstance(error, OSError) else OSError(str(error)), path) from error
    name = f"{os.major(number)}:{os.minor(number)}"
    entry = system_disks / name
    if (entry / "partition").exists():
        try:
            name = (entry.resolve().parent / "dev").read_text().strip()
        except OSError:
            # Without its parent a partition is scheduled as a disk of its own.
            return Link("disk", name)
    return Link("disk", name)
