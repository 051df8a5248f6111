"""Logs: JSON lines on a server, coloured text on a terminal, the plan's id in every line of its tasks.

Lines go through the standard library's logger `pystachio`, so an embedding program decides about them as about any
other library's; a process of our own calls `configure_logging`.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

LOGGER = "pystachio"


def get_logger() -> structlog.stdlib.BoundLogger:
    """The event first, values as keywords; the plan's id is added where one is bound."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(LOGGER),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger


def bind_plan(plan_id: str) -> None:
    """In a plan's own task: every line logged by it and by the tasks it starts names the plan."""
    structlog.contextvars.bind_contextvars(plan_id=plan_id)


def configure_logging(*, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Called by a process that is ours (the CLI, a server); the last call counts."""
    target = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(to_terminal=target.isatty()),
            ],
        )
    )
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False


def _rendering(*, to_terminal: bool) -> tuple[structlog.typing.Processor, ...]:
    if to_terminal:
        return (structlog.dev.ConsoleRenderer(),)
    return (structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer())
