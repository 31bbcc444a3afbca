"""Files below the array store: what is stale goes, what is somebody's stays."""

import fcntl
import os
import struct

import pytest

from fbxcore.errors import DamagedError
from fbxcore.vault import files
from fbxcore.vault.files import (
    clear_stale_data,
    make_parents,
    read_manifest,
    remove_empty,
    repair_manifest,
    write_atomic,
)

MANIFEST = bytes.fromhex("0cdb3a2a") + struct.pack("<Q", 20) + b"manifest"


def test_a_manifest_ends_where_it_says(tmp_path):
    """Bytes behind its own length are passed over, and cut when repaired."""
    file = tmp_path / "manifest.ocdbt"
    file.write_bytes(MANIFEST + b"rest of another")

    assert read_manifest(tmp_path) == MANIFEST
    assert repair_manifest(tmp_path)
    assert file.read_bytes() == MANIFEST
    assert not repair_manifest(tmp_path)


def test_a_manifest_that_comes_meanwhile_is_not_cut(tmp_path, monkeypatch):
    """Another program commits, with a longer manifest, between our look and our cut: its file stays whole."""
    file, longer = tmp_path / "manifest.ocdbt", MANIFEST[:4] + struct.pack("<Q", 40) + bytes(28)
    file.write_bytes(MANIFEST + b"rest")
    read = files.read_manifest

    def read_late(path):
        found = read(path)
        (tmp_path / "new").write_bytes(longer)
        os.replace(tmp_path / "new", file)
        return found

    monkeypatch.setattr(files, "read_manifest", read_late)

    assert not repair_manifest(tmp_path)
    assert file.read_bytes() == longer


@pytest.mark.parametrize("content", [b"", MANIFEST[:11], MANIFEST[:-1], b"x" + MANIFEST[1:], None])
def test_no_manifest_is_told(tmp_path, content):
    """Missing, cut or other bytes: damage, and nothing is repaired."""
    if content is not None:
        (tmp_path / "manifest.ocdbt").write_bytes(content)
    for look in (read_manifest, repair_manifest):
        with pytest.raises(DamagedError, match="File `manifest.ocdbt`"):
            look(tmp_path)


def test_what_a_commit_left_behind_goes(tmp_path):
    """Data files that nobody holds are removed; held, empty and finished ones stay."""
    data = tmp_path / "d"
    data.mkdir()
    for name, content in [("a.__lock", b"x"), ("b.__lock", b"x"), ("c.__lock", b""), ("d", b"x")]:
        (data / name).write_bytes(content)
    held = os.open(data / "b.__lock", os.O_RDWR)
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))

    clear_stale_data(tmp_path)
    os.close(held)

    assert sorted(f.name for f in data.iterdir()) == ["b.__lock", "c.__lock", "d"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    """Content is replaced whole or not at all, and nothing lies about."""
    file = tmp_path / "metadata.json"
    write_atomic(file, b"old")
    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("broken")))
        write_atomic(file, b"new")

    assert [f.name for f in tmp_path.iterdir()] == ["metadata.json"]
    assert file.read_bytes() == b"old"


def test_made_parents_can_be_taken_back(tmp_path):
    """Only those that were made, and only while they are empty."""
    made = make_parents(tmp_path / "a" / "b")
    (tmp_path / "a" / "file").write_bytes(b"")
    remove_empty(made)

    assert [str(p.relative_to(tmp_path)) for p in made] == ["a", "a/b"]
    assert (tmp_path / "a").exists() and not (tmp_path / "a" / "b").exists()
