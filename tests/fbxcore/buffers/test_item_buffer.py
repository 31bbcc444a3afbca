"""Buffers of items, with and without priorities, beside real Flashbax for every form of batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.errors import StructureError

FORMS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("kind", ["item", "prioritised_item"])
@pytest.mark.parametrize(("add_sequences", "add_batches"), FORMS)
def test_it_holds_and_samples_what_flashbax_does(flashbax, same, kind, add_sequences, add_batches):
    """For each form of batch, through wraps, states and samples equal Flashbax's, bit for bit."""
    buffers = [
        getattr(library, f"make_{kind}_buffer")(
            max_length=11,
            min_length=3,
            sample_batch_size=8,
            add_sequences=add_sequences,
            add_batches=add_batches,
        )
        for library in (fbx, flashbax)
    ]
    adds, samples = [jax.jit(b.add) for b in buffers], [jax.jit(b.sample) for b in buffers]
    states = [b.init({"x": jnp.zeros((), jnp.int32), "y": jnp.zeros((2, 3))}) for b in buffers]
    for turn in range(16):
        shape = ((3,) if add_batches else ()) + ((1 + turn % 3,) if add_sequences else ())
        x = turn * 100 + jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape)
        batch = {"x": x, "y": jnp.broadcast_to(x[..., None, None], (*shape, 2, 3)).astype(jnp.float32)}
        states = [add(state, batch) for add, state in zip(adds, states, strict=True)]
        can = [bool(b.can_sample(state)) for b, state in zip(buffers, states, strict=True)]

        assert can[0] == can[1]
        assert same(states[0].experience, states[1].experience)
        if can[0]:
            ours, theirs = (f(s, jax.random.key(turn)) for f, s in zip(samples, states, strict=True))
            assert same(ours.experience, theirs.experience)
            if kind != "item":
                assert same((ours.indices, ours.probabilities), (theirs.indices, theirs.probabilities))


def test_a_batch_with_another_number_of_axes_is_refused():
    """A single item where batches were promised is refused, and so is a batch where one item was."""
    buffer = fbx.make_item_buffer(max_length=8, min_length=1, sample_batch_size=2, add_batches=True)
    with pytest.raises(StructureError, match="`batch` must have 1 axes before an item's own"):
        buffer.add(buffer.init(jnp.zeros(3)), jnp.zeros(3))
    single = fbx.make_item_buffer(max_length=8, min_length=1, sample_batch_size=2)
    with pytest.raises(AssertionError):
        single.add(single.init(jnp.zeros(3)), jnp.zeros((2, 3)))


def test_priorities_of_items_are_what_is_drawn_by():
    """Of four items with priorities 0, 0, 5 and 0 only the third is drawn."""
    buffer = fbx.make_prioritised_item_buffer(
        max_length=4, min_length=1, sample_batch_size=4, add_batches=True
    )
    state = buffer.add(buffer.init(jnp.zeros(())), jnp.arange(4.0))
    state = buffer.set_priorities(state, jnp.arange(4), jnp.array([0.0, 0.0, 5.0, 0.0]))
    drawn = buffer.sample(state, jax.random.key(0))

    assert (drawn.experience == 2).all() and (drawn.probabilities == 1).all()
