"""Every kind under jit with donation, scan, vmap, pmap and shard_map gives what it gives by itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import fbxcore as fbx

ROWS, STEPS, TURNS = 2, 3, 4
_FLAT = {
    "max_length": 16,
    "min_length": 2,
    "sample_batch_size": 4,
    "add_batch_size": ROWS,
    "add_sequences": True,
}
_ITEM = {"max_length": 8, "min_length": 2, "sample_batch_size": 4, "add_batches": True}
_TRAJECTORY = {
    "add_batch_size": ROWS,
    "sample_batch_size": 4,
    "sample_sequence_length": 2,
    "period": 1,
    "min_length_time_axis": 2,
    "max_length_time_axis": 7,
}
_QUEUE = {
    "max_length_time_axis": 8,
    "add_batch_size": ROWS,
    "add_sequence_length": STEPS,
    "sample_sequence_length": 2,
}
ONE = {"x": jnp.float32(0), "y": jnp.zeros(1, jnp.uint8), "end": jnp.array(False)}


def _episodes(make, crossing):
    return fbx.make_episode_buffer(make(**_TRAJECTORY), episode_end="end", crossing=crossing)


def _clustered():
    buffer = fbx.make_clustered_buffer(max_length=9, min_length=2, sample_batch_size=4, num_clusters=3)
    # Clusters 0 to 3, of which the last is none.
    return buffer.replace(add=lambda state, batch: buffer.add(state, batch, batch["y"][:, 0] % 4))


MAKERS = {
    "flat": functools.partial(fbx.make_flat_buffer, **_FLAT),
    "item": functools.partial(fbx.make_item_buffer, **_ITEM),
    "trajectory": functools.partial(fbx.make_trajectory_buffer, **_TRAJECTORY),
    "prioritised_flat": functools.partial(fbx.make_prioritised_flat_buffer, **_FLAT),
    "prioritised_item": functools.partial(fbx.make_prioritised_item_buffer, **_ITEM),
    "prioritised_trajectory": functools.partial(fbx.make_prioritised_trajectory_buffer, **_TRAJECTORY),
    "queue": functools.partial(fbx.make_trajectory_queue, **_QUEUE),
    "episodes": functools.partial(_episodes, fbx.make_trajectory_buffer, "avoid"),
    "prioritised_episodes": functools.partial(_episodes, fbx.make_prioritised_trajectory_buffer, "mask"),
    "clustered_item": _clustered,
}


@pytest.fixture(scope="module", params=MAKERS)
def kind(request):
    """The name of a kind and a buffer of it."""
    return request.param, MAKERS[request.param]()


def batches(kind, count, first=0):
    """Return `count` batches, stacked, whose numbers tell batch, row and step."""
    shape = (count, ROWS) if kind.endswith("item") else (count, ROWS, STEPS)
    number = first + np.arange(np.prod(shape)).reshape(shape)
    return {
        "x": jnp.asarray(number, jnp.float32),
        "y": jnp.asarray(number[..., None] % 251, jnp.uint8),
        "end": jnp.asarray(number % 5 == 4),
    }


def turn(buffer, state, batch, key):
    """Add, sample and, where there are priorities, set them; return state and sample."""
    state = buffer.add(state, batch)
    if hasattr(buffer, "can_add"):
        return buffer.sample(state)
    drawn = buffer.sample(state, key)
    if not hasattr(buffer, "set_priorities"):
        return state, drawn
    return buffer.set_priorities(state, drawn.indices, drawn.probabilities + 0.5, drawn.generations), drawn


def by_hand(kind, buffer, first=0):
    """Return state and stacked samples of some turns, one call after the other."""
    state, drawn = buffer.init(ONE), []
    for i, key in enumerate(jax.random.split(jax.random.key(0), TURNS)):
        batch = jax.tree.map(lambda x, i=i: x[i], batches(kind, TURNS, first))
        state, sample = turn(buffer, state, batch, key)
        drawn.append(sample)
    return state, jax.tree.map(lambda *x: jnp.stack(x), *drawn)


def scanned(buffer, state, given):
    """The same in one scan."""
    keys = jax.random.split(jax.random.key(0), TURNS)
    return jax.lax.scan(lambda state, xs: turn(buffer, state, *xs), state, (given, keys))


def two(kind):
    """Return the batches of two runs, stacked on a leading axis."""
    return jax.tree.map(lambda *x: jnp.stack(x), batches(kind, TURNS), batches(kind, TURNS, first=100))


def both(kind, buffer):
    """Return what two runs give by hand, stacked."""
    return jax.tree.map(lambda *x: jnp.stack(x), by_hand(kind, buffer), by_hand(kind, buffer, first=100))


def assert_same(found, expected):
    """Check that all leaves are equal; floats may differ in the last bit, as powers do in other lanes."""
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-7 if ours.dtype == jnp.float32 else 0)


def test_jit_with_donation_traces_once(kind):
    """One trace serves every turn, the donated state is gone, and the numbers are the same."""
    name, buffer = kind
    traces = []

    def counted(state, batch, key):
        traces.append(1)
        return turn(buffer, state, batch, key)

    step = jax.jit(counted, donate_argnums=0)
    state, drawn = buffer.init(ONE), []
    for i, key in enumerate(jax.random.split(jax.random.key(0), TURNS)):
        before = state
        state, sample = step(state, jax.tree.map(lambda x, i=i: x[i], batches(name, TURNS)), key)
        drawn.append(sample)

    assert len(traces) == 1
    assert jax.tree.leaves(before.experience)[0].is_deleted()
    assert_same((state, jax.tree.map(lambda *x: jnp.stack(x), *drawn)), by_hand(name, buffer))


def test_scan_under_vmap(kind):
    """Two runs in a vmap of a scan are two runs by hand."""
    name, buffer = kind
    state = buffer.init(ONE)

    found = jax.jit(jax.vmap(lambda given: scanned(buffer, state, given)))(two(name))

    assert_same(found, both(name, buffer))


def test_pmap_over_two_devices(kind):
    """Two runs on two devices are two runs by hand."""
    name, buffer = kind
    state = buffer.init(ONE)

    found = jax.pmap(lambda given: scanned(buffer, state, given))(two(name))

    assert_same(found, both(name, buffer))


def test_shard_map_over_two_devices(kind):
    """Two runs, sharded over a mesh of two devices, are two runs by hand."""
    name, buffer = kind
    state = buffer.init(ONE)
    along = PartitionSpec("runs")

    def one(given):
        found = scanned(buffer, state, jax.tree.map(lambda x: x[0], given))
        return jax.tree.map(lambda x: x[None], found)

    mesh = Mesh(np.array(jax.devices()[:2]), ("runs",))
    sharded = jax.shard_map(one, mesh=mesh, in_specs=along, out_specs=along, check_vma=False)
    found = jax.jit(sharded)(two(name))

    assert len(jax.tree.leaves(found)[0].sharding.device_set) == 2
    assert_same(found, both(name, buffer))


def test_a_buffer_is_a_static_argument(kind):
    """A buffer may be given to `jit` as it is, and is equal to its copies alone."""
    name, buffer = kind
    begin = jax.jit(lambda buffer, timestep: buffer.init(timestep), static_argnums=0)
    state = begin(buffer, ONE)

    assert jax.tree.leaves(state)
    assert buffer.replace() == buffer and hash(buffer.replace()) == hash(buffer)
    assert buffer != MAKERS[name]()
