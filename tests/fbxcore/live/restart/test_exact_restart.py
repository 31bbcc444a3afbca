"""After a restart every field of every view is what acknowledged calls made it."""

import shutil

import numpy as np
import pytest
from live_state import assert_equal, leaves, live_through, made_of, whole_state

from fbxcore.buffers.layout import ARGUMENTS
from fbxcore.errors import DamagedError
from fbxcore.live import LiveBuffer
from fbxcore.live.durable.checkpoint import FILE, Checkpoint, Counters

pytestmark = pytest.mark.anyio
KINDS = [kind for kind in ARGUMENTS if kind not in ("trajectory_queue", "clustered")]  # which have their own


async def killed_and_opened(buffer, tmp_path, change=lambda directory: None):
    """Copy the files as they lie now, which is what kill -9 leaves, change them, and open the copy."""
    after = tmp_path / "after"
    shutil.copytree(buffer.directory, after / "b")
    vaults = tmp_path / "vaults"
    if vaults.exists():
        shutil.copytree(vaults, after / "vaults")
    change(after / "b")
    return await LiveBuffer.open(after / "b", vaults=after / "vaults")


def ask_for(ask, counters):
    """Return an `ask` whose answers come with old counters."""

    async def asked(call):
        return counters, (await ask(call))[1]

    return asked


WAYS = ["log only", "checkpoint and log", "checkpoint alone", "stopped"]


@pytest.mark.parametrize("persist_to", [None, "run/1"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_field_is_back(tmp_path, kind, way, persist_to):
    """Schema, leaves of the tree, greatest priority, counts, cursor, generations, limiter, keys, writers."""
    made = made_of(kind, persist_to=persist_to)
    buffer = await LiveBuffer.open(tmp_path / "b", made, vaults=tmp_path / "vaults")
    await live_through(buffer, checkpoints=way == "checkpoint and log")
    if way == "checkpoint alone":
        await buffer._housekeeper.checkpoint()
    before = await whole_state(buffer)
    if way == "stopped":
        await buffer.close()
    assert (tmp_path / "b" / FILE).exists() == (way != "log only")
    again = await killed_and_opened(buffer, tmp_path)

    assert_equal(before, await whole_state(again))
    assert again.config.spec == made.spec and before["counters.epoch"] == 1
    await buffer.close()
    await again.close()


async def test_a_checkpoint_ahead_of_a_log_that_lost_its_end_is_gone_on_from(tmp_path):
    """Where the last frames were no experience nothing is missing, nor after the next kill."""
    buffer = await LiveBuffer.open(tmp_path / "b", made_of("prioritised_flat"), vaults=tmp_path / "vaults")
    await live_through(buffer)
    drawn = (await buffer.sample(16, seed=1)).arrays
    await buffer.set_priorities(drawn["indices"], np.full(16, 3.0), drawn["generations"])
    await buffer._housekeeper.checkpoint()
    before = await whole_state(buffer)

    def lose_the_end(directory):
        (segment,) = (directory / "log").glob("*.log")
        segment.write_bytes(segment.read_bytes()[:-1])

    again = await killed_and_opened(buffer, tmp_path, lose_the_end)
    assert_equal(before, await whole_state(again))
    await again.add(leaves(again, 500, 2), idempotency_key="new")
    before = await whole_state(again)
    once_more = await killed_and_opened(again, tmp_path / "after")
    assert_equal(before, await whole_state(once_more))
    for one in (buffer, again, once_more):
        await one.close()


async def test_experience_that_only_a_lost_end_held_is_missed(tmp_path):
    """A checkpoint whose timesteps lie nowhere is an error that names the log, never a ring of zeros."""
    buffer = await LiveBuffer.open(tmp_path / "b", made_of("prioritised_flat"), vaults=tmp_path / "vaults")
    await buffer.add(leaves(buffer, 0, 9))
    await buffer.add(leaves(buffer, 9, 3))
    await buffer._housekeeper.checkpoint()

    def lose_the_end(directory):
        (segment,) = (directory / "log").glob("*.log")
        segment.write_bytes(segment.read_bytes()[:-1])

    with pytest.raises(DamagedError, match="must hold timesteps 9 to 12") as raised:
        await killed_and_opened(buffer, tmp_path, lose_the_end)
    assert raised.value.details["file"] == "log"
    await buffer.close()


async def test_a_lost_first_segment_is_missed(tmp_path):
    """Also where it held priorities only: a replay that begins too late is no replay."""
    buffer = await LiveBuffer.open(tmp_path / "b", made_of("prioritised_flat"), vaults=tmp_path / "vaults")
    buffer._journal.log.segment_bytes = 1
    await buffer.reset()
    await buffer.reset()
    await buffer.add(leaves(buffer, 0, 9))

    def lose_the_first(directory):
        min((directory / "log").glob("*.log")).unlink()

    with pytest.raises(DamagedError, match="must go on with frame 1 at timestep 0, got frame 2 at 0"):
        await killed_and_opened(buffer, tmp_path, lose_the_first)
    await buffer.close()


@pytest.mark.parametrize("persist_to", [None, "run/1"])
async def test_a_kill_between_checkpoint_and_drop_repeats_nothing(tmp_path, monkeypatch, persist_to):
    """The checkpoint is there and the segments it stands for still are: each is applied once."""
    made = made_of("prioritised_flat", persist_to=persist_to)
    buffer = await LiveBuffer.open(tmp_path / "b", made, vaults=tmp_path / "vaults")
    buffer._journal.log.segment_bytes = 1
    await live_through(buffer, checkpoints=False)
    await buffer.flush()
    monkeypatch.setattr(buffer._journal.log, "drop", lambda **_: 0)
    await buffer._housekeeper.checkpoint()
    before, segments = await whole_state(buffer), len(buffer._journal.log.segments)
    again = await killed_and_opened(buffer, tmp_path)

    assert segments > 10 and len(again._journal.log.segments) == segments
    assert_equal(before, await whole_state(again))
    await buffer.close()
    await again.close()


async def segments_left(tmp_path, monkeypatch, persist_to, *, is_committed, is_checkpointed):
    """Fill a log of many segments, let views lag or not, keep house, and return which segments are left."""
    made = made_of("prioritised_flat", persist_to=persist_to)
    buffer = await LiveBuffer.open(tmp_path / "b", made, vaults=tmp_path / "vaults")
    log = buffer._journal.log
    log.segment_bytes = 1
    for turn in range(8):
        await buffer.add(leaves(buffer, 5 * turn, 5))
    if is_committed:
        await buffer.flush()
    if not is_checkpointed:
        old = Checkpoint(log.id, Counters())
        monkeypatch.setattr("fbxcore.live.housekeeping.Checkpoint", lambda *_: old)
        monkeypatch.setattr(buffer._engine, "ask", ask_for(buffer._engine.ask, old.counters))
    await buffer._housekeeper.checkpoint()
    left = [segment.first_sequence for segment in log.segments]
    monkeypatch.undo()
    await buffer.close()
    return left


async def test_segments_go_only_below_vault_and_checkpoint(tmp_path, monkeypatch):
    """With a vault that lags or a checkpoint that is old each segment stays; past both, all but one go."""
    for is_committed, is_checkpointed, left in [(0, 1, 8), (1, 0, 8), (1, 1, 1)]:
        place = tmp_path / f"{is_committed}{is_checkpointed}"
        found = await segments_left(
            place, monkeypatch, "run/1", is_committed=is_committed, is_checkpointed=is_checkpointed
        )
        assert len(found) == left, (is_committed, is_checkpointed)


async def test_without_a_vault_segments_stay_as_long_as_the_ring_holds_them(tmp_path, monkeypatch):
    """Of eight adds of five a ring of sixteen slots holds parts of the last four."""
    left = await segments_left(tmp_path, monkeypatch, None, is_committed=False, is_checkpointed=True)

    assert left == [5, 6, 7, 8]
