"""The sum tree against sums in NumPy: at every small capacity, after many updates, for odd weights."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fbxcore.buffers import sum_tree
from fbxcore.errors import InvalidArgumentError

SET = {
    "scan": jax.jit(sum_tree.set_batch_scan),
    "bincount": jax.jit(sum_tree.set_batch_bincount),
}
draw = jax.jit(sum_tree.stratified_sample, static_argnums=1)


def parents_of(leaves: np.ndarray) -> np.ndarray:
    """Return all nodes in heap order, summed in float32 from below as the tree sums them."""
    levels = [leaves.astype(np.float32)]
    while len(levels[-1]) > 1:
        levels.append(levels[-1][0::2] + levels[-1][1::2])
    return np.concatenate(levels[::-1])


def reference(state, indices, values) -> np.ndarray:
    """Return the leaves after setting values one by one."""
    leaves = np.zeros(2**state.tree_depth, np.float32)
    leaves[: state.capacity] = sum_tree.leaves(state)
    for index, value in zip(indices, values, strict=True):
        leaves[index] = value
    return leaves


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 65, 70])
def test_every_node_is_the_sum_of_its_children(capacity):
    """After three batches with repeated leaves all nodes are those of a reference; the last value stays."""
    rng = np.random.default_rng(capacity)
    states = {name: sum_tree.init(capacity) for name in SET}
    for _ in range(3):
        indices = rng.integers(0, capacity, 20)
        values = rng.random(20).astype(np.float32)
        leaves = reference(states["scan"], indices, values)
        states = {name: SET[name](state, indices, values) for name, state in states.items()}

        for state in states.values():
            np.testing.assert_array_equal(np.asarray(state.nodes), parents_of(leaves))


@pytest.mark.long
@pytest.mark.parametrize("capacity", [*range(1, 71), 4096, 10**6])
def test_every_node_is_the_sum_of_its_children_at_every_capacity(capacity):
    """The same at all capacities from 1 to 70, at 4096 and at 10**6."""
    rng = np.random.default_rng(capacity)
    indices, values = rng.integers(0, capacity, 50), rng.random(50).astype(np.float32)
    for set_batch in SET.values():
        state = set_batch(sum_tree.init(capacity), indices, values)

        leaves = reference(sum_tree.init(capacity), indices, values)
        np.testing.assert_array_equal(np.asarray(state.nodes), parents_of(leaves))
        drawn = np.asarray(draw(state, 64, jax.random.key(capacity)))
        assert (leaves[drawn] > 0).all() and (drawn < capacity).all()


def test_the_greatest_weight_so_far_is_kept():
    """The recorded maximum starts at 1, rises to 5 and stays when the leaf falls."""
    state = sum_tree.init(4)
    assert float(state.max_recorded_priority) == 1.0
    state = SET["scan"](state, jnp.array([1, 2]), jnp.array([5.0, 0.5]))
    state = SET["scan"](state, jnp.array([1, 1]), jnp.array([0.1, 0.2]))

    assert float(state.max_recorded_priority) == 5.0
    assert float(sum_tree.get(state, jnp.array(1))) == np.float32(0.2)


@pytest.mark.parametrize("name", sorted(SET))
def test_odd_weights_and_indices_are_left_out(name):
    """NaN, infinite and negative weights and indices that are no leaves change nothing (FB-09)."""
    state = SET[name](sum_tree.init(5), jnp.arange(5), jnp.ones(5))
    odd = jnp.array([jnp.nan, jnp.inf, -1.0, 7.0, 7.0])

    after = SET[name](state, jnp.array([0, 1, 2, -1, 5]), odd)

    np.testing.assert_array_equal(np.asarray(after.nodes), np.asarray(state.nodes))
    assert float(after.max_recorded_priority) == 1.0


def test_no_draw_lands_on_a_zero_weight_after_many_updates():
    """After 30,000 updates over twelve orders of magnitude the root is the sum, no draw is a 0 (FB-03)."""
    rng = np.random.default_rng(0)
    state = sum_tree.init(100)
    for turn in range(150):
        values = 10.0 ** rng.uniform(-6, 6, 200) * rng.integers(0, 2, 200)
        state = SET["scan"](state, rng.integers(0, 100, 200), values.astype(np.float32))
        if turn % 10 == 0:
            leaves = np.asarray(sum_tree.leaves(state), np.float64)
            drawn = np.asarray(draw(state, 256, jax.random.key(turn)))

            assert (drawn < 100).all() and (leaves[drawn] > 0).all()
            assert abs(float(state.nodes[0]) - leaves.sum()) <= 1e-6 * leaves.sum()


@pytest.mark.long
@pytest.mark.parametrize("capacity", [100, 4097, 10**6])
def test_no_drift_after_a_million_updates(capacity):
    """After 10**6 updates of so many leaves the root is the sum to 1e-6 and no draw lands on a 0 (FB-03)."""
    rng = np.random.default_rng(1)
    state = sum_tree.init(capacity)
    for turn in range(100):
        values = 10.0 ** rng.uniform(-6, 6, 10_000) * rng.integers(0, 2, 10_000)
        state = SET["scan"](state, rng.integers(0, capacity, 10_000), values.astype(np.float32))
        leaves = np.asarray(sum_tree.leaves(state), np.float64)
        drawn = np.asarray(draw(state, 1024, jax.random.key(turn)))
        assert (drawn < capacity).all() and (leaves[drawn] > 0).all()

    assert abs(float(state.nodes[0]) - leaves.sum()) <= 1e-6 * leaves.sum()


def test_frequencies_follow_the_weights():
    """51,200 draws of 7 leaves fit their weights: chi-square below 22.46 (6 degrees, p = 0.001), 0 never."""
    weights = np.array([1, 2, 0, 4, 8, 0.5, 3, 1.5], np.float32)
    state = SET["scan"](sum_tree.init(8), jnp.arange(8), weights)
    drawn = [np.asarray(sum_tree.sample(state, jax.random.key(seed))) for seed in range(3)]
    assert all(0 <= leaf < 8 for leaf in drawn)
    many = jax.vmap(lambda key: sum_tree.sample(state, key))(jax.random.split(jax.random.key(7), 51_200))
    counts = np.bincount(np.asarray(many), minlength=8)
    expected = weights / weights.sum() * 51_200

    assert counts[2] == 0
    kept = weights > 0
    assert (((counts - expected) ** 2)[kept] / expected[kept]).sum() < 22.46


def test_strata_are_those_of_the_true_count():
    """100 draws in a batch of 128 take one leaf from each hundredth of the total weight."""
    state = SET["scan"](sum_tree.init(100), jnp.arange(100), jnp.ones(100))

    drawn = np.asarray(draw(state, 128, jax.random.key(3), jnp.int32(100)))

    np.testing.assert_array_equal(drawn[:100], np.arange(100))
    assert (drawn < 100).all()


def test_draws_are_those_of_flashbax(flashbax):
    """For the same key and leaves, stratified draws equal Flashbax's at several batch sizes and depths."""
    peer = flashbax.buffers.sum_tree
    for capacity, batch_size in ((6, 1), (37, 7), (1000, 100), (1000, 256), (4096, 300)):
        values = np.random.default_rng(capacity).integers(1, 9, capacity).astype(np.float32)
        theirs = peer.set_batch_scan(peer.init(capacity), jnp.arange(capacity), values)
        ours = sum_tree.set_batch_scan(sum_tree.init(capacity), jnp.arange(capacity), values)
        for seed in range(5):
            key = jax.random.key(seed)
            expected = jax.jit(peer.stratified_sample, static_argnums=1)(theirs, batch_size, key)

            np.testing.assert_array_equal(np.asarray(draw(ours, batch_size, key)), np.asarray(expected))


@pytest.mark.parametrize("capacity", [1, 5, 8])
def test_all_zero_gives_the_first_leaf(capacity):
    """Whatever value is walked to: no leaf beyond the capacity, where the tree is not full."""
    state = sum_tree.init(capacity)

    assert sum_tree.sample(state, query_value=jnp.array([0.0, 0.5, 1.0])).tolist() == [0, 0, 0]


def test_all_zero_gives_probability_zero():
    """A tree of zeros draws leaves inside its capacity, with probability 0 and not NaN."""
    state = sum_tree.init(8)
    drawn = draw(state, 16, jax.random.key(0))

    assert ((drawn >= 0) & (drawn < 8)).all()
    assert (sum_tree.get_probability(state, drawn) == 0).all()


def test_huge_weights_stay_finite():
    """Sixteen priorities of 3e38 sum to something finite, each drawable."""
    weights, is_valid = sum_tree.weight_of(jnp.full(16, 3e38), 1.0, 16)
    state = SET["scan"](sum_tree.init(16), jnp.arange(16), weights)

    assert is_valid.all() and np.isfinite(float(state.nodes[0]))
    assert len(np.unique(np.asarray(draw(state, 64, jax.random.key(0))))) == 16


def test_an_update_costs_the_same_at_any_capacity():
    """Setting 16 leaves of 2**20, donated, takes less than three times what it takes of 2**10."""
    seconds = {}
    for depth in (10, 20):
        update = jax.jit(sum_tree.set_batch_scan, donate_argnums=0)
        indices = jnp.arange(16) * 2 ** (depth - 5)
        state = update(sum_tree.init(2**depth), indices, jnp.ones(16))
        times = []
        for _ in range(15):
            begin = time.perf_counter()
            for _ in range(20):
                state = update(state, indices, jnp.ones(16))
            jax.block_until_ready(state)
            times.append(time.perf_counter() - begin)
        seconds[depth] = min(times)

    assert seconds[20] < 3 * seconds[10]


def test_a_draw_needs_a_key_or_a_value():
    """Without key and value a draw is refused by name."""
    with pytest.raises(InvalidArgumentError, match="`rng_key` must be given"):
        sum_tree.sample(sum_tree.init(4))


def test_a_tree_of_given_leaves_is_the_same_tree():
    """A tree rebuilt from its leaves has the same nodes, bit for bit."""
    values = np.random.default_rng(0).random(37).astype(np.float32)
    state = SET["scan"](sum_tree.init(37), jnp.arange(37), values)

    again = sum_tree.from_leaves(np.asarray(sum_tree.leaves(state)), state.max_recorded_priority)

    np.testing.assert_array_equal(np.asarray(again.nodes), np.asarray(state.nodes))
