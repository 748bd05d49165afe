"""Figure: one measured number, ours beside the bare library's, with every round that made it.

The two sides of a comparison take turns, because the machine is shared and its speed drifts. The ratio
is the median of the rounds' own ratios: both sides of one round saw the same neighbours.
"""

from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")


class Goal(msgspec.Struct, frozen=True):
    """What a number should be: the ratio at least or at most so much, or our own number below so much."""

    of: Literal["ratio", "cost", "ours"]
    limit: float

    def __str__(self) -> str:
        sign = {"ratio": "ratio ≥", "cost": "ratio ≤", "ours": "<"}[self.of]
        return f"{sign} {self.limit:g}" if self.of == "ours" else f"{sign} {self.limit:.2f}"

    def met(self, ours: float, ratio: float | None) -> bool:
        """Whether it is."""
        if self.of == "ours":
            return ours < self.limit
        return ratio is not None and (ratio >= self.limit if self.of == "ratio" else ratio <= self.limit)


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a result. `ratio` is ours by bare; `better` says whether more or less of it is good."""

    what: str
    unit: str
    better: Literal["more", "less"]
    ours: float
    bare: float | None = None
    ratio: float | None = None
    goal: str = ""
    met: bool | None = None
    rounds_ours: tuple[float, ...] = ()
    rounds_bare: tuple[float, ...] = ()


def compared(
    what: str,
    unit: str,
    ours: Sequence[float],
    bare: Sequence[float] = (),
    *,
    better: Literal["more", "less"] = "more",
    goal: Goal | None = None,
) -> Figure:
    """The figure of some rounds, with or without a bare side."""
    ratio = median(a / b for a, b in zip(ours, bare, strict=True)) if bare else None
    middle = median(ours)
    return Figure(
        what=what,
        unit=unit,
        better=better,
        ours=middle,
        bare=median(bare) if bare else None,
        ratio=ratio,
        goal=str(goal or ""),
        met=goal.met(middle, ratio) if goal else None,
        rounds_ours=tuple(ours),
        rounds_bare=tuple(bare),
    )


async def in_turns(
    rounds: int, ours: Callable[[], Awaitable[T]], bare: Callable[[], Awaitable[T]]
) -> tuple[list[T], list[T]]:
    """What both sides measured, round by round; who begins changes with each round."""
    measured: tuple[list[T], list[T]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            measured[side].append(await (ours, bare)[side]())
    return measured


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table, then each round's numbers."""
    lines = ["| | unit | ours | bare | ours / bare | better | goal |", "|---|---|---:|---:|---:|---|---|"]
    for figure in figures:
        goal = f"{figure.goal}: {'met' if figure.met else 'MISSED'}" if figure.goal else ""
        cells = (
            figure.what,
            figure.unit,
            _shown(figure.ours),
            _shown(figure.bare),
            _shown(figure.ratio),
            figure.better,
            goal,
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for figure in figures:
        lines.append(f"  {figure.what}, {figure.unit}: ours {_all(figure.rounds_ours)}")
        if figure.rounds_bare:
            lines.append(f"  {' ' * len(f'{figure.what}, {figure.unit}:')} bare {_all(figure.rounds_bare)}")
    return "\n".join(lines)


def _all(values: Sequence[float]) -> str:
    return " ".join(_shown(value) for value in values)


def _shown(value: float | None) -> str:
    """Three digits that matter, and no more: nothing here is known better."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
