from __future__ import annotations

import io
import sys
import threading

import pytest

from pystachio.cli import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Work:
    """Half done; says when it was asked a second time: the first answer is on the screen then."""

    def __init__(self) -> None:
        self.asked = 0
        self.drawn = threading.Event()

    def progress(self) -> float | None:
        self.asked += 1
        if self.asked > 1:
            self.drawn.set()
        return 0.5


def test_a_long_query_draws_a_bar_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, work = Terminal(), Work()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress_bar(work, wanted=True) as bar:
        assert bar is not None
        assert work.drawn.wait(10)
        bar.stop()
        drawn = terminal.getvalue()
        bar.stop()
    assert "50%" in drawn
    assert terminal.getvalue() == drawn


def test_a_short_query_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.progress_bar(Work(), wanted=True) as bar:
        assert bar is not None
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("wanted", [True, False])
def test_nothing_is_drawn_where_nobody_looks(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO() if wanted else Terminal())
    with progress.progress_bar(Work(), wanted=wanted) as bar:
        assert bar is None
