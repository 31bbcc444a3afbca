"""Histograms of priorities and ages."""

from __future__ import annotations

import numpy as np
import pytest

from fbxcore.live.histograms import priority_histogram


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
