"""The core against a slow reference: rows that advance on their own, padded batches, every wrap."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fbxcore.buffers.core import make_core, unpack
from fbxcore.buffers.layout import layout_of
from fbxcore.types import LeafSpec

BUCKET = 8
SPEC = {"big": LeafSpec((2,), "float64"), "x": LeafSpec((), "int32"), "y": LeafSpec((3,), "uint8")}


def trajectory(kind: str, length: int, period: int, time_axis: int) -> tuple:
    """Return kind and arguments of two rows."""
    return kind, {
        "add_batch_size": 2,
        "sample_batch_size": 16,
        "sample_sequence_length": length,
        "period": period,
        "min_length_time_axis": length,
        "max_length_time_axis": time_axis,
    }


GRID = [
    trajectory("trajectory", 3, 2, 10),
    trajectory("prioritised_trajectory", 3, 2, 10),
    trajectory("prioritised_trajectory", 3, 1, 7),
    trajectory("prioritised_trajectory", 1, 1, 5),  # a bucket longer than the time axis
    ("prioritised_flat", {"max_length": 22, "min_length": 4, "sample_batch_size": 4, "add_batch_size": 2}),
    ("item", {"max_length": 9, "min_length": 1, "sample_batch_size": 4}),
]


@functools.cache
def core_of(number: int):
    """Return the core of a row of the grid."""
    return make_core(layout_of(*GRID[number]))


class Reference:
    """All timesteps ever added, in lists; whatever is asked is looked up in them."""

    def __init__(self, layout):
        self.layout = layout
        self.rows = [[] for _ in range(layout.rows)]

    def batch(self, lengths):
        """Append so many timesteps to each row and return them padded, with rubbish behind them."""
        x = np.full((self.layout.rows, BUCKET), -7, np.int32)
        for row, length in enumerate(lengths):
            x[row, :length] = 1000 * row + len(self.rows[row]) + np.arange(length)
            self.rows[row] += x[row, :length].tolist()
        return {
            "big": np.stack([x, x + 0.25], -1).astype(np.float64),
            "x": x,
            "y": np.repeat(x[..., None] % 251, 3, -1).astype(np.uint8),
        }

    def ring(self, row):
        """Return the slots that must hold something, and what."""
        end = len(self.rows[row])
        steps = range(max(0, end - self.layout.time_axis), end)
        return {step % self.layout.time_axis: self.rows[row][step] for step in steps}

    def weights(self):
        """Return 1 for every item that is whole, 0 for the others."""
        layout = self.layout
        weights = np.zeros(layout.num_items, np.float32)
        for row, held in enumerate(self.rows):
            for start in range(max(0, len(held) - layout.time_axis), len(held) - layout.sequence_length + 1):
                if start % layout.stride == 0:
                    item = start % layout.time_axis // layout.stride
                    weights[row * layout.items_per_row + item] = 1
        return weights


def check(core, state, reference, seed):
    """Compare a state and a draw from it with the reference."""
    layout = core.layout
    for row in range(layout.rows):
        held = len(reference.rows[row])
        assert state.write_index[row] == held % layout.time_axis
        assert state.size[row] == min(held, layout.time_axis)
        assert state.laps[row] == held // layout.time_axis
        stored = unpack({name: leaf[row] for name, leaf in state.experience.items()}, SPEC)
        for slot, value in reference.ring(row).items():
            assert stored["x"][slot] == value and (stored["y"][slot] == value % 251).all()
            assert stored["big"][slot].tolist() == [value, value + 0.25]
    np.testing.assert_array_equal(core.weights(state), reference.weights())
    if bool(core.can_sample(state)):
        drawn = core.sample(state, jax.random.key(seed), 6)
        x = np.asarray(drawn.experience["x"])[:6]
        assert (np.diff(x, axis=1) == 1).all()
        np.testing.assert_array_equal(x[:, 0] % 1000, core.generations(drawn.indices, drawn.laps)[:6])
        assert core.is_live(state, drawn.indices).all() and (drawn.probabilities > 0).all()


@pytest.mark.parametrize("number", range(len(GRID)))
def test_rows_of_their_own_lengths_give_what_the_reference_holds(number):
    """After each of 40 padded adds, rings, counters, weights and draws are those of the reference."""

    @settings(max_examples=4, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def run(data):
        core = core_of(number)
        reference = Reference(core.layout)
        state = core.init(SPEC)
        most = min(BUCKET, core.layout.time_axis)
        for turn in range(20):
            lengths = data.draw(
                st.lists(st.integers(0, most), min_size=core.layout.rows, max_size=core.layout.rows)
            )
            if data.draw(st.booleans()):
                lengths = [lengths[0]] * core.layout.rows
            state = core.add_rows(state, reference.batch(lengths), lengths)
            check(core, state, reference, turn)

    run()


def test_a_restored_state_goes_on_as_if_it_had_never_stopped():
    """Exported and imported half way, a core gives the same states, draws and laps as one that went on."""
    core = core_of(1)
    reference = Reference(core.layout)
    state = core.init(SPEC)
    for lengths in ([5, 8], [7, 3], [8, 8]):
        state = core.add_rows(state, reference.batch(lengths), lengths)
    state = core.set_priorities(state, np.arange(6), np.arange(1.0, 7.0), np.ones(6, bool))
    held = unpack(jax.tree.map(np.array, state.experience), SPEC)
    again = core.import_state(held, core.export_state(state))
    for lengths in ([1, 0], [3, 8], [8, 2]):
        batch = reference.batch(lengths)
        state, again = core.add_rows(state, batch, lengths), core.add_rows(again, batch, lengths)
        ours, theirs = (core.sample(s, jax.random.key(1), 5) for s in (state, again))

        for a, b in zip(jax.tree.leaves((state, ours)), jax.tree.leaves((again, theirs)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_priorities_of_dead_items_and_those_not_kept_are_left_out():
    """Of four updates the dead item, the one not kept and the NaN change nothing, the fourth applies."""
    core = core_of(2)
    reference = Reference(core.layout)
    state = core.add_rows(core.init(SPEC), reference.batch([7, 8 - 1]), [7, 7])
    before = np.asarray(core.weights(state))
    dead = int(np.flatnonzero(before == 0)[0])
    indices, priorities = np.array([dead, 0, 1, 2]), np.array([9.0, 9.0, np.nan, 9.0])
    state = core.set_priorities(state, indices, priorities, np.array([True, False, True, True]))

    changed = np.asarray(core.weights(state)) != before
    assert np.flatnonzero(changed).tolist() == [2]
    np.testing.assert_allclose(core.weights(state)[2], 9**0.6, rtol=1e-6)


def test_strata_use_the_true_count_in_a_padded_bucket():
    """100 draws in a bucket of 128 fit the priorities: chi-square below 27.9 (9 degrees, p = 0.001)."""
    layout = layout_of("prioritised_item", {"max_length": 10, "min_length": 1, "sample_batch_size": 4})
    core = make_core(layout)
    state = core.add_rows(core.init({"x": np.zeros((), np.int32)}), {"x": np.zeros((1, 16), np.int32)}, [10])
    priorities = np.arange(1, 11, dtype=np.float32)
    state = core.set_priorities(state, np.arange(10), priorities, np.ones(10, bool))
    draws = [core.sample_indices(state, jax.random.key(seed), 100)[0] for seed in range(100)]
    counts = np.bincount(np.concatenate([np.asarray(d)[:100] for d in draws]), minlength=10)
    expected = priorities**0.6 / (priorities**0.6).sum() * 10_000

    assert len(draws[0]) == 128
    assert (((counts - expected) ** 2) / expected).sum() < 27.9


def test_uniform_rows_and_starts_are_drawn_with_equal_chances():
    """6,400 draws over 2 rows of 4 items each fit 1/8: chi-square below 24.3 (7 degrees, p = 0.001)."""
    core = core_of(0)
    reference = Reference(core.layout)
    state = core.add_rows(core.init(SPEC), reference.batch([8, 8]), [8, 8])
    state = core.add_rows(state, reference.batch([5, 5]), [5, 5])
    draws = [core.sample_indices(state, jax.random.key(seed), 64) for seed in range(100)]
    _, counts = np.unique(np.concatenate([np.asarray(indices) for indices, _ in draws]), return_counts=True)

    assert len(counts) == 8 and float(draws[0][1][0]) == 1 / 8
    assert ((counts - 800) ** 2 / 800).sum() < 24.3


def test_a_draw_does_not_depend_on_the_bucket():
    """The first five of a draw of 5 are the same in a bucket of 8 and of 64, with and without priorities."""
    for number in (0, 1):
        core = core_of(number)
        state = core.add_rows(core.init(SPEC), Reference(core.layout).batch([8, 8]), [8, 8])
        narrow, wide = (core.sample_indices(state, jax.random.key(3), 5, bucket) for bucket in (8, 64))

        np.testing.assert_array_equal(narrow[0][:5], wide[0][:5])


def test_gather_gives_what_sample_gave():
    """Gathering the indices of a sample gives its experience, bit for bit, and its starts."""
    core = core_of(1)
    state = core.add_rows(core.init(SPEC), Reference(core.layout).batch([8, 7]), [8, 7])
    drawn = core.sample(state, jax.random.key(0), 16)
    gathered = core.gather(state, drawn.indices)
    rows, slots = core.starts(drawn.indices)

    for name, leaf in drawn.experience.items():
        np.testing.assert_array_equal(gathered[name], leaf)
    np.testing.assert_array_equal(drawn.experience["x"][:, 0], 1000 * rows + slots)


def test_padded_batches_of_any_length_compile_once():
    """Adds of lengths 1 to 8 in buckets of 8 are one compiled function."""
    core = make_core(layout_of(*trajectory("trajectory", 2, 1, 33)))
    reference = Reference(core.layout)
    state = core.init(SPEC)
    from fbxcore.buffers import core as module

    before = module._add_rows._cache_size()
    for length in range(1, 9):
        state = core.add_rows(state, reference.batch([length, length]), [length, length])

    assert module._add_rows._cache_size() == before + 1
