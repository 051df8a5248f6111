"""The execution settings that operators read; values come from the configuration at the door."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings:
    """`batch_rows` is a target, not a bound that operators may rely on. `workers` is the number of worker threads.
    `tracing` keeps a record of what operators did lately (`runtime.tracing`).

    The switches exist to compare and to debug; answers never depend on them.
    """

    batch_rows: int = 262_144
    workers: int = 1
    dictionary_codes: bool = True
    direct_addressing: bool = True
    fusion: bool = True
    join_reordering: bool = True
    keep_builds: bool = True
    tracing: bool = True
