"""A whole buffer written down while it runs, and begun again from that: exactly what it was."""

import asyncio
import shutil

import numpy as np
import pytest
import queue_data
from live_data import config, steps
from live_state import assert_equal, leaves, live_through, made_of, whole_state
from queue_data import queue_config, sequences

from fbxcore.buffers.layout import ARGUMENTS
from fbxcore.errors import DamagedError, DiskFullError, InvalidArgumentError, NotFoundError, NotSupportedError
from fbxcore.live import LiveBuffer, adopt_whole, load_config
from fbxcore.live.restart import whole
from fbxcore.vault.store import VaultReader

pytestmark = pytest.mark.anyio
KINDS = [kind for kind in ARGUMENTS if kind not in ("trajectory_queue", "clustered")]  # which have their own
OF_ONE_LOG = {"log", "answer.created_at", "answer.persist_to", "answer.config"}


async def snapshot_of(buffer, tmp_path, name="s"):
    """Write a buffer to a new directory and return that."""
    (tmp_path / name).mkdir()
    await buffer.snapshot(tmp_path / name)
    return tmp_path / name


def but(state, *, without=OF_ONE_LOG):
    """Return a state without what belongs to one log or one name."""
    return {name: value for name, value in state.items() if name not in without}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_buffer_begun_from_a_snapshot_is_the_same(tmp_path, opened, kind):
    """Every field of every view, now and after a kill, with what is added behind it."""
    made = made_of(kind)
    buffer = await opened(made)
    await live_through(buffer)
    before = but(await whole_state(buffer))
    adopt_whole(await snapshot_of(buffer, tmp_path), tmp_path / "c")
    copy = await opened(made, "c")
    assert_equal(before, but(await whole_state(copy)))

    for one in (buffer, copy):
        await one.add(leaves(one, 700, 3), writer="w", sequence=9)
    adopt_whole(tmp_path / "c", tmp_path / "d")  # what a kill would leave, log and all
    (tmp_path / "d" / "log").mkdir()
    for path in [*(tmp_path / "c").glob("*.json"), *(tmp_path / "c").glob("checkpoint*")]:
        (tmp_path / "d" / path.name).write_bytes(path.read_bytes())
    for path in (tmp_path / "c" / "log").iterdir():
        (tmp_path / "d" / "log" / path.name).write_bytes(path.read_bytes())
    killed = await opened(None, "d")
    assert_equal(but(await whole_state(buffer)), but(await whole_state(killed)))


@pytest.mark.parametrize("rounds", [0, 8])
async def test_a_snapshot_under_adds_is_of_one_moment(tmp_path, opened, monkeypatch, rounds):
    """Copied in small pieces while adds and keys come, it is what the log says up to its number."""
    monkeypatch.setattr(whole, "_PIECE_BYTES", 64)
    monkeypatch.setattr(whole, "_ROUNDS", rounds)
    made = config(max_length=256)
    buffer = await opened(made)
    await buffer.add(steps(0, 150), idempotency_key="first")
    ask, asked = buffer._engine.ask, []

    async def ask_and_add(call):
        answer = await ask(call)
        asked.append(call)
        if len(asked) % 10 == 0:
            at = buffer.describe()["position"]
            await buffer.add(steps(at, 7), idempotency_key=f"k{at}", writer="w", sequence=at)
        return answer

    monkeypatch.setattr(buffer._engine, "ask", ask_and_add)
    (tmp_path / "s").mkdir()
    counters, _ = await buffer.snapshot(tmp_path / "s")
    await buffer.add(steps(buffer.describe()["position"], 7), idempotency_key="last")
    adopt_whole(tmp_path / "s", tmp_path / "c")
    copy = await opened(made, "c")

    position = counters.position
    assert 150 < position < buffer.describe()["position"]
    held = np.array(copy._ring.state.experience["step"])
    expected = np.arange(position - 128, position)
    assert (np.sort(held, axis=1) == expected).all()
    assert (held[:, expected % 128] == expected).all()
    ledger = copy._journal.ledger.to_json()
    assert list(ledger["keys"]) == ["first", *(f"k{at}" for at in range(150, position, 7))]
    assert ledger["writers"]["w"][0] == position - 7
    again = await copy.add(steps(position - 7, 7), writer="w", sequence=position - 7)
    later = await copy.add(steps(position, 7), writer="w", sequence=position)
    assert again.duplicate and not later.duplicate


@pytest.mark.parametrize("rounds", [0, 8])
async def test_a_snapshot_under_a_reset_is_of_one_moment(tmp_path, opened, monkeypatch, rounds):
    """What was there before a reset is not mixed with what came after it."""
    monkeypatch.setattr(whole, "_PIECE_BYTES", 64)
    monkeypatch.setattr(whole, "_ROUNDS", rounds)
    made = config(max_length=256)
    buffer = await opened(made)
    await buffer.add(steps(0, 128))
    ask, asked = buffer._engine.ask, []

    async def ask_and_reset(call):
        asked.append(call)
        if len(asked) == 20:
            await buffer.reset()
            await buffer.add(steps(1000, 40))
        return await ask(call)

    monkeypatch.setattr(buffer._engine, "ask", ask_and_reset)
    await snapshot_of(buffer, tmp_path)
    assert len(asked) > 40
    adopt_whole(tmp_path / "s", tmp_path / "c")
    copy = await opened(made, "c")

    assert copy.describe()["size"] == 80
    drawn = (await copy.sample(16, seed=0)).arrays["experience/first/step"]
    assert (drawn >= 1000).all()


async def test_a_copy_that_persists_adds_to_its_vault_what_comes_after(tmp_path, opened):
    """The vault of the same name goes on where it was: nothing is in it twice, nothing is missing."""
    made = config(persist_to="run/1")
    buffer = await opened(made)
    await buffer.add(steps(0, 200))
    place = await snapshot_of(buffer, tmp_path)
    await buffer.close()
    adopt_whole(place, tmp_path / "c")
    copy = await opened(made, "c")
    await copy.add(steps(200, 50))
    await copy.close()
    again = await opened(None, "c")

    assert again.describe()["position"] == 250
    drawn = (await again.sample(16, seed=0)).arrays
    assert (drawn["experience/second/step"] - drawn["experience/first/step"] == 1).all()
    await again.close()
    with VaultReader.open(tmp_path / "vaults/run/1") as reader:
        assert (reader.read(0, reader.length)["step"] == np.arange(250)).all()


async def test_a_queue_begun_from_a_snapshot_hands_out_the_same(tmp_path, opened):
    """What waits, in order, and what is reserved under a key; after a kill too, with what came behind it."""
    made = queue_config()
    queue = await opened(made)
    await queue.add(queue_data.leaves(0, 9))
    await queue.take(idempotency_key="t", client="c")
    await queue.take()
    await queue.add(queue_data.leaves(9, 3))
    adopt_whole(await snapshot_of(queue, tmp_path), tmp_path / "c")
    copy = await opened(made, "c")
    await copy.add(queue_data.leaves(12, 1))
    again = await killed(copy, tmp_path)

    for one in (copy, again):
        assert one.describe()["size"] == 14
        repeat = await one.take(idempotency_key="t", client="c")
        assert repeat.duplicate and (repeat.arrays["experience/step"] == sequences(0, 1)).all()
        for start in (6, 9):
            taken = await one.take()
            assert (taken.arrays["experience/step"] == sequences(start, 1)).all()
    await again.close()


async def test_the_base_goes_when_the_ring_has_overwritten_it(tmp_path, opened):
    """From then on the log alone holds what the ring holds."""
    made = config()
    buffer = await opened(made)
    await buffer.add(steps(0, 60))
    adopt_whole(await snapshot_of(buffer, tmp_path), tmp_path / "c")
    copy = await opened(made, "c")
    await copy.add(steps(60, 60))
    await copy._housekeeper.checkpoint()
    assert list((tmp_path / "c").glob("base*"))
    await copy.add(steps(120, 10))
    await copy._housekeeper.checkpoint()

    assert not list((tmp_path / "c").glob("base*"))
    before = await whole_state(copy)
    await copy.close()
    assert_equal(before, await whole_state(await opened(None, "c")))


async def test_a_missing_snapshot_is_an_error(tmp_path):
    """Never an empty buffer."""
    (tmp_path / "s").mkdir()
    with pytest.raises(NotFoundError, match="No snapshot in `s`"):
        adopt_whole(tmp_path / "s", tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["base.safetensors", "base-*.bin"])
async def test_a_changed_bit_of_a_snapshot_is_noticed(tmp_path, opened, name):
    """In either file: the buffer is not made."""
    buffer = await opened(config())
    await buffer.add(steps(0, 60))
    place = await snapshot_of(buffer, tmp_path)
    (path,) = place.glob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    adopt_whole(place, tmp_path / "c")

    with pytest.raises(DamagedError, match=path.name):
        await opened(config(), "c")


async def test_a_snapshot_that_does_not_fit_leaves_nothing(tmp_path, opened, monkeypatch):
    """Its room is taken before anything is copied; the buffer goes on."""
    buffer = await opened(config())
    await buffer.add(steps(0, 60))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    (tmp_path / "s").mkdir()
    with pytest.raises(OSError, match="No space left"):
        await buffer.snapshot(tmp_path / "s")
    assert not list((tmp_path / "s").iterdir())
    await buffer.add(steps(60, 5))


# Changing a buffer while it runs


async def killed(buffer, tmp_path):
    """Open what a kill would leave."""
    shutil.copytree(buffer.directory, tmp_path / "after")
    if (tmp_path / "vaults").exists():
        shutil.copytree(tmp_path / "vaults", tmp_path / "after-vaults")
    return await LiveBuffer.open(tmp_path / "after", vaults=tmp_path / "after-vaults")


@pytest.mark.parametrize("persist_to", [None, "run/1"])
@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_a_buffer_without_durability_can_be_given_one(tmp_path, opened, durability, persist_to):
    """From the change on a kill takes nothing, of what was there before neither."""
    buffer = await opened(config(durability="none", persist_to=persist_to))
    await live_through(buffer, checkpoints=False)
    await buffer.change({"durability": durability})
    await buffer.add(steps(500, 5), idempotency_key="after")
    before = await whole_state(buffer)
    again = await killed(buffer, tmp_path)

    assert again.config.durability == durability
    assert_equal(before, await whole_state(again))
    await again.close()


@pytest.mark.parametrize("persist_to", [None, "run/1"])
async def test_durability_can_be_taken_away(tmp_path, opened, persist_to):
    """Then nothing of the log stays, and only what is in a vault survives."""
    buffer = await opened(config(persist_to=persist_to))
    await buffer.add(steps(0, 60))
    await buffer.change({"durability": "none"})
    added = await buffer.add(steps(60, 5))
    again = await killed(buffer, tmp_path)

    assert not added.durable and not list((tmp_path / "b/log").glob("*.log"))
    assert again.config.durability == "none"
    assert again.describe()["size"] == (120 if persist_to else 0)
    await again.close()


async def test_durability_can_change_many_times(tmp_path, opened):
    """Each time what is acknowledged under a log comes back after a stop."""
    buffer, at = await opened(config()), 0
    for durability in ["os", "none", "fsync", "none", "os", "fsync"]:
        await buffer.add(steps(at, 9))
        at += 9
        await buffer.change({"durability": durability})
    await buffer.add(steps(at, 9))
    before = await whole_state(buffer)
    await buffer.close()

    assert_equal(before, await whole_state(await opened()))


async def test_a_change_that_does_not_fit_the_disk_changes_nothing(tmp_path, opened, monkeypatch):
    """The configuration stays, in memory and on disk, and the buffer goes on as it was."""
    buffer = await opened(config(durability="none"))
    await buffer.add(steps(0, 60))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        await buffer.change({"durability": "fsync"})
    monkeypatch.undo()
    assert buffer.config.durability == "none" == load_config(tmp_path / "b").durability
    assert not (await buffer.add(steps(60, 5))).durable
    await buffer.change({"durability": "fsync"})
    assert (await buffer.add(steps(65, 5))).durable
    before = await whole_state(buffer)
    await buffer.close()
    assert_equal(before, await whole_state(await opened()))


async def test_a_relaxed_limiter_lets_those_who_wait_go_on_at_once(opened):
    """Both sides: a blocked sample and a blocked add look again as soon as the limiter changes."""
    tight = {"samples_per_insert": 1.0, "min_size": 20, "error_buffer": 16.0}
    buffer = await opened(config(rate_limiter=tight))
    await buffer.add(steps(0, 10))
    sampling = asyncio.create_task(buffer.sample(32, timeout_ms=20_000))
    adding = asyncio.create_task(buffer.add(steps(10, 40), timeout_ms=20_000))
    await asyncio.sleep(0.05)
    assert not sampling.done() and not adding.done()
    await buffer.change({"rate_limiter": tight | {"error_buffer": 1000.0}})

    await asyncio.wait_for(asyncio.gather(sampling, adding), 5)
    assert buffer.describe()["limiter"]["error_buffer"] == 1000.0
    await buffer.change({"rate_limiter": None})
    assert buffer.describe()["limiter"] is None
    await buffer.close()
    again = await opened()
    assert again.config.rate_limiter is None and again.describe()["sampled"] == 32


async def test_a_change_is_checked_as_a_creation_is(opened):
    """A limiter that would block for ever, an unknown durability and a fixed field change nothing."""
    buffer = await opened(config())
    refused = {
        "error_buffer": ({"rate_limiter": {"samples_per_insert": 1, "min_size": 9, "error_buffer": 2}},),
        "min_size": ({"rate_limiter": {"samples_per_insert": 1, "min_size": 999, "error_buffer": 99}},),
        "durability": ({"durability": "maybe", "rate_limiter": None},),
    }
    for name, (given,) in refused.items():
        with pytest.raises(InvalidArgumentError, match=f"`{name}`"):
            await buffer.change(given)
    for name in ("max_length", "spec", "persist_to", "unknown"):
        with pytest.raises(NotSupportedError, match=f"`{name}` must be left as it is"):
            await buffer.change({"durability": "os", name: 5})
    assert buffer.config == config()


async def test_a_disk_that_fills_in_the_middle_of_a_change_is_told(tmp_path, opened, monkeypatch):
    """The configuration could not be written: the error says so and nothing is different."""
    buffer = await opened(config())

    def full(*_):
        raise DiskFullError("The disk must have room, got none.")

    monkeypatch.setattr("fbxcore.live.restart.durability.save_config", full)
    with pytest.raises(DiskFullError):
        await buffer.change({"rate_limiter": {"samples_per_insert": 1, "min_size": 9, "error_buffer": 99}})
    assert buffer.describe()["limiter"] is None
