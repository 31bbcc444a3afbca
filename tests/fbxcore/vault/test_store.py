"""Commits are atomic, readers see one generation, damage has a name."""

import errno
import fcntl
import json
import os
import shutil
import struct

import numpy as np
import pytest
import tensorstore as ts

from fbxcore.errors import (
    ConflictError,
    DamagedError,
    DiskFullError,
    InvalidArgumentError,
    NotFoundError,
    StructureError,
)
from fbxcore.spec import parse_spec
from fbxcore.vault import store
from fbxcore.vault.faults import fault
from fbxcore.vault.store import VaultReader, VaultWriter, find_vaults
from fbxcore.vault.store_arrays import BY_CONTENT_KEY


def test_appended_timesteps_read_back(writer, make, read, same):
    """Appends of any length stand one behind the other, every leaf with its own dtype."""
    for start, stop in [(0, 1), (1, 17), (17, 1100), (1100, 1101)]:
        assert writer.append(make(start, stop)) == stop

    assert same(read(writer.path), make(0, 1101))


def test_a_commit_makes_one_generation_and_one_file(writer, make):
    """Leaves, index and keys of one append are one atomic commit (trap 1: one context for all)."""
    writer.append(make(0, 5))
    for step in range(5, 9):
        generation, files = writer.generation, len(os.listdir(writer.path / "d"))
        writer.append(make(step, step + 1), keys={"_flashdeck/x": b"%d" % step})

        assert _dumped_generation(writer.path) == writer.generation == generation + 1
        assert len(os.listdir(writer.path / "d")) == files + 1


def test_leaves_are_equally_long_at_every_generation(writer, make, same):
    """No generation shows a leaf without the others: index, keys and leaves always agree (trap 1)."""
    for step in range(6):
        writer.append(make(step, step + 1), keys={"_flashdeck/n": b"%d" % (step + 1)})

    for generation in range(3, writer.generation + 1):
        with VaultReader.open(writer.path, generation=generation) as reader:
            assert reader.length == generation - 2 == int(reader.get("_flashdeck/n"))
            assert same(reader.read(), make(0, reader.length))


def test_no_write_of_fifty_is_dropped(writer, make, read, same):
    """Every future is kept until the commit has returned (trap 2)."""
    for step in range(50):
        writer.append(make(step, step + 1))

    assert same(read(writer.path), make(0, 50))


def test_a_stale_manifest_lock_does_no_harm(writer, make, read, same):
    """A longer lock file of a killed writer is emptied before the next commit (trap 3)."""
    writer.append(make(0, 4))
    (writer.path / "manifest.ocdbt.__lock").write_bytes(b"x" * 3000)
    writer.append(make(4, 8))

    assert same(read(writer.path), make(0, 8))


def test_without_the_cure_a_stale_lock_corrupts(writer, make, read, same, monkeypatch):
    """The cure is needed: without it the vault no longer opens; opening for writing then repairs it."""
    monkeypatch.setattr(store, "clear_stale_lock", lambda path: None)
    (writer.path / "manifest.ocdbt.__lock").write_bytes(b"x" * 3000)
    writer.append(make(0, 4))
    writer.close()
    with pytest.raises(ValueError, match="Length in header"):
        ts.KvStore.open(_ocdbt(writer.path)).result().list().result()
    assert same(read(writer.path), make(0, 4))  # a reader looks past it and writes nothing

    VaultWriter.open(writer.path).close()

    assert ts.KvStore.open(_ocdbt(writer.path)).result().list().result()


def test_a_held_manifest_lock_is_left_alone(writer, make):
    """A lock file that somebody holds is not stale: it is not emptied."""
    lock = writer.path / "manifest.ocdbt.__lock"
    lock.write_bytes(b"x" * 100)
    held = os.open(lock, os.O_RDWR)
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, _record_lock())

    store.clear_stale_lock(writer.path)

    assert lock.stat().st_size == 100
    os.close(held)
    store.clear_stale_lock(writer.path)
    assert lock.stat().st_size == 0


def test_the_index_is_int32_of_shape_one(writer):
    """Flashbax opens no other kind of index (trap 6)."""
    index = ts.open({"driver": "zarr", "kvstore": {**_ocdbt(writer.path), "path": "vault_index"}}).result()

    assert (index.dtype.name, index.shape) == ("int32", (1,))


def test_rows_behind_the_index_never_show(writer, make, read):
    """What a crashed Flashbax left behind the index is no part of the data."""
    writer.append(make(0, 3))
    writer.close()
    leaf = ts.open({"driver": "zarr", "kvstore": {**_ocdbt(writer.path), "path": "obs."}}).result()
    leaf[:, 3:9].write(np.ones((1, 6, 3), np.float32)).result()

    assert read(writer.path)["obs"].shape == (1, 3, 3)
    assert read(writer.path, stop=9)["obs"].shape == (1, 3, 3)


def test_two_to_the_31_timesteps_are_refused(writer, make, monkeypatch):
    """The index is an int32: the step past it is refused before anything is written."""
    writer.append(make(0, 3))
    generation = writer.generation
    monkeypatch.setattr(store, "MAX_LENGTH", 5)

    with pytest.raises(ConflictError, match="within 5 timesteps, got 6") as caught:
        writer.append(make(3, 6))
    assert store.VaultWriter.append(writer, make(3, 5)) == 5
    assert (caught.value.code, writer.generation) == ("vault_full", generation + 1)


def test_the_limit_is_that_of_an_int32():
    """2^31 - 1 timesteps fit, one more does not."""
    assert np.iinfo(np.int32).max == store.MAX_LENGTH


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda leaves: leaves.pop("obs"), "Leaf `obs` must be given"),
        (lambda leaves: leaves.update(more=leaves["obs"]), "Leaf `more` must be in the spec"),
        (lambda leaves: leaves.update(obs=leaves["obs"].astype("float64")), "dtype float32, got float64"),
        (lambda leaves: leaves.update(obs=leaves["obs"][..., :2]), "Leaf `obs` must have shape"),
        (lambda leaves: leaves.update(obs=leaves["obs"][:, :1]), "must have the leading axes"),
    ],
)
def test_other_leaves_than_the_specs_add_nothing(writer, make, change, match):
    """A wrong leaf is refused by name, and length and generation stay."""
    leaves = make(0, 2)
    change(leaves)
    before = writer.generation

    with pytest.raises(StructureError, match=match):
        writer.append(leaves)
    assert (writer.length, writer.generation) == (0, before)


def test_another_number_of_rows_is_refused(writer, make):
    """Rows are fixed when the vault is created."""
    with pytest.raises(InvalidArgumentError, match="must have 1 rows, the vault's, got 2"):
        writer.append(make(0, 2, rows=2))


def test_keys_alone_make_a_commit(writer):
    """`put` stores and deletes values atomically, and they outlive the writer."""
    before = writer.generation
    assert writer.put({"_flashdeck/a": b"1", "_flashdeck/b": b"2"}) == before + 1
    writer.put({"_flashdeck/a": None})
    writer.close()

    with VaultReader.open(writer.path) as reader:
        assert reader.get("_flashdeck/a") is None
        assert reader.get("_flashdeck/b") == b"2"
        assert reader.keys("_flashdeck/") == ["_flashdeck/b", BY_CONTENT_KEY, "_flashdeck/commit"]


def test_an_older_generation_keeps_its_state(writer, make, read, same):
    """Neither appends nor overwrites change what a generation shows."""
    writer.append(make(0, 10))
    then = writer.generation
    writer.append(make(10, 1500))
    writer.write_at(2, make(100, 105))

    assert same(read(writer.path, then), make(0, 10))
    assert read(writer.path)["agents/action"][0, 2:7].tolist() == [100, 101, 102, 103, 104]
    assert writer.length == 1500


def test_a_reader_does_not_see_later_commits(writer, make):
    """A reader is a snapshot of the moment it was opened."""
    writer.append(make(0, 10))
    with VaultReader.open(writer.path) as reader:
        writer.write_at(0, make(50, 70))

        assert reader.length == 10
        assert reader.read()["agents/action"][0].tolist() == list(range(10))


@pytest.mark.parametrize(
    "steps", [(0, 40, 1), (3, 30, 7), (39, None, -1), (20, 3, -4), (5, 5, 1), (0, 99, 2)]
)
def test_a_slice_is_numpys(writer, make, read, steps):
    """Start, stop and step select as on a NumPy array."""
    writer.append(make(0, 40))
    start, stop, step = steps

    got = read(writer.path, start=start, stop=stop, step=step, leaves=["agents/action"])

    assert list(got) == ["agents/action"]
    assert got["agents/action"][0].tolist() == list(range(40))[slice(*steps)]


@pytest.mark.parametrize("rows", [slice(None), slice(1, 2), slice(2, 0), slice(None, None, -1)])
def test_rows_are_selected(path, spec, make, read, rows):
    """`rows` is a slice of axis 0."""
    with VaultWriter.create(path, spec, rows=3) as writer:
        writer.append(make(0, 20, rows=3))

    expected = make(0, 20, rows=3)["obs"][rows]
    np.testing.assert_array_equal(read(path, rows=rows)["obs"], expected)


def test_an_unknown_leaf_is_named(writer, read):
    """The error lists the leaves there are."""
    with pytest.raises(NotFoundError, match="No leaf named 'nope'. Leaves: 'agents/action'"):
        read(writer.path, leaves=["nope"])


def test_an_empty_vault_reads_as_no_timesteps(writer, read):
    """Length 0 is a vault like any other."""
    assert read(writer.path)["image"].shape == (1, 0, 4, 4)


def test_a_missing_generation_is_not_found(writer):
    """A generation that never was is named with the newest one."""
    with pytest.raises(NotFoundError, match="No generation 99 .* newest is 2"):
        VaultReader.open(writer.path, generation=99)


def test_a_second_writer_is_refused(writer):
    """One writer at a time, also within one process."""
    with pytest.raises(ConflictError, match="one writer") as caught:
        VaultWriter.open(writer.path)
    assert caught.value.code == "vault_in_use"

    writer.close()
    VaultWriter.open(writer.path).close()


def test_a_closed_writer_refuses(writer, make):
    """After `close` nothing is written."""
    writer.close()
    with pytest.raises(ConflictError, match="closed"):
        writer.append(make(0, 1))


@pytest.mark.parametrize("read", [lambda w: w.get("key"), lambda w: w.keys("")], ids=["get", "keys"])
def test_a_closed_writer_reads_no_keys(writer, read):
    """Whoever still holds a writer that another thread closed is told so."""
    writer.close()

    with pytest.raises(ConflictError, match="must be open, got a closed writer"):
        read(writer)


def test_create_refuses_what_exists(writer, spec, files):
    """A second create leaves the first vault as it is."""
    before = files(writer.path)
    with pytest.raises(ConflictError, match="must be new") as caught:
        VaultWriter.create(writer.path, spec, rows=1)

    assert caught.value.code == "exists"
    assert files(writer.path) == before


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"rows": 0}, InvalidArgumentError, "`rows` must be a positive integer"),
        ({"metadata": {"version": 1}}, InvalidArgumentError, "must not have the key 'version'"),
        ({"metadata": {"x": object()}}, InvalidArgumentError, "`metadata` must be JSON"),
        ({"compression": {"id": "nope"}}, InvalidArgumentError, "`compression` must be a zarr compressor"),
    ],
)
def test_a_failed_create_leaves_nothing(tmp_path, spec, options, error, match):
    """No directory remains, nor a parent made for it, and the name can be used at once."""
    path = tmp_path / "new" / "deep" / "1"
    with pytest.raises(error, match=match):
        VaultWriter.create(path, spec, **options)

    assert list(tmp_path.iterdir()) == []
    VaultWriter.create(path, spec, rows=1).close()


def test_a_create_that_breaks_midway_leaves_nothing(tmp_path, spec, monkeypatch):
    """Also when the last step fails."""

    def broken(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(store.os, "rename", broken)
    with pytest.raises(OSError):
        VaultWriter.create(tmp_path / "a" / "1", spec, rows=1)

    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_adds_nothing(writer, make, monkeypatch, read):
    """No room is told as such; length, generation and data stay, and the next append works."""
    writer.append(make(0, 2))
    text = "RESOURCE_EXHAUSTED: Failed writing: \"/v/d/x\": No space left on device [os_error_code='28']"

    def full(*_):
        raise fault("run/1", text)

    with monkeypatch.context() as patched, pytest.raises(DiskFullError, match="must have room"):
        patched.setattr(writer._database, "commit", full)
        writer.append(make(2, 4))
    assert writer.length == 2
    assert writer.append(make(2, 4)) == 4 == read(writer.path)["obs"].shape[1]


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda p: (p / "metadata.json").unlink(), "metadata.json"),
        (lambda p: (p / "metadata.json").write_text("{"), "metadata.json"),
        (lambda p: (p / "metadata.json").write_text("[1]"), "metadata.json"),
        (lambda p: (p / "metadata.json").write_text("{}"), "metadata.json"),
        (lambda p: (p / "metadata.json").write_text('{"version": 1.2}'), "metadata.json"),
        (lambda p: _edit(p, structure_shape={"obs": "(1, 2"}), "metadata.json"),
        (lambda p: _edit(p, structure_shape={"other": "(1, 2)"}), "metadata.json"),
        (lambda p: _edit(p, structure_shape={}, structure_dtype={}), "metadata.json"),
        (lambda p: _edit(p, structure_shape="(1, 1)", structure_dtype="nope"), "metadata.json"),
        (
            lambda p: _edit(p, structure_shape={"z": "(1, 1)"}, structure_dtype={"z": "int8"}),
            "manifest.ocdbt",
        ),
        (lambda p: shutil.rmtree(p / "d") or (p / "manifest.ocdbt").unlink(), "manifest.ocdbt"),
        (lambda p: (p / "manifest.ocdbt").write_bytes(b""), "manifest.ocdbt"),
        (lambda p: (p / "manifest.ocdbt").write_bytes(b"x" * 200), "manifest.ocdbt"),
        (lambda p: _cut(p / "manifest.ocdbt", 30), "manifest.ocdbt"),
        (lambda p: _flip(p / "manifest.ocdbt", 60), "manifest.ocdbt"),
        (lambda p: [f.unlink() for f in (p / "d").iterdir()], "d/"),
        (lambda p: [f.write_bytes(b"") for f in (p / "d").iterdir()], "d/"),
    ],
)
def test_damage_is_told_by_file(writer, make, damage, file):
    """Whatever is broken or missing, readers and writers say which file, and never raise another error."""
    writer.append(make(0, 40))
    writer.close()
    damage(writer.path)

    for opened in (VaultReader.open, VaultWriter.open):
        with pytest.raises(DamagedError) as caught:
            opened(writer.path).read()
        assert caught.value.details["file"].startswith(file)
        assert str(writer.path.parent.parent) not in str(caught.value)


def test_every_byte_of_the_manifest_matters(writer, make):
    """A flipped byte anywhere is told as damage, whichever it is."""
    writer.append(make(0, 4))
    writer.close()
    manifest = writer.path / "manifest.ocdbt"
    whole = manifest.read_bytes()
    for at in range(0, len(whole), 7):
        manifest.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(DamagedError):
            VaultReader.open(writer.path).read()


def test_no_directory_is_not_found(tmp_path):
    """A vault that is not there is not damaged."""
    for opened in (VaultReader.open, VaultWriter.open):
        with pytest.raises(NotFoundError, match="No vault named"):
            opened(tmp_path / "run" / "none")


def test_reading_writes_nothing(writer, make, read, files):
    """A reader leaves every file as it is."""
    writer.append(make(0, 5))
    writer.close()
    before = files(writer.path)
    read(writer.path)
    read(writer.path, 3)

    assert files(writer.path) == before


def test_metadata_can_be_replaced(writer, make, read, same):
    """The user's part changes, the structure stays."""
    writer.append(make(0, 3))
    writer.update_metadata({"env": "CartPole"})
    writer.close()

    with VaultReader.open(writer.path) as reader:
        assert reader.metadata == {"env": "CartPole"}
        assert same(reader.read(), make(0, 3))


def test_roles_travel_with_the_vault(path):
    """What a spec says besides shape and dtype comes back."""
    nested = {"r": {"shape": [], "dtype": "float32", "role": "reward", "unit": "points"}}
    VaultWriter.create(path, parse_spec(nested), rows=1).close()

    with VaultReader.open(path) as reader:
        assert (reader.spec["r"].role, reader.spec["r"].unit) == ("reward", "points")


def test_vaults_are_found(tmp_path, spec):
    """Nested names, half-made vaults and no links: a vault in `data` is called by its directories."""
    root = tmp_path / "data"
    for name in ("a/1", "a/2", "smac/3m/good", "we ird%/x y"):
        VaultWriter.create(root / name, spec, rows=1).close()
    (root / "a" / "2" / "metadata.json").unlink()
    (root / "half").mkdir()
    (root / "half" / "3").mkdir()
    (root / "half" / "3" / "metadata.json").write_text("{}")
    (root / "a" / "returns.pickle").write_bytes(b"")
    (tmp_path / "outside").mkdir()
    VaultWriter.create(tmp_path / "outside" / "b" / "1", spec, rows=1).close()
    (root / "link").symlink_to(tmp_path / "outside")

    found = [(name, uid) for name, uid, _ in find_vaults(root)]

    assert found == [("a", "1"), ("a", "2"), ("half", "3"), ("smac/3m", "good"), ("we ird%", "x y")]


def test_live_bytes_are_the_newest_generation_alone(writer, make):
    """Overwriting grows the disk, not what is live."""
    writer.append(make(0, 1000))
    with VaultReader.open(writer.path) as reader:
        live, disk = reader.live_bytes, reader.disk_bytes
    for _ in range(5):
        writer.write_at(0, make(0, 1000))
    with VaultReader.open(writer.path) as reader:
        assert abs(reader.live_bytes - live) < 1000
        assert reader.disk_bytes > disk + 3 * live


def _ocdbt(path):
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}


def _dumped_generation(path):
    kv = ts.KvStore.open({"driver": "file", "path": f"{path}/"}).result()
    return ts.ocdbt.dump(kv).result()["versions"][-1]["generation_number"]


def _edit(path, **changes):
    metadata = json.loads((path / "metadata.json").read_text())
    (path / "metadata.json").write_text(json.dumps(metadata | changes))


def _cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def _flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(bytes(content))


def _record_lock():
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
