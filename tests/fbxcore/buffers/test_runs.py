"""Rows that advance in runs of their own, against a slow reference: no item joins two runs."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fbxcore.buffers.core import make_core, pack, unpack
from fbxcore.buffers.layout import layout_of
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import LeafSpec

BUCKET = 8
ROWS = 3
SPEC = {"big": LeafSpec((2,), "float64"), "x": LeafSpec((), "int32")}


def trajectory(kind: str, length: int, period: int, time_axis: int) -> tuple:
    """Return kind and arguments of three rows."""
    return kind, {
        "add_batch_size": ROWS,
        "sample_batch_size": 16,
        "sample_sequence_length": length,
        "period": period,
        "min_length_time_axis": length,
        "max_length_time_axis": time_axis,
    }


def flat(kind: str, time_axis: int) -> tuple:
    """Return kind and arguments of three rows."""
    sizes = {"max_length": ROWS * time_axis, "min_length": 1, "sample_batch_size": 4, "add_batch_size": ROWS}
    return kind, sizes


GRID = [
    flat("flat", 7),
    flat("prioritised_flat", 9),
    trajectory("trajectory", 3, 1, 11),
    trajectory("trajectory", 3, 2, 10),
    trajectory("prioritised_trajectory", 4, 2, 12),
    trajectory("prioritised_trajectory", 1, 1, 5),  # a bucket longer than the time axis
]


@functools.cache
def core_of(number: int):
    """Return the core of a row of the grid."""
    kind, arguments = GRID[number]
    return make_core(layout_of(kind, arguments, independent=True))


class Reference:
    """All timesteps ever added and the number of the run of each; whatever is asked is looked up in them."""

    def __init__(self, layout):
        self.layout = layout
        self.rows = [[] for _ in range(layout.rows)]  # of each timestep: its run
        self.runs = 0
        self.is_cut = [True] * layout.rows

    def batch(self, rows, lengths, begins):
        """Append runs to rows and return them padded, with rubbish behind them."""
        x = np.full((len(rows), BUCKET), -7, np.int32)
        for run, (row, length, begin) in enumerate(zip(rows, lengths, begins, strict=True)):
            self.is_cut[row] |= begin
            if length and self.is_cut[row]:
                self.runs += 1
                self.is_cut[row] = False
                number = self.runs
            else:
                number = self.rows[row][-1] if length else None
            x[run, :length] = 1000 * row + len(self.rows[row]) + np.arange(length)
            self.rows[row] += [number] * length
        return {"big": np.stack([x, x + 0.25], -1).astype(np.float64), "x": x}

    def weights(self):
        """Return 1 for every item whose timesteps are held and of one run, 0 for the others."""
        layout, weights = self.layout, np.zeros(self.layout.num_items, np.float32)
        for row, held in enumerate(self.rows):
            for start in range(max(0, len(held) - layout.time_axis), len(held) - layout.sequence_length + 1):
                slot = start % layout.time_axis
                is_one_run = len(set(held[start : start + layout.sequence_length])) == 1
                if slot % layout.stride == 0 and is_one_run:
                    weights[row * layout.items_per_row + slot // layout.stride] = 1
        return weights


def check(core, state, reference, seed):
    """Compare a state and a draw from it with the reference."""
    layout, weights = core.layout, reference.weights()
    held = [len(row) for row in reference.rows]
    assert state.write_index.tolist() == [n % layout.time_axis for n in held]
    assert state.size.tolist() == [min(n, layout.time_axis) for n in held]
    assert state.laps.tolist() == [n // layout.time_axis for n in held]
    np.testing.assert_array_equal(core.weights(state), weights)
    np.testing.assert_array_equal(core.is_live(state, np.arange(layout.num_items)), weights > 0)
    total = sum(min(n, layout.time_axis) for n in held)
    assert bool(core.can_sample(state)) == (total >= layout.min_time_axis and weights.any())
    if weights.any():
        drawn = core.sample(state, jax.random.key(seed), 6)
        x = unpack({"x": drawn.experience["x"]}, SPEC)["x"][:6]
        rows, starts = x[:, 0] // 1000, x[:, 0] % 1000
        assert (np.diff(x, axis=1) == 1).all() and (weights[np.asarray(drawn.indices)[:6]] == 1).all()
        np.testing.assert_array_equal(starts, core.generations(drawn.indices, drawn.laps)[:6])
        np.testing.assert_allclose(drawn.probabilities[:6], 1 / weights.sum(), rtol=1e-6)
        for row, start in zip(rows, starts, strict=True):
            assert len(set(reference.rows[row][start : start + layout.sequence_length])) == 1


@pytest.mark.parametrize("number", range(len(GRID)))
def test_runs_of_any_length_and_cut_give_what_the_reference_holds(number):
    """After each of 16 adds with cuts before some runs, rings, weights and draws are the reference's."""

    @settings(max_examples=4, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def run(data):
        core = core_of(number)
        reference, state = Reference(core.layout), core.init(SPEC)
        most = min(BUCKET, core.layout.time_axis)
        for turn in range(16):
            rows = data.draw(st.sampled_from([[0], [2], [0, 1, 2]]))
            lengths = data.draw(st.lists(st.integers(0, most), min_size=len(rows), max_size=len(rows)))
            begins = [data.draw(st.integers(0, 2)) == 0 for _ in rows]
            batch = reference.batch(rows, lengths, begins)
            state = core.add_runs(state, batch, rows, lengths, begins)
            check(core, state, reference, turn)

    run()


def in_runs(core, *runs):
    """Return the state after runs `(row, values)`, each cut off from what lies before it."""
    state = core.init({"x": LeafSpec((), "int32")})
    for row, values in runs:
        x = np.zeros((1, BUCKET), np.int32)
        x[0, : len(values)] = values
        state = core.add_runs(state, {"x": x}, [row], [len(values)], [True])
    return state


def seen(core, state, num=4000):
    """Return the distinct items that many draws give, each a tuple of its timesteps."""
    drawn = np.asarray(core.sample(state, jax.random.key(0), num).experience["x"])[:num]
    return {tuple(item) for item in drawn.tolist()}


def test_pairs_never_join_two_episodes():
    """Observations 0, 1, 2 with the final one 3, then 10, 11, 12: every pair inside, no other."""
    core = core_of(0)
    state = in_runs(core, (0, [0, 1, 2, 3]), (0, [10, 11, 12]))

    assert seen(core, state) == {(0, 1), (1, 2), (2, 3), (10, 11), (11, 12)}


def test_whole_slices_of_a_wrapped_ring_are_reached_and_no_other():
    """Trajectories 3, 0, 1, 2, 3 in a wrapped ring of 11: each legal start is drawn, the last one too."""
    core = core_of(2)
    state = in_runs(core, (0, [1] * 3), (0, [30, 31]), (0, [0]), (0, [10, 11, 12]), (0, [20, 21, 22]))
    x = np.zeros((1, BUCKET), np.int32)
    x[0, :3] = [23, 24, 25]
    state = core.add_runs(state, {"x": x}, [0], [3], [False])  # 20 to 25 go on around the end

    assert seen(core, state) == {(10, 11, 12), (20, 21, 22), (21, 22, 23), (22, 23, 24), (23, 24, 25)}


def test_rows_are_drawn_in_proportion_to_the_items_they_hold():
    """Rows of 6, 2 and 0 pairs: 8,000 draws are even over the 8; chi-square below 24.3 (7, p = 0.001)."""
    core = core_of(0)
    state = in_runs(core, (0, range(7)), (1, [100, 101, 102]), (2, [200]))
    draws = [core.sample_indices(state, jax.random.key(seed), 64)[0] for seed in range(125)]
    _, counts = np.unique(np.concatenate([np.asarray(indices) for indices in draws]), return_counts=True)

    assert len(counts) == 8 and ((counts - 1000) ** 2 / 1000).sum() < 24.3


def test_uniform_draws_are_independent_of_one_another():
    """Of 4,000 pairs of neighbouring draws from 6 items a sixth are equal: strata would make them differ."""
    core = core_of(0)
    state = in_runs(core, (0, range(7)))
    drawn = np.asarray(core.sample_indices(state, jax.random.key(4), 4096)[0])[:4000]

    assert abs((drawn[1:] == drawn[:-1]).mean() - 1 / 6) < 0.03 and (np.diff(drawn) < 0).any()


def test_a_priority_does_not_revive_an_item_across_a_cut():
    """Set on all items, priority 5 changes those of one run alone."""
    core = core_of(1)
    state = in_runs(core, (0, [0, 1, 2]), (0, [10, 11]))
    everything = np.arange(core.layout.num_items)
    fives = np.full(len(everything), 5.0)
    state = core.set_priorities(state, everything, fives, np.ones(len(everything), bool))

    assert np.flatnonzero(core.weights(state)).tolist() == [0, 1, 3]
    assert seen(core, state) == {(0, 1), (1, 2), (10, 11)}


def test_a_restored_state_goes_on_as_if_it_had_never_stopped():
    """Exported and imported within a run, a core gives the states and draws of one that went on."""
    core = core_of(4)
    reference, state = Reference(core.layout), core.init(SPEC)
    for lengths, begins in (([5, 8, 2], [True] * 3), ([7, 3, 0], [False, True, False])):
        state = core.add_runs(state, reference.batch([0, 1, 2], lengths, begins), [0, 1, 2], lengths, begins)
    held = unpack(jax.tree.map(np.array, state.experience), SPEC)
    again = core.import_state(held, core.export_state(state))
    batch = reference.batch([0, 1, 2], [4, 4, 4], [False] * 3)
    state, again = (core.add_runs(s, batch, [0, 1, 2], [4, 4, 4], [False] * 3) for s in (state, again))
    ours, theirs = (core.sample(s, jax.random.key(1), 5) for s in (state, again))

    for a, b in zip(jax.tree.leaves((state, ours)), jax.tree.leaves((again, theirs)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_vector_code_gives_what_loops_give():
    """Under `vmap`, which takes the code of accelerators, an add and its weights are the same."""
    core = core_of(4)
    reference = Reference(core.layout)
    state = core.init(SPEC)
    for lengths, begins in (([5, 8, 2], [True] * 3), ([7, 3, 6], [False, True, False])):
        batch = pack(reference.batch([0, 1, 2], lengths, begins))
        lanes = jax.tree.map(lambda leaf: leaf[None], (state, dict(batch)))
        add = lambda s, b, n=lengths, c=begins: core.add_runs(s, b, [0, 1, 2], n, c)  # noqa: E731
        vector = jax.vmap(add)(*lanes)
        state = core.add_runs(state, batch, [0, 1, 2], lengths, begins)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(vector), strict=True):
            np.testing.assert_array_equal(a, b[0])


def test_the_least_length_counts_all_rows_together():
    """Of three rows with a least length of 9, two that hold 8 and 1 are enough."""
    kind, arguments = flat("flat", 9)
    core = make_core(layout_of(kind, arguments | {"min_length": 9}, independent=True))
    state = in_runs(core, (0, range(8)))
    before = bool(core.can_sample(state))
    state = in_runs(core, (0, range(8)), (2, [5]))

    assert (before, bool(core.can_sample(state))) == (False, True)


def test_items_stand_alone():
    """An item kind is refused, with the reason."""
    with pytest.raises(InvalidArgumentError, match=r"`writers` must be 'lockstep' for kind 'item'"):
        layout_of("item", {"max_length": 9, "min_length": 1, "sample_batch_size": 4}, independent=True)
