"""A state that is saved and loaded is the same, bit for bit, and goes on as if it had never stopped."""

import os
import typing
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.errors import DamagedError, NotFoundError, StructureError
from fbxcore.snapshot import dump_snapshot, load_state, save_state


class Step(typing.NamedTuple):
    """A timestep of leaves of many kinds."""

    obs: dict
    reward: typing.Any
    end: typing.Any


ONE = Step(
    {"image": jnp.zeros((2, 3), jnp.uint8), "a/b": jnp.zeros(2, jnp.bfloat16)},
    (jnp.zeros((), jnp.float16), jnp.zeros((), jnp.int32)),
    jnp.zeros((), bool),
)


def steps(*shape):
    """Return timesteps of leading axes that count."""
    count = jnp.arange(np.prod(shape, dtype=int)).reshape(shape)

    def fill(leaf):
        return jnp.broadcast_to(count.reshape(*shape, *[1] * leaf.ndim), (*shape, *leaf.shape)).astype(
            leaf.dtype
        )

    return jax.tree.map(fill, ONE)._replace(end=count % 4 == 3)


def made(kind):
    """Return a buffer of a kind and the batch it takes."""
    arguments = {
        "add_batch_size": 2,
        "sample_batch_size": 4,
        "sample_sequence_length": 3,
        "period": 1,
        "min_length_time_axis": 3,
        "max_length_time_axis": 8,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind.startswith("episode"):
            inner = (
                fbx.make_prioritised_trajectory_buffer
                if "prioritised" in kind
                else fbx.make_trajectory_buffer
            )
            crossing = "mask" if "mask" in kind else "avoid"
            return fbx.make_episode_buffer(inner(**arguments), episode_end="end", crossing=crossing), steps(
                2, 5
            )
        if "trajectory" in kind:
            return getattr(fbx, f"make_{kind}_buffer")(**arguments), steps(2, 5)
        if "item" in kind:
            return getattr(fbx, f"make_{kind}_buffer")(9, 1, 4, add_batches=True), steps(5)
        return getattr(fbx, f"make_{kind}_buffer")(9, 1, 4, add_sequences=True), steps(5)


def same(ours, theirs):
    """Compare two states bit for bit."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


KINDS = [
    "flat",
    "item",
    "trajectory",
    "prioritised_flat",
    "prioritised_item",
    "prioritised_trajectory",
    "episode",
    "episode mask",
    "episode prioritised",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_goes_on_as_if_it_had_never_stopped(tmp_path, kind):
    """Part full and wrapped, a state comes back as it was, into shapes alone, and adds and samples alike."""
    buffer, batch = made(kind)
    add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
    like = jax.eval_shape(buffer.init, ONE)
    state = buffer.init(ONE)
    for turn in range(3):
        state = add(state, batch)
        if "prioritised" in kind:
            drawn = sample(state, jax.random.key(turn))
            state = buffer.set_priorities(state, drawn.indices, jnp.arange(1.0, 5.0), drawn.generations)
        save_state(tmp_path / "state", state)
        again = load_state(tmp_path / "state", like)

        same(state, again)
        state, again = add(state, batch), add(again, batch)
        same(sample(state, jax.random.key(9)), sample(again, jax.random.key(9)))


def test_capacity_size_and_index_are_exact(tmp_path):
    """30 timesteps in a time axis of 100 come back as such: not full, and the next one goes to 30 (VA-04)."""
    buffer = fbx.make_flat_buffer(max_length=100, min_length=1, sample_batch_size=2, add_sequences=True)
    save_state(tmp_path / "state", buffer.add(buffer.init(0), jnp.arange(30)))
    state = load_state(tmp_path / "state", buffer.init(0))
    assert state.experience.shape == (1, 100)
    assert int(state.current_index) == 30 and not bool(state.is_full)

    assert int(buffer.add(state, jnp.array([77])).experience[0, 30]) == 77


def test_priorities_and_counters_are_exact(tmp_path):
    """Priorities 1 to 20 of a ring that wrapped, the greatest of them and the count of adds (RV-02)."""
    buffer = fbx.make_prioritised_item_buffer(
        max_length=20, min_length=1, sample_batch_size=2, add_batches=True, priority_exponent=1.0
    )
    state = buffer.add(buffer.add(buffer.init(0), jnp.arange(15)), jnp.arange(15))
    state = buffer.set_priorities(state, jnp.arange(20), jnp.arange(1.0, 21.0))
    save_state(tmp_path / "state", state)
    again = load_state(tmp_path / "state", like=jax.eval_shape(buffer.init, 0))

    assert fbx.sum_tree.leaves(again.sum_tree_state).tolist() == list(range(1, 21))
    assert float(again.sum_tree_state.max_recorded_priority) == 20 and int(again.running_index) == 30
    assert float(again.sum_tree_state.nodes[0]) == 210


def other_states():
    """Return states that are not those of one buffer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue = fbx.make_trajectory_queue(
            8, add_batch_size=2, add_sequence_length=5, sample_sequence_length=3
        )
        clustered = fbx.make_clustered_buffer(9, 1, 4, num_clusters=2)
        item, _ = made("item")
    queued, _ = queue.sample(queue.add(queue.init(ONE), steps(2, 5)))
    held = item.add(item.init(ONE), steps(5))
    sampler = fbx.make_epoch_sampler(item)
    epoch, _ = sampler.sample(sampler.init(jax.random.key(1)), held)
    return {
        "queue": queued,
        "clustered": clustered.add(clustered.init(ONE), steps(5), jnp.array([0, 1, 1, 7, 1])),
        "sum tree": fbx.sum_tree.set_batch_bincount(
            fbx.sum_tree.init(5), jnp.arange(5), jnp.arange(5, dtype=jnp.float32)
        ),
        "epoch sampler": epoch,
        "mixer": [held, item.add(held, steps(5))],
        "learner": {
            "buffer": held,
            "params": (jnp.ones((2, 2), jnp.float8_e4m3fn), None, [jnp.array(1 + 2j)]),
            "keys": [
                jax.random.PRNGKey(3),
                jax.random.split(jax.random.key(3)),
                jax.random.key(1, impl="rbg"),
            ],
            "count": np.int64(2**40),
            "time": np.array([1.5], ">f8"),
        },
    }


@pytest.mark.parametrize("name", ["queue", "clustered", "sum tree", "epoch sampler", "mixer", "learner"])
def test_any_state_comes_back_as_it_was(tmp_path, name):
    """Queues, samplers, trees, lists of states, typed keys, small floats, and NumPy's 64-bit values."""
    state = other_states()[name]
    save_state(str(tmp_path / "state"), state)
    again = load_state(str(tmp_path / "state"), like=jax.tree.map(lambda x: x, state))

    same(state, again)
    assert [type(x) for x in jax.tree.leaves(again) if isinstance(x, np.ndarray)] == [
        np.ndarray for x in jax.tree.leaves(state) if isinstance(x, np.ndarray | np.generic)
    ]


def test_equal_states_give_equal_files(tmp_path):
    """The bytes hang on the state alone."""
    for name in ("a", "b"):
        save_state(tmp_path / name, other_states()["learner"])

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


FLAT = {"x": jnp.zeros((2, 3)), "tree": fbx.sum_tree.init(5)}


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (
            {**FLAT, "x": jnp.zeros((3, 2))},
            r"Leaf `x` has shape \[2, 3\] in the snapshot but \[3, 2\] in `like`",
        ),
        (
            {**FLAT, "x": jnp.zeros((2, 3), int)},
            "Leaf `x` has dtype float32 in the snapshot but int32 in `like`",
        ),
        ({**FLAT, "y": jnp.zeros(1)}, "Leaf `y` must be in the snapshot as it is in `like`, got none"),
        ({"tree": FLAT["tree"]}, r"Leaf `\['x'\]` of the snapshot must be in `like` too, got none"),
        (
            {**FLAT, "tree": fbx.sum_tree.init(6)},
            r"`like` must have the sizes \['\(3, 5\)'\] of the snapshot",
        ),
        ({**FLAT, "x": 1.0}, r"Leaf `x` has shape \[2, 3\] in the snapshot but \[\] in `like`"),
    ],
)
def test_another_structure_is_refused_by_leaf(tmp_path, like, message):
    """Another shape, dtype, leaf or capacity is never taken for the one saved."""
    save_state(tmp_path / "state", FLAT)

    with pytest.raises(StructureError, match=message):
        load_state(tmp_path / "state", like)


def test_a_missing_file_is_an_error_and_so_is_a_damaged_one(tmp_path):
    """No file is never an empty buffer (RV-02), and nor is half a file or one of something else."""
    with pytest.raises(NotFoundError, match="No snapshot at '.*nothing'"):
        load_state(tmp_path / "nothing", FLAT)
    save_state(tmp_path / "state", FLAT)
    whole = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedError):
        load_state(tmp_path / "state", FLAT)
    (tmp_path / "state").write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(DamagedError):
        load_state(tmp_path / "state", FLAT)
    (tmp_path / "state").write_bytes(dump_snapshot({}, {"log": "x"}))
    with pytest.raises(StructureError, match="must be of a snapshot that `save_state` made"):
        load_state(tmp_path / "state", FLAT)


@pytest.mark.parametrize("leaf", [3, "text", np.array([object()])])
def test_what_is_no_array_is_refused_and_nothing_is_written(tmp_path, leaf):
    """Nothing is pickled; the leaf is named and the file that was there is left alone."""
    save_state(tmp_path / "state", FLAT)
    before = (tmp_path / "state").read_bytes()
    with pytest.raises(StructureError, match="Leaf `deep/0` must be an array of numbers"):
        save_state(tmp_path / "state", {"deep": [leaf]})

    assert (tmp_path / "state").read_bytes() == before


def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    """A disk that refuses before the file is synced changes nothing and leaves nothing behind."""
    save_state(tmp_path / "state", FLAT)

    def refuse(descriptor):
        raise OSError("no room")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no room"):
        save_state(tmp_path / "state", {**FLAT, "x": jnp.ones((2, 3))})

    assert os.listdir(tmp_path) == ["state"]
    assert float(load_state(tmp_path / "state", FLAT)["x"].sum()) == 0
