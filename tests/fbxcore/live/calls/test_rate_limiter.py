"""The limiter's arithmetic, by hand, and the configurations that would block for ever."""

import pytest

from fbxcore.buffers.layout import layout_of
from fbxcore.errors import InvalidArgumentError
from fbxcore.live.calls.rate_limiter import Limiter, LimiterConfig

LAYOUT = layout_of("flat", {"max_length": 1000, "min_length": 10, "sample_batch_size": 32})
CONFIG = {"samples_per_insert": 4.0, "min_size": 100, "error_buffer": 64.0}


def limiter(**changes):
    """Return a limiter whose balance point is 400."""
    return Limiter(LimiterConfig.parse(CONFIG | changes))


def test_nothing_is_sampled_below_the_minimum_size():
    """99 of 100 timesteps are not enough, whatever the ratio says."""
    assert not limiter().can_sample(1, inserts=99, samples=0)
    assert limiter().can_sample(1, inserts=100, samples=0)


def test_sampling_stops_at_the_lower_bound():
    """After 100 inserts 64 samples are within 400 - 64 and 65 are not."""
    assert limiter().can_sample(64, inserts=100, samples=0)
    assert not limiter().can_sample(65, inserts=100, samples=0)
    assert limiter().can_sample(65, inserts=101, samples=0)


def test_adding_stops_at_the_upper_bound():
    """Without samples 116 inserts come to 464 and one more would pass it."""
    assert limiter().can_insert(16, inserts=100, samples=0)
    assert not limiter().can_insert(17, inserts=100, samples=0)
    assert limiter().can_insert(17, inserts=100, samples=4)


def test_filling_up_to_the_minimum_is_never_blocked():
    """Below `min_size` adding always goes on."""
    assert limiter(error_buffer=33.0).can_insert(100, inserts=0, samples=0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"error_buffer": 3.0}, "error_buffer"),  # narrower than the ratio
        ({"error_buffer": 31.0}, "error_buffer"),  # narrower than one batch
        ({"min_size": 1001}, "min_size"),  # more than the buffer can hold
        ({"samples_per_insert": 0}, "samples_per_insert"),
        ({"samples_per_insert": float("nan")}, "samples_per_insert"),
        ({"min_size": 1.5}, "min_size"),
    ],
)
def test_a_limiter_that_cannot_work_is_refused(changes, named):
    """The message names the field and, for a bound, the value it must have."""
    with pytest.raises(InvalidArgumentError, match=f"`{named}` must be"):
        LimiterConfig.parse(CONFIG | changes).check(LAYOUT)
