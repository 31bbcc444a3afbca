"""The last hour of a few counters, a point a second, for charts."""

from __future__ import annotations

from collections import deque
from typing import Any

from fbxcore.errors import InvalidArgumentError

KEEP = 3600
MAX_POINTS = 3600
_RATE_SECONDS = 5.0


class Timeseries:
    """Points of several counters, noted together; kept in memory only."""

    def __init__(self, metrics: tuple[str, ...]):
        self.metrics = metrics
        self._times: deque[float] = deque(maxlen=KEEP)
        self._values = {name: deque[int](maxlen=KEEP) for name in metrics}

    def note(self, at: float, **values: int) -> None:
        """Take a point of every counter."""
        self._times.append(at)
        for name in self.metrics:
            self._values[name].append(values[name])

    def rate(self, metric: str) -> float:
        """Return how much a counter grew a second, over the last seconds."""
        if len(self._times) < 2:
            return 0.0
        back = 2
        while back < len(self._times) and self._times[-1] - self._times[-back] < _RATE_SECONDS:
            back += 1
        grown = self._values[metric][-1] - self._values[metric][-back]
        return grown / max(self._times[-1] - self._times[-back], 1e-9)

    def read(self, metric: str, points: int) -> dict[str, Any]:
        """Return at most `points` evenly spaced times (Unix seconds) and values, oldest first.

        A metric ending in `_per_s` is the growth of its counter between neighbouring points.
        """
        known = [*self.metrics, *(f"{name}_per_s" for name in self.metrics if name != "size")]
        if metric not in known:
            raise InvalidArgumentError(
                f"`metric` must be one of {', '.join(known)}, got {metric!r}.", loc=("query", "metric")
            )
        if not 1 <= points <= MAX_POINTS:
            raise InvalidArgumentError(
                f"`points` must be from 1 to {MAX_POINTS}, got {points}.", loc=("query", "points")
            )
        values = list(self._values[metric.removesuffix("_per_s")])
        times = list(self._times)
        chosen = _evenly(len(times), points + metric.endswith("_per_s"))
        times, values = [times[i] for i in chosen], [values[i] for i in chosen]
        if metric.endswith("_per_s"):
            grown = zip(times, values, times[1:], values[1:], strict=False)
            times, values = times[1:], [(v1 - v0) / max(t1 - t0, 1e-9) for t0, v0, t1, v1 in grown]
        return {"metric": metric, "times": times, "values": values, "exact": len(chosen) == len(self._times)}


def _evenly(count: int, points: int) -> list[int]:
    """Return at most `points` indices below `count`, the last one among them."""
    if count <= points:
        return list(range(count))
    return [count - 1 - round(i * (count - 1) / max(points - 1, 1)) for i in range(points)][::-1]
