"""What can happen to a cluster of processes, each thing with the way to mend it again."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.cluster_processes import NodeProcess, ProcessCluster
from benchmarks.cluster_proxy import Proxies, Way

WEDGE_SECONDS = 6.0
SLOW_BYTES_PER_SECOND = 2e6
FULL_DISK_CHUNKS = 1000
READ_ERRORS = (1, 3, 1000)
"""Chunks that cannot be read: what is tried again, and what lasts."""
START_DELAY_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that has happened. `loses` is the node that others take, or may take, for lost because of it, or "" where
    it is none, or not one; `mend` makes the cluster whole again, as far as processes and the network go."""

    kind: str
    victim: str
    loses: str
    mend: Callable[[], None]
    at: float


class Faults:
    """Strikes at the nodes of a cluster that is proxied; `chance` decides what is left to decide."""

    def __init__(self, cluster: ProcessCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self.kinds: dict[str, Callable[[NodeProcess], Struck]] = {
            "kill -9": self._kill,
            "SIGSTOP": self._stop,
            "wedged loop": self._wedge,
            "black hole": self._black_hole,
            "one-way black hole": self._one_way,
            "half-open connections": self._half_open,
            "two nodes cut off from each other": self._cut_pair,
            "slow link": self._slow,
            "EIO of a disk": self._read_error,
            "ENOSPC of a disk": self._full_disk,
            "corrupt exchange block": self._corrupt,
            "damage on the wire": self._damage,
            "a node leaves": self._leave,
            "drain": self._drain,
            "kill -9 while draining": self._kill_draining,
            "kill -9 of a node that joins": self._kill_joining,
        }

    def strike(self, kind: str, victim: NodeProcess) -> Struck:
        return self.kinds[kind](victim)

    def _struck(
        self, kind: str, victim: NodeProcess, mend: Callable[[], object], *, loses: str | None = None
    ) -> Struck:
        lost = victim.name if loses is None else loses
        return Struck(kind, victim.name, lost, lambda: (mend(), None)[1], time.monotonic())

    def _restart(self, victim: NodeProcess) -> None:
        victim.ended.result(10)
        self._cluster.start(victim.name)

    def _kill(self, victim: NodeProcess) -> Struck:
        victim.kill()
        return self._struck("kill -9", victim, partial(self._restart, victim))

    def _stop(self, victim: NodeProcess) -> Struck:
        victim.stop()
        return self._struck("SIGSTOP", victim, victim.go_on)

    def _wedge(self, victim: NodeProcess) -> Struck:
        victim.ask("wedge", seconds=WEDGE_SECONDS)
        until = time.monotonic() + WEDGE_SECONDS
        return self._struck("wedged loop", victim, lambda: time.sleep(max(0.0, until - time.monotonic())))

    def _change(self, ways: tuple[Way, ...], change: Callable[[Way], None]) -> Callable[[], None]:
        proxies = self._proxies()

        def strike() -> None:
            for way in ways:
                change(way)

        def mend() -> None:
            for way in ways:
                way.heal()

        proxies.change(strike)
        return partial(proxies.change, mend)

    def _proxies(self) -> Proxies:
        assert self._cluster.proxies is not None, "the cluster is proxied"
        return self._cluster.proxies

    def _black_hole(self, victim: NodeProcess) -> Struck:
        ways = self._proxies().around(victim.name)
        return self._struck("black hole", victim, self._change(ways, Way.cut))

    def _one_way(self, victim: NodeProcess) -> Struck:
        """Nothing that the node says arrives; it hears the others."""

        def cut(way: Way) -> None:
            way.cut(there=way.source == victim.name, back=way.target == victim.name)

        ways = self._proxies().around(victim.name)
        return self._struck("one-way black hole", victim, self._change(ways, cut))

    def _half_open(self, victim: NodeProcess) -> Struck:
        """The node's end of every connection is reset, of which the others hear nothing."""

        def close(way: Way) -> None:
            way.half_close(source=way.source == victim.name)

        ways = self._proxies().around(victim.name)
        return self._struck("half-open connections", victim, self._change(ways, close))

    def _cut_pair(self, victim: NodeProcess) -> Struck:
        other = self._chance.choice([node for node in self._cluster.running() if node is not victim])
        ways = self._proxies().between(victim.name, other.name)
        return self._struck("two nodes cut off from each other", victim, self._change(ways, Way.cut), loses="")

    def _slow(self, victim: NodeProcess) -> Struck:
        ways = self._proxies().around(victim.name)
        mend = self._change(ways, lambda way: way.slow(SLOW_BYTES_PER_SECOND))
        return self._struck("slow link", victim, mend, loses="")

    def _read_error(self, victim: NodeProcess) -> Struck:
        chunks = self._chance.choice(READ_ERRORS)
        victim.ask("fail_device", direction="read", error=errno.EIO, chunks=chunks)
        mend = partial(victim.ask, "fail_device", direction="read", error=0, chunks=0)
        return self._struck("EIO of a disk", victim, mend, loses="")

    def _full_disk(self, victim: NodeProcess) -> Struck:
        victim.ask("fail_device", direction="write", error=errno.ENOSPC, chunks=FULL_DISK_CHUNKS)
        mend = partial(victim.ask, "fail_device", direction="write", error=0, chunks=0)
        return self._struck("ENOSPC of a disk", victim, mend, loses="")

    def _corrupt(self, victim: NodeProcess) -> Struck:
        victim.ask("corrupt", pieces=1)
        return self._struck("corrupt exchange block", victim, partial(victim.ask, "corrupt", pieces=0), loses="")

    def _damage(self, victim: NodeProcess) -> Struck:
        """A byte is changed that no checksum of TCP's has seen; in what is sealed, it ends the connection."""
        ways = (self._chance.choice(self._proxies().around(victim.name)),)
        return self._struck("damage on the wire", victim, self._change(ways, lambda way: way.damage(1)), loses="")

    def _leave(self, victim: NodeProcess) -> Struck:
        victim.order("leave")
        return self._struck("a node leaves", victim, partial(self._restart, victim))

    def _drain(self, victim: NodeProcess) -> Struck:
        victim.ask("drain", draining=True)
        return self._struck("drain", victim, partial(victim.ask, "drain", draining=False), loses="")

    def _kill_draining(self, victim: NodeProcess) -> Struck:
        victim.ask("drain", draining=True)
        time.sleep(self._chance.uniform(0.0, START_DELAY_SECONDS))
        victim.kill()
        return self._struck("kill -9 while draining", victim, partial(self._restart, victim))

    def _kill_joining(self, victim: NodeProcess) -> Struck:
        """One more node is killed while it starts, joins, or gets its first work. The victim is let be."""
        joiner = self._cluster.start(self._cluster.spare, wait=False)
        time.sleep(self._chance.uniform(0.0, START_DELAY_SECONDS))
        joiner.kill()
        return self._struck(
            "kill -9 of a node that joins", victim, lambda: joiner.ended.result(10), loses=self._cluster.spare
        )
