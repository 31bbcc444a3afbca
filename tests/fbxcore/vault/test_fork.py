"""A fork holds the timesteps of its origin, and says which."""

import pytest

from fbxcore.errors import ConflictError
from fbxcore.vault import fork as forks
from fbxcore.vault.digest import digest
from fbxcore.vault.files import find_vaults, remove_half_made
from fbxcore.vault.fork import fork, lineage_of
from fbxcore.vault.store import VaultReader


def test_a_fork_is_equal_and_grows_on_its_own(writer, make, tmp_path, read, same):
    """Same digest at first; then neither sees what the other appends."""
    writer.append(make(0, 1500))
    path = tmp_path / "vaults" / "fork" / "1"
    with VaultReader.open(writer.path) as reader, fork(reader, path, lineage={"version": 3}) as copy:
        with VaultReader.open(path) as again:
            assert digest(again) == digest(reader)
        copy.append(make(1500, 1501))
        origin = {"vault": "run/1", "generation": reader.generation, "version": 3}
        assert lineage_of(copy) == origin | {"start": 0, "stop": 1500, "step": 1}
    assert same(read(path), make(0, 1501))
    assert same(read(writer.path), make(0, 1500))
    assert lineage_of(writer) is None


def test_a_part_can_be_forked(writer, make, tmp_path, read, monkeypatch):
    """Steps of a range, copied in several pieces."""
    writer.append(make(0, 3000))
    monkeypatch.setattr(forks, "_PIECE_BYTES", 1)
    done = []
    with VaultReader.open(writer.path) as reader:
        fork(
            reader, tmp_path / "f" / "1", steps=range(5, 2999, 2), progress=lambda *at: done.append(at)
        ).close()

    assert read(tmp_path / "f" / "1")["agents/action"][0].tolist() == [n % 120 for n in range(5, 2999, 2)]
    assert done == [(1024, 1497), (1497, 1497)]


def test_a_failed_fork_leaves_nothing(writer, make, tmp_path, monkeypatch):
    """No half vault, no parent made for it; an existing one is left alone."""
    writer.append(make(0, 10))

    def broken(*_):
        raise OSError("broken")

    monkeypatch.setattr(forks, "_copy", broken)
    with VaultReader.open(writer.path) as reader:
        with pytest.raises(OSError, match="broken"):
            fork(reader, tmp_path / "new" / "deep" / "1")
        with pytest.raises(ConflictError, match="must be new"):
            fork(reader, writer.path)
    assert not (tmp_path / "new").exists()
    assert writer.append(make(10, 11)) == 11


def test_a_fork_is_seen_when_it_is_whole(writer, make, tmp_path):
    """While it is copied it has no name; where copying ends halfway nothing is left."""
    writer.append(make(0, 10))
    target = tmp_path / "vaults" / "other" / "copy"

    def fail(*_):
        assert [place[:2] for place in find_vaults(tmp_path / "vaults")] == [("run", "1")]
        raise KeyboardInterrupt

    with VaultReader.open(writer.path) as reader, pytest.raises(KeyboardInterrupt):
        fork(reader, target, progress=fail)
    assert not target.parent.exists()


def test_what_a_killed_process_began_is_removed(writer, tmp_path):
    """Half-made directories go, whole vaults and other directories stay."""
    (tmp_path / "vaults" / "run" / ".flashdeck-new-0123" / "d").mkdir(parents=True)
    (tmp_path / "vaults" / "group").mkdir()

    assert remove_half_made(tmp_path / "vaults") == 1
    left = sorted(p.name for p in (tmp_path / "vaults").rglob("*") if p.is_dir())
    assert left == ["1", "d", "group", "run"]
