"""A sweep gives back what nobody names, and nothing else."""

import os

import pytest

from fbxcore.errors import DamagedError, ReclaimedError
from fbxcore.vault import versions as v
from fbxcore.vault.store import VaultReader
from fbxcore.vault.sweep import sweep


@pytest.fixture
def catalog(tmp_path):
    return tmp_path / "catalog"


def grow(writer, make, times, start=None):
    start = writer.length if start is None else start
    for at in range(start, start + times):
        writer.append(make(at, at + 1))


def test_versions_and_head_survive(writer, make, catalog, read, same):
    """Pinned generations read as before, others say that they were given back, and appending goes on."""
    grow(writer, make, 40)
    first = v.create_version(writer, catalog)
    grow(writer, make, 60)
    gone = writer.generation
    grow(writer, make, 1)
    files = len(os.listdir(writer.path / "d"))

    swept = sweep(writer, catalog, grace_s=0)

    assert len(os.listdir(writer.path / "d")) == files + 1 - swept.files < 20
    assert swept.bytes > 0
    assert same(read(writer.path), make(0, 101))
    assert same(read(writer.path, first.generation), make(0, 40))
    for generation in (3, gone):
        with pytest.raises(ReclaimedError, match=f"Generation {generation} "):
            read(writer.path, generation)
    grow(writer, make, 300)
    assert same(read(writer.path), make(0, 401))
    assert same(read(writer.path, first.generation), make(0, 40))


def test_sweeping_again_and_again(writer, make, catalog, read, same):
    """Each sweep keeps the versions of all before, across the levels of the store's own tree."""
    made = []
    for _ in range(6):
        grow(writer, make, 50)
        made.append(v.create_version(writer, catalog))
        sweep(writer, catalog, grace_s=0)

    for version in made:
        assert same(read(writer.path, version.generation), make(0, version.length))
    assert v.list_versions(writer.path) == made


def test_a_dry_run_says_what_would_go(writer, make, catalog, files):
    """Nothing is deleted or committed; the sweep gives back that, and what its own commit replaces."""
    grow(writer, make, 30)
    before, generation = files(writer.path), writer.generation
    planned = sweep(writer, catalog, grace_s=0, dry_run=True)
    assert (files(writer.path), writer.generation) == (before, generation)

    done = sweep(writer, catalog, grace_s=0)
    assert planned.dry_run and not done.dry_run
    assert 20 < planned.files <= done.files <= planned.files + 2


def test_young_generations_stay(writer, make, catalog, read, same):
    """Within the grace time nothing goes: who has opened a generation reads on."""
    grow(writer, make, 30)

    assert sweep(writer, catalog, grace_s=60).files == 0
    assert same(read(writer.path, 12), make(0, 10))


def test_a_patient_sweep_follows_an_impatient_one(writer, make, catalog, read, same):
    """What the one gave back is young and not there: the other keeps the young ones that are."""
    grow(writer, make, 20)
    sweep(writer, catalog, grace_s=0)
    swept_away = writer.generation - 2
    grow(writer, make, 5)

    swept = sweep(writer, catalog)
    assert swept.files == 0 and writer.generation - 3 in swept.kept_generations
    assert same(read(writer.path, writer.generation - 3), make(0, 23))
    with pytest.raises(ReclaimedError):
        read(writer.path, swept_away)


def test_what_is_being_read_stays(writer, make, catalog, read, same):
    """A generation that somebody pinned survives, and goes when he is done."""
    grow(writer, make, 20)
    with writer.pinned() as generation:
        grow(writer, make, 20)
        sweep(writer, catalog, grace_s=0)
        assert same(read(writer.path, generation), make(0, 20))
    sweep(writer, catalog, grace_s=0)

    with pytest.raises(ReclaimedError):
        read(writer.path, generation)


def test_a_deleted_version_goes(writer, make, catalog, read):
    """Its bytes go with the next sweep."""
    grow(writer, make, 20)
    version = v.create_version(writer, catalog)
    grow(writer, make, 20)
    v.delete_version(writer, catalog, 1)
    sweep(writer, catalog, grace_s=0)

    with pytest.raises(ReclaimedError):
        read(writer.path, version.generation)


def test_a_version_without_its_bytes_stops_the_sweep(writer, make, catalog):
    """Records that name a missing generation are looked into first: nothing is deleted."""
    grow(writer, make, 5)
    files = len(os.listdir(writer.path / "d"))
    with pytest.raises(DamagedError, match="got none of \\[999\\]"):
        sweep(writer, catalog, keep=[999], grace_s=0)
    assert len(os.listdir(writer.path / "d")) == files


def test_live_bytes_meet_the_disk_after_a_sweep(writer, make, catalog):
    """What remains is little more than what is live."""
    grow(writer, make, 100)
    sweep(writer, catalog, grace_s=0)

    with VaultReader.open(writer.path) as reader:
        assert reader.disk_bytes < 3 * reader.live_bytes + 4096


def test_flashbax_goes_on_after_a_sweep(writer, make, catalog, flashbax_vault):
    """Real Flashbax opens, reads and extends a swept vault."""
    grow(writer, make, 50)
    sweep(writer, catalog, grace_s=0)
    writer.close()
    theirs = flashbax_vault("run")
    held = theirs.read()
    assert held.experience["agents"]["action"][0].tolist() == list(range(50))

    theirs.write(held.replace(current_index=held.current_index + 50), (0, 50))
    assert flashbax_vault("run").vault_index == 100
