"""Charts get evenly spaced points and rates that are counted, not guessed."""

import pytest

from fbxcore.errors import InvalidArgumentError
from fbxcore.live.timeseries import Timeseries


@pytest.fixture
def series():
    """Ten seconds of a counter that grows by 3 a second."""
    made = Timeseries(("size", "added"))
    for second in range(11):
        made.note(1000.0 + second, size=second, added=3 * second)
    return made


def test_a_rate_is_the_growth_a_second(series):
    """3 a second, over the last five."""
    assert series.rate("added") == pytest.approx(3.0)
    assert Timeseries(("added",)).rate("added") == 0.0


def test_all_points_come_back_when_they_fit(series):
    """Nothing is dropped, and the answer says so."""
    read = series.read("added", 100)

    assert (read["times"][0], read["values"], read["exact"]) == (1000.0, [3 * s for s in range(11)], True)


def test_fewer_points_span_the_whole_time(series):
    """Three of eleven points: the first, the middle, the last."""
    read = series.read("size", 3)

    assert (read["values"], read["exact"]) == ([0, 5, 10], False)


def test_a_rate_metric_divides_by_the_time_between_points(series):
    """Between any two points the growth is 3 a second."""
    assert series.read("added_per_s", 4)["values"] == pytest.approx([3.0] * 4)


@pytest.mark.parametrize(("metric", "points"), [("loss", 5), ("size", 0), ("size_per_s", 5)])
def test_an_unknown_metric_or_count_is_refused(series, metric, points):
    """The message names the parameter."""
    with pytest.raises(InvalidArgumentError, match="`(metric|points)` must be"):
        series.read(metric, points)
