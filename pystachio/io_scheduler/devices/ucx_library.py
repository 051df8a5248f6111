"""The UCX library: how it is loaded, and what it offers on this machine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pystachio.errors import Unsupported

_RESOURCE = re.compile(r"^#\s*resource\s.*\s(\S+)/\S+\s*$", re.MULTILINE)
_REMOTE_MEMORY_ACCESS = ("rc_", "dc_", "ud_")


def load_ucxx() -> Any:
    """ucxx's core module; private, so its minor version is pinned. Raises Unsupported where it is not installed."""
    # UCX writes its log to the standard output, where a query's result may be; and it calls a variable that ucxx sets
    # for it unused.
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
    try:
        return import_module("ucxx._lib.libucxx")
    except (ImportError, OSError) as error:
        raise Unsupported("UCX without ucxx", hint="pip install ucxx-cu13") from error


@dataclass(frozen=True, slots=True)
class UcxReport:
    """`version` of the UCX library and its `transports`, sorted; `problem` says why there is none."""

    version: str | None
    transports: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def has_rdma(self) -> bool:
        """Whether a transport reaches another machine's memory without its processor."""
        return any(transport.startswith(_REMOTE_MEMORY_ACCESS) for transport in self.transports)

    @property
    def has_gpu_memory(self) -> bool:
        """Whether GPUs of one machine reach each other's memory."""
        return "cuda_ipc" in self.transports


def ucx_report() -> UcxReport:
    """Load UCX and ask which transports are active; slow (0.4 s), for reports only."""
    try:
        core = load_ucxx()
    except Unsupported as error:
        return UcxReport(None, problem=str(error))
    version = ".".join(str(part) for part in core.get_ucx_version())
    try:
        information = core.UCXContext({}).info
    except core.UCXError as error:
        return UcxReport(version, problem=str(error))
    return UcxReport(version, tuple(sorted(set(_RESOURCE.findall(information)))))
