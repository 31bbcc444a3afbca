"""Epochs over a buffer: each item once, in another order each time, at every state of the ring."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.buffers.epoch_sampler import permuted, rounds_of
from fbxcore.errors import InvalidArgumentError

SEEDS = jax.random.bits(jax.random.key(7), (20_000, 2), jnp.uint32)


def orders_of(total, seeds):
    """Return where the shuffle of each seed puts each place."""
    places = jnp.arange(total, dtype=jnp.int32)
    order = lambda seed: permuted(places, jnp.int32(total), *rounds_of(seed, jnp.int32(total)))  # noqa: E731
    return np.asarray(jax.vmap(order)(seeds))


@pytest.mark.parametrize("total", [1, 2, 3, 7, 64, 1000])
def test_a_shuffle_is_a_permutation(total):
    """Every place is put somewhere, and no two to the same place, for 50 seeds."""
    places = orders_of(total, SEEDS[:50])

    assert (np.sort(places, axis=1) == np.arange(total)).all()


def test_all_orders_of_four_are_equally_likely():
    """The 24 orders come 20,000 / 24 times each: chi-square below 49.7 (23 degrees, p = 0.001)."""
    orders = orders_of(4, SEEDS)
    numbers = {order: k for k, order in enumerate(itertools.permutations(range(4)))}
    counts = np.bincount([numbers[tuple(order)] for order in orders.tolist()], minlength=24)

    assert ((counts - 20_000 / 24) ** 2 / (20_000 / 24)).sum() < 49.7


def test_where_an_item_comes_and_what_follows_it_is_left_to_chance():
    """Of ten items, the place of the fourth and the pair of the first two are uniform, by chi-square."""
    orders = orders_of(10, SEEDS)
    place = np.bincount(orders[:, 3], minlength=10)
    pairs = np.bincount(10 * orders[:, 0] + orders[:, 1], minlength=100).reshape(10, 10)

    assert ((place - 2000) ** 2 / 2000).sum() < 27.9  # 9 degrees, p = 0.001
    assert np.diag(pairs).sum() == 0
    pairs = pairs[~np.eye(10, dtype=bool)]
    assert ((pairs - 20_000 / 90) ** 2 / (20_000 / 90)).sum() < 135.9  # 89 degrees


def trajectory(kind="trajectory", **changes):
    """Return a buffer of two rows and an epoch sampler of it, compiled."""
    arguments = {
        "add_batch_size": 2,
        "sample_batch_size": 5,
        "sample_sequence_length": 3,
        "period": 2,
        "min_length_time_axis": 3,
        "max_length_time_axis": 12,
    }
    buffer = getattr(fbx, f"make_{kind}_buffer")(**{**arguments, **changes})
    sampler = fbx.make_epoch_sampler(buffer)
    return buffer.replace(add=jax.jit(buffer.add)), sampler.replace(sample=jax.jit(sampler.sample))


def epoch_of(sampler, state, held):
    """Return the state behind an epoch, and what came."""
    parts = []
    for _ in range(int(sampler.num_batches(held))):
        state, drawn = sampler.sample(state, held)
        parts.append(
            jax.tree.map(lambda x, mask=drawn.mask: np.asarray(x)[np.asarray(mask)], drawn.experience)
        )
    return state, jax.tree.map(lambda *x: np.concatenate(x), *parts)


@pytest.mark.parametrize("kind", ["trajectory", "prioritised_trajectory"])
def test_each_sequence_comes_once_an_epoch_at_every_state_of_the_ring(kind):
    """Empty, part full and wrapped, an epoch is all sequences of the buffer, and the next one too."""
    buffer, sampler = trajectory(kind)
    held = buffer.init(jnp.int32(0))
    state = sampler.init(jax.random.key(0))
    assert int(sampler.num_batches(held)) == 0
    state, drawn = sampler.sample(state, held)
    assert not drawn.mask.any() and int(drawn.epoch) == -1

    for turn in range(6):
        step = 5 * turn + jnp.arange(5, dtype=jnp.int32)
        held = buffer.add(held, jnp.stack([step, step + 1000]))
        oldest, end = max(0, 5 * turn + 5 - 12), 5 * turn + 5
        expected = [
            [row + first + k for k in range(3)] for row in (0, 1000) for first in range(oldest, end - 2, 2)
        ]
        for _ in range(2):
            state, found = epoch_of(sampler, state, held)
            assert sorted(found.tolist()) == expected
    assert int(state.epoch) == 11


def test_the_last_sample_of_an_epoch_is_short_and_the_order_changes():
    """Ten items in samples of four: masks of 4, 4 and 2, and five epochs in five orders."""
    buffer = fbx.make_item_buffer(max_length=10, min_length=1, sample_batch_size=4, add_batches=True)
    sampler = fbx.make_epoch_sampler(buffer)
    held = buffer.add(buffer.init(0), jnp.arange(10))

    @jax.jit
    def run(key):
        return jax.lax.scan(lambda state, _: sampler.sample(state, held), sampler.init(key), length=15)

    _, drawn = run(jax.random.key(1))
    orders = np.asarray(drawn.experience)[np.asarray(drawn.mask)].reshape(5, 10)

    assert drawn.mask.sum(1).tolist() == [4, 4, 2] * 5
    assert drawn.epoch.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert (np.sort(orders, axis=1) == np.arange(10)).all()
    assert len({tuple(order) for order in orders.tolist()}) == 5


def test_pairs_of_a_wrapped_flat_buffer_come_once():
    """Eight slots that took eleven timesteps hold seven pairs, 3-4 to 9-10."""
    buffer = fbx.make_flat_buffer(max_length=8, min_length=2, sample_batch_size=3, add_sequences=True)
    sampler = fbx.make_epoch_sampler(buffer)
    held = buffer.init(0)
    for step in (jnp.arange(6), jnp.arange(6, 11)):
        held = buffer.add(held, step)
    _, pairs = epoch_of(sampler, sampler.init(jax.random.key(0)), held)

    assert sorted(pairs.first.tolist()) == list(range(3, 10))
    assert (pairs.second == pairs.first + 1).all()


def test_an_add_begins_a_new_epoch():
    """What is added in the middle of an epoch comes in the epoch that begins with the next sample."""
    buffer, sampler = trajectory(sample_sequence_length=1, period=1, min_length_time_axis=1)
    held = buffer.add(buffer.init(0), jnp.arange(8).reshape(2, 4))
    state, _ = sampler.sample(sampler.init(jax.random.key(0)), held)
    held = buffer.add(held, jnp.full((2, 1), 99))
    state, found = epoch_of(sampler, state, held)

    assert int(state.epoch) == 1 and sorted(found.ravel().tolist()) == [0, 1, 2, 3, 4, 5, 6, 7, 99, 99]


def test_it_is_traced_once_and_works_with_vmap_and_donation():
    """Twelve donated samples trace once, and two buffers in a vmap give what each gives alone."""
    buffer, sampler = trajectory()
    held = [buffer.add(buffer.init(0), first + jnp.arange(16).reshape(2, 8)) for first in (0, 100)]
    keys = jax.random.split(jax.random.key(0))
    traced = []

    @jax.jit
    def both(states, held):
        traced.append(1)
        return jax.vmap(fbx.make_epoch_sampler(buffer).sample)(states, held)

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *held)
    states = jax.vmap(sampler.init)(keys)
    alone = [sampler.init(key) for key in keys]
    donated = jax.jit(sampler.sample, donate_argnums=0)
    for _ in range(12):
        states, drawn = both(states, stacked)
        for k in range(2):
            alone[k], one = donated(alone[k], held[k])
            np.testing.assert_array_equal(drawn.experience[k], one.experience)
            np.testing.assert_array_equal(drawn.mask[k], one.mask)

    assert len(traced) == 1


def test_donation_takes_nothing_but_what_was_given():
    """Key, buffer state and sampler state live on, each when the others are donated."""
    buffer = fbx.make_item_buffer(max_length=10, min_length=1, sample_batch_size=4, add_batches=True)
    sampler = fbx.make_epoch_sampler(buffer)
    donated, kept = jax.jit(sampler.sample, donate_argnums=0), jax.jit(sampler.sample)
    add = jax.jit(buffer.add, donate_argnums=0)
    key = jax.random.key(0)
    held = add(buffer.init(0), jnp.arange(10))
    state, _ = donated(sampler.init(key), held)
    state, _ = donated(state, held)
    state, _ = kept(state, held)
    held = add(held, jnp.arange(10))
    _, drawn = donated(state, held)

    assert int(drawn.mask.sum()) == 4 and jax.random.bits(key, (1,)).shape == (1,)


@pytest.mark.parametrize("key", [jax.random.PRNGKey(3), jax.random.key(3, impl="rbg")])
def test_other_kinds_of_keys_shuffle_too(key):
    """Raw keys and keys of another implementation give permutations."""
    buffer = fbx.make_item_buffer(max_length=10, min_length=1, sample_batch_size=4, add_batches=True)
    sampler = fbx.make_epoch_sampler(buffer)
    held = buffer.add(buffer.init(0), jnp.arange(10))

    assert sorted(epoch_of(sampler, sampler.init(key), held)[1].tolist()) == list(range(10))


def test_other_buffers_are_refused():
    """A queue has no epochs, and an episode buffer draws what it may, not all it holds."""
    queue = fbx.make_trajectory_queue(4, add_batch_size=1, add_sequence_length=1, sample_sequence_length=1)

    with pytest.raises(InvalidArgumentError, match="`buffer` must be an item, flat or trajectory buffer"):
        fbx.make_epoch_sampler(queue)
