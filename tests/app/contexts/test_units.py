"""Numbers as text: hand-made pairs."""

import math
from datetime import UTC, datetime

import pytest

from app.contexts import units


@pytest.mark.parametrize(
    ("value", "text", "unit"),
    [(0, "0", "B"), (999, "999", "B"), (1000, "1.00", "kB"), (12_345, "12.3", "kB"), (999_950, "1.00", "MB")],
)
def test_bytes_have_three_digits_and_a_unit(value, text, unit):
    """A size is rounded to three digits and changes its unit before it would need a fourth."""
    assert (units.size(value).text, units.size(value).unit) == (text, unit)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0"), (1.0, "100"), (0.9999, "99.9"), (0.00001, "0.1"), (0.5, "50.0"), (math.nan, "–")],
)
def test_percent_says_all_or_nothing_only_when_it_is(share, text):
    """What is not quite full is never shown as 100 %."""
    assert units.percent(share).text == text


def test_one_loses_the_plural():
    """1 step, 2 steps."""
    assert (units.count(1, "steps").unit, units.count(2, "steps").unit) == ("step", "steps")


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (3.14159, "3.14"), (1234.5, "1,234"), (None, "–")])
def test_rates_are_grouped_or_have_decimals(value, text):
    """A rate of thousands has no decimals, one below ten has two."""
    assert units.per_second(value, "steps").text == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (-3, "−3"),
        (2**53 + 1, "9007199254740993"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
        (0.1, "0.1"),
    ],
)
def test_values_of_arrays_are_exact_or_named(value, text):
    """Integers keep every digit, and what is no number is called so."""
    assert units.value(value) == text


def test_a_moment_knows_how_long_ago_it_was():
    """90 minutes before noon is 2 h ago by rounding, and the minute is given in UTC."""
    now = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    moment = units.moment("2026-01-01T10:20:00Z", now)

    assert (moment.ago, moment.text, moment.iso) == (
        "2 h ago",
        "2026-01-01 10:20 UTC",
        "2026-01-01T10:20:00Z",
    )
