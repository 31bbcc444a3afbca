"""Real Flashbax and this store on the same directories, both ways."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fbxcore.errors import ConflictError
from fbxcore.vault import Vault
from fbxcore.vault.store import VaultReader, VaultWriter, find_vaults

buffers = pytest.importorskip("flashbax.buffers.trajectory_buffer")


class Step(NamedTuple):
    obs: jax.Array
    act: jax.Array


def ramp(dtype, *shape):
    """A leaf `[1, 12, *shape]` of that dtype whose timesteps differ."""
    steps = np.arange(12).reshape(1, 12, *[1] * len(shape))
    return jnp.asarray(np.broadcast_to(steps, (1, 12, *shape))).astype(dtype)


STRUCTURES = {
    "dict": {"obs": ramp(jnp.float32, 3), "act": ramp(jnp.int32), "done": ramp(jnp.bool_)},
    "nested": {"a": {"b": {"c": ramp(jnp.uint8, 4, 4)}, "d": ramp(jnp.float16)}, "e": ramp(jnp.bfloat16, 2)},
    "tuple": Step(ramp(jnp.float32, 2), ramp(jnp.int8)),
    "bare": ramp(jnp.float32, 3),
    "prng": {"key": ramp(jnp.uint32, 2)},
    "ints": {0: ramp(jnp.float32), 1: ramp(jnp.int32)},
    "slashes": {"a/b": ramp(jnp.float32), "a": {"b": ramp(jnp.int32)}},
    "dots": {"a.b": ramp(jnp.float32), "a": ramp(jnp.int32)},
    "index": {"vault_index": ramp(jnp.float32), "experience": ramp(jnp.int32)},
    "one": {"a": (ramp(jnp.float32),)},
}


def held(experience, index):
    """The state of a buffer that is not full."""
    return buffers.TrajectoryBufferState(
        experience=experience, current_index=jnp.int32(index), is_full=jnp.bool_(False)
    )


def part(structure, start, stop):
    """The state of a buffer that holds timesteps `[start, stop)`, with room behind them."""

    def leaf(whole):
        return jnp.concatenate([whole[:, start:stop], jnp.zeros_like(whole[:, :1])], axis=1)

    return held(jax.tree_util.tree_map(leaf, structure), stop - start)


def assert_equal(experience, structure, start=0, stop=12):
    given, expected = jax.tree_util.tree_leaves(experience), jax.tree_util.tree_leaves(structure)
    assert len(given) == len(expected)
    for one, other in zip(given, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other[:, start:stop]))


@pytest.mark.parametrize("name", STRUCTURES)
def test_flashbax_writes_and_we_go_on(name, flashbax_vault):
    """It writes, we read and extend, it reads and extends, we read all."""
    structure = STRUCTURES[name]
    theirs = flashbax_vault("run", structure)
    theirs.write(part(structure, 0, 4))
    ours = Vault("run", structure, vault_uid="1")
    assert_equal(ours.read().experience, structure, 0, 4)

    ours.write(part(structure, 4, 7))
    theirs = flashbax_vault("run", structure)
    assert_equal(theirs.read().experience, structure, 0, 7)
    theirs.write(part(structure, 7, 12))

    assert_equal(Vault("run", structure, vault_uid="1").read().experience, structure)


@pytest.mark.parametrize("name", STRUCTURES)
def test_we_write_and_flashbax_goes_on(name, flashbax_vault):
    """The other way round, from the vault's creation on, and it reads it without a structure too."""
    structure = STRUCTURES[name]
    ours = Vault("run", structure, vault_uid="1")
    ours.write(part(structure, 0, 5))
    theirs = flashbax_vault("run", structure)
    assert_equal(theirs.read().experience, structure, 0, 5)
    theirs.write(part(structure, 5, 9))

    ours = Vault("run", structure, vault_uid="1")
    assert_equal(ours.read().experience, structure, 0, 9)
    ours.write(part(structure, 9, 12))
    if name != "tuple":  # comes back as a dict, whose leaves are in another order
        assert_equal(flashbax_vault("run").read().experience, structure)


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_metadata_is_what_flashbax_writes(name, flashbax_vault):
    """Both write the same `metadata.json` for the same structure."""
    structure = STRUCTURES[name]
    flashbax_vault("theirs", structure, metadata={"env": "x"})
    ours = Vault("ours", structure, vault_uid="1", metadata={"env": "x"})
    theirs = ours.path.parent.parent / "theirs" / "1"

    assert json.loads((ours.path / "metadata.json").read_text()) == json.loads(
        (theirs / "metadata.json").read_text()
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bare", {"experience"}),
        ("nested", {"a/b/c", "a/d", "e"}),
        ("ints", {"0", "1"}),
        ("slashes", {"a/b", "a%2Fb"}),
        ("dots", {"a", "a.b"}),
        ("index", {"vault_index", "experience"}),
        ("tuple", {"obs", "act"}),
    ],
)
def test_leaves_have_names(name, expected, flashbax_vault, tmp_path):
    """Every leaf of a foreign vault can be asked for by a name of its own, and holds its values."""
    structure = STRUCTURES[name]
    theirs = flashbax_vault("run", structure)
    theirs.write(part(structure, 0, 6))

    with VaultReader.open(tmp_path / "vaults" / "run" / "1") as reader:
        assert set(reader.spec) == expected
        assert reader.version == 1.2
        for leaf in reader.spec:
            assert reader.read(1, 6, step=2, leaves=[leaf])[leaf][0, :, ...].shape[0] == 3


def test_several_uids_and_nested_names(flashbax_vault, tmp_path):
    """All vaults of a folder are found and read, and nothing is written into them."""
    structure = STRUCTURES["dict"]
    for name, uid in [("cart", "1"), ("cart", "2"), ("smac/3m.vlt", "Good")]:
        flashbax_vault(name, structure, uid).write(part(structure, 0, 3))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}

    found = list(find_vaults(tmp_path / "vaults"))
    lengths = [VaultReader.open(path).read()["obs"].shape for *_, path in found]

    assert [(name, uid) for name, uid, _ in found] == [("cart", "1"), ("cart", "2"), ("smac/3m.vlt", "Good")]
    assert lengths == [(1, 3, 3)] * 3
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("version", [1.0, 1.1])
def test_older_formats_read(version, flashbax_vault, tmp_path):
    """Vaults of 1.0 (blosc) and 1.1 (compression in the metadata) open as well."""
    structure = STRUCTURES["dict"]
    theirs = flashbax_vault("run", structure, compression={"id": "blosc", "cname": "lz4"})
    theirs.write(part(structure, 0, 6))
    file = tmp_path / "vaults" / "run" / "1" / "metadata.json"
    metadata = json.loads(file.read_text()) | {"version": version}
    if version == 1.1:
        metadata["compression"] = {"id": "blosc"}
    else:
        shapes, dtypes = metadata.pop("structure_shape"), metadata.pop("structure_dtype")
        metadata["structure"] = {name: [shapes[name], dtypes[name]] for name in shapes}
    file.write_text(json.dumps(metadata))

    with VaultReader.open(file.parent) as reader:
        assert (reader.version, reader.metadata) == (version, {})
        np.testing.assert_array_equal(reader.read()["act"][0], np.arange(6))


def test_another_major_version_is_refused(flashbax_vault, tmp_path):
    """A format of the future is no damage to repair: it is named."""
    flashbax_vault("run", STRUCTURES["bare"])
    file = tmp_path / "vaults" / "run" / "1" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2.0}))

    with pytest.raises(OSError, match="format version 1, got 2.0"):
        VaultReader.open(file.parent)


def test_a_foreign_append_is_detected(flashbax_vault, make, spec, path, read):
    """A real Flashbax append between two of ours: ours is refused, nothing of its is overwritten (trap 4)."""
    with VaultWriter.create(path, spec, rows=1) as writer:
        writer.append(make(0, 3))
        theirs = flashbax_vault("run")
        theirs.write(held(theirs.read().experience, 2))
        before = read(path)

        for _ in range(2):  # and it stays refused
            with pytest.raises(ConflictError, match="got a commit of another program") as caught:
                writer.append(make(3, 5))
        assert caught.value.code == "foreign_writer"
        with pytest.raises(ConflictError):
            writer.put({"_flashdeck/x": b"1"})

    after = read(path)
    assert after["agents/action"][0].tolist() == [0, 1, 2, 0, 1]
    assert all((after[name] == before[name]).all() for name in after)
    with VaultWriter.open(path) as writer:
        assert not writer.is_ours
        assert writer.append(make(5, 6)) == 6
        assert writer.is_ours


def test_a_foreign_leaf_without_its_index_is_detected(flashbax_vault, make, spec, path):
    """Flashbax commits its leaves before its index: also what it has only begun stops us."""
    with VaultWriter.create(path, spec, rows=1) as writer:
        writer.append(make(0, 3))
        theirs = flashbax_vault("run")
        theirs._all_datastores["obs"][:, 3:4].write(np.ones((1, 1, 3), np.float32)).result()

        with pytest.raises(ConflictError, match="another program"):
            writer.append(make(3, 5))


def test_a_commit_that_slips_in_is_detected(flashbax_vault, make, spec, path, monkeypatch):
    """Between our look at the manifest and our commit: the transaction itself reads the index."""
    with VaultWriter.create(path, spec, rows=1) as writer:
        writer.append(make(0, 3))
        theirs = flashbax_vault("run")
        index = theirs._vault_index_ds
        original = type(writer._database).commit

        def late(self, *arguments):
            index.write(7).result()
            return original(self, *arguments)

        monkeypatch.setattr(type(writer._database), "commit", late)
        with pytest.raises(ConflictError, match="another program"):
            writer.append(make(3, 5))
    assert flashbax_vault("run").vault_index == 7
