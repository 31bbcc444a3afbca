"""Verifying finds what is wrong, and repairs only what is certain."""

import pytest

from fbxcore.vault import versions as v
from fbxcore.vault.verify import verify


@pytest.fixture
def catalog(tmp_path):
    return tmp_path / "catalog"


def test_a_whole_vault_has_no_findings(writer, make, catalog):
    """Head and versions are read and hashed; progress counts the versions."""
    writer.append(make(0, 1100))
    v.create_version(writer, catalog)
    writer.write_at(0, make(50, 60))
    v.create_version(writer, catalog)
    done = []
    found = verify(writer.path, catalog, progress=lambda *at: done.append(at))

    assert (found.length, found.versions, found.findings, found.is_whole) == (1100, 2, (), True)
    assert done == [(1, 2), (2, 2)]


def test_bytes_behind_the_manifest_are_cut(writer, make, catalog):
    """Told first, repaired when asked, gone then."""
    writer.append(make(0, 5))
    writer.close()
    with open(writer.path / "manifest.ocdbt", "ab") as file:
        file.write(b"rest")

    assert not verify(writer.path, catalog).is_whole
    repaired = verify(writer.path, catalog, repair=True)
    assert [(f.where, f.repaired) for f in repaired.findings] == [("manifest.ocdbt", True)]
    assert verify(writer.path, catalog).findings == ()


def test_a_damaged_chunk_is_found(writer, make, catalog):
    """A flipped byte in a data file of a version, but not of the head, names the version."""
    created = set((writer.path / "d").iterdir())
    writer.append(make(0, 50))
    (file,) = set((writer.path / "d").iterdir()) - created
    v.create_version(writer, catalog)
    writer.write_at(0, make(60, 110))
    content = bytearray(file.read_bytes())
    content[20] ^= 0xFF
    file.write_bytes(bytes(content))

    found = verify(writer.path, catalog)
    assert [finding.where for finding in found.findings] == ["version 1"]


def test_a_wrong_record_is_found(writer, make, catalog):
    """A version whose digest is not that of its data is told with both."""
    writer.append(make(0, 5))
    version = v.create_foreign_version(writer.path, catalog)
    file = catalog / "versions.json"
    file.write_text(file.read_text().replace(version.digest[7:], "0" * 64))

    (finding,) = verify(writer.path, catalog).findings
    assert finding.where == "version 1"
    assert version.digest in finding.problem


def test_a_vault_that_does_not_open_is_a_finding(writer, make, catalog):
    """Damage of the head is told, not raised."""
    writer.append(make(0, 5))
    (writer.path / "metadata.json").write_text("{")

    (finding,) = verify(writer.path, catalog).findings
    assert finding.where == "head"
