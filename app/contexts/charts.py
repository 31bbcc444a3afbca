"""Geometry of the server-drawn pictures: the tape of a ring, histogram bars, lines. No markup here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.contexts import units

CELLS = 64  # of a tape
LEVELS = 8  # of age: 8 newest, 1 oldest, 0 empty


def tape(position: int, time_axis: int, filled: int) -> str:
    """The ring as one digit per cell: 0 empty, 8 just written, 1 about to be overwritten.

    Args:
        position: the next slot to write, or any number of steps that is it modulo `time_axis`.
        filled: slots of a row that hold data.
    """
    if time_axis <= 0 or filled <= 0:
        return "0" * CELLS
    head = position % time_axis
    return "".join(_level((cell + 0.5) / CELLS * time_axis, head, time_axis, filled) for cell in range(CELLS))


def _level(slot: float, head: int, time_axis: int, filled: int) -> str:
    age = (head - slot) % time_axis
    if age >= max(filled, time_axis / CELLS):
        return "0"
    return str(max(1, LEVELS - int(age / max(filled, 1) * LEVELS)))


def head_cell(position: int, time_axis: int) -> int:
    """The cell under the write head."""
    return int(position % time_axis / time_axis * CELLS) if time_axis > 0 else 0


@dataclass(frozen=True)
class TapeCell:
    """One cell of a tape."""

    x: int
    level: str
    is_head: bool


@dataclass(frozen=True)
class Tape:
    """A ring laid flat, newest cells darkest, with the write head on it."""

    cells: list[TapeCell]
    digits: str
    head: int
    label: str


def draw_tape(position: int, time_axis: int, filled: int, label: str) -> Tape:
    """The tape of a buffer's rows."""
    digits, head = tape(position, time_axis, filled), head_cell(position, time_axis)
    cells = [TapeCell(10 * i, level, i == head) for i, level in enumerate(digits)]
    return Tape(cells, digits, head, label)


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram, in the picture's units."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Histogram:
    """A histogram as bars and marks in a box of `width` by `height`."""

    bars: list[Bar]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    count: int
    summary: str
    width: int = 560
    height: int = 180


def histogram(
    edges: Sequence[float], counts: Sequence[int], extent: tuple[float, float] | None, what: str
) -> Histogram | None:
    """Bars for counts between edges; None when nothing was counted.

    Args:
        extent: the lowest and the highest value; edges lie outside where all values are equal.
    """
    total = int(sum(counts))
    finite = [e for e in edges if e is not None and math.isfinite(e)]
    if not total or len(finite) < 2 or extent is None:
        return None
    top, wide, high = max(counts), 560, 180
    step = wide / len(counts)
    bars = [
        Bar(
            round(i * step + 0.75, 2),
            round(high - _bar_height(n, top, high), 2),
            round(max(step - 1.5, 0.5), 2),
            round(_bar_height(n, top, high), 2),
            f"{_edge(edges[i])} to {_edge(edges[i + 1])}: {units.grouped(n)}",
        )
        for i, n in enumerate(counts)
        if n
    ]
    low, high_edge = finite[0], finite[-1]
    x_ticks = [Tick(round(share * wide, 2), _edge(low + share * (high_edge - low))) for share in (0, 0.5, 1)]
    y_ticks = [Tick(0.0, units.grouped(top))]
    summary = (
        f"{units.grouped(total)} {what} from {_edge(extent[0])} to {_edge(extent[1])}, "
        f"at most {units.grouped(top)} in one of {len(counts)} bins"
    )
    return Histogram(bars, x_ticks, y_ticks, total, summary)


def _edge(value: float) -> str:
    return units.grouped(value) if 1000 <= abs(value) < 1e9 else units.value(value, digits=4)


def _bar_height(n: int, top: int, high: int) -> float:
    return max(1.5, n / top * (high - 8)) if n else 0.0  # a bin with one item must not vanish


@dataclass(frozen=True)
class Line:
    """A line as SVG path data; gaps (NaN, None) lift the pen."""

    path: str
    area: str
    width: int
    height: int
    top: float
    label: str


def line(
    values: Sequence[float | None], *, width: int = 120, height: int = 28, label: str = "", top: float = 0.0
) -> Line:
    """A line through values at equal distances, scaled from 0 to the highest of them."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    peak = max([*known, top, 0.0])
    runs = _runs(values, width, height, peak)
    path = " ".join("M" + " L".join(f"{x:g} {y:g}" for x, y in run) for run in runs)
    area = " ".join(_closed(run, height) for run in runs)
    return Line(path, area, width, height, peak, label)


def _closed(run: list[tuple[float, float]], height: int) -> str:
    points = " L".join(f"{x:g} {y:g}" for x, y in run)
    return f"M{run[0][0]:g} {height} L{points} L{run[-1][0]:g} {height} Z"


def _runs(
    values: Sequence[float | None], width: int, height: int, peak: float
) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    step = width / max(len(values) - 1, 1)
    for i, v in enumerate(values):
        if v is None or not math.isfinite(v):
            runs.append([])
            continue
        y = height - 1.5 - (v / peak * (height - 3) if peak else 0)
        runs[-1].append((round(i * step, 1), round(y, 1)))
    return [run for run in runs if len(run) > 1]


@dataclass(frozen=True)
class Series:
    """One line of a time chart, for the script and, as `line`, without it."""

    name: str
    label: str
    unit: str
    line: Line


@dataclass(frozen=True)
class TimeChart:
    """Lines over one time axis: numbers for the script, a drawing for pages without it."""

    data: str  # JSON: [[seconds], [values], …], null where there is no measurement
    series: list[Series]
    peak: str
    since: str
    is_empty: bool
    options: dict[str, str] = field(default_factory=dict)
