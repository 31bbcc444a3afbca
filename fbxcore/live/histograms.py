"""Histograms of what a buffer holds, counted exactly over all items."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from fbxcore.errors import InvalidArgumentError, NotSupportedError
from fbxcore.live.config import BufferConfig
from fbxcore.live.rings.engine import Engine
from fbxcore.live.rings.ring import Ring

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


async def histogram_of(config: BufferConfig, engine: Engine, field: str, bins: int) -> dict[str, Any]:
    """Return bin edges and counts of `priority` or `age` over all items of a buffer."""
    layout = config.layout
    if layout.num_clusters:
        return cluster_histogram(field, await engine.ask(lambda ring: ring.cluster_sizes()), bins)
    if field == "times_sampled":
        raise NotSupportedError(
            "`field` must be priority or age today, got 'times_sampled'.", loc=("query", "field")
        )
    if field == "age":
        sizes = await engine.ask(_row_sizes)
        return age_histogram(sizes, bins)
    if field != "priority" or layout.priority_exponent is None:
        fields = "age" if layout.priority_exponent is None else "priority or age"
        raise InvalidArgumentError(
            f"`field` must be {fields} for kind {config.kind!r}, got {field!r}.", loc=("query", "field")
        )
    weights = await engine.ask(lambda ring: ring.weights())
    return await asyncio.to_thread(priority_histogram, weights, layout.priority_exponent, bins)


def cluster_histogram(field: str, sizes: np.ndarray, bins: int) -> dict[str, Any]:
    """Return edges and counts of the items of clusters, whose sizes `[C]` are given."""
    if field != "cluster":
        raise InvalidArgumentError(
            f"`field` must be cluster for kind 'clustered', got {field!r:.80}.", loc=("query", "field")
        )
    _check_bins(bins)
    return _counted("cluster", np.arange(len(sizes), dtype=np.float64), bins, sizes) | {
        "count": int(sizes.sum())
    }


def _row_sizes(ring: Ring) -> np.ndarray:
    return ring.row_sizes() if ring.layout.independent else np.full(ring.layout.rows, ring.held)


def age_histogram(row_sizes: np.ndarray, bins: int) -> dict[str, Any]:
    """Return edges and counts of ages: how many timesteps a row was given since a step.

    Args:
        row_sizes: timesteps that each row holds `[B]`.
    """
    _check_bins(bins)
    ages = np.arange(row_sizes.max(), dtype=np.int64)
    rows = len(row_sizes) - np.searchsorted(np.sort(row_sizes), ages, side="right")
    return _counted("age", ages.astype(np.float64), bins, rows) | {"count": int(row_sizes.sum())}


def _counted(field: str, values: np.ndarray, bins: int, times: np.ndarray | None = None) -> dict[str, Any]:
    """Count values `[n]`, each once or so many times `[n]`."""
    held = values if times is None else values[times > 0]
    if len(held) == 0:
        counts, edges, low, high, mean = [], [], None, None, None
    else:
        counted, cut = np.histogram(values, bins=bins, range=_range(values, bins), weights=times)
        counts, edges = counted.tolist(), cut.tolist()
        low, high, mean = float(held.min()), float(held.max()), float(np.average(values, weights=times))
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
