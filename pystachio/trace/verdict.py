"""The verdict on a plan in one to three sentences: what bounded it, for how much of its time, who made it wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pystachio.runtime.tracing import WaitReason
from pystachio.trace.attribution import Attribution, attribute
from pystachio.trace.bottleneck import FEWEST_SECONDS, Bottleneck, Causes, causes
from pystachio.trace.link_use import LinkUse
from pystachio.trace.plan_trace import PlanTrace

_WORTH_MENTIONING = 0.1
"""Of the plan's time: less is not worth a sentence."""
_BEFORE_A_GRANT = 0.0005
"""A waiter goes on so long after what it waited for was released, at most: it has to get its turn on the loop."""
_CLEAR = 0.4
"""The first bottleneck bounds the plan alone from this share on, else the next ones are named beside it."""
_MOST = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """`share` is the part of the plan's time that went to `bottleneck`; `shares` are all of them, the largest first."""

    bottleneck: Bottleneck
    resource: str
    share: float
    shares: Mapping[Bottleneck, float]
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.sentences)


def verdict(trace: PlanTrace) -> Verdict:
    """Judge the plan by its records; `attribution` and `bottleneck` say by which rules."""
    if trace.seconds < FEWEST_SECONDS:
        sentence = f"Nothing bounded this plan: it took {seconds_text(trace.seconds)}."
        return Verdict(Bottleneck.NONE, "", 1.0, {Bottleneck.NONE: 1.0}, (sentence,))
    found = attribute(trace)
    why = causes(trace, found)
    ranked = why.ranked()
    named = [(each, share) for each, share in ranked if each is not Bottleneck.NONE and share >= _WORTH_MENTIONING]
    nothing = Bottleneck.NONE, why.of(Bottleneck.NONE)
    # What no resource limits is a verdict only where it is most of the time.
    bottleneck, share = nothing if not named or nothing[1] > _MOST else named[0]
    words = _Words(trace, found, why)
    sentences = [words.main(bottleneck, share)]
    sentences += words.others(bottleneck, named) if share < _CLEAR or bottleneck is Bottleneck.NONE else []
    sentences += words.held_up()
    if not trace.is_complete:
        sentences.append("The beginning of the plan is forgotten: its records no longer fit.")
    return Verdict(bottleneck, why.main_resource(bottleneck), share, dict(ranked), tuple(sentences))


class _Words:
    def __init__(self, trace: PlanTrace, found: Attribution, why: Causes) -> None:
        self._trace = trace
        self._found = found
        self._why = why

    def main(self, bottleneck: Bottleneck, share: float) -> str:
        part = f"{share:.0%} of its {seconds_text(self._trace.seconds)}"
        sentences: Mapping[Bottleneck, Callable[[str, str], str]] = {
            Bottleneck.STORAGE: self._storage,
            Bottleneck.NETWORK: self._link("The network"),
            Bottleneck.BUS: self._link("A bus"),
            Bottleneck.COMPUTE: self._compute,
            Bottleneck.DECODE: self._decode,
            Bottleneck.MEMORY: self._memory,
            Bottleneck.PRIORITY: self._priority,
            Bottleneck.SLOW_DEVICE: self._slow_device,
            Bottleneck.STRAGGLER: self._straggler,
            Bottleneck.WINDOW: self._window,
            Bottleneck.CLIENT: self._client,
            Bottleneck.NONE: self._none,
        }
        return sentences[bottleneck](part, self._why.main_resource(bottleneck))

    def others(self, bottleneck: Bottleneck, ranked: Sequence[tuple[Bottleneck, float]]) -> list[str]:
        named = [f"{each} ({share:.0%})" for each, share in ranked if each is not bottleneck]
        return [f"Next: {', '.join(named[:2])}."] if named else []

    def held_up(self) -> list[str]:
        """Whom the plan had to wait behind, where that took a part of its time worth mentioning."""
        waited = sorted(self._why.held_up_by.items(), key=lambda entry: -entry[1])
        worth = [
            f"{seconds_text(seconds)} behind plan {plan_id} ({priority.name.lower()})"
            for (plan_id, priority), seconds in waited
            if seconds >= _WORTH_MENTIONING * self._trace.seconds
        ]
        return [f"It waited {', '.join(worth[:3])}."] if worth else []

    def _storage(self, part: str, resource: str) -> str:
        return self._link("Storage")(part, resource)

    def _link(self, kind: str) -> Callable[[str, str], str]:
        def sentence(part: str, resource: str) -> str:
            use = self._use(resource)
            return (
                f"{kind} bounded this plan: for {part} it waited for {resource}, which was busy "
                f"{use.busy_share:.0%} of the time and delivered {rate_text(use.rate)} meanwhile."
            )

        return sentence

    def _compute(self, part: str, resource: str) -> str:
        if resource not in self._why.busy_by_operator:
            return f"Computing bounded this plan: for {part} its jobs waited for workers that ran those of other plans."
        return f"Computing bounded this plan: for {part} it computed, {self._most_of(resource)}."

    def _decode(self, part: str, resource: str) -> str:
        return f"Decoding bounded this plan: for {part} it decoded what was read, {self._most_of(resource)}."

    def _most_of(self, operator: str) -> str:
        part = self._why.busy_by_operator[operator] / sum(self._why.busy_by_operator.values())
        return f"mostly in {self._trace.label(operator)} ({part:.0%} of all work)"

    def _memory(self, part: str, resource: str) -> str:
        waits = [
            wait
            for wait in self._trace.tracing.waits
            if wait.plan_id == self._trace.plan_id and wait.reason is WaitReason.MEMORY and wait.operator == resource
        ]
        if not waits:
            return f"Memory credit bounded this plan: for {part} transfers waited for {resource or 'credit'}."
        longest = max(waits, key=lambda wait: wait.ended - wait.started)
        held = memory_holders(self._trace, longest.what, longest.ended)
        theirs = {plan_id: nbytes for plan_id, nbytes in held.items() if plan_id != self._trace.plan_id}
        holder = max(theirs, key=lambda plan_id: theirs[plan_id], default=None)
        by = f", while plan {holder} held {bytes_text(theirs[holder])}" if holder is not None else ""
        return (
            f"Memory bounded this plan: for {part} it could not go on before memory was free; "
            f"{self._trace.label(resource)} waited for {bytes_text(longest.nbytes)} of {longest.what} memory{by}."
        )

    def _priority(self, part: str, resource: str) -> str:
        theirs = next(priority for plan_id, priority in self._why.held_up_by if plan_id == resource)
        return (
            f"Priority bounded this plan ({self._trace.priority.name.lower()}): for {part} others of a higher class "
            f"went first, most of all plan {resource} ({theirs.name.lower()})."
        )

    def _slow_device(self, part: str, resource: str) -> str:
        use = self._use(resource)
        return (
            f"One slow device bounded this plan: for {part} it waited for {resource}, which delivered "
            f"{rate_text(use.rate)}, where its peers deliver {rate_text(self._why.peer_rates[use.link])}."
        )

    def _straggler(self, part: str, resource: str) -> str:
        ratio = next(ratio for path, ratio in self._why.stragglers.values() if path == resource)
        return (
            f"One straggling file bounded this plan: for {part} it waited for {PurePath(resource).name}, whose "
            f"requests took {ratio:.1f} times as long as those of the other files."
        )

    def _window(self, part: str, resource: str) -> str:
        use = self._use(resource)
        most = bytes_text(float(use.inside.max()))
        return (
            f"Too small a window bounded this plan: for {part} it waited for {resource}, where transfers queued while "
            f"at most {most} were inside the device, too little to saturate it: it delivered {rate_text(use.rate)}."
        )

    def _client(self, part: str, resource: str) -> str:
        return f"The client bounded this plan: for {part} results lay unread and nothing else was left to do."

    def _none(self, part: str, resource: str) -> str:
        return (
            f"No resource bounded this plan: for {part} nothing was under way that a resource of the engine limits "
            "(planning, hand-overs, other programs on the machine)."
        )

    def _use(self, resource: str) -> LinkUse:
        return next(use for link, use in self._found.links.items() if str(link) == resource)


def memory_holders(trace: PlanTrace, tier: str, until: float) -> dict[str, int]:
    """The bytes of the tier that plans held shortly before `until`, without those that held nothing."""
    held: dict[tuple[str, str], int] = {}
    for record in trace.tracing.memory:
        if record.tier == tier and record.at < until - _BEFORE_A_GRANT:
            held[record.plan_id, record.operator] = record.held
    plans: dict[str, int] = {}
    for (plan_id, _), nbytes in held.items():
        plans[plan_id] = plans.get(plan_id, 0) + nbytes
    return {plan_id: nbytes for plan_id, nbytes in plans.items() if nbytes}


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def bytes_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def rate_text(bytes_per_second: float) -> str:
    return f"{bytes_text(bytes_per_second)}/s"
