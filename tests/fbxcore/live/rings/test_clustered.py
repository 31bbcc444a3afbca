"""A live clustered buffer: a ring for each cluster, drawn alike, and back after a restart as it was."""

import asyncio
import shutil

import jax
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.errors import InvalidArgumentError, NotEnoughDataError
from fbxcore.live import BufferConfig
from fbxcore.vault.store import VaultReader

pytestmark = pytest.mark.anyio
SPEC = {"number": {"shape": [2], "dtype": "float32"}, "task": {"shape": [], "dtype": "int32"}}


def made_of(**changes):
    """Return the configuration of three clusters of four items."""
    asked = {
        "name": "c",
        "kind": "clustered",
        "spec": SPEC,
        "max_length": 12,
        "min_length": 2,
        "sample_batch_size": 8,
        "num_clusters": 3,
        "cluster_leaf": "task",
    }
    return BufferConfig.parse({n: v for n, v in (asked | changes).items() if v is not None})


def items(start, clusters):
    """Return numbered items of clusters."""
    number = np.arange(start, start + len(clusters), dtype=np.float32)
    return {"number": number[:, None].repeat(2, 1), "task": np.array(clusters, np.int32)}


async def test_a_seed_draws_what_the_engine_draws(opened):
    """After adds that wrap, a sample is that of `make_clustered_buffer` with the same key."""
    buffer = await opened(made_of())
    peer = fbx.make_clustered_buffer(max_length=12, min_length=2, sample_batch_size=8, num_clusters=3)
    state = peer.init({name: leaf[0] for name, leaf in items(0, [0]).items()})
    rng = np.random.default_rng(0)
    at = 0
    for count in (3, 11, 1, 6):
        batch = items(at, rng.choice(3, count, p=[0.7, 0.2, 0.1]))
        await buffer.add(batch)
        state = peer.add(state, batch, batch["task"])
        at += count
    drawn, expected = (await buffer.sample(seed=(7 << 32) + 9)).arrays, None
    expected = peer.sample(state, jax.numpy.array([7, 9], jax.numpy.uint32))

    assert (drawn["experience/number"] == np.asarray(expected.experience["number"])).all()
    assert (drawn["clusters"] == np.asarray(expected.clusters)).all()
    assert (drawn["clusters"] == drawn["experience/task"]).all()
    np.testing.assert_array_equal(drawn["probabilities"], np.asarray(expected.probabilities))


async def test_a_rare_cluster_keeps_its_items_and_comes_as_often(opened):
    """One item beside a hundred of another cluster stays, and is half of what is drawn."""
    buffer = await opened(made_of())
    await buffer.add(items(0, [2]))
    for start in range(1, 101, 10):
        await buffer.add(items(start, [0] * 10))
    drawn = (await buffer.sample(1000, seed=0)).arrays["experience/number"][:, 0]

    assert set(drawn.tolist()) == {0.0, 97.0, 98.0, 99.0, 100.0}
    assert 400 < (drawn == 0).sum() < 600
    told = buffer.describe()
    assert (told["size"], told["added"], told["capacity"], told["is_full"]) == (5, 101, 12, False)


async def test_an_add_says_what_the_buffer_then_holds(opened):
    """Sizes count what the clusters hold; adds that are joined each have their own, and so has a repeat."""
    buffer = await opened(made_of())
    adding = [buffer.add(items(n, [n % 2] * 3), idempotency_key=f"k{n}") for n in range(4)]
    sizes = [(await add).size for add in [asyncio.ensure_future(a) for a in adding]]
    assert sizes == [3, 6, 7, 8]
    assert (await buffer.add(items(1, [1] * 3), idempotency_key="k1")).size == 6


async def test_what_cannot_be_is_named(opened):
    """A cluster that is none, before anything is added; a leaf that says no cluster."""
    buffer = await opened(made_of())
    with pytest.raises(
        InvalidArgumentError, match="`task` must be clusters from 0 to 2, got 3 at position 1"
    ):
        await buffer.add(items(0, [0, 3]))
    assert buffer.describe()["added"] == 0
    with pytest.raises(NotEnoughDataError):
        await buffer.sample()
    for leaf in ("number", "nothing", 3):
        with pytest.raises(InvalidArgumentError, match="`cluster_leaf` must name a leaf"):
            made_of(cluster_leaf=leaf)
    with pytest.raises(InvalidArgumentError, match="`min_length` must be at most 12"):
        made_of(max_length=14, min_length=13)


@pytest.mark.parametrize("persist_to", [None, "runs/1"])
@pytest.mark.parametrize("ending", ["stop", "kill", "base", "reset"])
async def test_a_restart_brings_everything_back(opened, tmp_path, ending, persist_to):
    """The same seed draws the same arrays, counts and keys are the same, from log alone or from a base."""
    buffer = await opened(made_of(persist_to=persist_to))
    await buffer.add(items(0, [2, 0, 1]), idempotency_key="k")
    for start in range(3, 43, 10):
        await buffer.add(items(start, [0, 0, 0, 0, 0, 0, 0, 0, 1, 0]))
    if ending == "base":
        await buffer._housekeeper._bases.write()
        await buffer.add(items(43, [1, 2]))
    if ending == "reset":
        await buffer.reset()
        await buffer.add(items(60, [1, 1, 0]))
    await buffer.flush()
    drawn, told = (await buffer.sample(64, seed=5, peek=True)).arrays, buffer.describe()
    if ending == "stop":
        await buffer.close()
    else:
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        await buffer.close()
        shutil.rmtree(tmp_path / "b")
        (tmp_path / "copy").rename(tmp_path / "b")

    again = await opened()
    after = (await again.sample(64, seed=5, peek=True)).arrays
    assert all((drawn[name] == after[name]).all() for name in drawn)
    assert {n: v for n, v in again.describe().items() if n != "persisted"} == {
        n: v for n, v in told.items() if n != "persisted"
    }
    assert (await again.add(items(0, [2, 0, 1]), idempotency_key="k")).duplicate
    if persist_to is not None:
        with VaultReader.open(tmp_path / "vaults" / "runs" / "1") as reader:
            assert (reader.read(0, 43)["number"][0, :, 0] == np.arange(43)).all()


async def test_a_base_lets_the_log_go(opened):
    """With a segment for each frame, only what came since the base stays, however old a held item is."""
    buffer = await opened(made_of())
    buffer._journal.log.segment_bytes = 1
    for start in range(20):
        await buffer.add(items(start, [2 if start == 0 else 0]))
    await buffer._housekeeper._bases.write()
    assert len(buffer._journal.log.segments) == 1
    await buffer.close()
    again = await opened()
    drawn = (await again.sample(256, seed=1)).arrays["experience/number"][:, 0]
    assert set(drawn.tolist()) == {0.0, 16.0, 17.0, 18.0, 19.0}


async def test_a_histogram_counts_the_clusters(opened):
    """Four, one and none."""
    buffer = await opened(made_of())
    await buffer.add(items(0, [0, 0, 0, 0, 0, 1]))
    assert (await buffer.histogram("cluster", 3))["counts"] == [4, 1, 0]
    with pytest.raises(InvalidArgumentError, match="`field` must be cluster"):
        await buffer.histogram("age")
