"""The prioritised trajectory buffer beside real Flashbax, and where Flashbax is known to be wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx

ARGUMENTS = {
    "add_batch_size": 3,
    "sample_batch_size": 32,
    "sample_sequence_length": 4,
    "period": 2,
    "min_length_time_axis": 5,
    "max_length_time_axis": 14,
    "priority_exponent": 0.6,
}


def made(**changes):
    """Return a compiled buffer."""
    buffer = fbx.make_prioritised_trajectory_buffer(**{**ARGUMENTS, **changes})
    return buffer.replace(
        add=jax.jit(buffer.add),
        sample=jax.jit(buffer.sample),
        set_priorities=jax.jit(buffer.set_priorities),
    )


@pytest.fixture(scope="module")
def buffer():
    """The buffer that most tests share."""
    return made()


@pytest.fixture(scope="module")
def small():
    """Six slots, sequences of three, all overlaps, priorities as they are."""
    return made(
        add_batch_size=1,
        sample_batch_size=64,
        sample_sequence_length=3,
        period=1,
        min_length_time_axis=3,
        max_length_time_axis=6,
        priority_exponent=1.0,
    )


def counted(buffer, state, first, count):
    """Add a counter."""
    return buffer.add(state, {"x": jnp.arange(first, first + count, dtype=jnp.int32)[None]})


def weights_of(state) -> np.ndarray:
    """Return the weight of each item."""
    return np.asarray(fbx.sum_tree.leaves(state.sum_tree_state))


def test_it_holds_and_samples_what_flashbax_does(buffer, flashbax, timestep, steps, same):
    """Through four wraps and updates of whole items, state and samples equal Flashbax's, bit for bit."""
    peer = flashbax.make_prioritised_trajectory_buffer(**ARGUMENTS)
    peer_add, peer_sample = jax.jit(peer.add), jax.jit(peer.sample)
    peer_set = jax.jit(peer.set_priorities)
    ours, theirs = buffer.init(timestep), peer.init(timestep)
    first = 0
    for length in (4, 1, 13, 5, 5, 5, 4, 9, 13, 4):
        batch = steps(first, (3, length))
        ours, theirs = buffer.add(ours, batch), peer_add(theirs, batch)
        first += length
        key = jax.random.key(first)

        np.testing.assert_array_equal(weights_of(ours), np.asarray(theirs.sum_tree_state.nodes)[-32:][:21])
        assert int(ours.running_index) == int(theirs.running_index)
        if bool(peer.can_sample(theirs)):
            drawn, expected = buffer.sample(ours, key), peer_sample(theirs, key)
            assert same(drawn.experience, expected.experience)
            assert same(drawn.indices, expected.indices)
            np.testing.assert_allclose(drawn.probabilities, expected.probabilities, rtol=1e-6)
            # Powers of two: their sums are exact, so that Flashbax's differences do not drift.
            priorities = (2.0 ** (jnp.arange(32) % 4)) ** (1 / 0.6)
            ours = buffer.set_priorities(ours, drawn.indices, priorities, drawn.generations)
            theirs = peer_set(theirs, expected.indices, priorities)
            ours, theirs = _rounded(ours), _rounded(theirs)


def _rounded(state):
    """Make weights whole numbers, as Flashbax keeps the greatest weight as one (FB-02)."""
    tree = state.sum_tree_state
    tree = tree.replace(
        nodes=jnp.round(tree.nodes), max_recorded_priority=jnp.round(tree.max_recorded_priority)
    )
    return state.replace(sum_tree_state=tree)


SWEEP = [(4, 3, 1, 13), (4, 9, 2, 13), (9, 4, 5, 16), (13, 4, 3, 26), (13, 13, 4, 39)]


@pytest.mark.parametrize(("k", "length", "period", "time_axis"), SWEEP)
def test_no_sequence_joins_what_was_not_consecutive(k, length, period, time_axis):
    """In every sampled sequence the counter rises by exactly 1, at every wrap position (FB-01)."""
    buffer = made(
        add_batch_size=1,
        sample_batch_size=256,
        sample_sequence_length=length,
        period=period,
        min_length_time_axis=length,
        max_length_time_axis=time_axis,
    )
    state = buffer.init({"x": jnp.zeros((), jnp.int32)})
    for turn in range(12):
        state = counted(buffer, state, turn * k, k)
        if bool(buffer.can_sample(state)):
            drawn = buffer.sample(state, jax.random.key(turn))
            x = np.asarray(drawn.experience["x"])

            assert (np.diff(x, axis=1) == 1).all()
            np.testing.assert_array_equal(x[:, 0], drawn.generations)
            assert (drawn.probabilities > 0).all()


@pytest.mark.parametrize("exponent", [0.4, 0.6, 1.0])
@pytest.mark.parametrize("priority", [2.7, 100.0])
def test_a_new_item_gets_the_greatest_weight_once(exponent, priority):
    """After item 0 got 2.7, a fifth item has the weight 2.7**exponent that item 0 has (FB-02)."""
    buffer = made(
        add_batch_size=1,
        sample_batch_size=8,
        sample_sequence_length=1,
        period=1,
        min_length_time_axis=1,
        max_length_time_axis=8,
        priority_exponent=exponent,
    )
    state = counted(buffer, buffer.init({"x": jnp.zeros((), jnp.int32)}), 0, 4)
    state = buffer.set_priorities(state, jnp.array([0]), jnp.array([priority]))
    state = counted(buffer, state, 4, 1)

    weights = weights_of(state)
    assert weights[4] == weights[0]
    np.testing.assert_allclose(weights[:5], [priority**exponent, 1, 1, 1, priority**exponent], rtol=1e-6)


def test_an_update_of_an_overwritten_item_is_left_out(small):
    """Item 0 is overwritten, then gets priority 100: its weight stays 0 and no draw splices (FB-08)."""
    state = counted(small, small.init({"x": jnp.zeros((), jnp.int32)}), 0, 6)
    drawn = small.sample(state, jax.random.key(0))
    state = counted(small, state, 6, 2)

    for generations in (None, jnp.zeros(2, jnp.int32)):
        after = small.set_priorities(state, jnp.array([0, 3]), jnp.array([100.0, 2.0]), generations)
        assert weights_of(after)[0] == 0
        x = np.asarray(small.sample(after, jax.random.key(1)).experience["x"])
        assert (np.diff(x, axis=1) == 1).all()
    assert set(np.asarray(drawn.generations)) <= {0, 1, 2, 3}


def test_an_item_replaced_by_another_is_not_updated_for_it(small):
    """Item 0 of steps 0 to 2 is replaced by that of steps 6 to 8: the old generation is stale."""
    state = counted(small, small.init({"x": jnp.zeros((), jnp.int32)}), 0, 6)
    state = counted(small, state, 6, 3)
    assert weights_of(state)[0] == 1

    stale = small.set_priorities(state, jnp.array([0, 3]), jnp.array([9.0, 5.0]), jnp.array([0, 3]))
    fresh = small.set_priorities(state, jnp.array([0, 3]), jnp.array([9.0, 5.0]), jnp.array([6, 3]))

    assert weights_of(stale)[0] == 1 and weights_of(stale)[3] == 5
    assert weights_of(fresh)[0] == 9 and weights_of(fresh)[3] == 5


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -1.0])
def test_an_odd_priority_is_left_out(small, odd):
    """A priority that is NaN, infinite or negative changes nothing; those beside it apply (FB-09)."""
    state = counted(small, small.init({"x": jnp.zeros((), jnp.int32)}), 0, 6)

    after = small.set_priorities(state, jnp.array([1, 2]), jnp.array([odd, 3.0]))

    np.testing.assert_array_equal(weights_of(after), [1, 1, 3, 1, 0, 0])
    assert (small.sample(after, jax.random.key(0)).probabilities > 0).all()


def test_of_equal_indices_the_last_wins(small):
    """Item 1 set to 4, 7 and 2 in one call has weight 2; the greatest weight so far is 7."""
    state = counted(small, small.init({"x": jnp.zeros((), jnp.int32)}), 0, 6)
    state = small.set_priorities(state, jnp.array([1, 1, 1]), jnp.array([4.0, 7.0, 2.0]))

    assert weights_of(state)[1] == 2
    assert float(state.sum_tree_state.max_recorded_priority) == 7


def test_zero_priorities_are_not_drawn_and_all_zero_cannot_be_sampled(small):
    """Items of priority 0 are never drawn, can come back, and when all are 0 `can_sample` is false."""
    state = counted(small, small.init({"x": jnp.zeros((), jnp.int32)}), 0, 6)
    some = small.set_priorities(state, jnp.array([0, 1]), jnp.array([0.0, 0.0]))
    assert set(np.asarray(small.sample(some, jax.random.key(0)).indices)) == {2, 3}

    none = small.set_priorities(some, jnp.array([2, 3]), jnp.array([0.0, 0.0]))
    assert not bool(small.can_sample(none))
    assert (small.sample(none, jax.random.key(0)).probabilities == 0).all()

    back = small.set_priorities(none, jnp.array([1]), jnp.array([2.0]))
    assert bool(small.can_sample(back))
    assert set(np.asarray(small.sample(back, jax.random.key(0)).indices)) == {1}


def test_frequencies_follow_the_priorities(buffer, timestep, steps):
    """19,200 draws of 15 items fit priority**0.6: chi-square below 36.1 (14 degrees, p = 0.001)."""
    state = buffer.add(buffer.init(timestep), steps(0, (3, 13)))
    items = np.flatnonzero(weights_of(state))
    assert len(items) == 15
    priorities = np.arange(1, 16, dtype=np.float32)
    state = buffer.set_priorities(state, jnp.asarray(items), priorities)
    drawn = np.concatenate([np.asarray(buffer.sample(state, jax.random.key(s)).indices) for s in range(600)])
    counts = np.bincount(drawn, minlength=21)
    expected = priorities**0.6 / (priorities**0.6).sum() * len(drawn)

    assert counts.sum() == counts[items].sum()
    assert (((counts[items] - expected) ** 2) / expected).sum() < 36.1


def test_the_ways_for_other_devices_give_the_same_weights(timestep, steps):
    """The level-by-level way of accelerators gives the weights of the node-by-node way."""
    from fbxcore.buffers import prioritised_trajectory_buffer as module

    layout = fbx.buffers.layout.layout_of("prioritised_trajectory", ARGUMENTS)
    ways = [module.buffer_of(layout, device) for device in ("cpu", "gpu")]
    states = [way.init(timestep) for way in ways]
    for turn, length in enumerate((5, 13, 5, 9)):
        states = [
            jax.jit(way.add)(state, steps(turn, (3, length))) for way, state in zip(ways, states, strict=True)
        ]
        indices, priorities = jnp.array([0, 3, 3, 8, 20]), jnp.array([3.0, 2.0, 5.0, jnp.nan, 4.0])
        states = [
            jax.jit(way.set_priorities)(state, indices, priorities)
            for way, state in zip(ways, states, strict=True)
        ]
        nodes = [np.asarray(state.sum_tree_state.nodes) for state in states]

        np.testing.assert_array_equal(nodes[0], nodes[1])


def test_it_works_inside_scan_and_vmap(buffer, timestep, steps, same):
    """Adds, a sample and an update in a scan over two buffers in a vmap give what each alone gives."""
    raw = fbx.make_prioritised_trajectory_buffer(**ARGUMENTS)
    batches = jax.tree.map(lambda *x: jnp.stack(x), *[steps(first, (3, 5)) for first in range(0, 25, 5)])

    def turn(state, batch):
        state = raw.add(state, batch)
        drawn = raw.sample(state, jax.random.key(2))
        state = raw.set_priorities(state, drawn.indices, jnp.arange(32.0), drawn.generations)
        return state, drawn.indices

    def run(offset):
        given = jax.tree.map(lambda x: x + offset.astype(x.dtype), batches)
        return jax.lax.scan(turn, raw.init(timestep), given)

    states, indices = jax.jit(jax.vmap(run))(jnp.arange(2))
    state = raw.init(timestep)
    for k in range(5):
        state = buffer.add(state, jax.tree.map(lambda x, k=k: x[k] + jnp.ones((), x.dtype), batches))
        drawn = buffer.sample(state, jax.random.key(2))
        state = buffer.set_priorities(state, drawn.indices, jnp.arange(32.0), drawn.generations)

        assert same(drawn.indices, indices[1, k])
    assert same(state.experience, jax.tree.map(lambda x: x[1], states).experience)
    np.testing.assert_allclose(state.sum_tree_state.nodes, states.sum_tree_state.nodes[1], rtol=1e-6)


def test_a_device_that_is_not_there_is_replaced_with_a_warning():
    """`device="tpu"` on a CPU warns and makes a buffer for the CPU."""
    with pytest.warns(UserWarning, match="`device` 'tpu' is not available here"):
        fbx.make_prioritised_trajectory_buffer(**ARGUMENTS, device="tpu")
    with pytest.warns(UserWarning, match="`device` must be one of cpu, gpu, tpu, got 'abacus'"):
        fbx.make_prioritised_trajectory_buffer(**ARGUMENTS, device="abacus")
