"""What a node does at this moment, plan by plan: plain data, which `runtime.observation` gathers and people look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a plan is doing, the first of these that is true."""

    COMPUTING = "computing"
    MOVING = "moving bytes"
    WAITING = "waiting"


class Reason(StrEnum):
    TRANSFER = "transfer"
    WORKER = "worker"
    MEMORY = "memory"
    CLIENT = "client"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Wait:
    """`what` is the link or tier; `behind` are the plans that have it meanwhile, the ones with most first."""

    reason: Reason
    what: str
    nbytes: int = 0
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanActivity:
    """`deadline` is in seconds from now, negative when it has passed; `seconds` since the submission; `rows` those that
    the client took. `worker_seconds` and `links` (bytes by link) count from the start, `memory_bytes` are held now.
    """

    plan_id: str
    label: str
    priority: str
    deadline: float | None
    seconds: float
    rows: int
    state: State
    waits: tuple[Wait, ...]
    worker_seconds: float
    jobs_running: int
    jobs_waiting: int
    memory_bytes: int
    links: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkActivity:
    """`nbytes` crossed the link so far; the others are bytes now. `bytes_per_second` is its measured rate, if known."""

    link: str
    nbytes: int
    outstanding_bytes: int
    waiting_bytes: int
    window_bytes: int
    bytes_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeActivity:
    """`at` is the node's clock, for rates between two of these. `workers` are threads, `busy_workers` run jobs."""

    at: float
    workers: int
    busy_workers: int
    jobs_waiting: int
    memory_used: int
    memory_budget: int
    plans: tuple[PlanActivity, ...]
    links: tuple[LinkActivity, ...]
