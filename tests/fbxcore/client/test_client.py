"""The client against a real server: what goes in comes out, errors are typed, batches are prefetched."""

import itertools
import threading

import numpy as np
import pytest

from fbxcore import errors as fbx
from fbxcore.client import Client, Sample, errors
from tests.served import serve

ROWS = 2
SPEC = {
    "obs": {"image": {"shape": [2, 2], "dtype": "uint8"}, "step": {"shape": [], "dtype": "int32"}},
    "reward": {"shape": [], "dtype": "float32"},
}
SIZES = {"max_length": 256, "min_length": 8, "sample_batch_size": 16, "add_batch_size": ROWS}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("client"), FLASHDECK_TOKEN="s3cret") as server:
        yield server


@pytest.fixture
def client(served):
    with Client(served.url, token="s3cret") as client:
        yield client


_numbers = itertools.count()


@pytest.fixture
def buffer(client):
    """An empty prioritised buffer that persists to a vault of its name."""
    name = f"b{next(_numbers)}"
    return client.create_buffer(name, "prioritised_flat", SPEC, persist_to=f"{name}/run1", **SIZES)


def steps(start, count):
    """Experience whose every number is the timestep's."""
    number = np.arange(start, start + count, dtype=np.int32)[None].repeat(ROWS, 0)
    image = np.broadcast_to(number[..., None, None], (ROWS, count, 2, 2)).astype(np.uint8)
    return {"obs": {"image": image, "step": number}, "reward": number.astype(np.float32)}


def test_a_sample_holds_consecutive_steps_that_were_added(buffer):
    """Nested experience goes in and comes out; second follows first."""
    added = buffer.add(steps(0, 20))
    sample = buffer.sample()

    assert (added.added, added.size, added.duplicate) == (40, 40, False)
    first, second = sample.experience["first"], sample.experience["second"]
    assert first["obs"]["image"].shape == (16, 2, 2)
    np.testing.assert_array_equal(second["obs"]["step"], first["obs"]["step"] + 1)
    np.testing.assert_array_equal(first["obs"]["image"][:, 0, 0], first["obs"]["step"])
    assert sample.indices.shape == sample.generations.shape == sample.probabilities.shape == (16,)


@pytest.mark.parametrize("format", ["safetensors", "npz", "msgpack", "json"])
def test_every_format_carries_the_same_sample(served, buffer, format):
    """The format changes the bytes on the line, not the numbers."""
    buffer.add(steps(0, 20))
    with Client(served.url, token="s3cret", format=format) as other:
        got = other.buffer(buffer.name).sample(8, seed=3, peek=True)
    want = buffer.sample(8, seed=3, peek=True)

    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.experience["first"]["reward"], want.experience["first"]["reward"])
    assert got.seed == want.seed == 3


def test_creating_twice_finds_the_first(client, buffer):
    """A script can run twice; another configuration is an error that says what differs."""
    buffer.add(steps(0, 5))
    again = client.create_buffer(
        buffer.name, "prioritised_flat", SPEC, persist_to=f"{buffer.name}/run1", **SIZES
    )

    assert again.describe()["size"] == 10
    with pytest.raises(errors.ConflictError) as caught:
        client.create_buffer(
            buffer.name,
            "prioritised_flat",
            SPEC,
            persist_to=f"{buffer.name}/run1",
            **SIZES | {"max_length": 512},
        )
    assert caught.value.code == "config_differs"


def test_a_spec_may_be_given_by_arrays(client):
    """A timestep's arrays stand for their shapes and dtypes."""
    timestep = {"obs": {"image": np.zeros((2, 2), np.uint8)}, "reward": np.float32(0)}
    made = client.create_buffer("by-arrays", "flat", timestep, **SIZES)

    assert made.describe()["spec"]["obs"]["image"] == {"shape": [2, 2], "dtype": "uint8"}
    made.delete(discard=True)
    assert "by-arrays" not in [found["name"] for found in client.buffers()]


def test_a_batch_under_one_key_is_stored_once(buffer):
    """The same key five times, three of them at once: one batch, one answer."""
    answers = [buffer.add(steps(0, 5), idempotency_key="k")]
    threads = [
        threading.Thread(target=lambda: answers.append(buffer.add(steps(0, 5), idempotency_key="k")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.append(buffer.add(steps(0, 5), idempotency_key="k"))

    assert [answer.duplicate for answer in answers].count(False) == 1
    assert {(answer.sequence, answer.size) for answer in answers} == {(answers[0].sequence, 10)}
    with pytest.raises(errors.ConflictError) as caught:
        buffer.add(steps(1, 5), idempotency_key="k")
    assert caught.value.code == "idempotency_conflict"


def test_priorities_steer_and_stale_ones_are_left_alone(buffer):
    """Setting all but one item to zero leaves that one to be drawn; overwritten items are stale."""
    buffer.add(steps(0, 20))
    every = buffer.sample(256, seed=0)
    keep = every.indices[0]
    updated = buffer.set_priorities(every, np.where(every.indices == keep, 1.0, 0.0))
    items, counts = np.unique(buffer.sample(64, seed=1).indices, return_counts=True)

    assert updated.updated == len(np.unique(every.indices)) or updated.updated == 256
    assert updated.stale == 0
    assert counts[items == keep][0] == counts.max()
    buffer.add(steps(20, 128))
    assert buffer.set_priorities(every, np.ones(256)).stale == 256


def test_priorities_of_a_uniform_sample_are_refused_here():
    """Without indices there is nothing to set."""
    sample = Sample({"x": np.zeros(3)})
    with pytest.raises(fbx.InvalidArgumentError, match="`items` must be a sample of a prioritised buffer"):
        Client().buffer("b").set_priorities(sample, np.ones(3))


def test_errors_are_typed_and_say_where(client, buffer):
    """Class, status, code and details are those of the answer."""
    with pytest.raises(errors.NotEnoughDataError) as empty:
        buffer.sample()
    with pytest.raises(errors.StructureError, match="obs/step") as wrong:
        buffer.add(steps(0, 3) | {"obs": {"image": steps(0, 3)["obs"]["image"], "step": np.zeros((ROWS, 3))}})
    with pytest.raises(errors.NotFoundError, match="nowhere") as missing:
        client.buffer("nowhere").describe()

    assert empty.value.status == 409
    assert empty.value.details["needed"] > 0
    assert wrong.value.status == 422
    assert missing.value.status == 404
    assert isinstance(missing.value, LookupError)


def test_a_wrong_token_is_refused(served):
    """The error is a PermissionError with the status."""
    with Client(served.url, token="wrong") as client, pytest.raises(PermissionError) as caught:
        client.buffers()

    assert caught.value.status == 401


def test_float64_is_cast_where_that_is_asked_for(buffer):
    """Gymnasium's float64 rewards fit with `cast`."""
    given = steps(0, 3) | {"reward": np.ones((ROWS, 3))}

    assert buffer.add(given, cast="same_kind").added == 6


def test_batches_are_prefetched_in_the_order_of_their_seeds(buffer):
    """The iterator yields what sampling with seed, seed + 1, … yields, and ends when closed."""
    buffer.add(steps(0, 20))
    want = [buffer.sample(8, seed=10 + i, peek=True).indices for i in range(4)]
    with buffer.samples(8, seed=10, prefetch=2) as samples:
        got = [next(samples).indices for _ in range(4)]

    np.testing.assert_array_equal(got, want)
    with pytest.raises(StopIteration):
        next(samples)
    assert not any(thread.name.startswith("samples-") for thread in threading.enumerate())


def test_the_iterator_waits_for_data(buffer):
    """A learner may start before its actors."""
    with buffer.samples(8, timeout_ms=10_000) as samples:
        buffer.add(steps(0, 20))
        assert next(samples).experience["first"]["reward"].shape == (8,)


def test_the_iterator_hands_errors_on(buffer):
    """What goes wrong in the thread is raised where the batches are used."""
    with buffer.samples(8, timeout_ms=0) as samples, pytest.raises(errors.NotEnoughDataError):
        next(samples)


def test_versions_and_slices_of_a_persisted_buffer(client, buffer):
    """A version is what was added before it, also after more is added."""
    buffer.add(steps(0, 20))
    vault = client.vault(f"{buffer.name}/run1")
    made = vault.create_version("Twenty", tags=["start"])
    buffer.add(steps(20, 10))

    np.testing.assert_array_equal(vault.slice("start")["obs"]["step"][0], np.arange(20))
    np.testing.assert_array_equal(vault.slice(timesteps=5)["reward"][1], np.arange(25, 30))
    assert vault.slice(made["version"], percentiles=(0, 50), leaves=["reward"]).keys() == {"reward"}
    assert vault.slice("start", start=4, stop=10, step=3)["obs"]["image"][0, :, 0, 0].tolist() == [4, 7]
    assert [version["version"] for version in vault.versions()] == [1]
    assert vault.version("start")["digest"] == made["digest"]


def test_tags_move_and_go(client, buffer):
    """A tag names one version, then another, then none."""
    buffer.add(steps(0, 4))
    vault = client.vault(buffer.name, "run1")
    vault.create_version(tags=["good"])
    buffer.add(steps(4, 4))
    vault.create_version()
    vault.set_tag("good", 2)

    assert vault.tags() == {"good": 2}
    vault.delete_tag("good")
    assert vault.tags() == {}


def test_a_vault_is_appended_to_exactly_once(client):
    """Without a buffer, too."""
    vault = client.create_vault("offline/one", SPEC, rows=ROWS)
    vault.add(steps(0, 6), idempotency_key="a")
    again = vault.add(steps(0, 6), idempotency_key="a")

    assert (again.duplicate, again.length) == (True, 6)
    np.testing.assert_array_equal(vault.slice()["obs"]["step"][1], np.arange(6))
    assert ("offline", "one") in {(v["vault_name"], v["vault_uid"]) for v in client.vaults()}


def test_a_script_may_create_its_vault_twice(client):
    """The second call finds the vault with what was appended; another structure is a conflict."""
    client.create_vault("twice/one", SPEC, rows=ROWS, metadata={"env": "x"}).add(steps(0, 6))
    again = client.create_vault("twice/one", SPEC, rows=ROWS, metadata={"env": "x"})

    assert again.describe()["length"] == 6
    with pytest.raises(fbx.ConflictError, match="`rows`") as caught:
        client.create_vault("twice/one", SPEC, rows=ROWS + 1)
    assert caught.value.code == "config_differs"


def test_counters_and_charts_are_served(buffer):
    """Stats, histogram and timeseries come as plain values."""
    buffer.add(steps(0, 20))
    buffer.sample()

    assert buffer.stats()["added"] == 40
    assert sum(buffer.histogram("priority", bins=4)["counts"]) > 0
    assert "values" in buffer.timeseries("size", points=10) or buffer.timeseries("size", points=10)


def test_a_reset_buffer_is_empty(buffer):
    """What lies in the vault may be forgotten."""
    buffer.add(steps(0, 20))
    buffer.reset(discard=True)

    assert buffer.describe()["size"] == 0


def test_a_vault_is_forked_swept_deleted_and_restored(client):
    """A fork holds a part; old versions go; the vault goes to the trash and comes back."""
    vault = client.create_vault("chores/one", SPEC, rows=ROWS)
    for start in (0, 4, 8):
        vault.add(steps(start, 4))
        vault.create_version()

    copy = vault.fork("chores/copy", ref=2, start=2)
    assert copy.slice()["obs"]["step"][0].tolist() == [2, 3, 4, 5, 6, 7]
    assert copy.describe()["lineage"]["version"] == 2
    vault.delete_version("v2")
    assert vault.sweep(keep=1, dry_run=True)["deleted_versions"] == [1]
    assert vault.sweep(keep=1, grace_s=0)["files"] > 0
    assert [version["version"] for version in vault.versions()] == [3]
    with pytest.raises(errors.ReclaimedError):
        vault.slice(2)
    assert vault.delete(dry_run=True)["length"] == vault.delete()["length"] == 12
    with pytest.raises(errors.NotFoundError):
        vault.describe()
    assert vault.restore()["length"] == 12


def test_a_buffer_begins_with_a_vault(client):
    """The first half of a version; its spec is the vault's."""
    vault = client.create_vault("begin/one", SPEC, rows=ROWS)
    vault.add(steps(0, 20))
    vault.create_version()
    source = {"vault": "begin/one", "ref": 1, "percentiles": [0, 50]}
    buffer = client.create_buffer("begun", "flat", from_=source, **SIZES)

    assert buffer.describe()["size"] == 20
    assert buffer.sample(seed=1).experience["first"]["obs"]["step"].max() < 10
