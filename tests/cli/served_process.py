"""A real `pystachio-node serve`, for tests of what happens to processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60
MAIN = (sys.executable, "-m", "pystachio.cli.main")


class ServedProcess:
    def __init__(self, config: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [*MAIN, "serve", "--config", str(config), "--memory=256MiB", "--threads=1", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 30) -> tuple[int, str]:
        """Exit code and log."""
        _, log = self.process.communicate(timeout=seconds)
        return self.process.returncode, log


@contextmanager
def serving(config: Path, *options: str) -> Iterator[tuple[ServedProcess, str]]:
    """The process, and its address."""
    served = ServedProcess(config, *options)
    try:
        line = served.ready_line()
        assert " serves at " in line, served.ended()
        yield served, line.split(" serves at ")[1].split(",")[0].strip()
    finally:
        if served.process.poll() is None:
            os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait()
        for pipe in (served.process.stdout, served.process.stderr):
            assert pipe is not None
            pipe.close()
