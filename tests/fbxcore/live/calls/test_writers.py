"""Independent writers add at their own pace; what they had comes back, and nothing joins two of them."""

import asyncio
import shutil

import numpy as np
import pytest
from live_data import final, independent, run

from fbxcore.errors import (
    ConflictError,
    InvalidArgumentError,
    NotEnoughDataError,
    StorageError,
    StructureError,
    UnavailableError,
)
from fbxcore.live import adopt_whole, load_config

pytestmark = pytest.mark.anyio


def pairs(sample):
    """Return the distinct transitions of a sample, by their observations."""
    first, second = (sample.arrays[f"experience/{part}/obs"][:, 0] for part in ("first", "second"))
    return set(zip(first.astype(int).tolist(), second.astype(int).tolist(), strict=True))


async def test_a_truncated_step_is_followed_by_its_true_last_observation(opened):
    """Observations 0, 1, 2, truncated, then 3; then 10, 11, 12: never 2 to 10, and 2 to 3 is there."""
    buffer = await opened(independent())
    await buffer.add(run(0, 1), writer="a", sequence=1)
    ended = await buffer.add(run(2) | final(3), writer="a", sequence=2, end="truncated")
    await buffer.add(run(10, 11, 12), writer="a", sequence=3)

    assert (ended.added, ended.size, ended.position, ended.steps) == (2, 4, 4, 4)
    assert pairs(await buffer.sample(512, seed=0)) == {(0, 1), (1, 2), (2, 3), (10, 11), (11, 12)}


async def test_leaves_not_given_at_the_end_are_zero(opened):
    """The true last observation has no step number of its own: it is stored as 0."""
    buffer = await opened(independent())
    await buffer.add(run(7) | final(8), writer="a", sequence=1, end="terminated")
    sample = await buffer.sample(4)

    assert sample.arrays["experience/second/obs"].tolist() == [[8.0] * 3] * 4
    assert sample.arrays["experience/second/step"].tolist() == [0] * 4


async def test_rows_advance_on_their_own_and_are_drawn_by_what_they_hold(opened):
    """Nine pairs of a fast writer and one of a slow one: a tenth of the draws are the slow one's."""
    buffer = await opened(independent())
    for sequence in range(5):
        await buffer.add(run(2 * sequence, 2 * sequence + 1), writer="fast", sequence=sequence)
    await buffer.add(run(100, 101), writer="slow", sequence=0)
    sample = await buffer.sample(4096, seed=3)

    assert abs((sample.arrays["experience/first/step"] == 100).mean() - 0.1) < 0.02


async def test_a_writer_has_its_row_for_an_episode_and_its_former_one_after(opened):
    """Rows are kept until an end; the writer's own is taken again, a stranger takes the longest unused."""
    buffer = await opened(independent())
    rows = {}
    for writer in "abc":
        rows[writer] = (await buffer.add(run(1), writer=writer, sequence=1)).row
    await buffer.add(run(2), writer="b", sequence=2, end="terminated")
    await buffer.add(run(2), writer="a", sequence=2, end="terminated")
    again = await buffer.add(run(3), writer="a", sequence=3)
    stranger = await buffer.add(run(3), writer="d", sequence=3)

    assert sorted(rows.values()) == [0, 1, 2] and again.row == rows["a"] and stranger.row == rows["b"]
    assert [(s.writer, s.sequence, s.row) for s in buffer.writers() if s.writer in "ad"] == [
        ("a", 3, rows["a"]), ("d", 3, rows["b"]),
    ]  # fmt: skip


async def test_without_a_free_row_a_writer_waits_and_is_then_sent_away(opened):
    """The fourth of four writers is refused at once, or let in when a row is freed while it waits."""
    buffer = await opened(independent())
    for writer in "abc":
        await buffer.add(run(1), writer=writer, sequence=1)
    with pytest.raises(UnavailableError, match="one of 3 rows free") as refused:
        await buffer.add(run(1), writer="d", sequence=1)
    waiting = asyncio.create_task(buffer.add(run(5), writer="d", sequence=1, timeout_ms=20_000))
    await asyncio.sleep(0.05)
    await buffer.independent.cut("b")

    assert (refused.value.code, refused.value.details["retry_after_s"]) == ("no_free_row", 1)
    assert (await waiting).row == 1


async def test_an_idle_writer_loses_its_row_and_its_episode(opened):
    """After a second without adds the row is free; when the writer comes back, a new episode begins."""
    buffer = await opened(independent(idle_end_s=1))
    before = await buffer.add(run(0, 1), writer="a", sequence=1)
    await asyncio.sleep(1.6)
    (state,) = buffer.writers()
    after = await buffer.add(run(10, 11), writer="a", sequence=2)

    assert state.episode is None and state.idle_s > 1 and after.episode == before.episode + 1
    assert pairs(await buffer.sample(256, seed=0)) == {(0, 1), (10, 11)}


async def test_a_writer_whose_request_waits_is_not_idle(opened):
    """Held back by the limiter for longer than a writer may be idle, it goes on with its episode."""
    limiter = {"samples_per_insert": 1.0, "min_size": 4, "error_buffer": 40}
    buffer = await opened(independent(idle_end_s=1, rate_limiter=limiter))
    begun = await buffer.add(run(*range(8)), writer="a", sequence=1)
    for sequence in range(2, 6):
        await buffer.add(run(*range(8)), writer="a", sequence=sequence)
    waiting = asyncio.create_task(buffer.add(run(*range(8)), writer="a", sequence=6, timeout_ms=20_000))
    await asyncio.sleep(2.2)
    is_held_back = not waiting.done()
    await buffer.sample(32)

    assert is_held_back and (await waiting).episode == begun.episode


async def test_how_long_a_writer_may_be_idle_can_be_changed(opened, tmp_path):
    """A row that an hour would keep is free after a second once that is asked for, also after a restart."""
    buffer = await opened(independent(idle_end_s=3600))
    await buffer.add(run(0, 1), writer="a", sequence=1)
    with pytest.raises(InvalidArgumentError, match="`idle_end_s` must be a number of seconds from 1 to"):
        await buffer.change({"idle_end_s": 0.5})
    await buffer.change({"idle_end_s": 1})
    await asyncio.sleep(2.6)

    assert buffer.writers()[0].episode is None
    assert load_config(tmp_path / "b").idle_end_s == 1


async def test_rows_in_lockstep_have_nobody_who_is_idle(opened):
    """A change of it is refused there."""
    buffer = await opened(independent(writers="lockstep"))

    with pytest.raises(InvalidArgumentError, match="`idle_end_s` must be left out where"):
        await buffer.change({"idle_end_s": 1})


async def test_a_writer_that_waits_no_longer_has_still_added(opened):
    """Whoever gives up after its add is on the way gets, when it asks again, what the add was answered."""
    buffer = await opened(independent())
    adding = asyncio.create_task(buffer.add(run(0, 1), writer="a", sequence=1))
    await asyncio.sleep(0)
    adding.cancel()
    again = await buffer.add(run(0, 1), writer="a", sequence=1)

    assert adding.cancelled() and again.duplicate
    assert (again.added, buffer.position, buffer.writers()[0].sequence) == (2, 2, 1)


async def test_an_episode_may_be_ended_without_timesteps(opened):
    """An end alone frees the row and is remembered; without an open episode it is refused."""
    buffer = await opened(independent())
    await buffer.add(run(0, 1), writer="a", sequence=1)
    ended = await buffer.add(run(), writer="a", sequence=2, end="cut")
    again = await buffer.add(run(), writer="a", sequence=2, end="cut")
    with pytest.raises(ConflictError, match="must close an episode") as refused:
        await buffer.add(run(), writer="a", sequence=3, end="cut")

    assert (ended.added, ended.size, again.duplicate, refused.value.code) == (0, 2, True, "no_episode")


async def test_a_repeat_gets_the_first_answer_and_another_end_is_a_conflict(opened):
    """Equal bodies under one sequence count once; with another end they are another request."""
    buffer = await opened(independent())
    first = await buffer.add(run(0, 1) | final(2), writer="a", sequence=1, end="truncated")
    again = await buffer.add(run(0, 1) | final(2), writer="a", sequence=1, end="truncated")
    with pytest.raises(ConflictError, match="must be new for another body"):
        await buffer.add(run(0, 1) | final(2), writer="a", sequence=1, end="terminated")

    assert again.duplicate and (again.size, again.episode) == (first.size, first.episode) == (3, 1)


@pytest.mark.parametrize(
    ("leaves", "given", "error", "words"),
    [
        (run(1), {"writer": None}, InvalidArgumentError, "`writer` must name who"),
        (run(1) | final(2), {}, InvalidArgumentError, "`final/obs` must come with `end`"),
        (run(1) | {"final/x": np.zeros(3)}, {"end": "cut"}, StructureError, "`final/x` must be one of"),
        (run(1) | {"final/obs": np.zeros(2, np.float32)}, {"end": "cut"}, StructureError, "`final/obs`"),
        (run(1), {"end": "over"}, InvalidArgumentError, "`end` must be one of terminated"),
        (run(), {}, InvalidArgumentError, "at least one timestep where `end`"),
        ({name: x[None] for name, x in run(1).items()}, {}, StructureError, r"must have shape \[K"),
    ],
)  # fmt: skip
async def test_what_does_not_fit_together_changes_nothing(opened, leaves, given, error, words):
    """A bad combination is refused with the reason, and takes no row."""
    buffer = await opened(independent())
    with pytest.raises(error, match=words):
        await buffer.add(leaves, **({"writer": "a", "sequence": 1} | given))

    assert buffer.describe()["size"] == 0 and buffer.writers() == []


async def test_what_can_be_sampled_is_told_over_all_rows(opened):
    """Three single timesteps of three writers are enough and yet no transition."""
    buffer = await opened(independent(min_length=3))
    told = []
    for writer in "abc":
        await buffer.add(run(1), writer=writer, sequence=1)
        told.append((buffer.describe()["needed"], buffer.describe()["can_sample"]))
    with pytest.raises(NotEnoughDataError, match="2 timesteps of one episode"):
        await buffer.sample()
    await buffer.add(run(2), writer="b", sequence=2)

    assert told == [(2, False), (1, False), (1, False)] and buffer.describe()["can_sample"]
    assert pairs(await buffer.sample()) == {(1, 2)}


async def test_a_refused_add_leaves_its_row_as_it_was(opened, monkeypatch):
    """After a full disk the same steps go on in the same episode, and join what came before."""
    buffer = await opened(independent())
    await buffer.add(run(0, 1), writer="a", sequence=1)
    log, write = buffer._journal.log, buffer._journal.log._write

    def refuse(_frames):
        raise StorageError("No room.")

    monkeypatch.setattr(log, "_write", refuse)
    for writer in "ab":
        with pytest.raises(StorageError):
            await buffer.add(run(2, 3), writer=writer, sequence=2, end="terminated")
    monkeypatch.setattr(log, "_write", write)
    added = await buffer.add(run(2, 3), writer="a", sequence=2)

    assert (added.episode, added.steps, [s.writer for s in buffer.writers()]) == (1, 4, ["a"])
    assert pairs(await buffer.sample(256, seed=0)) == {(0, 1), (1, 2), (2, 3)}


async def test_what_follows_a_refused_add_is_not_joined_to_what_lies_before_it(opened, monkeypatch):
    """Of three adds sent ahead of their answers the second fails: no pair of the first and the third."""
    buffer = await opened(independent())
    log, write, refused = buffer._journal.log, buffer._journal.log._write, []

    def refuse_one(frames):
        if any(frame.meta.get("writer_sequence") == 2 for frame in frames) and not refused:
            refused.append(True)
            raise StorageError("No room.")
        write(frames)

    monkeypatch.setattr(log, "_write", refuse_one)
    await buffer.add(run(0, 1), writer="a", sequence=1)
    second = asyncio.create_task(buffer.add(run(2, 3), writer="a", sequence=2))
    third = asyncio.create_task(buffer.add(run(4, 5), writer="a", sequence=3))
    outcomes = await asyncio.gather(second, third, return_exceptions=True)
    if isinstance(outcomes[1], Exception):  # both lay in the group that was refused
        outcomes[1] = await buffer.add(run(4, 5), writer="a", sequence=3)

    assert isinstance(outcomes[0], StorageError) and outcomes[1].added == 2
    assert (1, 4) not in pairs(await buffer.sample(256, seed=0)) or outcomes[1].steps == 4


def copy_of(buffer, place):
    """Copy a buffer's files as a kill would leave them."""
    shutil.copytree(buffer.directory, place)


def everything(buffer):
    """Return all that a restart must bring back, but for times that pass."""
    states = [(s.writer, s.sequence, s.row, s.episode, s.last_seen) for s in buffer.writers()]
    told = {name: value for name, value in buffer.describe().items() if name != "sampled"}  # once a second
    return told, states, buffer._ring.bookkeeping()


def assert_same(before, after):
    """Check that two of `everything` agree."""
    assert before[:2] == after[:2]
    for name, array in before[2].items():
        np.testing.assert_array_equal(array, after[2][name], err_msg=name)


async def fill(buffer, random, adds, sequences):
    """Let five writers add runs of random lengths and ends in turn; returns the episodes as acknowledged."""
    for _ in range(adds):
        writer = "abcde"[random.integers(5)]
        end = [None, None, "terminated", "cut"][random.integers(4)]
        sequences[writer] = sequences.get(writer, 0) + 1
        numbers = 1000 * sequences[writer] + np.arange(random.integers(1, 8))
        last = final(-1) if end == "terminated" else {}
        try:
            await buffer.add(run(numbers) | last, writer=writer, sequence=sequences[writer], end=end)
        except UnavailableError:
            await buffer.independent.cut("abcde"[random.integers(5)])


@pytest.mark.parametrize("kind", ["flat", "prioritised_flat"])
async def test_a_killed_buffer_comes_back_as_it_was(opened, tmp_path, kind, monkeypatch):
    """Rows, cuts, writers, metadata, priorities and draws are as acknowledged, with a base and without."""
    monkeypatch.setattr("fbxcore.live.restart.whole._PIECE_BYTES", 64)
    random, sequences = np.random.default_rng(5), {}
    exponent = 0.6 if kind == "prioritised_flat" else None
    buffer = await opened(independent(kind=kind, priority_exponent=exponent))
    for turn in range(3):
        await fill(buffer, random, 25, sequences)
        for writer in "bcde":
            await buffer.independent.cut(writer)
        sequences["a"] += 1
        await buffer.add(run(1, 2), writer="a", sequence=sequences["a"])
        await buffer.independent.describe_episode("a", {"turn": turn})
        if turn == 1:
            await buffer.reset()
        if exponent:
            drawn = await buffer.sample(8, seed=turn) if turn != 1 else None
            if drawn is not None:
                how = (drawn.arrays[name] for name in ("indices", "generations"))
                indices, generations = how
                await buffer.set_priorities(indices, np.arange(1.0, 9.0), generations)
        if turn == 2:
            await buffer._housekeeper._bases.write()
            await fill(buffer, random, 5, sequences)
        copy_of(buffer, tmp_path / f"copy{turn}")
        again = await opened(place=f"copy{turn}")
        assert_same(everything(buffer), everything(again))
        if buffer.describe()["can_sample"]:
            one, other = [await b.sample(64, seed=9) for b in (buffer, again)]
            for name, array in one.arrays.items():
                np.testing.assert_array_equal(array, other.arrays[name])


async def test_a_base_written_while_the_ring_goes_on_brings_back_the_same(opened, tmp_path, monkeypatch):
    """Adds between the pieces of a base change slots that it holds, and come out as of one moment."""
    monkeypatch.setattr("fbxcore.live.restart.whole._PIECE_BYTES", 24)
    random, sequences = np.random.default_rng(7), {}
    buffer = await opened(independent())
    await fill(buffer, random, 40, sequences)
    making = asyncio.create_task(buffer._housekeeper._bases.write())
    await fill(buffer, random, 30, sequences)
    await making
    copy_of(buffer, tmp_path / "copy")
    again = await opened(place="copy")

    assert_same(everything(buffer), everything(again))
    one, other = [await b.sample(64, seed=9) for b in (buffer, again)]
    np.testing.assert_array_equal(one.arrays["experience/second/obs"], other.arrays["experience/second/obs"])


async def test_the_log_of_a_row_that_stands_still_does_not_grow_for_ever(opened, monkeypatch):
    """While one writer adds nothing, another's log is dropped once a base holds all of the ring."""
    monkeypatch.setattr("fbxcore.live.restart.bases._LEAST_LOG_BYTES", 20_000)
    buffer = await opened(independent(idle_end_s=600))
    buffer._journal.log.segment_bytes = 5_000
    await buffer.add(run(1, 2), writer="slow", sequence=1)
    for sequence in range(300):
        await buffer.add(run(np.arange(8)), writer="fast", sequence=sequence)
        if sequence % 20 == 0:
            await buffer._housekeeper._bases.keep()

    assert buffer._journal.log.num_bytes < 45_000
    assert (1, 2) in pairs(await buffer.sample(512, seed=0))


async def test_without_durability_and_back_rows_and_writers_are_kept(opened, tmp_path):
    """With no log for a while, and with one again, a kill brings back the whole buffer, open episodes too."""
    random, sequences = np.random.default_rng(3), {}
    buffer = await opened(independent())
    await fill(buffer, random, 20, sequences)
    await buffer.change({"durability": "none"})
    await fill(buffer, random, 20, sequences)
    await buffer.change({"durability": "fsync"})
    await fill(buffer, random, 5, sequences)
    copy_of(buffer, tmp_path / "copy")
    again = await opened(place="copy")

    assert_same(everything(buffer), everything(again))


async def test_a_snapshot_begins_another_buffer_exactly_as_it_was(opened, tmp_path):
    """Rows, open episodes and draws are the same, and each writer goes on in its episode."""
    random, sequences = np.random.default_rng(4), {}
    buffer = await opened(independent())
    await fill(buffer, random, 40, sequences)
    for writer in "abcde":
        await buffer.independent.cut(writer)
    await buffer.add(run(7, 8), writer="a", sequence=1000)
    (tmp_path / "snapshot").mkdir()
    await buffer.snapshot(tmp_path / "snapshot")
    adopt_whole(tmp_path / "snapshot", tmp_path / "other")
    other = await opened(independent(), place="other")
    one, same = [await b.sample(64, seed=9) for b in (buffer, other)]
    added = await other.add(run(9), writer="a", sequence=1001)

    np.testing.assert_array_equal(one.arrays["experience/first/obs"], same.arrays["experience/first/obs"])
    assert added.steps == 3 and (8, 9) in pairs(await other.sample(512, seed=1))


async def test_the_rate_limiter_counts_all_rows(opened):
    """Four timesteps of two writers reach a least size of four."""
    limiter = {"samples_per_insert": 1.0, "min_size": 4, "error_buffer": 40}
    buffer = await opened(independent(rate_limiter=limiter))
    await buffer.add(run(0, 1, 2), writer="a", sequence=1)
    with pytest.raises(UnavailableError, match="with 3 timesteps added"):
        await buffer.sample()
    await buffer.add(run(5), writer="b", sequence=1)

    assert pairs(await buffer.sample()) <= {(0, 1), (1, 2)}
