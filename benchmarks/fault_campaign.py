"""Seeded faults beside distributed queries, one fault or two at a time, and how every query ends."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import duckdb

from benchmarks.cluster_processes import NodeProcess, Outcome, ProcessCluster, Statement
from benchmarks.fault_kinds import Faults, Struck
from benchmarks.slow_tables import STATEMENTS
from pystachio import errors
from pystachio.cli.oracle import disagreement

TYPED = frozenset(
    kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PystachioError)
) - {errors.InternalError.code, errors.Cancelled.code}
"""What a query may end with: nobody cancels any here."""
BOUND_SECONDS = 30.0
"""A query that has not ended by then hangs."""
RECOVERY_SECONDS = 10.0
RELEASE_SECONDS = 2.0
MEET_SECONDS = 30.0
TWO = "two at once"
_TWO_AT_ONCE = 0.15
_LONGEST_WAIT_SECONDS = 0.6
_OFTEN = ("kill -9", "kill -9", "kill -9")
"""What is quickly mended comes more often than the rest."""


@dataclass(slots=True)
class Tally:
    """`hit_by_one_loss` queries ran on another node when one was lost and nothing else happened; `saved` of them have
    the right answer. `leaking` checks found something on a survivor that should be gone."""

    struck: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    queries: int = 0
    wrong: int = 0
    hanging: int = 0
    untyped: int = 0
    hit_by_one_loss: int = 0
    saved: int = 0
    checks: int = 0
    leaking: int = 0
    broken: int = 0
    longest_recovery: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Asked:
    name: str
    statement: Statement


class Campaign:
    """Faults by chance on one cluster, which is mended after each."""

    def __init__(self, cluster: ProcessCluster, *, seed: int) -> None:
        self._cluster = cluster
        self._seed = seed
        self._tally = Tally()
        with duckdb.connect() as oracle:
            for name, path in cluster.tables.items():
                oracle.execute(f"create view {name} as from '{path}'")
            self._expected: dict[str, list[tuple[Any, ...]]] = {
                name: oracle.execute(sql).fetchall() for name, sql in STATEMENTS.items()
            }

    def run(self, faults: int, queries: int) -> Tally:
        """So many faults and queries, which are about evenly spread over them."""
        tally = self._tally
        number = 0
        while sum(tally.struck.values()) < faults:
            left = faults - sum(tally.struck.values())
            chance = random.Random(f"{self._seed}/{number}")
            self._round(chance, max(1, round((queries - tally.queries) / left)), most_faults=min(2, left))
            number += 1
            if number % 10 == 0:
                sys.stdout.write(f"{sum(tally.struck.values())} faults, {tally.queries} queries\n")
                sys.stdout.flush()
        return tally

    def _round(self, chance: random.Random, queries: int, most_faults: int) -> None:
        """One fault, or two at once; queries before it, and more while it lasts."""
        tally, faults = self._tally, Faults(self._cluster, chance)
        kinds = chance.choices((*faults.kinds, *_OFTEN), k=2 if chance.random() < _TWO_AT_ONCE else 1)[:most_faults]
        queries *= len(kinds)
        victims = chance.sample(self._cluster.running(), k=len(kinds))
        asked = [self._ask(chance, chance.choice(self._cluster.running())) for _ in range(max(1, queries - 1))]
        time.sleep(chance.uniform(0.0, _LONGEST_WAIT_SECONDS))
        struck = [faults.strike(kind, victim) for kind, victim in zip(kinds, victims, strict=True)]
        if queries > 1:
            asked.append(self._ask(chance, chance.choice(self._well(struck))))
        self._recover(chance, struck)
        label = " and ".join(sorted(kinds))
        tally.struck.update(kinds)
        tally.by_kind[label if len(kinds) == 1 else TWO].update(())
        for query in asked:
            self._count(query, struck, label)
        self._look_for_leaks(struck, label)
        for each in struck:
            each.mend()
        self._become_whole(label)

    def _well(self, struck: list[Struck]) -> list[NodeProcess]:
        """Nodes that are expected to answer."""
        ill = {each.victim for each in struck} | {each.loses for each in struck}
        return [node for node in self._cluster.running() if node.name not in ill]

    def _ask(self, chance: random.Random, node: NodeProcess) -> _Asked:
        self._tally.queries += 1
        name = chance.choice(list(STATEMENTS))
        return _Asked(name, node.start_sql(STATEMENTS[name], chance.choice(("interactive", "normal", "batch"))))

    def _recover(self, chance: random.Random, struck: list[Struck]) -> None:
        """A new query, asked of a survivor right after the fault, until one is answered; refusals count as time."""
        tally, started = self._tally, time.monotonic()
        node = chance.choice(self._well(struck))
        while True:
            asked = self._ask(chance, node)
            try:
                outcome = asked.statement.outcome(BOUND_SECONDS)
            except TimeoutError:
                tally.hanging += 1
                break
            if self._is_right(asked, outcome) or time.monotonic() - started > BOUND_SECONDS:
                break
        tally.longest_recovery = max(tally.longest_recovery, time.monotonic() - started)

    def _count(self, asked: _Asked, struck: list[Struck], label: str) -> None:
        tally, counts = self._tally, self._tally.by_kind[label if len(struck) == 1 else TWO]
        where = asked.statement.node.name
        first = min(each.at for each in struck)
        is_ill = any(where in (each.victim, each.loses) for each in struck)
        try:
            outcome = asked.statement.outcome(BOUND_SECONDS)
        except TimeoutError:
            if is_ill and self._is_standing_still(struck):
                counts["gone"] += 1  # a process that does not run answers nobody
                return
            tally.hanging += 1
            counts["bad"] += 1
            self._note(f"{label}: a query on {where} hangs")
            return
        if self._is_right(asked, outcome):
            counts["right"] += 1
            counts["retried"] += outcome.attempts > 1
        elif outcome.rows is not None:
            counts["bad"] += 1
        elif outcome.error == "gone" or (is_ill and _has_left(outcome)):
            counts["gone"] += 1
        elif outcome.error in TYPED:
            counts["typed"] += 1
            self._note(f"{label} of {struck[0].victim}, a query on {where}: {outcome.error}: {outcome.message}")
        else:
            tally.untyped += 1
            counts["bad"] += 1
            self._note(f"{label}, a query on {where}: {outcome.error}: {outcome.message}")
        was_hit = asked.statement.started < first < asked.statement.started + outcome.seconds
        if len(struck) == 1 and struck[0].loses and not is_ill and was_hit:
            tally.hit_by_one_loss += 1
            tally.saved += outcome.rows is not None

    def _is_standing_still(self, struck: list[Struck]) -> bool:
        return any(each.kind == "SIGSTOP" for each in struck)

    def _is_right(self, asked: _Asked, outcome: Outcome) -> bool:
        if outcome.rows is None:
            return False
        problem = disagreement(outcome.rows, self._expected[asked.name], STATEMENTS[asked.name])
        if problem is not None:
            self._tally.wrong += 1
            self._note(f"a wrong answer to {asked.name}: {problem[:300]}")
        return problem is None

    def _look_for_leaks(self, struck: list[Struck], label: str) -> None:
        """All queries have ended: nothing of them is left where something could be."""
        self._tally.checks += 1
        try:
            self._cluster.until_idle(RELEASE_SECONDS, self._well(struck))
        except TimeoutError as problem:
            self._tally.leaking += 1
            self._note(f"{label}: {problem}")

    def _become_whole(self, label: str) -> None:
        cluster = self._cluster
        try:
            cluster.until_met(MEET_SECONDS)
            cluster.until_idle(MEET_SECONDS)
        except TimeoutError as problem:
            self._tally.broken += 1
            self._note(f"{label}: {problem}")
            for node in cluster.running():
                node.kill()
                node.ended.result(10)
            for name in tuple(cluster.nodes):
                if name != cluster.spare:
                    cluster.start(name)
            cluster.until_met(MEET_SECONDS)

    def _note(self, text: str) -> None:
        if len(self._tally.notes) < 60:
            self._tally.notes.append(text)


def _has_left(outcome: Outcome) -> bool:
    """Whether the query was asked of a node that has left."""
    return outcome.error == errors.NodeLost.code and "the node has stopped before the plan's end" in outcome.message
