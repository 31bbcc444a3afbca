"""A vault that would pass 2^31 - 1 timesteps goes on in the next uid of its name."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from fbxcore.buffers.trajectory_buffer import TrajectoryBufferState
from fbxcore.errors import ConflictError
from fbxcore.spec import parse_spec
from fbxcore.vault import Vault, rollover, store
from fbxcore.vault.fork import lineage_of
from fbxcore.vault.retention import Retention, retention_of, set_retention
from fbxcore.vault.rollover import continued_in, continues, go_on_in, newest_of, next_path, planned_path
from fbxcore.vault.store import VaultReader, VaultWriter


@pytest.fixture
def small(monkeypatch):
    """Vaults of ten timesteps."""
    monkeypatch.setattr(store, "MAX_LENGTH", 10)


def state(*numbers):
    """A buffer's state that holds these timesteps and was written to no vault yet."""
    values = jnp.asarray([numbers], jnp.int32)
    return TrajectoryBufferState({"x": values}, jnp.int32(0), jnp.bool_(True))


def held(path):
    with VaultReader.open(path) as reader:
        return reader.read()["x"][0].tolist()


@pytest.mark.parametrize(
    ("name", "is_next", "taken", "expected"),
    [
        ("run1", False, [], "run1-2"),
        ("run-7", False, [], "run-7-2"),
        ("run1-2", True, [], "run1-3"),
        ("run1-9", True, [], "run1-10"),
        ("run1", False, ["run1-2", "run1-3"], "run1-4"),
    ],
)
def test_the_next_uid_counts_up(tmp_path, name, is_next, taken, expected):
    """A number at the end is the user's own, unless the vault is one that continues another."""
    for other in taken:
        (tmp_path / other).mkdir()

    assert next_path(tmp_path / name, is_next=is_next) == tmp_path / expected


def test_a_full_vault_and_the_next_name_each_other(writer, make):
    """Note, lineage, structure, chunks, metadata and retention are in the next vault when it appears."""
    writer.append(make(0, 7))
    writer.update_metadata({"env": "pole"})
    set_retention(writer, Retention(keep=3))
    path = planned_path(writer)

    with go_on_in(writer, path, {"_flashdeck/own": b"1"}) as following:
        assert (continued_in(writer), continues(following)) == ("1-2", "1")
        assert lineage_of(following) == {
            "vault": "run/1", "continues": "1", "generation": writer.generation, "length": 7,
        }  # fmt: skip
        assert (following.length, following.spec, following.metadata) == (0, writer.spec, {"env": "pole"})
        assert (retention_of(following), following.get("_flashdeck/own")) == (Retention(keep=3), b"1")
        assert newest_of(writer.path) == newest_of(path) == following.path == writer.path.with_name("1-2")


def test_the_next_vault_has_the_same_chunks(tmp_path, make, spec):
    """A compressor of one's own is kept, byte for byte of every array's metadata."""
    own = {"id": "zlib", "level": 2}
    with (
        VaultWriter.create(tmp_path / "v" / "1", spec, compression=own) as writer,
        go_on_in(writer, planned_path(writer)) as following,
    ):
        following.append(make(0, 300))
        assert following.get("image./0.0.0.0")[0] == 0x78  # a chunk of zlib, though blosc would do
        for leaf in writer.structure.leaves:
            key = f"{leaf.path}/.zarray"
            assert following.get(key) == writer.get(key)
            assert json.loads(following.get(key))["compressor"] == own
    with VaultReader.open(following.path) as reader:
        assert (reader.read()["agents/action"] == make(0, 300)["agents/action"]).all()


def test_a_kill_in_between_is_made_good(writer, make, monkeypatch):
    """Between the note and the next vault, and right behind it: the same name is used, and made once."""
    writer.append(make(0, 3))

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(rollover, "_make", killed)
        go_on_in(writer, planned_path(writer))
    assert (continued_in(writer), newest_of(writer.path).name) == ("1-2", "1")

    for _ in range(2):
        go_on_in(writer, planned_path(writer)).close()
        assert newest_of(writer.path).name == "1-2"
    assert sorted(p.name for p in writer.path.parent.iterdir()) == ["1", "1-2"]


def test_another_vault_in_the_way_is_not_written_to(writer, spec):
    """A vault that does not continue this one is refused by name."""
    VaultWriter.create(writer.path.with_name("1-2"), spec).close()

    with pytest.raises(ConflictError, match="Vault 'run/1' must go on in '1-2', got another vault there"):
        go_on_in(writer, writer.path.with_name("1-2"))


def test_a_write_that_does_not_fit_goes_whole_to_the_next_uid(small, tmp_path, monkeypatch):
    """Nothing is split; object and reopened object go on there; the full vault keeps what it has."""
    monkeypatch.chdir(tmp_path)
    vault = Vault("run", state(0).experience, vault_uid="a")
    vault.write(state(*range(8)))
    with pytest.warns(UserWarning, match="Vault 'run/a' is full. Writing goes on in 'run/a-2'"):
        assert vault.write(state(8, 9, 10)) == 3
    assert (vault.path.name, vault.vault_index) == ("a-2", 3)
    assert vault.read().experience["x"][0].tolist() == [8, 9, 10]

    again = Vault("run", vault_uid="a")
    assert again.vault_index == 8
    with pytest.warns(UserWarning, match="goes on in 'run/a-2'"):
        again.write(state(11))
    with pytest.warns(UserWarning, match="goes on in 'run/a-3'"):
        again.write(state(*range(12, 20)))
    found = [held(tmp_path / "vaults" / "run" / uid) for uid in ("a", "a-2", "a-3")]
    assert found == [list(range(8)), [8, 9, 10, 11], list(range(12, 20))]


def test_a_write_longer_than_a_vault_is_refused(small, tmp_path, monkeypatch):
    """No chain of empty vaults is made for it."""
    monkeypatch.chdir(tmp_path)
    vault = Vault("run", state(0).experience, vault_uid="a")

    with pytest.raises(ConflictError, match="must stay within 10 timesteps, got 11"):
        vault.write(state(*range(11)))
    assert [p.name for p in (tmp_path / "vaults" / "run").iterdir()] == ["a"]


def test_the_last_timesteps_before_the_limit(path, flashbax_vault):
    """A real vault 5 short of 2^31 - 1 takes 5, no more; the next takes the rest; Flashbax reads both."""
    with VaultWriter.create(path, parse_spec({"x": {"shape": [], "dtype": "int32"}})) as writer:
        writer._commit({}, 0, 2**31 - 1 - 5, {})  # as if it had been filled: chunks that are absent read as 0
        rows = {"x": np.arange(1, 6, dtype=np.int32)[None]}
        assert writer.append(rows) == 2**31 - 1
        with pytest.raises(ConflictError, match="must stay within 2147483647 timesteps, got 2147483648"):
            writer.append({"x": rows["x"][:, :1]})
        with go_on_in(writer, planned_path(writer)) as following:
            following.append({"x": rows["x"] + 5})

    first, second = flashbax_vault(uid="1"), flashbax_vault(uid="1-2")
    assert int(first.vault_index) == 2**31 - 1
    assert first.read(timesteps=6).experience["x"].tolist() == [[0, 1, 2, 3, 4, 5]]
    assert second.read().experience["x"].tolist() == [[6, 7, 8, 9, 10]]
