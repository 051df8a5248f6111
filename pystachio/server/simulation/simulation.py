"""Whole clusters under faults in virtual time: the code of production from the wire to the operators, replayed from a
seed.

`simulate(seed, statements)` draws a cluster, clients with their queries, and some seconds of faults. Every query ends
in bounded time, in a single node's answer or in a typed error; after the last fault all nodes agree, every node answers
every statement rightly, and nothing is left anywhere. `python -m pystachio.server.simulation.simulation 1000` runs
many. Replays in one process are identical; of another process they are with the same PYTHONHASHSEED.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

from pystachio import config
from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.operators.plan_codec.codec import TableReference
from pystachio.operators.table import Table
from pystachio.planner.distribution.distribution import Preference
from pystachio.runtime.logging import configure_logging
from pystachio.runtime.membership.views import Address
from pystachio.runtime.urgency import Urgency
from pystachio.runtime.virtual_loop import stacks
from pystachio.server.cluster_plan import ClusterPlan
from pystachio.server.long_messages import SHORT_BYTES
from pystachio.server.simulation.faults import FAULT_SECONDS, Faults
from pystachio.server.simulation.machine import ClusterLoop, replayed
from pystachio.server.simulation.node import PORT, SimulatedNode
from pystachio.server.simulation.statements import Rows, Statement, Statements, prepare, rows_of
from pystachio.server.simulation.wires import SimulatedNetwork

ANSWER_SECONDS = 60.0
"""Virtual: more than any fault lasts, and what finding it and trying again takes."""
CALM_SECONDS = 5.0
"""The same where nothing is wrong."""
AGREE_SECONDS = 30.0
FORGET_SECONDS = 2.0
"""After a plan's end nothing of it is left anywhere."""
CLOSE_SECONDS = 30.0
_THINK_SECONDS = 1.5
_CANCELLED = 0.15
_SHORT_BYTES = (64, 1 << 10, SHORT_BYTES)
"""Of what plans tell each other, much is longer than the first, some than the second, nothing than the last."""
_PRIORITIES = tuple(PriorityClass)


class InvariantBroken(AssertionError):
    """The message has the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOutcome:
    """`ended` counts queries by how they ended: "answered", an error's code, or "client lost" with its node. `digest`
    is of every end and every view, with its time."""

    seed: int
    nodes: int
    faults: Mapping[str, int]
    ended: Mapping[str, int]
    attempts: int
    bytes_moved: int
    seconds: float
    digest: str


def simulate(seed: int, statements: Statements, log: list[str] | None = None) -> SimulationOutcome:
    """`log` gets what the digest is of. Raises InvariantBroken."""
    loop = ClusterLoop(Random(seed))
    gc.disable()  # a collection would end what waits for it at another time
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner, replayed(loop, seed):
            return runner.run(_Cluster(seed, loop, statements, log).run())
    finally:
        gc.enable()


@dataclass(eq=False)
class _Cluster:
    seed: int
    loop: ClusterLoop
    statements: Statements
    log: list[str] | None = None
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    _gone: list[SimulatedNode] = field(default_factory=list)
    _starts: int = 0
    _defects: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = Random(f"cluster {self.seed}")
        self._digest = sha256()
        self._faults = Faults(self)
        self._tables: dict[str, dict[TableReference, Table]] = {}
        self._settings = config.load(
            None,
            threads=2,
            memory="64MiB",
            batch_rows=self.chance.choice((100, 1000, 100_000)),
            control_socket=False,
            chunk_cache=False,
            tracing=False,
        ).settings
        self._short_bytes = self.chance.choice(_SHORT_BYTES)
        self._preference = self.chance.choice(tuple(Preference))

    @property
    def network(self) -> SimulatedNetwork:
        return self.loop.network

    # What faults do.

    def running(self) -> tuple[SimulatedNode, ...]:
        return tuple(node for node in self.nodes.values() if node.is_running)

    def kill(self, node: SimulatedNode) -> None:
        self.network.kill(node.host)
        node.is_killed = True
        self.leave(node)

    def leave(self, node: SimulatedNode) -> None:
        node.stopped.set()
        self._gone.append(node)

    def restart(self, name: str) -> None:
        """Once what was under its name is gone."""
        node = self.nodes[name]
        if node.is_running or not node.ready.is_set():
            return
        if not node.task.done() and not node.is_killed:
            self.loop.call_later(0.1, self.restart, name)
            return
        self.network.revive(node.host)
        self._start(name)

    def _start(self, name: str) -> SimulatedNode:
        number = int(name[1:])
        self._starts += 1
        self._tables[name] = {}
        everybody = tuple(Address(f"n{each}", _host(each), PORT) for each in range(self._count))
        node = self.nodes[name] = SimulatedNode(
            _host(number),
            name,
            everybody,
            self._settings,
            preference=self._preference,
            instance=f"{name} {self._starts}",
            chance=Random(f"{self.seed} {name} {self._starts}"),
            short_bytes=self._short_bytes,
        )
        node.member.plane.when_view_changes(
            lambda view: self._note("view", name, view.epoch, *(member.name for member in view.members))
        )
        return node

    # The course of things.

    async def run(self) -> SimulationOutcome:
        self.loop.set_exception_handler(self._note_defect)
        self._count = self.chance.randint(2, 5)
        for number in range(self._count):
            await self._start(f"n{number}").ready.wait()
        await self._agree()
        self._faults.draw()
        clients = [asyncio.create_task(self._client(number)) for number in range(self.chance.randint(1, 4))]
        await asyncio.sleep(FAULT_SECONDS + 0.1)
        await asyncio.gather(*clients)
        await self._agree()
        for node in self.running():
            for statement in self.chance.sample(self.statements.listed, 3):
                await self._ask(node, statement, must_succeed=True)
        await asyncio.sleep(FORGET_SECONDS)
        for node in self.running():
            self._check_nothing_left(node)
        await self._close()
        if self._defects:
            raise self._broken(self._defects[0])
        return SimulationOutcome(
            seed=self.seed,
            nodes=self._count,
            faults=dict(self._faults.struck),
            ended=dict(self.ended),
            attempts=self.attempts,
            bytes_moved=self.network.bytes_moved,
            seconds=self.loop.time(),
            digest=self._digest.hexdigest(),
        )

    async def _client(self, number: int) -> None:
        chance = Random(f"client {self.seed} {number}")
        while self.loop.time() < FAULT_SECONDS:
            await asyncio.sleep(chance.expovariate(1 / _THINK_SECONDS))
            running = self.running()
            if running:
                statement = chance.choice(self.statements.listed)
                patience = chance.uniform(0.0, 0.2) if chance.random() < _CANCELLED else None
                await self._ask(chance.choice(running), statement, patience=patience, slowness=chance.choice((0, 0.1)))

    async def _ask(
        self,
        node: SimulatedNode,
        statement: Statement,
        *,
        must_succeed: bool = False,
        patience: float | None = None,
        slowness: float = 0.0,
    ) -> None:
        """One query, which its client cancels after `patience` seconds, and reads with a pause after each batch."""
        plan = self.statements.plan(statement, self._tables[node.name])
        started = node.member.submit(plan, Urgency(self.chance.choice(_PRIORITIES)), statement.sql)
        assert isinstance(started, ClusterPlan), "it is submitted to a cluster"
        if patience is not None:
            self.loop.call_later(patience, started.cancel_nowait)
        rows: Rows = []
        outcome = "answered"
        try:
            async with asyncio.timeout(CALM_SECONDS if must_succeed else ANSWER_SECONDS):
                while (batch := await started.take()) is not None:
                    rows += rows_of(batch)
                    await asyncio.sleep(slowness)
        except TimeoutError:
            outcome = "client lost"
            if node.is_running:
                raise self._broken(f"no end of {statement.sql} at {node.name}\n{stacks(self.loop)}") from None
        except PystachioError as error:
            outcome = error.code
            if must_succeed or not self._is_expected(error.code, node, patience):
                raise self._broken(
                    f"{statement.sql} at {node.name}: {error!r} after {started.attempts} attempts"
                ) from error
        self.attempts += started.attempts
        if outcome == "answered" and not statement.is_answered_by(rows):
            raise self._broken(f"wrong: {statement.sql} at {node.name}: {len(rows)} rows")
        self._note_end(node, statement, outcome if node.is_running else "client lost", len(rows))

    def _is_expected(self, code: str, node: SimulatedNode, patience: float | None) -> bool:
        """Whether something has happened that a query may end with."""
        struck = self._faults.struck
        match code:
            case "node_lost":
                return bool(struck)
            case "cancelled":
                return patience is not None or not node.is_running
            case "data_error":
                return bool(struck["damage"] or struck["disk"])
            case _:
                return False

    async def _agree(self) -> None:
        """Wait until all nodes run and have one view, of all of them."""
        everybody = {f"n{number}" for number in range(self._count)}
        deadline = self.loop.time() + AGREE_SECONDS
        while True:
            planes = [node.member.plane for node in self.running()]
            available = [{member.name for member in plane.available()} for plane in planes]
            is_whole = len(planes) == self._count and all(each == everybody for each in available)
            if is_whole and len({plane.view for plane in planes}) == 1:
                return
            if self.loop.time() > deadline:
                raise self._broken(f"the nodes do not agree: {available}")
            await asyncio.sleep(0.1)

    def _check_nothing_left(self, node: SimulatedNode) -> None:
        statistics, transfers = node.member.host.node.statistics(), node.home.transfers.statistics()
        peers = node.member.network.statistics().peers
        left = {
            "plans": statistics.plans_running,
            "leaked bytes": statistics.leaked_bytes,
            "leaked jobs": statistics.leaked_external,
            "reserved bytes": sum(tier.used for tier in statistics.memory.values()),
            "parts": node.member.fragments.running,
            "transfers": transfers.transfers,
            "chunks": transfers.chunks,
            "messages": sum(peer.offered + peer.incoming + peer.outgoing for peer in peers),
        }
        if any(left.values()):
            raise self._broken(f"left at {node.name}: { {what: count for what, count in left.items() if count} }")

    async def _close(self) -> None:
        for node in self.running():
            self.leave(node)
        ends = [node.task for node in self._gone]
        _, late = await asyncio.wait(ends, timeout=CLOSE_SECONDS)
        if late:
            raise self._broken(f"nodes that do not end: {late}\n{stacks(self.loop)}")
        for task in ends:
            task.result()

    def _note_end(self, node: SimulatedNode, statement: Statement, outcome: str, rows: int) -> None:
        self.ended[outcome] += 1
        self._note("end", node.name, self.statements.listed.index(statement), outcome, rows)

    def _note(self, *what: object) -> None:
        line = f"{self.loop.time()!r} {what!r}\n"
        self._digest.update(line.encode())
        if self.log is not None:
            self.log.append(line)

    def _note_defect(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._defects.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _broken(self, what: str) -> InvariantBroken:
        hashes = os.environ.get("PYTHONHASHSEED", "random")
        return InvariantBroken(
            f"seed {self.seed} (PYTHONHASHSEED={hashes}), {self.loop.time():.3f} s, {dict(self._faults.struck)}: {what}"
        )


def _host(number: int) -> str:
    return f"127.0.0.{number + 1}"


def simulate_many(seeds: Iterable[int], *, replay_every: int = 0) -> list[SimulationOutcome]:
    """Raises InvariantBroken, also when a replay differs: each `replay_every`th is replayed."""
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        statements = prepare(Path(folder))
        for number, seed in enumerate(seeds):
            first: list[str] = []
            outcomes.append(simulate(seed, statements, first))
            if replay_every and number % replay_every == 0:
                second: list[str] = []
                replay = simulate(seed, statements, second)
                if replay != outcomes[-1]:
                    raise InvariantBroken(
                        f"seed {seed}: a replay differs: {_difference(first, second)}{outcomes[-1]}\n{replay}"
                    )
    return outcomes


def _difference(first: Sequence[str], second: Sequence[str]) -> str:
    """Where two logs part, and the last lines before it."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    lines = (*first[max(0, same - 3) : same], "first:  ", *first[same : same + 1], "second: ", *second[same : same + 1])
    return "\n" + "".join(lines)


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:
        command = [sys.executable, "-m", "pystachio.server.simulation.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    configure_logging(level=logging.CRITICAL)
    found = simulate_many(range(int(sys.argv[1])), replay_every=10)
    sys.stdout.write(f"{len(found)} clusters, {sum((Counter(each.ended) for each in found), Counter())}\n")
