"""What a call costs by capacity, 10^4 to 10^7 timesteps: nothing but the tree's depth and memory may show.

`python -m benchmarks.capacity --quick --plot` prints a table and draws `benchmarks/capacity.svg` from it.
A time is the median of many repeats, made in turns with Flashbax as those of `benchmarks.engine` are.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import fbxcore
from benchmarks.engine import FLOAT, PEER, Case, Subject, measured
from benchmarks.report import Ratio

RECORD = {"obs": ((17,), FLOAT), "reward": ((), FLOAT)}
CAPACITIES = (10**4, 10**5, 10**6, 10**7)
PLOT = Path(__file__).with_name("capacity.svg")
COLOURS = ("#0b6e99", "#b5560b", "#2f7d32", "#8e3a8e", "#8a6d00")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 780, 400, 64, 270, 24, 48


def costs(
    quick: bool = True, seconds: float = 40.0, capacities: tuple[int, ...] = CAPACITIES
) -> dict[int, list[Ratio]]:
    """Measure each call at each capacity."""
    budget = seconds / 5 / len(capacities) if quick else 10.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {capacity: list(_costs_at(capacity, budget)) for capacity in capacities}


def _costs_at(capacity: int, budget: float) -> Iterator[Ratio]:
    import flashbax

    for kind in ("item", "prioritised_item"):
        case = Case("vectors", RECORD, kind, capacity, {128: 1.0}, {256: 1.0})
        ours, theirs = Subject(fbxcore, case), Subject(flashbax, case)
        calls = ours.adder(128), theirs.adder(128)
        yield measured(f"{kind}: add 128", PEER, *calls, None, budget)
        calls = ours.sampler(256), theirs.sampler(256)
        yield measured(f"{kind}: sample 256", PEER, *calls, None, budget)
    calls = ours.updater(), theirs.updater()
    yield measured(f"{kind}: set 256 priorities", PEER, *calls, None, budget)


def plot(rows: dict[int, list[Ratio]]) -> str:
    """Return an SVG of time by capacity, both logarithmic: ours drawn through, Flashbax's dashed."""
    times = [time for at in rows.values() for row in at for time in (row.ours_us, row.peer_us)]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    ends = math.log10(min(rows)), math.log10(max(rows))

    def x(capacity: float) -> float:
        share = (math.log10(capacity) - ends[0]) / max(ends[1] - ends[0], 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(time: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(time) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, 14, "µs a call by capacity (drawn through: fbxcore, dashed: Flashbax)")]
    for power in range(low, high + 1):
        parts += [_line([(LEFT, y(10**power)), (WIDTH - RIGHT, y(10**power))], "#ddd")]
        parts += [_text(LEFT - 8, y(10**power) + 4, f"{10**power:,}", "end")]
    parts += [_text(x(capacity), HEIGHT - BOTTOM + 20, f"{capacity:,}", "middle") for capacity in rows]
    for k, first in enumerate(next(iter(rows.values()))):
        ours = [(x(capacity), y(at[k].ours_us)) for capacity, at in rows.items()]
        theirs = [(x(capacity), y(at[k].peer_us)) for capacity, at in rows.items()]
        parts += [_line(ours, COLOURS[k], 2), _line(theirs, COLOURS[k], 1, "5 4")]
        parts += [
            _line([(WIDTH - RIGHT + 16, 40 + 20 * k), (WIDTH - RIGHT + 36, 40 + 20 * k)], COLOURS[k], 2)
        ]
        parts += [_text(WIDTH - RIGHT + 42, 44 + 20 * k, first.work)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    return "\n".join(
        [f'{head} font-size="12">', '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"]
    )


def _line(points: list[tuple[float, float]], colour: str, width: int = 1, dashes: str = "none") -> str:
    at = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    style = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes}"'
    return f'<polyline points="{at}" {style}/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="#222">{text}</text>'


def print_costs(rows: dict[int, list[Ratio]]) -> None:
    """Print a Markdown table, a column for each capacity: ours, and Flashbax's in brackets."""
    print("\n### Engine by capacity, µs a call (Flashbax)\n")
    print("| work | " + " | ".join(f"{capacity:,}" for capacity in rows) + " |")
    print("|---|" + "--:|" * len(rows))
    for calls in zip(*rows.values(), strict=True):
        print(
            f"| {calls[0].work} | " + " | ".join(f"{c.ours_us:.0f} ({c.peer_us:.0f})" for c in calls) + " |"
        )


if __name__ == "__main__":
    rows = costs(quick="--quick" in sys.argv)
    print_costs(rows)
    if "--plot" in sys.argv:
        PLOT.write_text(plot(rows))
