"""The trajectory buffer beside real Flashbax, at every wrap, and under the transformations of JAX."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.errors import InvalidArgumentError, StructureError

ARGUMENTS = {
    "add_batch_size": 3,
    "sample_batch_size": 32,
    "sample_sequence_length": 4,
    "period": 2,
    "min_length_time_axis": 5,
    "max_length_time_axis": 13,
}


@pytest.fixture(scope="module")
def buffer():
    """The buffer that most tests share, so that little is compiled."""
    made = fbx.make_trajectory_buffer(**ARGUMENTS)
    return made.replace(add=jax.jit(made.add), sample=jax.jit(made.sample))


def test_it_holds_and_samples_what_flashbax_does(buffer, flashbax, timestep, steps, same):
    """After adds of several lengths and four wraps, state and samples equal Flashbax's, bit for bit."""
    peer = flashbax.make_trajectory_buffer(**ARGUMENTS)
    peer_sample = jax.jit(peer.sample)
    ours, theirs = buffer.init(timestep), peer.init(timestep)
    first = 0
    for length in (4, 1, 13, 5, 5, 5, 4, 9, 13, 4):
        batch = steps(first, (3, length))
        ours, theirs = buffer.add(ours, batch), peer.add(theirs, batch)
        first += length
        key = jax.random.key(first)

        assert same(ours.experience, theirs.experience)
        assert (ours.current_index, ours.is_full) == (theirs.current_index, theirs.is_full)
        assert bool(buffer.can_sample(ours)) == bool(peer.can_sample(theirs))
        if bool(peer.can_sample(theirs)):
            assert same(buffer.sample(ours, key), peer_sample(theirs, key))


def test_other_kinds_of_keys_give_flashbax_samples_too(buffer, flashbax, timestep, steps, same):
    """A raw key and a key of another implementation give what Flashbax gives for them."""
    peer = flashbax.make_trajectory_buffer(**ARGUMENTS)
    batch = steps(0, (3, 13))
    ours, theirs = buffer.add(buffer.init(timestep), batch), peer.add(peer.init(timestep), batch)

    for key in (jax.random.PRNGKey(5), jax.random.key(5, impl="rbg")):
        assert same(buffer.sample(ours, key), peer.sample(theirs, key))


# Each row is one pair of compiled functions: add length, sequence length, period, time axis (FB-01).
SWEEP = [(4, 3, 1, 13), (4, 9, 2, 13), (9, 13, 1, 13), (9, 4, 5, 16), (13, 4, 3, 26), (13, 13, 4, 39)]
GRID = [
    (k, length, period, time_axis)
    for k in (4, 9, 13)
    for length in (3, 4, 9, 13)
    for period in range(1, 6)
    for time_axis in (13, 16, 26, 39)
]


def check_no_splice(kind: str, k: int, length: int, period: int, time_axis: int) -> None:
    """Add a counter in pieces of k and look at every sampled sequence after each add."""
    make = getattr(fbx, f"make_{kind}")
    buffer = make(
        add_batch_size=4,
        sample_batch_size=256,
        sample_sequence_length=length,
        period=period,
        min_length_time_axis=length,
        max_length_time_axis=time_axis,
    )
    add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
    state = buffer.init({"x": jnp.zeros((), jnp.int32)})
    for turn in range(12):
        batch = np.arange(turn * k, (turn + 1) * k) + 10_000 * np.arange(4)[:, None]
        state = add(state, {"x": jnp.asarray(batch, jnp.int32)})
        if bool(buffer.can_sample(state)):
            x = np.asarray(sample(state, jax.random.key(turn)).experience["x"])
            newest = (turn + 1) * k - 1
            held = min(newest + 1, time_axis - time_axis % period if "prioritised" in kind else time_axis)

            assert (np.diff(x, axis=1) == 1).all()
            assert (x % 10_000 <= newest).all() and (x % 10_000 > newest - held).all()


@pytest.mark.parametrize(("k", "length", "period", "time_axis"), SWEEP)
def test_no_sequence_joins_what_was_not_consecutive(k, length, period, time_axis):
    """In every sampled sequence the counter rises by exactly 1, at every wrap position (FB-01)."""
    check_no_splice("trajectory_buffer", k, length, period, time_axis)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["trajectory_buffer", "prioritised_trajectory_buffer"])
@pytest.mark.parametrize(("k", "length", "period", "time_axis"), GRID)
def test_no_sequence_joins_what_was_not_consecutive_in_the_whole_grid(kind, k, length, period, time_axis):
    """In every sampled sequence of the whole grid the counter rises by exactly 1 (FB-01)."""
    if length > time_axis - (time_axis % period if "prioritised" in kind else 0) or k > time_axis:
        pytest.skip("refused when it is made or added")
    if "prioritised" in kind and k > time_axis - time_axis % period:
        pytest.skip("refused when it is added")
    check_no_splice(kind, k, length, period, time_axis)


def test_an_add_is_traced_once(timestep, steps):
    """Twenty adds of one length, through a wrap, trace once, also where a leaf was given as a number."""
    buffer = fbx.make_trajectory_buffer(**ARGUMENTS)
    traced = []

    @jax.jit
    def add(state, batch):
        traced.append(1)
        return buffer.add(state, batch)

    state = buffer.init({**timestep, "count": 0})
    for turn in range(20):
        state = add(state, steps(turn * 4, (3, 4)))

    assert len(traced) == 1


def test_it_works_inside_scan_and_vmap(buffer, timestep, steps, same):
    """Five adds in a scan over two buffers in a vmap give what five adds of each give."""
    batches = [steps(first, (3, 5)) for first in range(0, 25, 5)]
    other = [jax.tree.map(lambda x: x + 1, batch) for batch in batches]
    stack = lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)  # noqa: E731
    made = fbx.make_trajectory_buffer(**ARGUMENTS)

    def fill(batches):
        state, _ = jax.lax.scan(
            lambda state, batch: (made.add(state, batch), None), made.init(timestep), batches
        )
        return state, made.sample(state, jax.random.key(1))

    states, samples = jax.jit(jax.vmap(fill))(stack([stack(batches), stack(other)]))

    for row, given in enumerate((batches, other)):
        state = buffer.init(timestep)
        for batch in given:
            state = buffer.add(state, batch)
        assert same(state, jax.tree.map(lambda x, row=row: x[row], states))
        assert same(buffer.sample(state, jax.random.key(1)), jax.tree.map(lambda x, row=row: x[row], samples))


def test_gradients_pass_by_a_sample(timestep, steps):
    """A loss that samples inside has the gradient of its parameter."""
    made = fbx.make_trajectory_buffer(**ARGUMENTS)
    state = made.add(made.init(timestep), steps(0, (3, 13)))

    def loss(weight, key):
        return jnp.sum(weight * made.sample(state, key).experience["reward"])

    slope = jax.grad(loss)(1.0, jax.random.key(0))

    assert float(slope) == float(jnp.sum(made.sample(state, jax.random.key(0)).experience["reward"]))


def test_an_add_costs_the_same_at_any_capacity():
    """A donated add of 6 rows into 10**6 slots takes less than twice the time of one into 10**3 (FB-10)."""
    seconds = {}
    for capacity in (10**3, 10**6):
        buffer = fbx.make_trajectory_buffer(
            add_batch_size=1,
            sample_batch_size=4,
            sample_sequence_length=1,
            period=1,
            min_length_time_axis=1,
            max_length_time_axis=capacity,
        )
        add = jax.jit(buffer.add, donate_argnums=0)
        batch = {"x": jnp.ones((1, 6, 20))}
        state = add(buffer.init({"x": jnp.zeros(20)}), batch)
        times = []
        for _ in range(15):
            begin = time.perf_counter()
            for _ in range(20):
                state = add(state, batch)
            jax.block_until_ready(state)
            times.append(time.perf_counter() - begin)
        seconds[capacity] = min(times)

    assert seconds[10**6] < 2 * seconds[10**3]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": jnp.zeros((3, 4), jnp.float16)}, "Leaf `reward` must have dtype float32, got float16"),
        ({"reward": jnp.zeros((3, 4, 1))}, r"Leaf `reward` must have shape \[3, 4\], got \[3, 4, 1\]"),
        ({"reward": jnp.zeros((1, 4))}, r"Leaf `reward` must have shape \[3, 4\], got \[1, 4\]"),
        ({"extra": jnp.zeros((3, 4))}, "`batch` must have the structure"),
    ],
)
def test_another_structure_is_refused_by_leaf(buffer, timestep, steps, changed, message):
    """A batch with another leaf, shape or dtype is refused by name, and nothing is broadcast."""
    state = buffer.init(timestep)

    with pytest.raises(StructureError, match=message):
        buffer.add(state, {**steps(0, (3, 4)), **changed})
    with pytest.raises(AssertionError):
        buffer.add(state, {**steps(0, (3, 4)), **changed})


def test_a_batch_longer_than_the_time_axis_is_refused(buffer, timestep, steps):
    """14 timesteps do not fit a time axis of 13."""
    with pytest.raises(StructureError, match="must have at most 13 timesteps"):
        buffer.add(buffer.init(timestep), steps(0, (3, 14)))


def test_a_state_is_a_record_and_a_mapping(buffer, timestep):
    """A state can be replaced in parts, read by key and taken apart, and cannot be changed in place."""
    state = buffer.init(timestep)
    moved = state.replace(current_index=jnp.array(3))

    assert set(state) == {"experience", "current_index", "is_full"}
    assert int(moved["current_index"]) == 3 and int(state.current_index) == 0
    assert type(state)(**state).current_index is state.current_index
    with pytest.raises(AttributeError):
        state.is_full = True
    with pytest.raises(KeyError):
        state["size"]


def test_both_lengths_are_refused():
    """`max_size` and `max_length_time_axis` together are a ValueError that names one of them."""
    with pytest.raises(InvalidArgumentError, match="`max_size` must not be given together") as caught:
        fbx.make_trajectory_buffer(**ARGUMENTS, max_size=100)
    assert caught.value.loc == ("max_size",)
    assert isinstance(caught.value, ValueError)
