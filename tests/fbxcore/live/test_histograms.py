"""Histograms of priorities and ages."""

from __future__ import annotations

import numpy as np
import pytest

from fbxcore.live.histograms import cluster_histogram, priority_histogram


@pytest.mark.parametrize(
    "values",
    [[3e38] * 10, [1e17] * 10, [1.0] * 10, [1e30, np.nextafter(np.float32(1e30), np.float32(2e30))], [1e-45]],
)
def test_priorities_of_any_size_and_nearness_are_counted(values):
    """NumPy alone refuses bins that are narrower than the distance between two neighbouring floats."""
    weights = np.array(values, np.float32)

    counted = priority_histogram(weights, 1.0, bins=40)
    assert (counted["count"], sum(counted["counts"])) == (len(values), len(values))
    assert np.all(np.diff(counted["edges"]) > 0)
    assert (counted["min"], counted["max"]) == (weights.min(), weights.max())


@pytest.mark.parametrize(
    ("sizes", "least", "most", "mean"), [([0, 0], None, None, None), ([0, 3, 1, 0], 1, 2, 1.25)]
)
def test_clusters_that_hold_nothing_are_no_value(sizes, least, most, mean):
    """Least, greatest and mean are those of items; without any there is none of them, as of other fields."""
    counted = cluster_histogram("cluster", np.array(sizes), bins=4)
    assert (counted["min"], counted["max"], counted["mean"]) == (least, most, mean)
    assert (counted["count"], sum(counted["counts"])) == (sum(sizes), sum(sizes))
