"""What independent writers add is kept in a vault, each episode in one piece, and each step once."""

import shutil

import numpy as np
import pytest
from live_data import final, independent, run

from fbxcore.errors import StorageError
from fbxcore.live import LiveBuffer
from fbxcore.vault.fork import fork
from fbxcore.vault.store import VaultReader
from fbxcore.vault.stream import WindowStream

pytestmark = pytest.mark.anyio


@pytest.fixture
async def opened(tmp_path):
    """Return a function that opens a buffer under a folder of the test, closed at its end."""
    buffers = []

    async def open_buffer(made=None, place="a"):
        folder = tmp_path / place
        buffers.append(await LiveBuffer.open(folder / "b", made, vaults=folder / "vaults"))
        return buffers[-1]

    yield open_buffer
    for buffer in buffers:
        await buffer.close()


def kept(**changes):
    """Return the configuration of a buffer that persists to a vault."""
    return independent(persist_to="v/1", **changes)


def read(folder):
    """Return the observations and segments of a vault."""
    with VaultReader.open(folder / "vaults" / "v" / "1") as reader:
        return reader.read()["obs"][0, :, 0].astype(int).tolist(), reader.segments()


def told(segments):
    """Return the fields of segments that tests compare."""
    return [(s.writer, s.start, s.stop, s.first_step, s.end, s.final) for s in segments]


async def test_each_episode_lies_in_one_piece(opened, tmp_path):
    """Two writers in turn: the vault has the one's episode, then the other's, and what is still open."""
    buffer = await opened(kept())
    await buffer.add(run(0, 1), writer="a", sequence=1)
    await buffer.add(run(100, 101), writer="b", sequence=1)
    await buffer.independent.describe_episode("a", {"seed": 7})
    await buffer.add(run(2) | final(3), writer="a", sequence=2, end="truncated")
    await buffer.add(run(102), writer="b", sequence=2)
    await buffer.flush()
    await buffer.add(run(103), writer="b", sequence=3, end="terminated")
    await buffer.flush()
    numbers, segments = read(tmp_path / "a")

    assert numbers == [0, 1, 2, 3, 100, 101, 102, 103]
    assert told(segments) == [
        ("a", 0, 4, 0, "truncated", True),
        ("b", 4, 7, 0, None, False),
        ("b", 7, 8, 3, "terminated", False),
    ]
    assert [s.metadata for s in segments] == [{"seed": 7}, None, None]
    assert [s.episode for s in segments] == [1, 2, 2]


async def test_an_end_that_comes_after_all_steps_were_written_is_told(opened, tmp_path):
    """A flush, then two episodes are cut: each has a last segment of no steps, also after a restart."""
    buffer = await opened(kept())
    await buffer.add(run(0, 1), writer="a", sequence=1)
    await buffer.add(run(5), writer="b", sequence=1)
    await buffer.flush()
    await buffer.independent.cut("a")
    await buffer.flush()
    await buffer.independent.cut("b")
    await buffer.close()
    again = await opened()
    await again.add(run(9), writer="a", sequence=2, end="cut")
    await again.flush()
    numbers, segments = read(tmp_path / "a")

    assert numbers == [0, 1, 5, 9]
    assert told(segments) == [
        ("a", 0, 2, 0, None, False),
        ("b", 2, 3, 0, None, False),
        ("a", 3, 3, 2, "cut", False),
        ("b", 3, 3, 1, "cut", False),
        ("a", 3, 4, 0, "cut", False),
    ]


async def fill(buffer, random, adds, sent):
    """Let four writers add numbered steps in turn, with ends now and then."""
    for _ in range(adds):
        writer = "abcd"[random.integers(4)]
        count, end = random.integers(1, 5), [None, None, None, "terminated", "cut"][random.integers(5)]
        numbers = np.arange(len(sent[writer]), len(sent[writer]) + count)
        sequence = len(sent[writer]) + count
        try:
            await buffer.add(run(numbers), writer=writer, sequence=int(sequence), end=end)
        except Exception:
            await buffer.independent.cut("abcd"[random.integers(4)])
            continue
        sent[writer] += numbers.tolist()


def by_writer(folder):
    """Return the steps that the segments of a vault give of each writer, in order of its episodes."""
    numbers, segments = read(folder)
    found = {}
    for s in sorted(segments, key=lambda s: (s.episode, s.first_step)):
        found.setdefault(s.writer, []).extend(numbers[s.start : s.stop])
    return numbers, segments, found


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_killed_buffer_puts_each_step_into_its_vault_once(opened, tmp_path, monkeypatch, seed):
    """Killed after random commits and bases, again and again: each writer's steps are there once."""
    monkeypatch.setattr("fbxcore.live.durable.persister._CHUNK_STEPS", 16)
    monkeypatch.setattr("fbxcore.live.durable.segmenter._MOST_STEPS", 9)
    random, sent, place = np.random.default_rng(seed), {w: [] for w in "abcd"}, "a"
    buffer = await opened(kept())
    for turn in range(4):
        await fill(buffer, random, 30, sent)
        action = random.integers(3)
        if action == 0:
            await buffer.flush()
        elif action == 1:
            await buffer._housekeeper._bases.write()
        await fill(buffer, random, 5, sent)
        shutil.copytree(tmp_path / place, tmp_path / f"kill{turn}")
        place = f"kill{turn}"
        buffer = await opened(place=place)
    await buffer.flush()
    numbers, segments, found = by_writer(tmp_path / place)

    assert found == sent and len(numbers) == sum(len(steps) for steps in sent.values())
    assert all(s.stop - s.start <= 9 + 5 for s in segments)
    for s in segments:  # a segment holds what was consecutive
        assert np.diff(numbers[s.start : s.stop]).tolist() == [1] * max(s.stop - s.start - 1, 0)


async def test_the_log_is_dropped_once_vault_and_base_have_it(opened, monkeypatch):
    """Of an episode that never ends, the vault gets what waits longest, so that the log stays short."""
    monkeypatch.setattr("fbxcore.live.restart.bases._LEAST_LOG_BYTES", 20_000)
    buffer = await opened(kept(idle_end_s=600))
    buffer._journal.log.segment_bytes = 5_000
    for sequence in range(300):
        await buffer.add(run(np.arange(8)), writer="a", sequence=sequence)
        if sequence % 20 == 0:
            await buffer._housekeeper._bases.keep()

    assert buffer._journal.log.num_bytes < 65_000


async def test_what_waits_of_many_episodes_is_bounded(opened, monkeypatch):
    """Three episodes that each wait below their own bound are written once they are too much together."""
    monkeypatch.setattr("fbxcore.live.durable.segmenter._MOST_WAITING_BYTES", 400)
    buffer = await opened(kept())
    waiting = []
    for sequence in range(12):
        await buffer.add(run(sequence, sequence), writer="abc"[sequence % 3], sequence=sequence)
        waiting.append(buffer._journal.persister._bytes)

    assert max(waiting) <= 400 and buffer._journal.persister.pending == 24  # given over, not committed yet


async def test_a_vault_that_fails_keeps_everything_in_the_log(opened, tmp_path, monkeypatch):
    """While commits fail, adds go on; afterwards the vault gets all of them once."""
    buffer = await opened(kept())
    writer = buffer.vault_writer
    append = writer.append

    def refuse(*_args, **_keys):
        raise StorageError("No room.")

    monkeypatch.setattr(writer, "append", refuse)
    await buffer.add(run(0, 1), writer="a", sequence=1, end="cut")
    with pytest.raises(StorageError):
        await buffer.flush()
    await buffer.add(run(2), writer="a", sequence=2)
    monkeypatch.setattr(writer, "append", append)
    await buffer.flush()

    assert read(tmp_path / "a")[0] == [0, 1, 2]


async def test_flashbax_reads_the_arrays(opened, tmp_path):
    """A vault of segments is a vault of one row to real Flashbax."""
    flashbax = pytest.importorskip("flashbax.vault")
    buffer = await opened(kept())
    await buffer.add(run(0, 1, 2), writer="a", sequence=1, end="cut")
    await buffer.close()
    vault = flashbax.Vault(vault_name="v", vault_uid="1", rel_dir=str(tmp_path / "a" / "vaults"))
    obs = np.asarray(vault.read().experience["obs"])

    assert obs.shape == (1, 3, 3) and obs[0, :, 0].tolist() == [0, 1, 2]


async def test_windows_and_forks_keep_to_segments(opened, tmp_path):
    """No window of a stream joins two episodes, all others come once; a fork of a part has its segments."""
    buffer = await opened(kept())
    for episode, length in enumerate([5, 2, 7]):
        numbers = 100 * episode + np.arange(length)
        await buffer.add(run(numbers), writer="a", sequence=episode, end="cut")
    await buffer.close()
    with VaultReader.open(tmp_path / "a" / "vaults" / "v" / "1") as reader:
        stream = WindowStream(reader, sequence_length=3, batch_size=2)
        windows = [w for batch in stream.epoch(0) for w in batch.leaves["obs"][:, :, 0].astype(int).tolist()]
        fork(reader, tmp_path / "fork" / "1", steps=range(3, 9)).close()
    with VaultReader.open(tmp_path / "fork" / "1") as forked:
        parts = told(forked.segments())

    legal = [[0, 1, 2], [1, 2, 3], [2, 3, 4], *([200 + i, 201 + i, 202 + i] for i in range(5))]
    assert sorted(windows) == legal and stream.num_windows == 8
    assert parts == [("a", 0, 2, 3, "cut", False), ("a", 2, 4, 0, "cut", False), ("a", 4, 6, 0, None, False)]


async def test_another_buffer_goes_on_behind_the_segments(opened, tmp_path):
    """A second buffer on the vault counts episodes on, and begins with an empty ring."""
    buffer = await opened(kept())
    await buffer.add(run(0, 1), writer="a", sequence=1, end="cut")
    await buffer.close()
    shutil.rmtree(tmp_path / "a" / "b")
    other = await opened(kept(name="other"))
    await other.add(run(5), writer="a", sequence=1, end="cut")
    await other.close()
    numbers, segments = read(tmp_path / "a")

    assert numbers == [0, 1, 5] and [s.episode for s in segments] == [1, 2]


@pytest.mark.parametrize("durability", ["none", "os"])
async def test_without_a_log_the_vault_has_what_was_committed(opened, tmp_path, durability):
    """Closed and opened again, ring and vault are as they were; without the log's end the ring is empty."""
    buffer = await opened(kept(durability=durability))
    await buffer.add(run(0, 1, 2), writer="a", sequence=1)
    await buffer.close()
    again = await opened()
    size, states = again.describe()["size"], [(s.writer, s.sequence) for s in again.writers()]
    await again.add(run(3), writer="a", sequence=2)
    await again.flush()
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    for path in (tmp_path / "c" / "b" / "log").glob("*.log"):
        path.unlink()
    lost = await opened(place="c")
    await lost.add(run(4, 5), writer="a", sequence=3)
    await lost.flush()

    assert (size, states) == (3, [("a", 1)]) and lost.describe()["size"] == 2
    assert read(tmp_path / "a")[0] == [0, 1, 2, 3] and read(tmp_path / "c")[0] == [0, 1, 2, 3, 4, 5]
