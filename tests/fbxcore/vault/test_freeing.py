"""Freeing the oldest timesteps: whole blocks go, numbers stay, versions and errors tell the truth."""

import numpy as np
import pytest

from fbxcore.errors import DamagedError, InvalidArgumentError, ReclaimedError
from fbxcore.spec import parse_spec
from fbxcore.vault import freeing
from fbxcore.vault.digest import digest
from fbxcore.vault.fork import fork
from fbxcore.vault.freeing import free
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.store_reader import FREED_KEY
from fbxcore.vault.stream import WindowStream
from fbxcore.vault.sweep import sweep
from fbxcore.vault.verify import verify
from fbxcore.vault.versions import create_version, delete_version

SPEC = {"n": {"shape": [], "dtype": "int32"}, "image": {"shape": [64, 64], "dtype": "uint8"}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vaults" / "run" / "1"


@pytest.fixture
def catalog(tmp_path):
    return tmp_path / "catalog"


@pytest.fixture
def writer(path):
    """A vault of 3,500 timesteps; chunks of 1,024 of one leaf and 64 of the other."""
    with VaultWriter.create(path, parse_spec(SPEC)) as writer:
        for start in range(0, 3500, 700):
            writer.append(leaves(start, start + 700))
        yield writer


def leaves(start, stop):
    numbers = np.arange(start, stop, dtype=np.int32)[None]
    image = np.broadcast_to((numbers % 251).astype(np.uint8)[..., None, None], (1, stop - start, 64, 64))
    return {"n": numbers, "image": np.ascontiguousarray(image)}


def held(path, generation=None, **part):
    with VaultReader.open(path, generation=generation) as reader:
        arrays = reader.read(**part)
    assert (arrays["image"] == (arrays["n"] % 251)[..., None, None]).all()
    return arrays["n"][0].tolist()


@pytest.mark.parametrize(("retain", "first"), [(3500, 0), (2477, 0), (2476, 1024), (1, 3072), (1400, 2048)])
def test_whole_blocks_go_and_at_least_the_newest_stay(writer, path, retain, first):
    """The rest keeps its numbers; doing it again does nothing more."""
    assert free(writer, retain, dry_run=True) == first
    assert held(path) == list(range(3500))
    assert free(writer, retain) == first

    with VaultReader.open(path) as reader:
        assert (reader.first, reader.length) == (first, 3500)
    assert held(path) == list(range(first, 3500))
    assert held(path, start=3400, stop=3402) == [3400, 3401]
    assert free(writer, retain) == 0


def test_a_freed_timestep_is_told_never_zeros(writer, path):
    """In any form of reading; a backward read ends at the oldest one there is."""
    free(writer, 2000)

    with VaultReader.open(path) as reader:
        for part in ({"start": 0}, {"start": 1023, "stop": 1025}, {"start": 1500, "stop": 900, "step": -1}):
            with pytest.raises(ReclaimedError, match="of vault 'run/1' was given back.* there is 1024"):
                reader.read(**part)
        with pytest.raises(ReclaimedError, match="Timestep 1000 of vault"):
            reader.read_blocks({"n": np.zeros((1, 1, 5), np.int32)}, [1000])
        assert reader.read(start=1026, step=-1)["n"].tolist() == [[1026, 1025, 1024]]
        assert len(reader.read(step=-1)["n"][0]) == 3500 - 1024


def test_chunks_go_and_a_sweep_gives_their_bytes_back(writer, path, catalog):
    """No chunk below the oldest timestep is left, every other one is; the disk has what a new vault has."""
    before = len(writer.keys("image./"))
    free(writer, 1000)

    assert (before, len(writer.keys("image./"))) == (1 + 55, 1 + 55 - 32)
    assert writer.keys("n./") == ["n./.zarray", "n./0.2", "n./0.3"]
    swept = sweep(writer, catalog, grace_s=0)
    with fork(VaultReader.open(path), path.with_name("2")):
        copied = sum(file.stat().st_size for file in path.with_name("2").rglob("*"))
    assert swept.disk_bytes < 1.1 * copied


def test_a_version_keeps_what_it_shows(writer, path, catalog):
    """A version made before has everything after freeing and sweep; deleted, its bytes go too."""
    version = create_version(writer, catalog)
    free(writer, 1000)
    sweep(writer, catalog, grace_s=0)
    assert held(path, generation=version.generation) == list(range(3500))
    assert verify(path, catalog).findings == ()

    later = create_version(writer, catalog)
    assert (version.first, later.first, later.length) == (0, 2048, 3500)
    assert later.digest != version.digest
    delete_version(writer, catalog, version.number)
    assert sweep(writer, catalog, grace_s=0).files > 0
    with pytest.raises(ReclaimedError):
        held(path, generation=version.generation)
    assert verify(path, catalog).findings == ()


def test_the_digest_is_of_what_is_there(writer, path, tmp_path, catalog):
    """Equal for an equal vault that freed the same, with and without the hashes kept; values count."""
    free(writer, 1000)
    with VaultReader.open(path) as reader:
        found = {digest(reader), digest(reader, catalog), digest(reader, catalog)}
    with VaultWriter.create(tmp_path / "other" / "1", parse_spec(SPEC)) as other:
        other.append(leaves(0, 3500))
        free(other, 1400)
        with VaultReader.open(other.path) as reader:
            found.add(digest(reader))
    assert len(found) == 1

    writer.write_at(3000, {name: leaf + 1 for name, leaf in leaves(3000, 3001).items()})
    with VaultReader.open(path) as reader:
        assert digest(reader, catalog) == digest(reader) not in found


def test_a_kill_between_two_commits_is_finished_later(writer, path, monkeypatch):
    """The timesteps are gone from the first commit on; chunks that were left go the next time."""
    monkeypatch.setattr(freeing, "_PER_COMMIT", 10)
    put, calls = VaultWriter.put, []

    def dies(self, keys):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(keys)
        return put(self, keys)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(VaultWriter, "put", dies)
        free(writer, 1000)
    assert held(path) == list(range(2048, 3500))
    assert len(writer.keys("image./")) > 1 + 55 - 32

    assert free(writer, 1000) == 0
    assert len(writer.keys("image./")) == 1 + 55 - 32


def test_appending_goes_on(writer, path):
    """New timesteps follow the numbers; what was freed cannot be written."""
    free(writer, 1000)
    writer.append(leaves(3500, 3510))
    assert held(path, start=3495) == list(range(3495, 3510))

    with pytest.raises(InvalidArgumentError, match=r"`start` must be in 2048\.\.3510, where the vault's"):
        writer.write_at(2047, leaves(2047, 2048))


def test_flashbax_reads_and_appends(writer, path, flashbax_vault):
    """It gets the newest timesteps right, and zeros where freed ones were; it may append."""
    import jax.numpy as jnp
    from flashbax.buffers.trajectory_buffer import TrajectoryBufferState

    free(writer, 1000)
    writer.close()
    vault = flashbax_vault()
    assert vault.read(timesteps=5).experience["n"].tolist() == [[3495, 3496, 3497, 3498, 3499]]
    whole = vault.read().experience["n"][0]
    assert (whole[:2048] == 0).all() and (whole[2048:] == np.arange(2048, 3500)).all()
    experience = {name: jnp.asarray(leaf) for name, leaf in leaves(3500, 3510).items()}
    state = TrajectoryBufferState(experience=experience, current_index=jnp.int32(9), is_full=jnp.bool_(False))
    assert flashbax_vault(structure=experience).write(state) == 9
    assert held(path, start=3490) == list(range(3490, 3509))


def test_windows_come_from_what_is_there(writer, path):
    """Each window of the rest once, numbered as in the vault."""
    free(writer, 1000)

    with VaultReader.open(path) as reader:
        stream = WindowStream(reader, sequence_length=4, batch_size=50, period=4, leaves=["n"])
        batches = list(stream.epoch(0))
    starts = np.concatenate([batch.starts for batch in batches])
    assert sorted(starts) == list(range(2048, 3500, 4))
    for batch in batches:
        assert (batch.leaves["n"] == batch.starts[:, None] + np.arange(4)).all()


def test_a_fork_takes_what_is_there(writer, path):
    """Its timesteps are numbered anew; the lineage says from which they are."""
    free(writer, 1000)
    with fork(VaultReader.open(path), path.with_name("2")) as made:
        assert made.length == 3500 - 2048
    assert held(path.with_name("2")) == list(range(2048, 3500))


def test_a_note_that_is_none_is_damage(writer, path):
    """It names the key."""
    writer.put({FREED_KEY: b"many"})

    with pytest.raises(DamagedError, match="Key `_flashdeck/freed` of vault 'run/1' must be a number"):
        held(path)
