"""Buffers of transitions, with and without priorities, beside real Flashbax for every form of batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx

FORMS = [(False, None), (True, None), (False, 3), (True, 3)]
KINDS = ["flat", "prioritised_flat"]


def shape_of(add_sequences: bool, add_batch_size: int | None, turn: int) -> tuple[int, ...]:
    """Return the leading axes of a batch; sequences are 1 to 5 long."""
    return ((add_batch_size,) if add_batch_size else ()) + ((1 + turn % 5,) if add_sequences else ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("add_sequences", "add_batch_size"), FORMS)
def test_it_holds_and_samples_what_flashbax_does(flashbax, same, kind, add_sequences, add_batch_size):
    """For each form of batch, through three wraps, states and samples equal Flashbax's, bit for bit."""
    buffers = [
        getattr(library, f"make_{kind}_buffer")(
            max_length=20,
            min_length=4,
            sample_batch_size=16,
            add_sequences=add_sequences,
            add_batch_size=add_batch_size,
        )
        for library in (fbx, flashbax)
    ]
    adds, samples = [jax.jit(b.add) for b in buffers], [jax.jit(b.sample) for b in buffers]
    states = [b.init({"x": jnp.zeros((), jnp.int32), "y": jnp.zeros(2)}) for b in buffers]
    for turn in range(24):
        shape = shape_of(add_sequences, add_batch_size, turn)
        x = turn * 100 + jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)
        batch = {"x": x, "y": jnp.stack([x, -x], -1).astype(jnp.float32)}
        states = [add(state, batch) for add, state in zip(adds, states, strict=True)]
        can = [bool(b.can_sample(state)) for b, state in zip(buffers, states, strict=True)]

        assert can[0] == can[1]
        assert same(states[0].experience, states[1].experience)
        if can[0]:
            ours, theirs = (f(s, jax.random.key(turn)) for f, s in zip(samples, states, strict=True))
            assert same(ours.experience.first, theirs.experience.first)
            assert same(ours.experience.second, theirs.experience.second)
            if kind != "flat":
                assert same((ours.indices, ours.probabilities), (theirs.indices, theirs.probabilities))


@pytest.mark.parametrize("kind", KINDS)
def test_a_transition_is_two_consecutive_timesteps(kind):
    """In 20 adds of 3 rows into 6 slots each, `second` is always one timestep after `first`."""
    buffer = getattr(fbx, f"make_{kind}_buffer")(
        max_length=18, min_length=2, sample_batch_size=16, add_batch_size=3
    )
    state = buffer.init(jnp.zeros((), jnp.int32))
    add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
    for turn in range(20):
        state = add(state, turn + 1000 * jnp.arange(3, dtype=jnp.int32))
        if turn:
            pair = sample(state, jax.random.key(turn)).experience
            assert (pair.second - pair.first == 1).all()


def test_it_may_be_sampled_after_the_second_add_of_four_rows():
    """With 10 timesteps, 1 needed and 4 rows, one add is not enough and two are (FB-07)."""
    buffer = fbx.make_flat_buffer(max_length=10, min_length=1, sample_batch_size=2, add_batch_size=4)
    state = buffer.init(jnp.zeros(()))
    state = buffer.add(state, jnp.ones(4))
    assert not bool(buffer.can_sample(state))
    state = buffer.add(state, jnp.ones(4))
    assert bool(buffer.can_sample(state))


def test_priorities_of_transitions_take_generations():
    """An update with the generation sampled before a full wrap leaves the transition alone (FB-08)."""
    buffer = fbx.make_prioritised_flat_buffer(
        max_length=6, min_length=2, sample_batch_size=4, add_sequences=True
    )
    state = buffer.add(buffer.init(jnp.zeros(())), jnp.arange(6.0))
    drawn = buffer.sample(state, jax.random.key(0))
    state = buffer.add(state, jnp.arange(6.0, 12.0))
    after = buffer.set_priorities(state, drawn.indices, jnp.full(4, 50.0), drawn.generations)

    np.testing.assert_array_equal(after.sum_tree_state.nodes, state.sum_tree_state.nodes)
