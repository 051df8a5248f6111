"""Which column of a join comes from where, decided once per join."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, assert_never

from pystachio.operators.expressions import Expression, JoinKind, fields_of
from pystachio.operators.joins.inequalities import Inequalities
from pystachio.operators.joins.places import PairCondition, Place, Source


class Emission(Enum):
    """What streaming past the build side puts out."""

    PAIRS = "pairs"
    PAIRS_AND_UNMATCHED = "pairs and unmatched"
    MATCHED = "matched"
    UNMATCHED = "unmatched"
    MARKED = "marked"
    NOTHING = "nothing"


class Remainder(Enum):
    """What the build side puts out when the streamed side has ended."""

    NOTHING = "nothing"
    UNMATCHED_BESIDE_NULLS = "unmatched beside nulls"
    MATCHED = "matched"
    UNMATCHED = "unmatched"
    MARKED = "marked"


@dataclass(frozen=True, slots=True)
class JoinLayout:
    """A join seen from its streamed side (probe) and its stored side (build).

    `stored` are the positions of the build side's columns that are kept after its index is made. `inequalities` are
    those of the residual, where there are no keys.
    """

    emission: Emission
    remainder: Remainder
    null_aware: bool
    probe_keys: tuple[int, ...]
    build_keys: tuple[int, ...]
    output: tuple[Place, ...]
    residual: PairCondition | None
    inequalities: Inequalities | None
    stored: tuple[int, ...]

    @property
    def needs_pairs(self) -> bool:
        """False when it is enough to know whether a streamed row's key exists."""
        of_pairs = (Emission.PAIRS, Emission.PAIRS_AND_UNMATCHED, Emission.NOTHING)
        return self.residual is not None or self.emission in of_pairs

    @property
    def flags_matches(self) -> bool:
        """Whether the build side must know which of its rows were matched."""
        return self.remainder is not Remainder.NOTHING

    @staticmethod
    def of(
        kind: JoinKind,
        *,
        left_width: int,
        left_keys: tuple[int, ...],
        right_keys: tuple[int, ...],
        residual: Expression | None,
        null_aware: bool,
        build: Literal["left", "right"],
        output: tuple[int, ...],
    ) -> JoinLayout:
        """Positions are those of `operators.join.Join`."""
        build_is_left = build == "left"
        read = sorted(fields_of(residual)) if residual is not None else []
        # A mark join puts out left fields, so anything behind them is the mark.
        marks = {position for position in output if kind is JoinKind.MARK and position >= left_width}
        positions = (*read, *(position for position in output if position not in marks))
        stored = sorted({_own(p, left_width) for p in positions if (p < left_width) == build_is_left})

        def place(position: int) -> Place:
            own = _own(position, left_width)
            if (position < left_width) == build_is_left:
                return Place(Source.BUILD, stored.index(own))
            return Place(Source.PROBE, own)

        condition = None if residual is None else PairCondition.of(residual, place)
        return JoinLayout(
            emission=_emission(kind, build_is_left),
            remainder=_remainder(kind, build_is_left),
            null_aware=null_aware,
            probe_keys=right_keys if build_is_left else left_keys,
            build_keys=left_keys if build_is_left else right_keys,
            output=tuple(Place(Source.MARK, 0) if position in marks else place(position) for position in output),
            residual=condition,
            inequalities=None if condition is None or left_keys else Inequalities.of(condition),
            stored=tuple(stored),
        )


def _own(position: int, left_width: int) -> int:
    return position if position < left_width else position - left_width


def _emission(kind: JoinKind, build_is_left: bool) -> Emission:
    match kind:
        case JoinKind.INNER:
            return Emission.PAIRS
        case JoinKind.LEFT:
            return Emission.PAIRS if build_is_left else Emission.PAIRS_AND_UNMATCHED
        case JoinKind.RIGHT:
            return Emission.PAIRS_AND_UNMATCHED if build_is_left else Emission.PAIRS
        case JoinKind.FULL:
            return Emission.PAIRS_AND_UNMATCHED
        case JoinKind.SEMI:
            return Emission.NOTHING if build_is_left else Emission.MATCHED
        case JoinKind.ANTI:
            return Emission.NOTHING if build_is_left else Emission.UNMATCHED
        case JoinKind.MARK:
            return Emission.NOTHING if build_is_left else Emission.MARKED
        case _:
            assert_never(kind)


def _remainder(kind: JoinKind, build_is_left: bool) -> Remainder:
    match kind:
        case JoinKind.INNER:
            return Remainder.NOTHING
        case JoinKind.LEFT:
            return Remainder.UNMATCHED_BESIDE_NULLS if build_is_left else Remainder.NOTHING
        case JoinKind.RIGHT:
            return Remainder.NOTHING if build_is_left else Remainder.UNMATCHED_BESIDE_NULLS
        case JoinKind.FULL:
            return Remainder.UNMATCHED_BESIDE_NULLS
        case JoinKind.SEMI:
            return Remainder.MATCHED if build_is_left else Remainder.NOTHING
        case JoinKind.ANTI:
            return Remainder.UNMATCHED if build_is_left else Remainder.NOTHING
        case JoinKind.MARK:
            return Remainder.MARKED if build_is_left else Remainder.NOTHING
        case _:
            assert_never(kind)
