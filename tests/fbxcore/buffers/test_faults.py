"""Faults that users of other buffers reported, each on every kind that it can meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx

KINDS = ["prioritised_flat", "prioritised_item", "prioritised_trajectory"]
LENGTH = {"prioritised_flat": 2, "prioritised_item": 1, "prioritised_trajectory": 3}


class Counter:
    """A prioritised buffer of one row of eight slots whose timesteps count up."""

    def __init__(self, kind: str, exponent: float = 1.0):
        sizes = {"max_length": 8, "min_length": 2, "sample_batch_size": 8}
        forms = {
            "prioritised_flat": {**sizes, "add_sequences": True},
            "prioritised_item": {**sizes, "add_batches": True},
            "prioritised_trajectory": {
                "add_batch_size": 1,
                "sample_batch_size": 8,
                "sample_sequence_length": 3,
                "period": 1,
                "min_length_time_axis": 3,
                "max_length_time_axis": 8,
            },
        }
        self.kind, self.length = kind, LENGTH[kind]
        self.buffer = getattr(fbx, f"make_{kind}_buffer")(**forms[kind], priority_exponent=exponent)
        self.set = jax.jit(self.buffer.set_priorities)
        self.sample = jax.jit(self.buffer.sample)
        self.next = 0

    def add(self, state, count: int):
        """Add so many timesteps."""
        x = jnp.arange(self.next, self.next + count, dtype=jnp.int32)
        self.next += count
        return self.buffer.add(state, x[None] if self.kind == "prioritised_trajectory" else x)

    def full(self):
        """Return a full buffer's state."""
        return self.add(self.buffer.init(jnp.int32(0)), 8)

    def firsts(self, state, seed: int) -> np.ndarray:
        """Return the first timestep of each item of a sample."""
        experience = self.sample(state, jax.random.key(seed)).experience
        return np.asarray(jax.tree.leaves(experience)[0]).reshape(8, -1)[:, 0]


def weights_of(state) -> np.ndarray:
    """Return the weight of each item."""
    return np.asarray(fbx.sum_tree.leaves(state.sum_tree_state))


@pytest.fixture(params=KINDS)
def counter(request):
    """A full buffer of each prioritised kind."""
    return Counter(request.param)


def test_a_new_item_has_the_greatest_weight_once(counter):
    """After a priority of 2.7, each item that an add completes weighs what that one weighs (FB-02)."""
    for exponent in (0.4, 1.0):
        subject = Counter(counter.kind, exponent)
        state = subject.set(subject.full(), jnp.array([3]), jnp.array([2.7]))
        completed = (8 - subject.length + 1) % 8

        after = weights_of(subject.add(state, 1))

        np.testing.assert_allclose(after[3], 2.7**exponent, rtol=1e-6)
        assert after[completed] == after[3]


def test_an_update_for_an_overwritten_item_is_left_out(counter):
    """Items sampled before a whole lap keep the weight of their successors; a live one is set (FB-08)."""
    state = counter.full()
    drawn = counter.sample(state, jax.random.key(0))
    state = counter.add(state, 8)
    fresh = counter.sample(state, jax.random.key(1))

    stale = counter.set(state, drawn.indices, jnp.full(8, 50.0), drawn.generations)
    both = jnp.where(jnp.arange(8) == 0, fresh.generations[0], drawn.generations)
    indices = drawn.indices.at[0].set(fresh.indices[0])
    mixed = counter.set(state, indices, jnp.full(8, 50.0), both)

    np.testing.assert_array_equal(weights_of(stale), weights_of(state))
    assert np.flatnonzero(weights_of(mixed) == 50).tolist() == [int(fresh.indices[0])]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -1.0])
def test_an_odd_priority_is_left_out_and_its_neighbours_apply(counter, odd):
    """NaN, infinite and negative priorities change nothing; draws stay inside what was written (FB-09)."""
    state = counter.full()
    after = counter.set(state, jnp.array([1, 2]), jnp.array([odd, 3.0]))
    expected = weights_of(state).copy()
    expected[2] = 3

    np.testing.assert_array_equal(weights_of(after), expected)
    assert set(counter.firsts(after, 0)) <= set(range(8 - counter.length + 1))


def test_all_zero_cannot_be_sampled_and_one_priority_mends_it(counter):
    """With all priorities 0 `can_sample` is false; one above 0 makes that item all there is to draw."""
    whole = jnp.arange(8 - counter.length + 1)
    none = counter.set(counter.full(), whole, jnp.zeros(len(whole)))
    one = counter.set(none, jnp.array([2]), jnp.array([0.001]))

    assert not bool(counter.buffer.can_sample(none))
    assert bool(counter.buffer.can_sample(one)) and set(counter.firsts(one, 3)) == {2}


def test_a_thousand_rounds_of_updates_leave_the_root_the_sum():
    """In 32 half-full rows of 256 slots no draw leaves what was written, whatever the updates (FB-03)."""
    buffer = fbx.make_prioritised_trajectory_buffer(
        add_batch_size=32,
        sample_batch_size=64,
        sample_sequence_length=64,
        period=1,
        min_length_time_axis=64,
        max_length_time_axis=256,
    )
    state = buffer.add(buffer.init(jnp.uint8(0)), jnp.ones((32, 128), jnp.uint8))

    @jax.jit
    def rounds(state, key):
        def one(state, key):
            drawn = buffer.sample(state, key)
            new = jax.random.uniform(key, (64,), minval=0.1, maxval=5.0)
            inside = jnp.all(drawn.indices % 256 + 64 <= 128) & jnp.all(drawn.experience == 1)
            return buffer.set_priorities(state, drawn.indices, new), inside & jnp.all(drawn.probabilities > 0)

        return jax.lax.scan(one, state, jax.random.split(key, 1000))

    state, is_right = rounds(state, jax.random.key(0))

    weights = weights_of(state).astype(np.float64)
    assert is_right.all() and np.count_nonzero(weights) == 32 * 65
    assert abs(float(state.sum_tree_state.nodes[0]) - weights.sum()) <= 1e-6 * weights.sum()


@pytest.mark.parametrize("kind", ["flat", "item", *KINDS[:2]])
def test_nothing_can_be_sampled_until_there_is_enough(kind):
    """An empty buffer cannot be sampled, nor one timestep below its least; at it, it can (FB-07)."""
    buffer = getattr(fbx, f"make_{kind}_buffer")(max_length=16, min_length=4, sample_batch_size=4)
    least = 4 if "item" in kind else 5  # a transition more than asked for, as Flashbax has it
    state, can = buffer.init(jnp.int32(0)), []
    for _ in range(least):
        can.append(bool(buffer.can_sample(state)))
        state = buffer.add(state, jnp.int32(1))

    assert can == [False] * least and bool(buffer.can_sample(state))
