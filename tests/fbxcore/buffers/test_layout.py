"""What arguments come to, and how wrong ones are refused by the name that was typed."""

import subprocess
import sys

import pytest

from fbxcore.buffers.layout import ARGUMENTS, bucket_of, layout_of
from fbxcore.errors import InvalidArgumentError, NotSupportedError

FLAT = {"max_length": 10, "min_length": 1, "sample_batch_size": 4, "add_batch_size": 3}
TRAJECTORY = {
    "add_batch_size": 2,
    "sample_batch_size": 4,
    "sample_sequence_length": 5,
    "period": 5,
    "min_length_time_axis": 5,
    "max_length_time_axis": 13,
}


def test_ten_timesteps_over_three_rows_are_nine_and_a_warning_says_so():
    """`max_length` 10 over 3 rows is 3 timesteps each, 9 in all, 1 cut (FB-06)."""
    layout = layout_of("flat", FLAT)
    assert (layout.rows, layout.time_axis, layout.capacity) == (3, 3, 9)
    assert "`max_length` 10 over 3 rows leaves 3 timesteps each, 9 in all: 1 cut." in layout.warnings


def test_a_period_trims_the_time_axis_of_prioritised_kinds_only():
    """A time axis of 13 with period 5 becomes 10 with priorities and stays 13 without (FB-06)."""
    trimmed = layout_of("prioritised_trajectory", TRAJECTORY)
    assert (trimmed.time_axis, trimmed.items_per_row, trimmed.num_items) == (10, 2, 4)
    assert any("cut to 10" in text and "6 timesteps less" in text for text in trimmed.warnings)
    assert layout_of("trajectory", TRAJECTORY).time_axis == 13


def test_a_time_axis_trimmed_below_the_sequence_length_is_refused():
    """Trimming 13 to 10 leaves no room for sequences of 12: refused by the field that was typed (FB-06)."""
    given = {**TRAJECTORY, "sample_sequence_length": 12, "min_length_time_axis": 12}
    with pytest.raises(
        InvalidArgumentError, match=r"`sample_sequence_length` must be at most .*\(10"
    ) as caught:
        layout_of("prioritised_trajectory", given)
    assert caught.value.loc == ("sample_sequence_length",)


def test_min_length_is_named_where_it_is_too_great():
    """`max_length` 10, `min_length` 8, 4 rows: refused with `min_length`, not a derived name (FB-07)."""
    with pytest.raises(InvalidArgumentError, match=r"`min_length` must be below 8") as caught:
        layout_of("flat", {**FLAT, "min_length": 8, "add_batch_size": 4})
    assert caught.value.loc == ("min_length",)


@pytest.mark.parametrize(
    ("kind", "changes", "loc"),
    [
        ("flat", {"max_length": 0}, "max_length"),
        ("flat", {"max_length": 5}, "max_length"),
        ("flat", {"max_length": 2.5}, "max_length"),
        ("flat", {"max_length": True}, "max_length"),
        ("flat", {"min_length": -1}, "min_length"),
        ("flat", {"sample_batch_size": 11}, "sample_batch_size"),
        ("flat", {"add_batch_size": 0}, "add_batch_size"),
        ("flat", {"add_sequences": "yes"}, "add_sequences"),
        ("flat", {"priority_exponent": 0.6}, "priority_exponent"),
        ("flat", {"period": 1}, "period"),
        ("prioritised_flat", {"priority_exponent": 1.1}, "priority_exponent"),
        ("prioritised_flat", {"priority_exponent": float("nan")}, "priority_exponent"),
        ("prioritised_flat", {"priority_exponent": "0.6"}, "priority_exponent"),
    ],
)
def test_a_wrong_argument_is_named(kind, changes, loc):
    """Each wrong argument is the one in `loc` and in the message."""
    with pytest.raises(InvalidArgumentError, match=f"`{loc}` must") as caught:
        layout_of(kind, {**FLAT, **changes})
    assert caught.value.loc == (loc,)


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"max_size": 20}, "max_size"),
        ({"max_length_time_axis": None}, "max_length_time_axis"),
        ({"max_length_time_axis": None, "max_size": 1}, "max_size"),
        ({"sample_sequence_length": 14}, "sample_sequence_length"),
        ({"min_length_time_axis": 14}, "min_length_time_axis"),
        ({"period": 0}, "period"),
    ],
)
def test_a_wrong_argument_of_a_trajectory_is_named(changes, loc):
    """Each wrong argument of a trajectory buffer is the one in `loc` and in the message."""
    with pytest.raises(InvalidArgumentError, match=f"`{loc}` must") as caught:
        layout_of("trajectory", {**TRAJECTORY, **changes})
    assert caught.value.loc == (loc,)


def test_a_missing_argument_is_named():
    """Each required argument of each kind is named where it is missing."""
    for kind, accepted in ARGUMENTS.items():
        with pytest.raises(InvalidArgumentError, match=f"`{next(iter(accepted))}` must be given"):
            layout_of(kind, {})


def test_a_queue_hands_out_sequences_of_every_row():
    """A size of 30 over 4 rows is 7 slots each; a batch is one sequence of each row."""
    given = {"add_batch_size": 4, "add_sequence_length": 3, "sample_sequence_length": 5, "max_size": 30}
    layout = layout_of("trajectory_queue", given)
    assert (layout.time_axis, layout.min_time_axis, layout.sample_batch_size) == (7, 5, 4)
    assert layout.is_queue and not layout_of("trajectory", TRAJECTORY).is_queue
    with pytest.raises(InvalidArgumentError, match="`sample_sequence_length` must be at most the time axis"):
        layout_of("trajectory_queue", given | {"sample_sequence_length": 8})


def test_raised_lengths_are_said():
    """A minimum below a sequence, and a period above it, come with a warning each."""
    layout = layout_of("trajectory", {**TRAJECTORY, "min_length_time_axis": 2, "period": 7})
    assert layout.min_time_axis == 5
    assert [text.split("`")[1] for text in layout.warnings] == ["min_length_time_axis", "period"]


@pytest.mark.parametrize(
    ("given", "independent", "said"),
    [
        ({"min_length": 0, "add_batch_size": None}, False, ["`min_length` 0 is raised to 2: a transition"]),
        ({"min_length": 1, "add_batch_size": None}, False, []),
        ({"min_length": 2}, False, ["`min_length` 2 is raised to 6, two timesteps in each of 3 rows"]),
        ({"min_length": 3}, False, []),
        ({"min_length": 2}, True, []),
        ({"min_length": 1}, True, ["`min_length` 1 is raised to 2: a transition"]),
    ],
)
def test_a_raised_minimum_is_said_only_where_it_is_raised(given, independent, said):
    """Each row of three needs two timesteps; independent rows need two between them."""
    layout = layout_of("flat", {**FLAT, "max_length": 9, **given}, independent=independent)
    assert [text[: len(start)] for text, start in zip(layout.warnings, said, strict=True)] == said


@pytest.mark.parametrize("rows", [1, 2])
def test_a_size_of_one_row_says_nothing_that_was_not_typed(rows):
    """`max_size` of one row is its time axis; over two rows a warning says what it comes to."""
    given = {**TRAJECTORY, "max_length_time_axis": None, "max_size": 20, "add_batch_size": rows}
    assert [text[:30] for text in layout_of("trajectory", given).warnings] == (
        [] if rows == 1 else ["`max_size` 20 sets the time axi"[:30]]
    )


def test_the_advice_about_a_period_is_one_that_can_be_taken():
    """Sequences of one timestep have no first and last to share."""
    given = {**TRAJECTORY, "sample_sequence_length": 1, "period": 2}
    assert layout_of("trajectory", given).warnings[0].endswith("Use 1 to sample each once.")


QUEUE = {"add_batch_size": 2, "add_sequence_length": 3, "sample_sequence_length": 5, "max_size": 30}
CLUSTERED = {
    "max_length": 9, "min_length": 1, "sample_batch_size": 4, "num_clusters": 3, "cluster_leaf": "kind",
}  # fmt: skip
ITEM = {"max_length": 9, "min_length": 1, "sample_batch_size": 4}
EVERY = {
    "flat": FLAT, "prioritised_flat": FLAT, "item": ITEM, "trajectory": TRAJECTORY,
    "prioritised_trajectory": TRAJECTORY, "trajectory_queue": QUEUE, "clustered": CLUSTERED,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "given", "name"),
    [(kind, given, name) for kind, given in EVERY.items() for name in given if name != "cluster_leaf"],
)
@pytest.mark.parametrize("size", [2**31, 2**63, 10**30])
def test_a_size_beyond_32_bits_is_named_itself(kind, given, name, size):
    """Slots and items are counted in 32 bits: whichever argument has more is the one to change."""
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must be at most {2**31 - 1}, got") as caught:
        layout_of(kind, {**given, name: size})
    assert (caught.value.loc, caught.value.code) == ((name,), "limit_exceeded")


def test_more_timesteps_over_all_rows_than_can_be_counted_are_refused():
    """Two rows of 2^30 are one too many, by the argument that sets the length; one less of each are not."""
    given = {**TRAJECTORY, "period": 1}
    assert layout_of("trajectory", {**given, "max_length_time_axis": 2**30 - 1}).capacity == 2**31 - 2
    with pytest.raises(InvalidArgumentError, match=f"at most {2**31 - 1} timesteps over all rows") as caught:
        layout_of("trajectory", {**given, "max_length_time_axis": 2**30})
    assert caught.value.loc == ("max_length_time_axis",)


@pytest.mark.parametrize(
    ("kind", "given", "loc"),
    [("prioritised_trajectory", {**TRAJECTORY, "period": 14}, "period"),
     ("clustered", {**CLUSTERED, "num_clusters": 10}, "num_clusters")],
)  # fmt: skip
def test_what_leaves_no_room_is_named_and_not_what_has_none(kind, given, loc):
    """A period beyond the time axis and more clusters than items are at fault, not the lengths."""
    with pytest.raises(InvalidArgumentError, match=f"`{loc}` must be at most") as caught:
        layout_of(kind, given)
    assert caught.value.loc == (loc,)


def test_kinds_of_other_issues_are_known_but_not_served():
    """A mixer is `not_supported`; a bag is no kind at all."""
    with pytest.raises(NotSupportedError):
        layout_of("mixer", {})
    with pytest.raises(InvalidArgumentError, match="`kind` must be one of") as caught:
        layout_of("bag", {})
    assert not isinstance(caught.value, NotSupportedError)


def test_equal_arguments_give_equal_layouts():
    """Two layouts of equal arguments are equal and hash alike, so that they share compiled functions."""
    assert layout_of("flat", FLAT) == layout_of("flat", dict(FLAT))
    assert hash(layout_of("flat", FLAT)) == hash(layout_of("flat", dict(FLAT)))


def test_buckets_are_powers_of_two():
    """1, 2, 3, 100 and 128 go into buckets of 1, 2, 4, 128 and 128."""
    assert [bucket_of(n) for n in (1, 2, 3, 100, 128)] == [1, 2, 4, 128, 128]


def test_a_layout_needs_no_jax():
    """A fresh interpreter that imports layouts has not loaded JAX."""
    code = "import sys, fbxcore.buffers.layout; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
