"""A buffer of independent writers begins with a vault's segments: each a run, none joined to another."""

import shutil

import numpy as np
import pytest
from live_data import final, independent, run

from fbxcore.errors import ConflictError, InvalidArgumentError
from fbxcore.live import LiveBuffer, load_runs, rows_for, vaults
from fbxcore.vault.segments import Segment
from fbxcore.vault.store import VaultReader

pytestmark = pytest.mark.anyio

SEGMENTS = [  # writer, start, stop, first_step, end, final, metadata
    ("a", 0, 4, 0, "truncated", True, {"seed": 7}),
    ("b", 4, 6, 0, "cut", False, None),
    ("b", 6, 7, 2, "terminated", False, None),
    ("a", 7, 8, 0, "terminated", False, {"seed": 8}),
    ("c", 8, 10, 0, "cut", False, None),
]


def told(segments):
    """Return the fields of segments that tests compare."""
    return [(s.writer, s.start, s.stop, s.first_step, s.end, s.final, s.metadata) for s in segments]


def open_vault(folder):
    """Open the vault that a buffer in a folder persists to."""
    return VaultReader.open(folder / "vaults" / "v" / "1")


async def opened(folder, made=None, source=None):
    """Open a buffer in a folder, filled from the vault in another."""

    async def fill(buffer):
        with open_vault(source) as reader:
            steps = range(reader.length)
            await load_runs(
                buffer.independent.fill, reader, steps, rows_for(buffer.config, reader.segments(), steps)
            )
        await buffer.flush()

    return await LiveBuffer.open(
        folder / "b", made, vaults=folder / "vaults", first=fill if source is not None else None
    )


async def drawn(buffer):
    """Return the distinct transitions of a sample, by their observations."""
    arrays = (await buffer.sample(512, seed=0)).arrays
    first, second = (arrays[f"experience/{part}/obs"][:, 0].astype(int) for part in ("first", "second"))
    return set(zip(first.tolist(), second.tolist(), strict=True))


@pytest.fixture
async def source(tmp_path):
    """Return the folder of a vault with segments of each sort, an end alone and an open episode too."""
    buffer = await opened(tmp_path / "source", independent(persist_to="v/1"))
    await buffer.add(run(0, 1), writer="a", sequence=1)
    await buffer.independent.describe_episode("a", {"seed": 7})
    await buffer.add(run(2) | final(3), writer="a", sequence=2, end="truncated")
    await buffer.add(run(100, 101), writer="b", sequence=1)
    await buffer.flush()
    await buffer.add(run(102), writer="b", sequence=2, end="terminated")
    await buffer.add(run(10), writer="a", sequence=3)
    await buffer.flush()
    await buffer.independent.describe_episode("a", {"seed": 8})
    await buffer.add(run(), writer="a", sequence=4, end="terminated")
    await buffer.add(run(200, 201), writer="c", sequence=1)
    await buffer.close()
    return tmp_path / "source"


@pytest.mark.parametrize("block", [1024, 3, 1])
async def test_each_segment_is_a_run_with_its_end(source, tmp_path, monkeypatch, block):
    """What could be drawn is within segments, also behind a restart, and the buffer's vault has the same."""
    monkeypatch.setattr(vaults, "_BLOCK_STEPS", block)
    made = independent(persist_to="v/1")
    buffer = await opened(tmp_path / "new", made, source)
    before = await drawn(buffer)
    await buffer.close()
    buffer = await opened(tmp_path / "new")
    after = await drawn(buffer)
    added = await buffer.add(run(202, 203), writer="c", sequence=1)
    await buffer.close()

    assert before == after == {(0, 1), (1, 2), (2, 3), (100, 101), (200, 201)}
    assert (added.size, added.steps, added.duplicate) == (12, 2, False)
    with open_vault(tmp_path / "new") as reader:
        assert reader.read()["obs"][0, :10, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 10, 200, 201]
        assert told(reader.segments())[:5] == SEGMENTS


async def begin_and_die(folder, made, *, steps):
    """Begin a buffer that is never finished, some timesteps of which reach its vault."""

    async def fill(buffer):
        if steps:
            await buffer.add(run(*range(steps)), writer="w", sequence=1, end="cut")
            await buffer.flush()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        await LiveBuffer.open(folder / "b", made, vaults=folder / "vaults", first=fill)
    shutil.rmtree(folder / "b")


async def test_a_vault_that_was_filled_in_part_is_refused(source, tmp_path):
    """Beginning again would add the same timesteps to it once more; the answer says what to do."""
    made = independent(persist_to="v/1")
    await begin_and_die(tmp_path / "new", made, steps=5)

    with pytest.raises(ConflictError, match="holds 5 such timesteps behind its first 0") as refused:
        await opened(tmp_path / "new", made, source)
    assert (refused.value.code, refused.value.loc) == ("vault_half_filled", ("persist_to",))
    with open_vault(tmp_path / "new") as reader:
        assert reader.length == 5


async def test_a_vault_of_which_nothing_was_filled_is_as_good_as_new(source, tmp_path):
    """One that came to nothing before its first timestep leaves an empty vault, which the next one takes."""
    made = independent(persist_to="v/1")
    await begin_and_die(tmp_path / "new", made, steps=0)
    buffer = await opened(tmp_path / "new", made, source)
    await buffer.close()

    with open_vault(tmp_path / "new") as reader:
        assert reader.length == 10 and reader.get(vaults.FILLING_KEY) is None


async def test_a_kill_right_after_a_buffer_began_to_exist_leaves_its_vault_usable(source, tmp_path):
    """What is noted while it is filled goes when it is opened again."""
    buffer = await opened(tmp_path / "new", independent(persist_to="v/1"), source)
    buffer.vault_writer.put({vaults.FILLING_KEY: b'{"length": 0}'})
    await buffer.close()
    await (await opened(tmp_path / "new")).close()

    with open_vault(tmp_path / "new") as reader:
        assert reader.get(vaults.FILLING_KEY) is None


def segment(length, start=0, **fields):
    """Return a segment of a vault."""
    shared = {"writer": "w", "episode": 1 + start, "row": 0, "first_step": 0, "end": "cut", "final": False}
    return Segment(start=start, stop=start + length, metadata=None, **shared | fields)


def test_a_part_of_a_segment_begins_later_and_is_cut():
    """Steps 2 to 5 of a segment of seven: the first is the episode's step 2, and its end is not there."""
    (part,) = rows_for(independent(), [segment(7, end="terminated")], range(2, 5))

    assert (part.start, part.stop, part.first_step, part.end) == (0, 3, 2, "cut")


def test_segments_go_where_there_is_most_room():
    """Rows of twenty: 15, 10, 5, then 10 and 15 beside the 10 and the 5 fill them."""
    lengths = np.array([15, 10, 5, 15, 10, 5])
    segments = [segment(n, start) for n, start in zip(lengths, np.cumsum(lengths) - lengths, strict=True)]
    placed = rows_for(independent(), segments, range(60))

    assert [s.row for s in placed] == [0, 1, 2, 2, 1, 0]


def test_a_last_observation_is_no_step():
    """Sequences of one timestep would draw it as one."""
    fields = {"max_length_time_axis": 20, "min_length_time_axis": 1, "sample_sequence_length": 1, "period": 1}
    made = independent(kind="trajectory", max_length=None, min_length=None, **fields)

    with pytest.raises(InvalidArgumentError, match="without a true last observation"):
        rows_for(made, [segment(3, final=True)], range(3))


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ([segment(21)], "3 rows of 20 timesteps hold whole, got 1 of 21"),
        ([segment(15, 15 * n) for n in range(4)], "3 rows of 20 timesteps hold whole, got 4 of 60"),
        ([segment(3), segment(3, 4)], "timesteps that independent writers added, got some that rows in"),
    ],
)
def test_what_no_row_could_hold_whole_is_refused(segments, words):
    """The message says how much there was; nothing is left out or torn apart in silence."""
    with pytest.raises(InvalidArgumentError, match=words):
        rows_for(independent(), segments, range(segments[-1].stop))
