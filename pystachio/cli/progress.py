"""A progress bar for what takes longer than a second: on standard error, and only when that is a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_SILENT_SECONDS = 1.0
_REFRESH_SECONDS = 0.1


class Progressing(Protocol):
    def progress(self) -> float | None:
        """The finished fraction, None while it cannot be told."""
        ...


class ProgressBar:
    """Draws on a thread of its own, so that the query's thread can wait for rows. `stop` is idempotent."""

    def __init__(self, work: Progressing) -> None:
        self._work = work
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress-bar", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the bar. Afterwards others may write to the terminal."""
        self._stopped.set()
        self._thread.join()

    def _draw(self) -> None:
        if self._stopped.wait(_SILENT_SECONDS):
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (TextColumn("running"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
            task = bar.add_task("query", total=None)
            while not self._stopped.wait(_REFRESH_SECONDS):
                fraction = self._work.progress()
                if fraction is not None:
                    bar.update(task, total=1.0, completed=fraction)
                bar.refresh()


@contextmanager
def progress_bar(work: Progressing, *, wanted: bool) -> Iterator[ProgressBar | None]:
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    bar = ProgressBar(work)
    try:
        yield bar
    finally:
        bar.stop()
