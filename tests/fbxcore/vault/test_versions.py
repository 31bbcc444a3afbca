"""Versions keep their state, digests their meaning, tags their promises."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from fbxcore.errors import (
    ConflictError,
    DamagedError,
    InvalidArgumentError,
    NotFoundError,
    ReclaimedError,
)
from fbxcore.spec import parse_spec
from fbxcore.vault import digest as digests
from fbxcore.vault import versions as v
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.versions import Tag, Version


@pytest.fixture
def catalog(tmp_path):
    return tmp_path / "catalog" / "run" / "1"


def _digest(path, generation=None, catalog=None):
    with VaultReader.open(path, generation=generation) as reader:
        return v.digest(reader, catalog)


def _reference(leaves, rows):
    """The digest as it is defined, in NumPy and hashlib."""
    length = next(iter(leaves.values())).shape[1]
    spec = [[name, list(x.shape[2:]), x.dtype.name] for name, x in sorted(leaves.items())]
    head = json.dumps({"leaves": spec, "length": length, "rows": rows}, separators=(",", ":"), sort_keys=True)
    whole = hashlib.sha256(head.encode())
    for _, leaf in sorted(leaves.items()):
        for at in range(0, length, 1024):
            whole.update(hashlib.sha256(leaf[:, at : at + 1024].tobytes()).digest())
    return "sha256-" + whole.hexdigest()


def test_a_version_reads_its_state_for_ever(writer, make, read, same, catalog):
    """Later appends and overwrites do not show in a version."""
    writer.append(make(0, 30))
    first = v.create_version(writer, catalog, message="thirty", metadata={"seed": 1})
    writer.append(make(30, 50))
    writer.write_at(0, make(90, 95))
    second = v.create_version(writer, catalog)

    assert (first.number, first.length, first.message, first.metadata) == (1, 30, "thirty", {"seed": 1})
    assert (second.number, second.length) == (2, 50)
    assert same(read(writer.path, first.generation), make(0, 30))
    assert v.list_versions(writer.path, catalog) == [first, second]
    assert first.created_at.endswith("Z")


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 2100])
def test_the_digest_is_as_documented(path, spec, make, catalog, length):
    """It equals its definition in hashlib, for whole and broken blocks, with and without the cache."""
    with VaultWriter.create(path, spec, rows=2) as writer:
        writer.append(make(0, length, rows=2))

    expected = _reference(make(0, length, rows=2), 2)
    assert [_digest(path), _digest(path, None, catalog), _digest(path, None, catalog)] == [expected] * 3


def test_the_digest_does_not_depend_on_chunks(tmp_path, spec, make):
    """The same timesteps in one append or many, in other chunks: the same digest."""
    with VaultWriter.create(tmp_path / "a" / "1", spec, rows=1) as one:
        one.append(make(0, 1500))
    with VaultWriter.create(
        tmp_path / "b" / "1", spec, rows=1, compression={"id": "gzip", "level": 1}
    ) as other:
        for at in range(0, 1500, 300):
            other.append(make(at, at + 300))

    assert _digest(one.path) == _digest(other.path)


def test_one_changed_value_changes_the_digest(writer, make, catalog):
    """Also in a block whose hash was kept: overwriting a finished block is seen."""
    writer.append(make(0, 2500))
    before = _digest(writer.path, None, catalog)
    leaves = make(700, 701)
    leaves["obs"] = leaves["obs"] + np.float32(0.5)
    writer.write_at(700, leaves)

    assert _digest(writer.path, None, catalog) == _digest(writer.path) != before


def test_finished_blocks_are_not_read_again(writer, make, catalog, monkeypatch):
    """After an append a digest reads only what lies behind the last finished block."""
    writer.append(make(0, 2100))
    _digest(writer.path, None, catalog)
    writer.append(make(2100, 2200))
    read = []
    original = VaultReader.read
    monkeypatch.setattr(
        VaultReader, "read", lambda self, a, b, **kw: read.append((a, b)) or original(self, a, b, **kw)
    )
    _digest(writer.path, None, catalog)

    assert set(read) == {(2048, 3072)}


def test_a_spoilt_cache_is_no_cache(writer, make, catalog):
    """A cache file of rubbish is passed over."""
    writer.append(make(0, 1100))
    expected = _digest(writer.path)
    catalog.mkdir(parents=True)
    for rubbish in (b"{", b"[]", b'{"obs": 3}'):
        (catalog / digests._CACHE).write_bytes(rubbish)
        assert _digest(writer.path, None, catalog) == expected


def test_versions_and_tags_travel_with_the_directory(writer, make, catalog, tmp_path, read, same):
    """A copied vault has them, and reads them, without the catalog."""
    writer.append(make(0, 5))
    version = v.create_version(writer, catalog, tags=["best"])
    writer.append(make(5, 9))
    shutil.copytree(writer.path, tmp_path / "copy" / "9")

    copy = tmp_path / "copy" / "9"
    assert v.list_versions(copy, tmp_path / "none") == [version]
    assert v.list_tags(copy) == {"best": Tag(1)}
    assert same(read(copy, version.generation), make(0, 5))


def test_more_versions_than_a_page(writer, catalog):
    """Records of one page and the next keep their order."""
    made = [v.create_version(writer, catalog) for _ in range(v.PAGE + 2)]

    assert v.list_versions(writer.path) == made
    assert [version.number for version in made] == list(range(1, v.PAGE + 3))


def test_record_and_tags_are_one_commit(writer, catalog):
    """A version never stands without the tags it was made with."""
    before = writer.generation
    v.create_version(writer, catalog, tags=["a", "b"])

    assert writer.generation == before + 1


def test_a_tag_moves_and_goes(writer, catalog):
    """A tag names one version at a time; a protected one is not moved by a new version."""
    v.create_version(writer, catalog, tags=["best"])
    v.create_version(writer, catalog, tags=["best"])
    assert v.list_tags(writer.path) == {"best": Tag(2)}

    v.set_tag(writer, catalog, "best", 1, protected=True)
    with pytest.raises(ConflictError, match="protected and must stay at version 1"):
        v.create_version(writer, catalog, tags=["best"])
    assert len(v.list_versions(writer.path)) == 2

    v.delete_tag(writer, catalog, "best")
    assert v.list_tags(writer.path) == {}


def test_tags_need_their_version(writer, catalog):
    """A tag on nothing, or no tag to delete, is not found."""
    with pytest.raises(NotFoundError, match="No version 7"):
        v.set_tag(writer, catalog, "x", 7)
    with pytest.raises(NotFoundError, match="No tag named 'x'"):
        v.delete_tag(writer, catalog, "x")


@pytest.mark.parametrize(
    "tag",
    ["3", "v3", "V12", "latest", "HEAD", "sha256-0011aabb", "", "a/b", ".a", "ä", "a" * 129, "a b", None],
)
def test_a_tag_looks_like_nothing_else(tag):
    """Numbers, digests and the words of refs are no tags."""
    with pytest.raises(InvalidArgumentError, match="`tag` must"):
        v.check_tag_name(tag)


def test_a_deleted_version_keeps_its_number(writer, catalog):
    """Its number is not given again, and asking for it says that it was deleted."""
    v.create_version(writer, catalog, tags=["keep"])
    v.create_version(writer, catalog)
    v.create_version(writer, catalog)
    with pytest.raises(ConflictError, match="must have no tag, got 'keep'"):
        v.delete_version(writer, catalog, 1)
    v.delete_version(writer, catalog, 2)
    v.delete_version(writer, catalog, 3)

    assert v.create_version(writer, catalog).number == 4
    versions = v.list_versions(writer.path)
    assert [version.number for version in versions] == [1, 4]
    with pytest.raises(ReclaimedError, match="Version 2 was deleted"):
        v.resolve_ref("v2", versions, {})


VERSIONS = [
    Version(1, 5, 10, "sha256-" + "a" * 64, "t"),
    Version(2, 7, 20, "sha256-" + "a" * 63 + "b", "t"),
    Version(4, 9, 10, "sha256-" + "a" * 64, "t"),
]


@pytest.mark.parametrize(
    ("ref", "number"),
    [
        ("1", 1),
        ("v2", 2),
        ("latest", 4),
        ("best", 2),
        ("sha256-" + "a" * 64, 4),
        ("sha256-" + "a" * 63 + "b", 2),
    ],
)
def test_a_ref_names_a_version(ref, number):
    """A number, `latest`, a tag, a digest; of equal digests the newest."""
    assert v.resolve_ref(ref, VERSIONS, {"best": Tag(2)}).number == number


@pytest.mark.parametrize("ref", [None, "head"])
def test_the_head_is_no_version(ref):
    """No ref means what the vault holds now."""
    assert v.resolve_ref(ref, VERSIONS, {}) is None


@pytest.mark.parametrize(
    ("ref", "error", "match"),
    [
        ("9", NotFoundError, "No version 9. Versions: 1, 2, 4"),
        ("3", ReclaimedError, "Version 3 was deleted"),
        ("nope", NotFoundError, "No version or tag named 'nope'. Existing tags: 'best'"),
        ("sha256-0000000000", NotFoundError, "No version with digest"),
        ("sha256-aaaaaaaa", InvalidArgumentError, "must name one digest"),
        ("sha256-aaaaaaa", NotFoundError, "No version or tag"),
        ("v0", NotFoundError, "No version or tag"),
    ],
)
def test_another_ref_is_refused(ref, error, match):
    """What names nothing, or two things, says so."""
    with pytest.raises(error, match=match):
        v.resolve_ref(ref, VERSIONS, {"best": Tag(2)})


def test_a_foreign_vault_is_not_written_to(writer, make, catalog, files):
    """Versions and tags of a read-only vault lie in the catalog alone."""
    writer.append(make(0, 1030))
    writer.close()
    before = files(writer.path)
    version = v.create_foreign_version(writer.path, catalog, message="as found", tags=["raw"])
    v.set_tag(writer.path, catalog, "more", 1)
    v.delete_tag(writer.path, catalog, "raw")

    assert files(writer.path) == before
    assert v.list_versions(writer.path, catalog) == [version]
    assert v.list_tags(writer.path, catalog) == {"more": Tag(1)}
    assert version.digest == _digest(writer.path)
    v.delete_tag(writer.path, catalog, "more")
    v.delete_version(writer.path, catalog, 1)
    assert v.create_foreign_version(writer.path, catalog).number == 2


def test_records_of_catalog_and_vault_share_their_numbers(writer, catalog):
    """A vault that becomes ours goes on counting, and our tag goes before the catalog's."""
    v.create_foreign_version(writer.path, catalog, tags=["best"])
    second = v.create_version(writer, catalog, tags=["best"])

    assert second.number == 2
    assert [version.number for version in v.list_versions(writer.path, catalog)] == [1, 2]
    assert v.list_tags(writer.path, catalog) == {"best": Tag(2)}


def test_a_damaged_catalog_is_told(writer, catalog):
    """Records that cannot be read are never taken for none."""
    catalog.mkdir(parents=True)
    (catalog / "versions.json").write_text("{")
    with pytest.raises(DamagedError, match="File `versions.json`"):
        v.list_versions(writer.path, catalog)


def test_a_bare_array_has_a_digest(tmp_path, catalog, flashbax_vault):
    """A real Flashbax vault of one array, in chunks of its own, hashes as its values."""
    import jax.numpy as jnp

    array = np.arange(1 * 1500 * 2, dtype=np.float32).reshape(1, 1500, 2)
    flashbax_vault("bare", jnp.zeros((1, 1501, 2)))
    with VaultWriter.open(tmp_path / "vaults" / "bare" / "1") as writer:
        writer.append({"experience": array})

    for _ in range(2):
        assert _digest(writer.path, None, catalog) == _reference({"experience": array}, 1)


def test_a_leaf_of_another_name_is_another_digest(tmp_path):
    """The spec is part of the digest."""
    found = []
    for name in ("a", "b"):
        spec = parse_spec({name: {"shape": [], "dtype": "int8"}})
        with VaultWriter.create(tmp_path / name / "1", spec, rows=1) as writer:
            writer.append({name: np.ones((1, 3), np.int8)})
        found.append(_digest(writer.path))

    assert found[0] != found[1]
