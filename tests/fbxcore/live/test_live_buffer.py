"""A live buffer takes, gives and comes back."""

import asyncio
import shutil

import numpy as np
import pytest
from live_data import config, steps

from fbxcore.errors import (
    ConflictError,
    InvalidArgumentError,
    NotEnoughDataError,
    NotSupportedError,
    StructureError,
    UnavailableError,
)
from fbxcore.vault.store import VaultReader, VaultWriter

pytestmark = pytest.mark.anyio


def small(**changes):
    """Return the configuration of one short row."""
    return config(**({"add_batch_size": 1, "min_length": 1, "sample_batch_size": 4} | changes))


def leaf(sample, name):
    """Return first and second of a sampled transition's leaf."""
    return sample.arrays[f"experience/first/{name}"], sample.arrays[f"experience/second/{name}"]


def by_index(sample, name):
    """Return an array of a sample as a mapping from the items' indices."""
    return dict(zip(sample.arrays["indices"].tolist(), sample.arrays[name].tolist(), strict=True))


async def test_transitions_are_consecutive_after_many_laps(opened):
    """At every wrap position the second step of a transition is the one after the first, on its row."""
    buffer = await opened(config())
    at = 0
    for count in [9, 13, 64, 1, 30, 7, 128, 5, 77]:
        leaves = steps(at, count)
        leaves["obs"][1] += 1000  # so that rows tell themselves apart
        await buffer.add(leaves)
        at += count
        first, second = leaf(await buffer.sample(256), "obs")

        assert (second - first == 1).all()
        assert (first[:, 0] % 1000 >= at - 64).all()


async def test_an_add_says_what_the_buffer_then_holds(opened):
    """Sizes count timesteps over all rows, position is per row."""
    buffer = await opened(config())
    await buffer.add(steps(0, 60))
    added = await buffer.add(steps(60, 10))

    assert (added.added, added.size, added.position, added.sequence) == (20, 128, 70, 2)
    assert not added.duplicate and added.durable


async def test_the_same_seed_draws_the_same_bytes(opened):
    """A seed and an unchanged state give equal arrays; another seed does not."""
    buffer = await opened(config())
    await buffer.add(steps(0, 50))
    one, same, other = [await buffer.sample(32, seed=seed) for seed in (7, 7, 8)]

    assert all((one.arrays[name] == same.arrays[name]).all() for name in one.arrays)
    assert not (one.arrays["indices"] == other.arrays["indices"]).all()


async def test_sampling_too_early_says_how_much_is_missing(opened):
    """An empty buffer is refused with the number of steps a row needs."""
    buffer = await opened(config())
    await buffer.add(steps(0, 2))

    with pytest.raises(NotEnoughDataError, match=r"Add 3 more to each row\.") as refused:
        await buffer.sample()
    assert refused.value.details == {"needed": 3}


async def test_a_waiting_sample_is_woken_by_an_add(opened):
    """With a timeout, sampling goes on as soon as there is enough."""
    buffer = await opened(config())
    waiting = asyncio.create_task(buffer.sample(4, timeout_ms=20_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await buffer.add(steps(0, 20))

    assert len((await waiting).arrays["indices"]) == 4


async def test_priorities_of_overwritten_items_are_stale(opened):
    """An update that comes after its item was overwritten is counted and changes nothing."""
    buffer = await opened(small(max_length=6))
    await buffer.add(steps(0, 6, rows=1))
    sample = await buffer.sample(64, seed=1)
    indices, generations = sample.arrays["indices"], sample.arrays["generations"]
    await buffer.add(steps(6, 2, rows=1))
    updated = await buffer.set_priorities(indices, np.full(64, 100.0), generations)

    gone = int((leaf(sample, "step")[0] < 2).sum())
    assert (updated.stale, updated.updated) == (gone, 64 - gone)
    first, second = leaf(await buffer.sample(2048), "step")
    assert (second - first == 1).all() and first.min() >= 2


async def test_priorities_steer_what_is_drawn(opened):
    """An item of priority 0 is never drawn; probabilities are in proportion to priority ** exponent."""
    buffer = await opened(small(max_length=4, priority_exponent=1.0))
    await buffer.add(steps(0, 4, rows=1))
    drawn = await buffer.sample(64, seed=0)
    pairs = dict(zip(drawn.arrays["indices"].tolist(), drawn.arrays["generations"].tolist(), strict=True))
    assert sorted(pairs) == [0, 1, 2]
    indices = np.array([0, 1, 2], np.int32)
    await buffer.set_priorities(indices, np.array([3.0, 0.0, 1.0]), np.array([pairs[i] for i in range(3)]))
    sample = await buffer.sample(1024, seed=0, beta=1.0)

    shares = dict(
        zip(sample.arrays["indices"].tolist(), sample.arrays["probabilities"].tolist(), strict=True)
    )
    assert shares == pytest.approx({0: 0.75, 2: 0.25})
    weights = dict(zip(sample.arrays["indices"].tolist(), sample.arrays["weights"].tolist(), strict=True))
    assert weights == pytest.approx({0: 1 / 3, 2: 1.0})


async def test_all_zero_priorities_are_refused_not_drawn(opened):
    """With nothing to draw a sample is an error, never filler."""
    buffer = await opened(small(max_length=4))
    await buffer.add(steps(0, 4, rows=1))
    drawn = (await buffer.sample(64, seed=0)).arrays
    await buffer.set_priorities(drawn["indices"], np.zeros(64), drawn["generations"])

    with pytest.raises(NotEnoughDataError, match="an item of priority above 0"):
        await buffer.sample()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1e300])
async def test_a_bad_priority_changes_nothing(opened, bad):
    """Its position is named and no priority of the call is set."""
    buffer = await opened(config())
    await buffer.add(steps(0, 20))
    drawn = (await buffer.sample(4, seed=0)).arrays
    before = await buffer.histogram("priority")

    with pytest.raises(InvalidArgumentError, match="at position 2"):
        await buffer.set_priorities(drawn["indices"], np.array([5, 5, bad, 5.0]), drawn["generations"])
    assert await buffer.histogram("priority") == before


async def test_what_does_not_fit_the_spec_adds_nothing(opened):
    """Leaf, expected and given are named; the size stays."""
    buffer = await opened(config())
    good = steps(0, 4)
    bad = {
        "Leaf `step` must be given": {"obs": good["obs"]},
        "Leaf `extra` must be in the spec": good | {"extra": good["step"]},
        "Leaf `obs` must have dtype float32, got float64": good | {"obs": good["obs"].astype("f8")},
        r"Leaf `obs` must have shape \[B, K, 3\]": good | {"obs": good["obs"][..., :1]},
        "Leaf `step` must have the leading axes": good | {"step": good["step"][:, :3]},
    }
    for message, leaves in bad.items():
        with pytest.raises(StructureError, match=message):
            await buffer.add(leaves)
    with pytest.raises(InvalidArgumentError, match="must have 2 rows on axis 0"):
        await buffer.add(steps(0, 4, rows=3))

    assert buffer.describe()["size"] == 0


async def test_a_repeat_adds_nothing(opened):
    """By key and by writer sequence, one after the other and side by side."""
    buffer = await opened(config())
    keyed = [buffer.add(steps(0, 10), idempotency_key="k") for _ in range(5)]
    answers = await asyncio.gather(*keyed)
    for sequence in (3, 3, 2):
        await buffer.add(steps(10, 5), writer="w", sequence=sequence)

    assert [a.duplicate for a in answers].count(False) == 1
    assert {a.sequence for a in answers} == {1}
    assert buffer.describe()["added"] == 30
    with pytest.raises(ConflictError, match="must be new for another body"):
        await buffer.add(steps(1, 10), idempotency_key="k")


async def reopened(tmp_path, opened, made, *, crash):
    """Fill a buffer, end it (or leave it as a crash would), and open it again from its files."""
    buffer = await opened(made)
    at = 0
    for count in [40, 70, 3, 90]:
        await buffer.add(steps(at, count), idempotency_key=f"k{at}")
        at += count
        drawn = (await buffer.sample(16, seed=at)).arrays
        await buffer.set_priorities(drawn["indices"], np.linspace(0.1, 9, 16), drawn["generations"])
    await buffer._housekeeper.log_sampled()
    before = buffer.describe(), await buffer.sample(512, seed=3, peek=True)
    if crash:
        shutil.copytree(tmp_path / "b", tmp_path / "after")
        if (tmp_path / "vaults").exists():
            shutil.copytree(tmp_path / "vaults", tmp_path / "kept")
        await buffer.close()
        shutil.rmtree(tmp_path / "vaults", ignore_errors=True)
        if (tmp_path / "kept").exists():
            shutil.move(tmp_path / "kept", tmp_path / "vaults")
        return before, await opened(place="after")
    await buffer.close()
    return before, await opened()


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("persist_to", [None, "run/1"])
async def test_a_restart_draws_the_same_bytes(tmp_path, opened, persist_to, crash):
    """After a stop and after a crash: the same sizes, counters and, for a seed, the same sample."""
    made = config(persist_to=persist_to)
    (described, sample), again = await reopened(tmp_path, opened, made, crash=crash)
    ignored = {"persisted"}

    after = again.describe()
    assert {k: v for k, v in after.items() if k not in ignored} == {
        k: v for k, v in described.items() if k not in ignored
    }
    redrawn = await again.sample(512, seed=3, peek=True)
    assert all((redrawn.arrays[name] == sample.arrays[name]).all() for name in sample.arrays)
    assert (await again.add(steps(0, 40), idempotency_key="k0")).duplicate


async def test_the_vault_holds_every_step_once(tmp_path, opened):
    """Through restarts and a reset the vault has each acknowledged step once, in order."""
    made, at = config(persist_to="run/1"), 0
    for run in range(3):
        buffer = await opened(made if run == 0 else None)
        for count in [50, 700, 9]:
            await buffer.add(steps(at, count))
            at += count
        if run == 1:
            await buffer.reset()
        await buffer.close()

    with VaultReader.open(tmp_path / "vaults" / "run" / "1") as reader:
        assert reader.length == at
        assert (reader.read(0, at)["step"] == np.arange(at)).all()


async def test_a_reset_empties_the_ring_and_makes_generations_stale(opened):
    """What was sampled before a reset cannot be given a priority after it."""
    buffer = await opened(config())
    await buffer.add(steps(0, 30))
    drawn = (await buffer.sample(8, seed=0)).arrays
    await buffer.reset()
    assert buffer.describe()["size"] == 0
    await buffer.add(steps(0, 30))

    updated = await buffer.set_priorities(drawn["indices"], np.ones(8), drawn["generations"])
    assert (updated.updated, updated.stale) == (0, 8)


async def test_an_existing_vault_is_continued_not_read_back(tmp_path, opened):
    """A buffer that persists to a vault of equal spec appends to it and starts empty."""
    path = tmp_path / "vaults" / "run" / "1"
    with VaultWriter.create(path, config().spec, rows=2) as writer:
        writer.append(steps(0, 100))
    buffer = await opened(config(persist_to="run/1"))
    assert buffer.describe()["size"] == 0
    await buffer.add(steps(100, 30))
    await buffer.close()
    again = await opened()

    assert again.describe()["size"] == 60
    with VaultReader.open(path) as reader:
        assert (reader.read(0, 130)["step"] == np.arange(130)).all()


async def test_a_vault_of_another_spec_is_refused(tmp_path, opened):
    """The buffer is not made."""
    other = config(spec={"obs": {"shape": [4], "dtype": "float32"}}).spec
    VaultWriter.create(tmp_path / "vaults" / "run" / "1", other, rows=2).close()

    with pytest.raises(ConflictError, match="`persist_to` must name a vault of equal spec"):
        await opened(config(persist_to="run/1"))
    assert not (tmp_path / "b" / "config.json").exists()


async def test_items_are_given_and_drawn_without_a_time_axis(opened):
    """An item kind takes [I, ...] and gives [N, ...]; int64 leaves keep every bit."""
    made = config(
        kind="item", add_batch_size=None, priority_exponent=None, spec={"n": {"shape": [], "dtype": "int64"}}
    )
    buffer = await opened(made)
    numbers = np.arange(20, dtype=np.int64) + (1 << 40)
    await buffer.add({"n": numbers})
    drawn = (await buffer.sample(50)).arrays

    assert list(drawn) == ["experience/n"]
    assert drawn["experience/n"].shape == (50,) and np.isin(drawn["experience/n"], numbers).all()


async def test_sequences_are_drawn_whole(opened):
    """A trajectory kind gives [N, L, ...] of consecutive steps."""
    made = config(
        kind="trajectory", max_length=None, min_length=None, priority_exponent=None,
        max_length_time_axis=50, min_length_time_axis=10, sample_sequence_length=7, period=3,
    )  # fmt: skip
    buffer = await opened(made)
    for at in range(0, 130, 13):
        await buffer.add(steps(at, 13))
    drawn = (await buffer.sample(200)).arrays["experience/step"]

    assert drawn.shape == (200, 7) and (np.diff(drawn) == 1).all()


async def test_the_limiter_blocks_both_sides_and_says_why(opened):
    """Within its bounds both sides go on; beyond them each is refused with the numbers."""
    limiter = {"samples_per_insert": 2.0, "min_size": 20, "error_buffer": 40.0}
    buffer = await opened(config(rate_limiter=limiter))
    await buffer.add(steps(0, 10))
    await buffer.sample(16)
    with pytest.raises(UnavailableError, match="rate limiter") as refused:
        await buffer.sample(30)
    assert refused.value.code == "rate_limited" and refused.value.details["limiter"]["samples"] == 16

    await buffer.add(steps(10, 10))
    with pytest.raises(UnavailableError, match="rate limiter"):
        await buffer.add(steps(20, 40))


async def test_the_limiter_begins_anew_after_a_reset(opened):
    """An emptied buffer takes data again where the limiter was at its upper bound, also after a restart."""
    limiter = {"samples_per_insert": 2.0, "min_size": 20, "error_buffer": 40.0}
    buffer = await opened(config(rate_limiter=limiter))
    await buffer.add(steps(0, 10))
    await buffer.sample(16)
    await buffer.add(steps(10, 14))  # 48 timesteps over two rows: 2 × 48 − 16 is the upper bound, 80
    await buffer.reset()
    await buffer.add(steps(24, 10))
    await buffer.sample(30)
    await buffer.close()
    numbers = (await opened()).describe()["limiter"]

    assert (numbers["inserts"], numbers["samples"], numbers["error"]) == (20, 30, 10)


async def test_what_is_not_served_is_refused(opened):
    """Known words of the contract that are not served yet are named, not ignored."""
    for field, value in {"max_times_sampled": 5, "kind": "mixer", "from": {"episodes": [1]}}.items():
        with pytest.raises(NotSupportedError, match=f"`{field}`"):
            config(**{field: value})


async def test_histograms_count_every_item(opened):
    """The counts sum to what is held."""
    buffer = await opened(config())
    await buffer.add(steps(0, 30))

    ages, priorities = await buffer.histogram("age"), await buffer.histogram("priority")
    assert sum(ages["counts"]) == 60 and ages["max"] == 29
    assert sum(priorities["counts"]) == 58  # 29 transitions on each of two rows


async def test_a_vault_ahead_of_its_log_is_caught_up_with(tmp_path, opened):
    """Where the log lost its end, as without `fsync`, the ring goes on from what the vault has."""
    buffer = await opened(config(persist_to="run/1", durability="none"))
    await buffer.add(steps(0, 200))
    await buffer.flush()
    shutil.copytree(tmp_path / "b", tmp_path / "after")
    await buffer.close()
    again = await opened(place="after")

    assert again.describe()["size"] == 128
    await again.add(steps(200, 10))
    first, second = leaf(await again.sample(256), "step")
    assert (second - first == 1).all() and second.max() == 209
    await again.close()
    with VaultReader.open(tmp_path / "vaults" / "run" / "1") as reader:
        assert (reader.read(0, 210)["step"] == np.arange(210)).all()


async def test_nothing_but_the_configuration_outlives_a_buffer_without_durability(opened):
    """It opens again, empty."""
    buffer = await opened(config(durability="none"))
    await buffer.add(steps(0, 20))
    await buffer.close()

    assert (await opened()).describe()["size"] == 0
