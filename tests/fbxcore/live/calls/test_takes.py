"""A queue hands each item out once: in order, under keys, when full, among many, and across restarts."""

import asyncio

import numpy as np
import pytest
from queue_data import leaves, queue_config, sequences

from fbxcore.errors import (
    ConflictError,
    InvalidArgumentError,
    NotEnoughDataError,
    NotSupportedError,
    UnavailableError,
)
from fbxcore.live.calls import takes
from fbxcore.vault.store import VaultReader

pytestmark = pytest.mark.anyio


async def killed(buffer):
    """Let go of a buffer as kill -9 would: nothing is flushed, no checkpoint is written."""
    buffer._closed = True
    buffer._housekeeper.stop()
    buffer._takes.close()
    await asyncio.to_thread(buffer._journal.log.close)
    await asyncio.to_thread(buffer._engine.close)


async def test_sequences_come_once_in_order_over_many_laps(opened):
    """Adds of 1 to 5 and takes of 1 to 3 sequences a row give every timestep once, in order."""
    queue = await opened(queue_config())
    rng = np.random.default_rng(0)
    added = taken = 0
    for _ in range(60):
        count, number = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        if added + count - taken <= 10:
            await queue.add(leaves(added, count))
            added += count
        if added - taken >= 3 * number:
            got = await queue.take(2 * number)
            assert (got.arrays["experience/step"] == sequences(taken, number)).all()
            assert (got.arrays["experience/frame"][..., 1] == sequences(taken, number) % 251).all()
            taken += 3 * number
            assert got.position == taken - 3 * number

    assert taken > 60
    told = queue.describe()
    assert (told["added"], told["taken"], told["waiting"]) == (2 * added, 2 * taken, 2 * (added - taken))


async def test_too_little_waits_then_says_how_much_is_needed(opened):
    """With two of three timesteps there, a take is refused at once or waits for the third."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 2))
    with pytest.raises(NotEnoughDataError) as caught:
        await queue.take()
    assert caught.value.details["needed"] == 1

    waiting = asyncio.ensure_future(queue.take(timeout_ms=5000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await queue.add(leaves(2, 1))
    assert (await waiting).arrays["experience/step"].tolist() == sequences(0, 1).tolist()


async def test_a_full_queue_waits_then_refuses(opened):
    """Eleven timesteps do not fit ten slots: refused at once with numbers, or added once some are taken."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 9))
    with pytest.raises(UnavailableError, match="must have room for 2 timesteps a row, got 1 of 10") as caught:
        await queue.add(leaves(9, 2))
    assert caught.value.code == "queue_full"
    assert caught.value.details["queue"] == {"time_axis": 10, "waiting": 9, "reserved": 0, "room": 1}

    waiting = asyncio.ensure_future(queue.add(leaves(9, 2), timeout_ms=5000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await queue.take()
    assert (await waiting).size == 16
    assert (await queue.take(4)).arrays["experience/step"].tolist() == sequences(3, 2).tolist()


async def test_what_fits_once_is_admitted_once(opened):
    """Of two adds at the same moment that only fit alone one is refused, and the same of two takes."""
    queue = await opened(queue_config())
    added = await asyncio.gather(*(queue.add(leaves(0, 6)) for _ in range(2)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in added) == ["Added", "UnavailableError"]

    taken = await asyncio.gather(*(queue.take(4) for _ in range(2)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in taken) == ["NotEnoughDataError", "Taken"]


async def test_of_two_that_wait_for_the_same_room_one_gets_it(opened):
    """A take makes room for one of two adds that wait, and an add brings items for one of two takes."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 10))
    adding = [asyncio.ensure_future(queue.add(leaves(10, 3), timeout_ms=400)) for _ in range(2)]
    await asyncio.sleep(0.05)
    await queue.take()
    added = await asyncio.gather(*adding, return_exceptions=True)
    assert sorted(type(one).__name__ for one in added) == ["Added", "UnavailableError"]

    await queue.take(6)
    taking = [asyncio.ensure_future(queue.take(timeout_ms=400)) for _ in range(2)]
    await asyncio.sleep(0.05)
    await queue.add(leaves(13, 3))
    taken = await asyncio.gather(*taking, return_exceptions=True)
    assert sorted(type(one).__name__ for one in taken) == ["NotEnoughDataError", "Taken"]


async def test_a_repeat_gets_the_very_same(opened):
    """Under one key the same arrays come again, also while the first is under way; the count goes up once."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 9))
    first, parallel = await asyncio.gather(*(queue.take(idempotency_key="k", client="a") for _ in range(2)))
    again = await queue.take(idempotency_key="k", client="a")

    assert (first.duplicate, parallel.duplicate, again.duplicate) == (False, True, True)
    for got in (first, parallel, again):
        assert got.arrays["experience/step"].tolist() == sequences(0, 1).tolist()
        assert (got.position, got.sequence) == (0, 2)
    assert queue.describe()["sampled"] == 2
    assert queue.describe()["reserved"] == 6


async def test_repeats_that_wait_side_by_side_get_the_very_same(opened):
    """Two requests under one key that both wait take once, though there would be enough for both."""
    queue = await opened(queue_config())
    waiting = [asyncio.ensure_future(queue.take(idempotency_key="k", timeout_ms=5000)) for _ in range(2)]
    await asyncio.sleep(0.05)
    await queue.add(leaves(0, 9))
    found = await asyncio.gather(*waiting)
    assert sorted(got.duplicate for got in found) == [False, True]
    assert all(got.arrays["experience/step"].tolist() == sequences(0, 1).tolist() for got in found)
    assert queue.describe()["waiting"] == 12


async def test_another_request_under_a_key_is_refused(opened):
    """Another batch size under a used key is a conflict, and takes nothing; so is an add."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 9))
    await queue.take(idempotency_key="k", client="a")
    for again in (queue.take(4, idempotency_key="k"), queue.add(leaves(9, 1), idempotency_key="k")):
        with pytest.raises(ConflictError) as caught:
            await again
        assert caught.value.code == "idempotency_conflict"
    assert queue.describe()["waiting"] == 12


async def test_reserved_slots_are_not_overwritten_until_the_client_takes_again(opened):
    """Three of ten slots are reserved over many laps of the others, until their client takes again."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 10))
    await queue.take(idempotency_key="k", client="a")
    with pytest.raises(UnavailableError, match="3 kept for a repeat"):
        await queue.add(leaves(10, 1))
    for start in range(10, 40, 3):
        await queue.take(client="b")
        await queue.add(leaves(start, 3))
        with pytest.raises(UnavailableError):
            await queue.add(leaves(start, 1))
    again = await queue.take(idempotency_key="k", client="a")
    assert again.duplicate
    assert again.arrays["experience/step"].tolist() == sequences(0, 1).tolist()

    await queue.take(client="a")
    await queue.add(leaves(40, 6))
    with pytest.raises(ConflictError) as caught:
        await queue.take(idempotency_key="k", client="a")
    assert caught.value.code == "reservation_ended"
    assert (await queue.take()).arrays["experience/step"].tolist() == sequences(36, 1).tolist()


async def test_what_waits_to_be_taken_finds_room_though_all_was_reserved(opened):
    """A client whose next take waits has got its last one: those slots take what it waits for."""
    queue = await opened(queue_config(max_length_time_axis=3))
    await queue.add(leaves(0, 3))
    await queue.take(idempotency_key="k", client="a")
    waiting = asyncio.ensure_future(queue.take(idempotency_key="l", client="a", timeout_ms=5000))
    await queue.add(leaves(3, 3), timeout_ms=5000)
    assert (await waiting).arrays["experience/step"].tolist() == sequences(3, 1).tolist()


async def test_a_reservation_ends_after_its_time(opened, monkeypatch):
    """A key that nobody repeats gives its slots back, by a frame of the log."""
    monkeypatch.setattr(takes, "KEEP_SECONDS", 0.05)
    queue = await opened(queue_config())
    await queue.add(leaves(0, 10))
    await queue.take(idempotency_key="k")
    assert queue.describe()["reserved"] == 6
    await queue.add(leaves(10, 3), timeout_ms=5000)

    assert queue.describe()["reserved"] == 0
    with pytest.raises(ConflictError, match="no longer kept"):
        await queue.take(idempotency_key="k")


async def test_without_a_key_nothing_is_reserved(opened):
    """What was taken without a key makes room at once."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 10))
    await queue.take(6)
    await queue.add(leaves(10, 9))
    assert queue.describe()["is_full"]


@pytest.mark.parametrize("ending", ["close", "kill"])
@pytest.mark.parametrize("persist_to", [None, "runs/1"])
async def test_a_restart_brings_back_position_reservations_and_keys(opened, ending, persist_to):
    """After a stop or a kill a lost answer is given again, and the next take goes on behind it."""
    queue = await opened(queue_config(persist_to=persist_to))
    for start in range(0, 24, 6):
        await queue.add(leaves(start, 6))
        await queue.take(2)
        await queue.take(2, idempotency_key=f"k{start}", client="a")
    await queue.add(leaves(24, 4))
    await (queue.close() if ending == "close" else killed(queue))
    if ending == "kill":
        await asyncio.to_thread(queue._journal.persister.close) if persist_to else None

    queue = await opened()
    told = queue.describe()
    assert (told["waiting"], told["reserved"], told["sampled"], told["added"]) == (8, 6, 16, 56)
    again = await queue.take(2, idempotency_key="k18", client="a")
    assert again.duplicate
    assert again.arrays["experience/step"].tolist() == sequences(21, 1).tolist()
    with pytest.raises(ConflictError, match="no longer kept"):
        await queue.take(2, idempotency_key="k0", client="a")
    assert (await queue.take()).arrays["experience/step"].tolist() == sequences(24, 1).tolist()


async def test_a_reservation_lasts_its_time_anew_after_a_restart(opened, monkeypatch):
    """A lost answer is kept after a restart, and its slots are given back some time later."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 10))
    await queue.take(idempotency_key="k")
    await killed(queue)

    monkeypatch.setattr(takes, "KEEP_SECONDS", 0.05)
    queue = await opened()
    assert queue.describe()["reserved"] == 6
    await queue.add(leaves(10, 3), timeout_ms=5000)
    assert queue.describe()["reserved"] == 0


async def test_segments_go_when_what_waits_and_is_reserved_lies_behind_them(opened):
    """With a segment for each frame, those of the three reserved adds and of what waits stay, no more."""
    queue = await opened(queue_config())
    queue._journal.log.segment_bytes = 1
    for start in range(0, 30, 3):
        await queue.add(leaves(start, 3))
        await queue.take(idempotency_key=f"k{start}", client="a" if start < 24 else None)
    await queue.add(leaves(30, 1))
    await queue._housekeeper.checkpoint()
    assert queue.describe()["reserved"] == 18  # of the client's last take, and of two that named none
    assert len(queue._journal.log.segments) == 2 * 3 + 1
    await queue.close()

    queue = await opened()
    got = await queue.take(idempotency_key="k21", client="a")
    assert got.arrays["experience/step"].tolist() == sequences(21, 1).tolist()


async def test_a_reset_forgets_what_waits_and_what_is_reserved(opened):
    """After a reset there is room for everything, and positions begin anew."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 10))
    await queue.take(idempotency_key="k")
    await queue.reset()
    told = queue.describe()
    assert (told["waiting"], told["reserved"], told["position"]) == (0, 0, 0)

    await queue.add(leaves(100, 10))
    got = await queue.take(6)
    assert (got.position, got.arrays["experience/step"].tolist()) == (0, sequences(100, 3).tolist())


async def test_a_take_behind_a_reset_in_the_log_waits(opened):
    """A take that was admitted before a reset emptied the queue gets what comes after it."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 6))
    _, waiting = asyncio.ensure_future(queue.reset()), asyncio.ensure_future(queue.take(timeout_ms=5000))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await queue.add(leaves(50, 3))
    assert (await waiting).arrays["experience/step"].tolist() == sequences(50, 1).tolist()


async def test_the_vault_gets_what_is_added(opened, tmp_path):
    """Taken or not, every timestep is in the vault, in order; what waits is persisted too."""
    queue = await opened(queue_config(persist_to="runs/1"))
    await queue.add(leaves(0, 10))
    await queue.take(4)
    await queue.add(leaves(10, 5))
    await queue.flush()
    assert queue.unpersisted == 0
    with VaultReader.open(tmp_path / "vaults" / "runs" / "1") as reader:
        assert (reader.read(0, 15)["step"] == leaves(0, 15)["step"]).all()


async def test_only_what_waits_is_unpersisted(opened):
    """Without a vault ten timesteps of two rows are 20 to lose, and after a take of three a row 14."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 10))
    assert queue.unpersisted == 20
    await queue.take(idempotency_key="k")
    assert queue.unpersisted == 14


async def test_a_queue_is_not_sampled_and_a_buffer_not_taken_from(opened):
    """Each says which call is meant for it; priorities have no meaning for a queue."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 6))
    with pytest.raises(NotSupportedError, match="Use `take`"):
        await queue.sample()
    with pytest.raises(InvalidArgumentError, match="`priorities`"):
        await queue.set_priorities(np.zeros(1, np.int32), np.ones(1), np.zeros(1, np.int64))


@pytest.mark.parametrize("batch_size", [0, 1, 3, 8])
async def test_a_batch_that_no_queue_could_give_is_refused(opened, batch_size):
    """Ten slots hold three sequences of three in each of two rows: 2, 4 and 6 can be asked for."""
    queue = await opened(queue_config())
    with pytest.raises(InvalidArgumentError, match="`batch_size` must be a multiple of the 2 rows"):
        await queue.take(batch_size)


async def test_more_than_the_queue_holds_is_refused_for_good(opened):
    """Eleven timesteps would wait for ever in ten slots: 422 at once."""
    queue = await opened(queue_config())
    with pytest.raises(InvalidArgumentError, match="at most 10 timesteps on axis 1"):
        await queue.add(leaves(0, 11), timeout_ms=5000)


async def test_ages_count_what_waits(opened):
    """Of ten timesteps a row three are taken: seven ages in each of two rows."""
    queue = await opened(queue_config())
    await queue.add(leaves(0, 10))
    await queue.take()
    answer = await queue.histogram("age", 7)
    assert answer["counts"] == [2] * 7


def test_a_limiter_and_a_long_add_are_refused():
    """A queue needs no limiter, and an add of more than it holds could never be made."""
    limiter = {"samples_per_insert": 1.0, "min_size": 1, "error_buffer": 100}
    with pytest.raises(NotSupportedError, match="`rate_limiter` must be left out"):
        queue_config(rate_limiter=limiter)
    with pytest.raises(InvalidArgumentError, match="`add_sequence_length` must be at most the time axis"):
        queue_config(add_sequence_length=11)
