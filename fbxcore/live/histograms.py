"""Histograms of what a buffer holds, counted exactly over all items."""

from __future__ import annotations

from typing import Any

import numpy as np

from fbxcore.buffers.layout import Layout
from fbxcore.errors import InvalidArgumentError

MAX_BINS = 512


def priority_histogram(weights: np.ndarray, exponent: float, bins: int) -> dict[str, Any]:
    """Return edges and counts of the priorities of all items that can be drawn.

    Args:
        weights: tree leaves `[I]`, priority ** exponent; 0 for what cannot be drawn.
    """
    _check_bins(bins)
    drawable = weights[weights > 0].astype(np.float64)
    priorities = drawable ** (1 / exponent) if exponent > 0 else drawable
    return _counted("priority", priorities, bins) | {"zero": int(len(weights) - len(drawable))}


def age_histogram(layout: Layout, held: int, bins: int) -> dict[str, Any]:
    """Return edges and counts of ages: how many timesteps a row was given since a step."""
    _check_bins(bins)
    ages = np.arange(held, dtype=np.float64)
    answer = _counted("age", ages, bins)
    return answer | {
        "counts": [count * layout.rows for count in answer["counts"]],
        "count": answer["count"] * layout.rows,
    }


def _counted(field: str, values: np.ndarray, bins: int) -> dict[str, Any]:
    if len(values) == 0:
        counts, edges, low, high, mean = [], [], None, None, None
    else:
        counted, cut = np.histogram(values, bins=bins, range=_range(values, bins))
        counts, edges = counted.tolist(), cut.tolist()
        low, high, mean = float(values.min()), float(values.max()), float(values.mean())
    return {
        "field": field,
        "edges": edges,
        "counts": counts,
        "count": len(values),
        "min": low,
        "max": high,
        "mean": mean,
        "exact": True,
    }


def _range(values: np.ndarray, bins: int) -> tuple[float, float]:
    """Return the outer edges, far enough apart that the edges between them differ."""
    low, high = float(values.min()), float(values.max())
    least = 4 * bins * float(np.spacing(max(abs(low), abs(high))))
    pad = max(0.5, least) if low == high else max(0.0, least - (high - low))
    return low - pad, high + pad


def _check_bins(bins: int) -> None:
    if not 1 <= bins <= MAX_BINS:
        raise InvalidArgumentError(f"`bins` must be from 1 to {MAX_BINS}, got {bins}.", loc=("query", "bins"))
