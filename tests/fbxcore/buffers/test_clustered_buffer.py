"""The clustered buffer against rings written one item at a time, and the chances of clusters and items."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fbxcore as fbx
from fbxcore.errors import InvalidArgumentError, StructureError

CLUSTERS, ROOM = 3, 4


@pytest.fixture(scope="module")
def buffer():
    """Three clusters of four items, compiled."""
    made = fbx.make_clustered_buffer(
        max_length=CLUSTERS * ROOM, min_length=2, sample_batch_size=600, num_clusters=CLUSTERS
    )
    return made.replace(add=jax.jit(made.add), sample=jax.jit(made.sample))


ITEM = {"x": jnp.int32(0), "image": jnp.zeros((2, 2), jnp.uint8)}


def batch_of(x):
    """Return items that count."""
    x = np.asarray(x, np.int32)
    return {"x": x, "image": np.broadcast_to((x % 251).astype(np.uint8)[:, None, None], (len(x), 2, 2))}


class Reference:
    """Rings written item by item."""

    def __init__(self):
        self.rings = [[None] * ROOM for _ in range(CLUSTERS)]
        self.counts = [0] * CLUSTERS

    def add(self, x, clusters):
        """Write items to their clusters, in order."""
        for value, cluster in zip(x, clusters, strict=True):
            if 0 <= cluster < CLUSTERS:
                self.rings[cluster][self.counts[cluster] % ROOM] = value
                self.counts[cluster] += 1


def check(state, reference):
    """Compare a state with the reference."""
    assert state.write_index.tolist() == [count % ROOM for count in reference.counts]
    assert state.size.tolist() == [min(count, ROOM) for count in reference.counts]
    x = np.asarray(state.experience["x"])
    image = np.asarray(state.experience["image"])
    for row, ring in enumerate(reference.rings):
        for slot, value in enumerate(ring):
            if value is not None:
                assert x[row, slot] == value and (image[row, slot] == value % 251).all()


def test_rings_are_those_written_one_item_at_a_time(buffer):
    """In batches of 1, 5 and 9 with any clusters, some beyond the three, looped and at once give the same."""
    at_once = jax.jit(jax.vmap(buffer.add))

    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.sampled_from([1, 5, 9]), min_size=1, max_size=6), st.data())
    def run(lengths, data):
        reference, first = Reference(), 0
        looped = buffer.init(ITEM)
        vector = jax.tree.map(lambda x: x[None], looped)
        for length in lengths:
            clusters = data.draw(st.lists(st.integers(-2, CLUSTERS + 1), min_size=length, max_size=length))
            x = list(range(first, first + length))
            first += length
            reference.add(x, clusters)
            looped = buffer.add(looped, batch_of(x), np.array(clusters))
            given = (batch_of(x), np.array(clusters))
            vector = at_once(vector, *jax.tree.map(lambda x: x[None], given))
            check(looped, reference)
            check(jax.tree.map(lambda x: x[0], vector), reference)

    run()


def test_of_more_than_a_cluster_has_room_for_the_newest_remain(buffer):
    """Nine items of one cluster of four leave the last four, and the other clusters as they were."""
    state = buffer.add(buffer.init(ITEM), batch_of([100]), np.array([2]))
    state = buffer.add(state, batch_of(range(9)), np.ones(9, int))

    assert sorted(state.experience["x"][1].tolist()) == [5, 6, 7, 8]
    assert state.size.tolist() == [0, 4, 1] and int(state.experience["x"][2, 0]) == 100


def test_items_of_no_cluster_are_left_out(buffer):
    """Clusters -1, 3 and 2**31 - 1 are none of three: the state is as it was, bit for bit."""
    state = buffer.add(buffer.init(ITEM), batch_of(range(5)), np.array([0, 1, 2, 0, 1]))
    after = buffer.add(state, batch_of([7, 7, 7, 7, 7]), np.array([-1, 3, 2**31 - 1, -(2**31), 4]))

    assert all((a == b).all() for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True))


def test_clusters_come_alike_and_so_do_their_items(buffer):
    """Of clusters of 1, 0 and 3 items the two come half the time each, by chi-square, and items by P."""
    state = buffer.add(buffer.init(ITEM), batch_of([1]), np.array([0]))
    state = buffer.add(state, batch_of([10, 11, 12, 99, 98]), np.array([2, 2, 2, -1, 9]))
    drawn = jax.vmap(buffer.sample, in_axes=(None, 0))(state, jax.random.split(jax.random.key(0), 10))
    x = np.asarray(drawn.experience["x"]).ravel()
    found, counts = np.unique(x, return_counts=True)
    expected = np.array([3000, 1000, 1000, 1000])

    assert found.tolist() == [1, 10, 11, 12]
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom, p = 0.001
    np.testing.assert_array_equal(np.asarray(drawn.clusters).ravel(), np.where(x == 1, 0, 2))
    np.testing.assert_allclose(np.asarray(drawn.probabilities).ravel(), np.where(x == 1, 1 / 2, 1 / 6))
    assert np.unique(np.asarray(drawn.experience["image"]).reshape(-1, 4), axis=0).tolist() == [
        [value] * 4 for value in (1, 10, 11, 12)
    ]


def test_importance_weights_undo_the_clusters(buffer):
    """The weighted mean of a sample is the mean over all items, 8.5, not over clusters, 6."""
    state = buffer.add(buffer.init(ITEM), batch_of([1]), np.array([0]))
    state = buffer.add(state, batch_of([10, 11, 12, 0, 0]), np.array([2, 2, 2, -1, 9]))
    drawn = buffer.sample(state, jax.random.key(5))
    weights = fbx.replay.importance_weights(drawn.probabilities, 1.0)
    mean = jnp.sum(weights * drawn.experience["x"]) / weights.sum()

    assert abs(float(drawn.experience["x"].mean()) - 6.0) < 1
    assert abs(float(mean) - 8.5) < 0.5


def test_other_kinds_of_keys_draw_too(buffer):
    """A raw key draws what its typed twin draws, and one of another implementation draws both clusters."""
    state = buffer.add(buffer.init(ITEM), batch_of([1]), np.array([0]))
    state = buffer.add(state, batch_of([10, 11, 12, 0, 0]), np.array([2, 2, 2, -1, 9]))
    typed, raw, rbg = (
        np.asarray(buffer.sample(state, key).experience["x"])
        for key in (jax.random.key(5), jax.random.PRNGKey(5), jax.random.key(5, impl="rbg"))
    )

    assert (typed == raw).all() and set(rbg.tolist()) == {1, 10, 11, 12}
    assert abs((rbg == 1).mean() - 0.5) < 0.1


def test_it_may_be_sampled_when_all_clusters_together_hold_enough(buffer):
    """Two are needed: one item is not enough, one in each of two clusters is."""
    state = buffer.init(ITEM)
    assert not bool(buffer.can_sample(state))
    state = buffer.add(state, batch_of([1]), np.array([0]))
    assert not bool(buffer.can_sample(state))

    assert bool(buffer.can_sample(buffer.add(state, batch_of([2]), np.array([2]))))


def test_it_is_traced_once_inside_scan_and_donated(buffer, same):
    """A scan of adds and samples traces once and gives what donated adds one by one give."""
    plain = fbx.make_clustered_buffer(12, 2, 600, 3)
    batches = [batch_of(range(k, k + 5)) for k in range(0, 50, 5)]
    clusters = np.arange(50).reshape(10, 5) * 7 % 5 - 1
    traced = []

    def step(state, given):
        traced.append(1)
        state = plain.add(state, *given)
        return state, plain.sample(state, jax.random.key(0)).clusters

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    state, _ = jax.jit(lambda init: jax.lax.scan(step, init, (stacked, clusters)))(plain.init(ITEM))
    donated = jax.jit(plain.add, donate_argnums=0)
    other = plain.init(ITEM)
    for batch, ids in zip(batches, clusters, strict=True):
        other = donated(other, batch, ids)

    assert len(traced) == 1 and same(state, other)


@pytest.mark.parametrize(
    ("batch", "clusters", "message"),
    [
        ({"x": np.zeros(2, np.int32)}, [0, 1], "`batch` must have the structure"),
        (batch_of([1, 2]), [0], r"Leaf `image` must have shape \[1, 2, 2\], got \[2, 2, 2\]"),
        (batch_of([1, 2]), [0.0, 1.0], r"`clusters` must be integers of shape \[N\], got float32"),
        (batch_of([1, 2]) | {"x": np.zeros(2, np.int16)}, [0, 1], "Leaf `x` must have dtype int32"),
    ],
)
def test_what_does_not_fit_is_refused(buffer, batch, clusters, message):
    """Another structure, a number of clusters that is not that of items, floats as clusters."""
    with pytest.raises(StructureError, match=message):
        buffer.add(buffer.init(ITEM), batch, np.array(clusters))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_clusters": 0}, "`num_clusters` must be an integer of at least 1, got 0"),
        ({"max_length": 2}, r"`num_clusters` must be at most `max_length` \(2\), got 3"),
        ({"max_length": 0}, "`max_length` must be an integer of at least 1, got 0"),
        ({"min_length": 13}, r"`min_length` must be at most 12 \(`max_length` 12 over 3 clusters\), got 13"),
        ({"sample_batch_size": 0}, "`sample_batch_size` must be an integer of at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    """The argument that breaks a rule is named."""
    arguments = {"max_length": 12, "min_length": 1, "sample_batch_size": 4, "num_clusters": 3}

    with pytest.raises(InvalidArgumentError, match=message):
        fbx.make_clustered_buffer(**{**arguments, **changes})


def test_a_length_that_does_not_divide_is_cut_with_a_warning():
    """Ten items over three clusters are three each."""
    with pytest.warns(
        UserWarning, match="`max_length` 10 over 3 clusters leaves 3 items each, 9 in all: 1 cut"
    ):
        buffer = fbx.make_clustered_buffer(10, 1, 4, num_clusters=3)

    assert buffer.init(0).experience.shape == (3, 3)
