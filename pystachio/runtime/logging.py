"""Logs: JSON lines on a server, coloured text on a terminal, the plan's id in every line of its tasks."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def configure_logging(*, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Called once, by a process that is ours (the CLI, a server): an embedding program keeps its own settings."""
    target = stream if stream is not None else sys.stderr
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if target.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.dict_tracebacks if not target.isatty() else structlog.processors.StackInfoRenderer(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )


def bind_plan(plan_id: str) -> None:
    """In a plan's own task: every line logged by it and by the tasks it starts names the plan."""
    structlog.contextvars.bind_contextvars(plan_id=plan_id)
