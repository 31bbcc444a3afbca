"""Retention lets go what every limit allows, and never what is tagged or newest."""

import pytest

from fbxcore.errors import DamagedError, InvalidArgumentError
from fbxcore.vault.refs import Tag, Version
from fbxcore.vault.retention import Retention, retention_of, set_retention

# One version a day, from 1 to 10 January 2026, at noon.
VERSIONS = [Version(n, n, n, "sha256-" + "0" * 64, f"2026-01-{n:02}T12:00:00.000Z") for n in range(1, 11)]
NOW = 1768132800.0  # 11 January 2026, noon


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [
        ({}, []),
        ({"keep": 3}, [1, 2, 3, 4, 5, 6, 7]),
        ({"keep": 10}, []),
        ({"keep": 99}, []),
        ({"older_than_days": 5}, [1, 2, 3, 4, 5]),
        ({"older_than_days": 0}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"keep": 3, "older_than_days": 8}, [1, 2]),
        ({"keep": 9, "older_than_days": 2}, [1]),
    ],
)
def test_what_every_limit_allows_goes(limits, numbers):
    """Counted by hand on ten days; the newest stays even where all are old."""
    assert [v.number for v in Retention(**limits).expired(VERSIONS, {}, NOW)] == numbers


def test_what_a_tag_names_stays():
    """Protected or not."""
    tags = {"gold": Tag(1, protected=True), "seen": Tag(3)}

    assert [v.number for v in Retention(keep=6).expired(VERSIONS, tags, NOW)] == [2, 4]


@pytest.mark.parametrize(
    ("limits", "match"),
    [({"keep": 0}, "`keep` must be at least 1, got 0"), ({"older_than_days": -1}, "from 0 to 36500, got -1"),
     ({"older_than_days": float("nan")}, "got nan")],
)  # fmt: skip
def test_limits_that_are_none_are_refused(limits, match):
    """Keeping nothing, and ages that are no ages."""
    with pytest.raises(InvalidArgumentError, match=match):
        Retention(**limits)


def test_a_vault_keeps_limits_of_its_own(writer):
    """Set, changed and taken away, under a key that travels with it."""
    assert retention_of(writer) == Retention() and not retention_of(writer)
    for limits in (Retention(keep=3), Retention(older_than_days=1.5), Retention()):
        set_retention(writer, limits)

        assert retention_of(writer) == limits


def test_limits_that_cannot_be_read_are_damage(writer):
    """They are told, not taken for none."""
    writer.put({"_flashdeck/retention": b"{"})

    with pytest.raises(DamagedError, match="`_flashdeck/retention` of vault 'run/1'"):
        retention_of(writer)
