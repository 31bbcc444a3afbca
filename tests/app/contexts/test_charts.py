"""Geometry of the server-drawn pictures."""

import math

import pytest

from app.contexts import charts


def test_an_empty_ring_has_only_empty_cells():
    """Nothing held, nothing coloured."""
    assert charts.tape(0, 100, 0) == "0" * charts.CELLS


def test_a_ring_that_fills_is_darkest_at_its_head():
    """Half full: 32 cells from pale to dark, then 32 empty ones."""
    digits = charts.tape(50, 100, 50)

    assert digits[32:] == "0" * 32
    assert list(digits[:32]) == sorted(digits[:32])
    assert (digits[0], digits[31]) == ("1", "8")


def test_a_ring_that_wrapped_is_palest_behind_its_head():
    """Full, head at a quarter: dark before it, pale after it, no cell empty."""
    digits = charts.tape(125, 100, 100)

    assert (digits[15], digits[16]) == ("8", "1")
    assert "0" not in digits


def test_a_single_step_in_a_long_ring_is_seen():
    """One step of a million colours a cell."""
    assert charts.tape(1, 1_000_000, 1).count("0") == charts.CELLS - 1


def test_bars_are_as_high_as_their_counts():
    """Half the count is half as high, a single item does not vanish, an empty bin is left out."""
    drawn = charts.histogram([0, 1, 2, 3, 4], [1000, 500, 0, 1], (0.5, 3.5), "items")
    heights = [bar.height for bar in drawn.bars]

    assert heights[1] == pytest.approx(heights[0] / 2)
    assert len(heights) == 3 and heights[2] >= 1
    assert drawn.count == 1501


def test_nothing_counted_is_no_picture():
    """No items, no axis of nothing."""
    assert charts.histogram([], [], None, "items") is None


def test_the_summary_tells_of_values_not_of_edges():
    """Two items of priority 1 are not from 0.5 to 1.5."""
    drawn = charts.histogram([0.5, 1.5], [2], (1.0, 1.0), "items")

    assert drawn.summary == "2 items from 1 to 1, at most 2 in one of 1 bins"


def test_a_line_lifts_the_pen_at_what_is_not_a_number():
    """NaN, infinity and None leave gaps: two strokes, not a crash and not a zero."""
    drawn = charts.line([1, 2, math.nan, None, math.inf, 3, 4], width=60, height=20)

    assert drawn.path.count("M") == 2
    assert "nan" not in drawn.path and "inf" not in drawn.path
    assert drawn.top == 4
