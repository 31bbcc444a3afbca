"""What the store tells in JSON is freed: see `leaks`."""

import gc
import itertools
import json
import sys

import pytest

from fbxcore.spec import parse_spec
from fbxcore.vault.leaks import released
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.store_dump import Dump
from fbxcore.vault.versions import create_version
from tests.chaos import SPEC, leaves


@pytest.fixture
def vault(tmp_path):
    """A vault with some commits."""
    with VaultWriter.create(tmp_path / "run" / "1", parse_spec(SPEC), rows=1) as writer:
        for number in range(20):
            writer.append(leaves(0, number, 5, 1))
        yield writer


def blocks_kept(call, times=100):
    """Return how many blocks of Python's memory each call keeps."""
    for _ in range(20):
        call()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(times):
        call()
    gc.collect()
    return (sys.getallocatedblocks() - before) / times


def test_commits_and_readers_keep_nothing(vault):
    """A commit, or opening and closing a reader, leaves next to nothing behind; the leak was 280 blocks."""

    def read():
        with VaultReader.open(vault.path) as reader:
            reader.read(0, 5)

    assert blocks_kept(lambda: vault.append(leaves(0, 1, 2, 1))) < 10
    assert blocks_kept(read) < 10


def test_a_version_keeps_no_former_page_of_versions(vault, tmp_path):
    """Each version writes the page of the newest ones anew; the old ones were kept, at 150 blocks each."""
    number = itertools.count()

    def version():
        vault.append(leaves(0, next(number), 2, 1))
        create_version(vault, tmp_path)

    assert blocks_kept(version) < 40


def references(tree):
    """Return the counts of references to the values of a dictionary of dictionaries."""
    found = []
    for name in tree:
        found.append(sys.getrefcount(tree[name]))
    return found


def test_a_dump_is_owned_as_a_copy_of_it_is(vault):
    """What a manifest says has as many references as what Python's JSON made of the same."""
    told = Dump(vault.path).manifest()["versions"][-1]["root"]
    copied = json.loads(json.dumps(told))

    assert references({"root": told["statistics"]}) == references({"root": copied["statistics"]})


def test_nothing_is_given_back_where_nothing_leaks():
    """A tree that Python made keeps its references."""
    plain = {"a": {"b": ["c", {"d": 1.5}]}}
    before = references(plain)

    released(plain, lambda: {"x": {"y": 1}})

    assert references(plain) == before
