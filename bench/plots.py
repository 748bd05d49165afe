"""Plots: drawings of results with many proxies, as SVG, without a library to draw with.

    python -m bench.plots FOLDER RESULT.json ...

Each result is what `bench.scale --json` wrote. There is a drawing for each figure that has a goal, over the
number of proxies, with the goal as a dashed line; they are written into the folder.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 44
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
_TICKS: Final = 5

Result = dict[str, Any]
Point = tuple[float, float]


class Series(NamedTuple):
    """A line through some points."""

    name: str
    points: Sequence[Point]


class Plot(NamedTuple):
    """One drawing: what it is about, in which unit, and up to where it is good."""

    name: str
    title: str
    series: Sequence[Series]
    goal: float | None = None


def plots(results: Sequence[Result]) -> list[Plot]:
    """The drawings of these results; those of several planes stand beside nothing, and are left out."""
    alone = sorted(
        (result for result in results if result["planes"] == 1), key=lambda result: int(result["proxies"])
    )

    def over(name: str, value: Callable[[Result], float]) -> Series:
        return Series(name, [(result["proxies"], value(result)) for result in alone])

    def part(name: str, figure: str) -> Callable[[Result], float]:
        return lambda result: float(result["parts"][name][figure])

    return [
        Plot(
            "scale-ratio",
            "last ACK of a change for all, times a bare broadcast",
            [
                over("one route each", lambda result: result["all_ratio"]),
                over("200 routes each", lambda result: result["wide_ratio"]),
            ],
            2.0,
        ),
        Plot(
            "scale-change",
            "CPU seconds of a change for ten proxies",
            [
                over("a policy", lambda result: result["ten_cpu_s"]),
                over("an endpoint", lambda result: result["endpoint_cpu_s"]),
            ],
        ),
        Plot(
            "scale-latency",
            "seconds from write to ACK, a change for all",
            [over("median", part("all", "p50_s")), over("p99", part("all", "p99_s"))],
        ),
        Plot(
            "scale-restart",
            "seconds until all are back after a restart",
            [over("restart", lambda result: result["reconnect_s"])],
            5.0,
        ),
        Plot(
            "scale-memory",
            "KB a proxy, above a bare stream",
            [over("memory", lambda result: result["kb_per_proxy"])],
            60.0,
        ),
    ]


def drawn(plot: Plot) -> str:
    """A drawing as SVG."""
    points = [point for series in plot.series for point in series.points]
    x_max = max((x for x, _ in points), default=1.0)
    y_max = 1.1 * max([y for _, y in points] + [plot.goal or 0.0]) or 1.0

    def at(x: float, y: float) -> str:
        right, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return f"{LEFT + right * x / x_max:.1f},{HEIGHT - BOTTOM - down * y / y_max:.1f}"

    parts = [_text(WIDTH / 2, 20, plot.title, "middle", size=13), *_grid(x_max, y_max, at)]
    if plot.goal is not None:
        parts.append(_line([at(0, plot.goal), at(x_max, plot.goal)], "#888", "5,4"))
    for number, (series, colour) in enumerate(zip(plot.series, _COLOURS, strict=False)):
        parts.append(_line([at(*point) for point in series.points], colour))
        parts.append(_text(LEFT + 8, TOP + 14 + 15 * number, series.name, "start", colour))
    inside = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return f'{head}\n<rect width="100%" height="100%" fill="white"/>\n{inside}\n</svg>\n'


def _grid(x_max: float, y_max: float, at: Callable[[float, float], str]) -> Iterable[str]:
    for tick in range(_TICKS + 1):
        x, y = x_max * tick / _TICKS, y_max * tick / _TICKS
        yield _line([at(0, y), at(x_max, y)], "#ddd")
        yield _text(LEFT - 6, float(at(0, y).split(",")[1]) + 4, f"{y:.3g}", "end")
        yield _text(float(at(x, 0).split(",")[0]), HEIGHT - BOTTOM + 16, f"{x:.0f}", "middle")
    yield _text((LEFT + WIDTH) / 2, HEIGHT - 8, "proxies", "middle")


def _line(points: Iterable[str], colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}"{dashed}/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333", size: int = 11) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f"<text {where}>{escape(text)}</text>"


def main() -> None:
    """Draw the results in some files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    options = parser.parse_args()
    results = [json.loads(path.read_text()) for path in options.results]
    options.folder.mkdir(parents=True, exist_ok=True)
    for plot in plots(results):
        (options.folder / f"{plot.name}.svg").write_text(drawn(plot))


if __name__ == "__main__":
    main()
