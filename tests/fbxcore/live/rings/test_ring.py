"""The ring compiles for a handful of sizes, whatever lengths are asked for."""

import numpy as np
import pytest

from fbxcore.buffers import core
from fbxcore.buffers.layout import layout_of
from fbxcore.errors import NotEnoughDataError
from fbxcore.live.rings import draws
from fbxcore.live.rings.ring import Ring
from fbxcore.spec import parse_spec

SPEC = parse_spec({"step": {"shape": [], "dtype": "int32"}})
SIZES = {"max_length": 300, "min_length": 1, "sample_batch_size": 8}


def filled(count, kind="flat", **sizes):
    """Return a one-row ring that was given that many numbered steps."""
    ring = Ring(layout_of(kind, SIZES | sizes), SPEC)
    ring.add([{"step": np.arange(count, dtype=np.int32)[None]}])
    return ring


def test_any_length_and_batch_size_compiles_a_bounded_number_of_times():
    """Adds of 1 to 200 steps and samples of 1 to 200 items need a power of two each, no more."""
    ring = filled(300)
    before = core._add_rows._cache_size(), draws._draw._cache_size()
    order = np.random.default_rng(0).permutation(np.arange(1, 201))
    for size in order:
        ring.add([{"step": np.zeros((1, size), np.int32)}])
        ring.sample(int(size), seed=1)
    after = core._add_rows._cache_size(), draws._draw._cache_size()

    assert after[0] - before[0] <= 9 and after[1] - before[1] <= 9


def test_warming_up_leaves_nothing_to_compile_for_adds_and_default_samples():
    """After it, no add length compiles anything, nor does a sample of the default size."""
    ring = filled(300, "prioritised_flat", max_length=299)
    for warm_up in ring.warm_ups():
        warm_up(ring)
    before = core._add_rows._cache_size(), draws._draw._cache_size()
    for size in (1, 3, 17, 100, 200, 299, 1000):
        ring.add([{"step": np.zeros((1, size), np.int32)}])
    ring.sample(8, seed=1)

    assert (core._add_rows._cache_size(), draws._draw._cache_size()) == before


@pytest.mark.parametrize("lengths", [[300], [1] * 40, [299, 2], [700], [13, 64, 150, 9, 5, 128]])
def test_blocks_of_any_length_land_in_order(lengths):
    """Joined, cut at the bucket limit, longer than the ring: the newest steps are held, consecutive."""
    ring = Ring(layout_of("flat", SIZES), SPEC)
    at = 0
    for length in lengths:
        ring.add([{"step": np.arange(at, at + length, dtype=np.int32)[None]}])
        at += length
    drawn, _ = ring.sample(1000, seed=2)

    first, second = drawn["experience/first/step"], drawn["experience/second/step"]
    assert (second - first == 1).all() and first.min() >= at - 300 and second.max() < at


def test_a_sample_is_a_copy():
    """Adding over what was sampled does not change it."""
    ring = filled(300)
    drawn = ring.sample(100, seed=3)[0]["experience/first/step"]
    kept = drawn.copy()
    ring.add([{"step": np.full((1, 300), -1, np.int32)}])

    assert (drawn == kept).all()


def test_an_empty_ring_cannot_be_sampled():
    """One step is no transition."""
    with pytest.raises(NotEnoughDataError, match=r"must hold 2 timesteps a row to be sampled, got 1\."):
        filled(1).sample(1, seed=0)


def test_adding_after_sampling_writes_in_place():
    """No view of what was sampled from is left that would make an add copy the whole ring."""
    ring = filled(300)
    before = ring.state.experience["step"].unsafe_buffer_pointer()
    for _ in range(3):
        ring.sample(16, seed=1)
        ring.add([{"step": np.zeros((1, 4), np.int32)}])

    assert ring.state.experience["step"].unsafe_buffer_pointer() == before


def test_batches_drawn_ahead_are_what_their_seeds_draw():
    """Each unseeded batch comes with a seed that draws it again, also after many."""
    for kind in ("flat", "prioritised_flat"):
        ring = filled(300, kind)
        for _ in range(20):
            arrays, seed = ring.sample(16)
            again, _ = ring.sample(16, seed)
            assert all((arrays[name] == again[name]).all() for name in arrays)


def test_a_change_throws_away_what_was_drawn_ahead():
    """After an add, the very next batch may hold the new steps and none that are gone."""
    ring = filled(300)
    for _ in range(3):
        ring.sample(64)
    ring.add([{"step": np.arange(300, 500, dtype=np.int32)[None]}])

    assert ring.sample(64)[0]["experience/first/step"].min() >= 200


def test_warming_up_changes_nothing():
    """Counters and what a seed draws are as before."""
    ring = filled(250, "prioritised_flat")
    before, (drawn, _) = ring.counters, ring.sample(32, seed=5)
    for warm_up in ring.warm_ups():
        warm_up(ring)
    again, _ = ring.sample(32, seed=5)

    assert ring.counters == before
    assert all((drawn[name] == again[name]).all() for name in drawn)
