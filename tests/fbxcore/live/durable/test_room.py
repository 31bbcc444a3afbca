"""A log is bounded: when vault or checkpoint fall behind, adds wait, are refused, and go on."""

import asyncio
import threading
import time

import numpy as np
import pytest
from live_data import config, steps

from fbxcore.errors import DiskFullError, StorageError, UnavailableError
from fbxcore.live.durable.checkpoint import Checkpoint
from fbxcore.vault.store import VaultReader

pytestmark = pytest.mark.anyio
STEP_BYTES = 32  # of two rows


async def add_until_refused(buffer):
    """Add four timesteps at a time until that is refused for good; return how many, and why."""
    for at in range(0, 4000, 4):
        try:
            await buffer.add(steps(at, 4), idempotency_key=f"k{at}", timeout_ms=2500)
        except UnavailableError as error:
            return at, error
    raise AssertionError("nothing was refused")


def vault_steps(tmp_path):
    """Return what the vault holds."""
    with VaultReader.open(tmp_path / "vaults/run/1") as reader:
        return reader.read(0, reader.length)["step"][0]


async def test_a_vault_that_hangs_holds_adds_back_and_lets_them_go(tmp_path, opened):
    """Up to the bound they go in; then the numbers are told, and all is there once the vault is back."""
    buffer = await opened(config(persist_to="run/1"), max_log_bytes=4000)
    writer, may_go = buffer.vault_writer, threading.Event()
    append = writer.append
    writer.append = lambda *args, **kwargs: (may_go.wait(20), append(*args, **kwargs))[1]
    flushing = asyncio.create_task(buffer.flush())
    at, error = await add_until_refused(buffer)

    assert error.code == "backpressure" and error.details["retry_after_s"] == 1
    assert error.details["log"]["max_bytes"] == 4000 < at * STEP_BYTES <= 4000 + 4 * STEP_BYTES
    assert error.details["log"]["behind_vault_bytes"] == at * STEP_BYTES
    started = time.monotonic()
    with pytest.raises(UnavailableError, match="must be at most 4000 bytes ahead"):
        await buffer.add(steps(at, 4), timeout_ms=200)
    assert time.monotonic() - started >= 0.2
    assert (await buffer.add(steps(0, 4), idempotency_key="k0")).duplicate, "a repeat needs no room"
    waiting = asyncio.create_task(buffer.add(steps(at, 4), timeout_ms=20_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    may_go.set()
    buffer._journal.persister.flush()
    await asyncio.wait_for(waiting, 10)
    await flushing
    await buffer.close()
    assert (vault_steps(tmp_path) == np.arange(at + 4)).all()


async def test_a_vault_that_fails_is_tried_again_until_it_takes_everything(tmp_path, opened):
    """A full disk under the vault alone: adds are refused at the bound, and go on by themselves after."""
    buffer = await opened(config(persist_to="run/1"), max_log_bytes=4000)
    writer = buffer.vault_writer
    append = writer.append

    def full(*_, **__):
        raise DiskFullError("The disk must have room for the vault, got none.")

    writer.append = full
    await buffer.add(steps(0, 4), idempotency_key="k0")
    with pytest.raises(StorageError, match="room for the vault"):
        await buffer.flush()
    at, error = await add_until_refused(buffer)
    assert "The vault said: The disk must have room for the vault" in str(error)
    writer.append = append
    await buffer.add(steps(at, 4), timeout_ms=10_000)
    await buffer.close()

    assert (vault_steps(tmp_path) == np.arange(at + 4)).all()


async def test_a_checkpoint_that_fails_holds_adds_and_priorities_back(opened, monkeypatch):
    """The log is bounded without a vault too; the next checkpoint that succeeds lets everybody go on."""
    buffer = await opened(config(), max_log_bytes=4000)
    save = Checkpoint.save

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoint, "save", full)
    at, error = await add_until_refused(buffer)
    assert error.details["log"]["behind_checkpoint_bytes"] > 4000
    drawn = (await buffer.sample(4, seed=0)).arrays
    with pytest.raises(UnavailableError, match="ahead"):
        await buffer.set_priorities(drawn["indices"], np.ones(4), drawn["generations"])
    monkeypatch.setattr(Checkpoint, "save", save)
    await buffer.add(steps(at, 4), timeout_ms=10_000)
    assert (await buffer.set_priorities(drawn["indices"], np.ones(4), drawn["generations"])).updated == 4


async def test_a_slow_disk_bounds_what_is_on_its_way(opened, monkeypatch):
    """While a sync hangs, no more is taken into memory than the bound; then all of it is there once."""
    buffer = await opened(config(), max_log_bytes=1000)
    may_go, sync = threading.Event(), __import__("os").fdatasync
    monkeypatch.setattr("os.fdatasync", lambda file: (may_go.wait(20), sync(file))[1])
    adds = [asyncio.create_task(buffer.add(steps(4 * i, 4), timeout_ms=20_000)) for i in range(50)]
    await asyncio.sleep(0.2)
    with pytest.raises(UnavailableError, match="on their way"):
        await buffer.add(steps(0, 4))
    under_way = buffer._journal.room._under_way
    may_go.set()
    added = await asyncio.gather(*adds)

    assert 1000 < under_way <= 1000 + 4 * STEP_BYTES
    assert sorted(one.position for one in added) == list(range(4, 204, 4))


async def test_a_checkpoint_is_made_after_bytes_and_after_time(opened, monkeypatch):
    """So that a replay is short: what is new is bounded in bytes, and in time where little comes."""
    buffer = await opened(config(), max_log_bytes=1 << 20)
    keeper, room = buffer._housekeeper, buffer._journal.room
    await buffer.add(steps(0, 4))
    keeper._saved_at = time.monotonic()
    assert not keeper._is_due()
    keeper._saved_at -= 61
    assert keeper._is_due()
    await keeper.checkpoint()
    assert not keeper._is_due() and room.unsaved_bytes == 0
    monkeypatch.setattr("fbxcore.live.housekeeping.CHECKPOINT_BYTES", 500)
    await buffer.add(steps(4, 20))
    assert keeper._is_due()
