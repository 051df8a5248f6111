"""How much a receiver still waits for: its grants say so, and senders serve the longest backlog first.

The port that will be busy longest must never wait, or the whole exchange lasts longer. The simulator's network takes
the same rule from here.
"""

from __future__ import annotations

from collections import Counter

BACKLOGS = 1 << 20
"""Backlogs, in chunks, that are told apart; longer ones count as the longest. No grant may claim this or more."""


def backlog_chunks(nbytes: int, chunk_bytes: int) -> int:
    """What a grant says of so many bytes: whole chunks."""
    return min(nbytes // chunk_bytes, BACKLOGS - 1)


def egress_criticality(criticality: int, backlog: int) -> int:
    """That of a granted part on its sender's link: by its message's `criticality`, then by the receiver's backlog."""
    return criticality * BACKLOGS + backlog


class Backlog:
    """A node's: the bytes that it wants of all its peers, by plan, and has not yet asked for.

    A message counts from when it is submitted on the incoming link: what was only offered, nobody may ever want.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._bytes: Counter[str] = Counter()

    def add(self, plan_id: str, nbytes: int) -> None:
        self._bytes[plan_id] += nbytes

    def grant(self, plan_id: str, nbytes: int) -> int:
        """So many of them are asked for now. Returns the chunks that the grant says, its own bytes included."""
        waiting = self._bytes[plan_id]
        self.drop(plan_id, nbytes)
        return backlog_chunks(waiting, self._chunk_bytes)

    def drop(self, plan_id: str, nbytes: int) -> None:
        """So many of them will not be asked for any more."""
        self._bytes[plan_id] -= nbytes
        assert self._bytes[plan_id] >= 0, "more was asked for than was wanted"
        if not self._bytes[plan_id]:
            del self._bytes[plan_id]

    def __len__(self) -> int:
        """Plans with any."""
        return len(self._bytes)
