"""PystachIO answers SQL and Substrait plans over Parquet files in PyTorch tensors.

The front door is lazy: importing `pystachio` loads neither torch nor the planner; using a name does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pystachio import errors as errors
    from pystachio.io_scheduler.core.request import PriorityClass as Priority
    from pystachio.result import Result as Result
    from pystachio.session import Session as Session
    from pystachio.session import connect as connect

__version__ = "0.1.0"
__all__ = ["Priority", "Result", "Session", "connect", "errors"]

_HOME = {
    "Priority": ("pystachio.io_scheduler.core.request", "PriorityClass"),
    "Result": ("pystachio.result", "Result"),
    "Session": ("pystachio.session", "Session"),
    "connect": ("pystachio.session", "connect"),
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("pystachio.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'pystachio' has no attribute {name!r}")
    module, attribute = _HOME[name]
    if name == "connect":
        # For the node that will be in this process, and before anything is imported that starts threads: one that has a
        # heap of its own keeps it.
        import_module("pystachio.runtime.allocator").keep_freed_memory()
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
