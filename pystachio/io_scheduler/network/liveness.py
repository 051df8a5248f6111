"""Whether a peer's event loop turns: heartbeats, counted and not timed."""

from __future__ import annotations

from enum import StrEnum


class Health(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    LOST = "lost"


class Liveness:
    """Counts this node's own beats since the peer was last heard.

    Were the silence timed, a node that was stopped for a while itself would take all others for dead when it wakes up.
    """

    def __init__(self, *, beat_seconds: float, suspect_seconds: float, dead_seconds: float) -> None:
        self._suspect_beats = max(1, round(suspect_seconds / beat_seconds))
        self._dead_beats = max(2, round(dead_seconds / beat_seconds))
        self._silent_beats = 0

    @property
    def health(self) -> Health:
        if self._silent_beats >= self._dead_beats:
            return Health.LOST
        return Health.SUSPECT if self._silent_beats >= self._suspect_beats else Health.ALIVE

    @property
    def speaks(self) -> bool:
        """Whether it was heard between the last two beats: it is there, and not what is left of a node that died."""
        return self._silent_beats < 2

    def note_heard(self) -> None:
        self._silent_beats = 0

    def note_beat(self) -> Health:
        self._silent_beats += 1
        return self.health
