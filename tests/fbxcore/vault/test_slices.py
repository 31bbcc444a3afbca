"""Slices, last steps and percentiles become one range."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fbxcore.errors import InvalidArgumentError
from fbxcore.vault.slices import resolve_slice

edges = st.none() | st.integers(-30, 30)


@settings(deadline=None)
@given(st.integers(0, 20), edges, edges, st.none() | st.integers(-5, 5).filter(bool))
def test_a_slice_follows_python(length, start, stop, step):
    """Start, stop and step are Python's."""
    assert (
        list(resolve_slice(length, start=start, stop=stop, step=step)) == list(range(length))[start:stop:step]
    )


def test_nothing_given_means_all():
    """Without an argument every timestep is meant."""
    assert resolve_slice(7) == range(7)


@pytest.mark.parametrize(
    ("length", "timesteps", "expected"), [(10, 3, range(7, 10)), (2, 5, range(2)), (4, 0, range(0))]
)
def test_the_last_timesteps(length, timesteps, expected):
    """`timesteps` counts from the end, and more than there are means all."""
    assert list(resolve_slice(length, timesteps=timesteps)) == list(expected)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 99), unique=True, max_size=6))
def test_percentiles_partition(length, cuts):
    """Neighbouring percentiles cover every timestep once, at any length."""
    marks = [0, *sorted(cuts), 100]
    parts = [resolve_slice(length, percentiles=pair) for pair in zip(marks, marks[1:], strict=False)]

    assert [step for part in parts for step in part] == list(range(length))


@pytest.mark.parametrize(
    ("length", "percentiles", "expected"),
    [
        (100, (0, 29), (0, 29)),  # in floats 100 * (29 / 100) is 28.999999999999996
        (5, (0, 30), (0, 1)),
        (5, (30, 60), (1, 3)),
        (5, (60, 100), (3, 5)),
        (1000, "0.1,0.3", (1, 3)),
        (1000, (0.1, 0.3), (1, 3)),
        (10, " 0 , 50 ", (0, 5)),
    ],
)
def test_percentiles_are_exact(length, percentiles, expected):
    """Percentiles are computed without rounding."""
    assert resolve_slice(length, percentiles=percentiles) == range(*expected)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"percentiles": (50, 50)}, "`percentiles` must be ascending"),
        ({"percentiles": (60, 30)}, "`percentiles` must be ascending"),
        ({"percentiles": "0,101"}, r"`percentiles` must be numbers in 0..100"),
        ({"percentiles": (-1, 50)}, r"`percentiles` must be numbers in 0..100"),
        ({"percentiles": (float("nan"), 50)}, r"`percentiles` must be numbers in 0..100"),
        ({"percentiles": "1e999999,50"}, r"`percentiles` must be numbers in 0..100"),
        ({"percentiles": "1/0,50"}, r"`percentiles` must be numbers in 0..100"),
        ({"percentiles": "50"}, "`percentiles` must be two numbers"),
        ({"percentiles": 3}, "`percentiles` must be two numbers"),
        ({"timesteps": -1}, "`timesteps` must be at least 0, got -1"),
        ({"timesteps": 1.5}, "`timesteps` must be an integer"),
        ({"start": "1"}, "`start` must be an integer"),
        ({"step": 0}, "`step` must not be 0"),
        ({"start": 1, "timesteps": 3}, "`timesteps` must not be given together with `start`"),
        ({"step": 2, "percentiles": (0, 1)}, "`percentiles` must not be given together with `start`"),
        (
            {"timesteps": 2, "percentiles": (0, 1)},
            "`percentiles` must not be given together with `timesteps`",
        ),
    ],
)
def test_other_arguments_are_refused(given, match):
    """One form, within its rule."""
    with pytest.raises(InvalidArgumentError, match=match):
        resolve_slice(10, **given)
