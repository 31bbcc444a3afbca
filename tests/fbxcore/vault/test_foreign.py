"""Another program writes to a vault of ours: what it wrote over is found and appended again."""

import numpy as np
import pytest

from fbxcore.errors import ConflictError
from fbxcore.spec import parse_spec
from fbxcore.vault import foreign
from fbxcore.vault.foreign import foreign_in, take_over
from fbxcore.vault.segments import Segment, encode_segments, segments_key, segments_of
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.store_arrays import COMMIT_KEY

pytestmark = pytest.mark.usefixtures("quick")
SPEC = {"n": {"shape": [], "dtype": "int32"}, "m": {"shape": [2], "dtype": "float32"}}


@pytest.fixture
def quick(monkeypatch):
    """Wait less for the other program to be quiet."""
    monkeypatch.setattr(foreign, "QUIET_S", 0.02)


@pytest.fixture
def path(tmp_path):
    """A vault with 2,500 timesteps of ours, numbered."""
    path = tmp_path / "vaults" / "run" / "1"
    with VaultWriter.create(path, parse_spec(SPEC), rows=2) as writer:
        writer.append(leaves(range(2000)))
        writer.append(leaves(range(2000, 2500)))
    return path


def leaves(numbers):
    n = np.asarray(list(numbers), np.int32)[None].repeat(2, 0)
    return {"n": n, "m": np.stack([n, -n], axis=-1).astype(np.float32)}


def theirs(path, start, numbers, *, finishes=True):
    """Write as Flashbax does from an old length: leaves, then the index, each a commit of its own."""
    given = leaves(numbers)
    with VaultWriter.open(path, takes_over=True) as writer:
        database, stop = writer._database, start + given["n"].shape[1]
        for name, leaf in given.items():
            database.arrays[name][:, start:stop].write(leaf).result()
            if not finishes:
                return
        database.index.write(np.asarray([stop], np.int32)).result()


def held(path):
    with VaultReader.open(path) as reader:
        arrays = reader.read()
    assert (arrays["m"][..., 0] == arrays["n"]).all() and (arrays["m"][..., 1] == -arrays["n"]).all()
    assert (arrays["n"][0] == arrays["n"][1]).all()
    return arrays["n"][0].tolist()


OURS = list(range(2500))


@pytest.mark.parametrize(
    ("start", "count", "first", "hidden"),
    [
        (2500, 10, 2500, 0),
        (2490, 5, 2490, 10),
        (2490, 30, 2490, 10),
        (1000, 100, 1000, 1500),
        (0, 1, 0, 2500),
    ],
)
def test_nothing_of_either_is_lost(path, start, count, first, hidden):
    """Theirs stay where they are; ours follow from the first one that differs, once and in order."""
    numbers = list(range(10_000, 10_000 + count))
    theirs(path, start, numbers)
    with VaultReader.open(path) as reader:
        found = foreign_in(reader)
    assert (found.start, found.stop, found.length, found.num_hidden) == (first, 2500, start + count, hidden)

    with VaultWriter.open(path, takes_over=True) as writer:
        assert take_over(writer) == found
        assert take_over(writer) is None
    assert held(path) == OURS[:start] + numbers + OURS[first:]


def test_a_vault_that_was_written_over_is_not_written_to(path):
    """Opening it for writing names the timesteps and the way out; an append of theirs does not stop us."""
    theirs(path, 2500, [7])
    with VaultWriter.open(path) as writer:
        writer.append(leaves([8]))
    assert held(path) == [*OURS, 7, 8]

    theirs(path, 100, [9])
    told = "must hold timesteps 100 to 2502 as we wrote them.*--adopt"
    with pytest.raises(ConflictError, match=told) as raised:
        VaultWriter.open(path)
    assert raised.value.code == "foreign_writer"


def test_equal_timesteps_are_no_difference(path):
    """They wrote what was there: nothing of ours is appended again."""
    theirs(path, 2400, range(2400, 2500))

    with VaultWriter.open(path) as writer:
        assert (take_over(writer).num_hidden, writer.length) == (0, 2500)
    assert held(path) == OURS


@pytest.mark.parametrize("kills", [1, 2, 3])
def test_a_kill_in_between_is_finished_later(path, monkeypatch, kills):
    """Between two parts the vault stays shut; doing it again appends what is missing, and nothing twice."""
    monkeypatch.setattr(foreign, "_PIECE_BYTES", 24 * 400)
    theirs(path, 1000, range(10_000, 10_300))
    with VaultReader.open(path) as reader:
        found = foreign_in(reader)
    write_at, calls = VaultWriter.write_at, []

    def dies(self, *arguments, **named):
        if len(calls) == kills:
            raise KeyboardInterrupt
        calls.append(1)
        return write_at(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(VaultWriter, "write_at", dies)
        with VaultWriter.open(path, takes_over=True) as writer, pytest.raises(KeyboardInterrupt):
            take_over(writer)
    with pytest.raises(ConflictError, match="--adopt"):
        VaultWriter.open(path)

    with VaultWriter.open(path, takes_over=True) as writer:
        assert take_over(writer, lambda _: {"_flashdeck/n": b"1"}) == found
        assert (writer.get("_flashdeck/n"), take_over(writer)) == (b"1", None)
    assert held(path) == OURS[:1000] + list(range(10_000, 10_300)) + OURS[1000:]


def test_segments_follow_their_timesteps(path):
    """Those before the difference stay, one across it is two, those behind lie where their steps now are."""
    made = {"writer": "w", "row": 0, "final": False, "metadata": None}
    whole = [
        Segment(episode=1, start=0, stop=900, first_step=0, end="cut", **made),
        Segment(episode=2, start=900, stop=1500, first_step=0, end="truncated", **made),
        Segment(episode=3, start=1500, stop=2500, first_step=7, end=None, **made),
    ]
    with VaultWriter.open(path) as writer:
        parts = {0: whole[:2], 1500: whole[2:]}
        writer.put({segments_key(at): encode_segments(part) for at, part in parts.items()})
    theirs(path, 1000, range(10_000, 10_005))

    with VaultWriter.open(path, takes_over=True) as writer:
        take_over(writer)
        assert segments_of(writer) == [
            whole[0],
            Segment(episode=2, start=900, stop=1000, first_step=0, end=None, **made),
            Segment(episode=2, start=1005, stop=1505, first_step=100, end="truncated", **made),
            Segment(episode=3, start=1505, stop=2505, first_step=7, end=None, **made),
        ]


@pytest.mark.parametrize(("start", "count"), [(2500, 10), (2490, 5), (2490, 10), (0, 2500)])
def test_what_they_never_finished_is_not_theirs(path, monkeypatch, start, count):
    """Killed between two leaves: ours are put back where they were, also if that takes several parts."""
    monkeypatch.setattr(foreign, "_PIECE_BYTES", 24 * 400)
    theirs(path, start, range(10_000, 10_000 + count), finishes=False)

    with VaultWriter.open(path, takes_over=True) as writer:
        found = take_over(writer)
    assert (found.is_finished, found.num_hidden) == (start == 2500, 2500 - start)
    assert held(path) == OURS


def test_what_ends_where_ours_end_is_theirs(path):
    """A finished write of theirs up to our length is left, and ours follow."""
    theirs(path, 2490, range(10_000, 10_010))

    with VaultWriter.open(path, takes_over=True) as writer:
        assert take_over(writer).is_finished
    assert held(path) == OURS[:2490] + list(range(10_000, 10_010)) + OURS[2490:]


@pytest.mark.parametrize(("start", "count"), [(2400, 10), (100, 2000)])
def test_a_leaf_of_theirs_right_before_our_commit(path, monkeypatch, start, count):
    """It slips in where we do not look, and is in our commit: what we had before is taken from before."""
    numbers = list(range(10_000, 10_000 + count))
    given = leaves(numbers)
    with VaultWriter.open(path) as writer:
        database, commit = writer._database, writer._database.commit

        def slips_in(*arguments):
            database.arrays["n"][:, start : start + count].write(given["n"]).result()
            return commit(*arguments[:-1], lambda: None)

        monkeypatch.setattr(database, "commit", slips_in)
        writer.append(leaves(range(2500, 2520)))
        monkeypatch.undo()
        with pytest.raises(ConflictError, match="another program"):
            writer.append(leaves([2520]))
        database.arrays["m"][:, start : start + count].write(given["m"]).result()
        database.index.write(np.asarray([start + count], np.int32)).result()

    with VaultWriter.open(path, takes_over=True) as writer:
        found = take_over(writer)
    assert (found.start, found.stop, found.boundary) == (start, 2520, 2500)
    assert held(path) == OURS[:start] + numbers + list(range(start, 2520))


def test_a_write_where_we_write_makes_our_commit_fail(path):
    """A leaf of theirs between our look and our commit, in the chunk we begin in: ours is not written."""
    with VaultWriter.open(path) as writer:
        database, check = writer._database, writer._check_alone

        def late():
            check()
            database.arrays["m"][:, 2500:2501].write(np.zeros((2, 1, 2), np.float32)).result()

        writer._check_alone = late
        with pytest.raises(ConflictError, match="another program"):
            database.commit(leaves([2500]), 2500, 2500, 2501, {}, late)
    with VaultReader.open(path) as reader:
        assert reader.length == 2500


def test_a_program_that_goes_on_writing_is_not_taken_over(path, monkeypatch):
    """Its writes take several commits: between them nothing is touched."""
    monkeypatch.setattr(foreign, "_LONGEST_S", 0.3)
    theirs(path, 100, [1])
    with VaultWriter.open(path, takes_over=True) as writer:
        refresh = writer.refresh
        monkeypatch.setattr(
            writer, "refresh", lambda: (writer._database.index.write([102]).result(), refresh())
        )
        with pytest.raises(ConflictError, match="must have one writer, got a commit of another program"):
            take_over(writer)


def test_a_vault_we_never_wrote_to_is_as_it_is(tmp_path, flashbax_vault):
    """One that Flashbax made alone has nothing of ours to compare."""
    import jax.numpy as jnp

    flashbax_vault(structure={"n": jnp.zeros((1, 5), jnp.int32)})
    with VaultReader.open(tmp_path / "vaults" / "run" / "1") as reader:
        assert reader.get(COMMIT_KEY) is None and foreign_in(reader) is None


def test_a_look_at_the_manifest_tells_of_a_foreign_commit(path):
    """Ours do not count, theirs do, each time one looks."""
    with VaultWriter.open(path) as writer:
        assert writer.is_alone()
        writer.append(leaves([1]))
        assert writer.is_alone() and writer.is_alone()
        writer._database.index.write(np.asarray([5], np.int32)).result()
        assert not writer.is_alone() and not writer.is_alone()
