"""How a figure is reported: the ratio to a peer measured in the same run, and the target it has."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Ratio:
    """One line of a table; above 1 means ahead of the peer."""

    work: str
    peer: str
    ours_us: float
    peer_us: float
    ratio: float  # the median over repeats of peer time / our time
    low: float
    high: float
    target: float | None = None


def interleaved(
    work: str,
    peer: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    calls: int,
    repeats: int = 9,
    target: float | None = None,
) -> Ratio:
    """Time two calls in turns, so that whatever else the machine does meets both."""
    times = []
    for call in (ours, theirs):
        call()
    for repeat in range(repeats):
        order = (ours, theirs) if repeat % 2 == 0 else (theirs, ours)
        taken = {call: _time(call, calls) for call in order}
        times.append((taken[ours], taken[theirs]))
    ratios = sorted(b / a for a, b in times)
    return Ratio(
        work,
        peer,
        statistics.median(a for a, _ in times) * 1e6,
        statistics.median(b for _, b in times) * 1e6,
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        target,
    )


def print_table(title: str, rows: Sequence[Ratio]) -> None:
    """Print a Markdown table."""
    print(f"\n### {title}\n")
    print("| work | peer | ours, µs | peer, µs | ratio [min–max] | target |")
    print("|---|---|--:|--:|--:|--:|")
    for row in rows:
        target = f"≥ {row.target:g}" if row.target is not None else ""
        print(
            f"| {row.work} | {row.peer} | {row.ours_us:.0f} | {row.peer_us:.0f} "
            f"| **{row.ratio:.2f}** [{row.low:.2f}–{row.high:.2f}] | {target} |"
        )


def _time(call: Callable[[], object], calls: int) -> float:
    start = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - start) / calls
