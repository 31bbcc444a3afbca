"""What a reader asks of the store, and from when on it reads files itself."""

import numpy as np
import pytest

from fbxcore.spec import parse_spec
from fbxcore.vault import short_reads
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.store_dump import Dump

STEPS, LENGTH = 16, 1600
SPEC = parse_spec({"x": {"shape": [4], "dtype": "float32"}})
LEAVES = {"x": np.arange(LENGTH * 4, dtype=np.float32).reshape(1, LENGTH, 4)}


@pytest.fixture
def reader(path):
    """A reader of 100 chunks, none of which it has read."""
    with VaultWriter.create(path, SPEC, chunk_steps=STEPS) as writer:
        writer.append(LEAVES)
    with VaultReader.open(path) as opened:
        yield opened


def counted_nodes(monkeypatch):
    """Return a list that grows with each node that the store tells of."""
    nodes, told = [], Dump.node
    monkeypatch.setattr(Dump, "node", lambda self, place: nodes.append(place) or told(self, place))
    return nodes


def is_right(reader, start, stop):
    return np.array_equal(reader.read(start, stop)["x"], LEAVES["x"][:, start:stop])


def test_places_are_learnt_once_it_pays(reader, monkeypatch):
    """Not by 22 windows, 16 and a sixteenth of 104 keys, but by the next; and only once."""
    nodes = counted_nodes(monkeypatch)
    for at in range(22):
        assert is_right(reader, at * STEPS, at * STEPS + 1)
    assert nodes == []

    for at in range(22, 40):
        assert is_right(reader, at * STEPS, at * STEPS + 1) and len(nodes) == 1


def test_a_long_read_learns_at_once(reader, monkeypatch):
    """It would ask the store for more chunks than there are nodes to tell of them."""
    nodes = counted_nodes(monkeypatch)

    assert is_right(reader, 0, LENGTH // 2) and len(nodes) == 1


def test_kept_chunks_do_not_count(reader, monkeypatch):
    """Reading the same window for ever asks the store for nothing."""
    nodes = counted_nodes(monkeypatch)
    for _ in range(200):
        assert is_right(reader, 0, 40)

    assert nodes == []


def test_then_the_store_is_asked_for_nothing(reader, monkeypatch):
    """Also not for chunks that were never read before."""
    for at in range(23):
        reader.read(at * STEPS, at * STEPS + 1)
    monkeypatch.setattr(reader._database, "arrays", {})

    assert is_right(reader, 700, 900)


def test_of_many_keys_nothing_is_learnt(path, reader, monkeypatch):
    """What the store tells would take much memory for a moment."""
    monkeypatch.setattr(short_reads, "_MOST_KEYS", 50)
    with VaultReader.open(path) as opened:
        assert is_right(opened, 0, LENGTH) and is_right(opened, 0, LENGTH)
        assert opened._database._short._files is None
        assert opened._database._short._cache.num_bytes == 0


def test_without_its_nodes_a_reader_goes_on_through_the_store(reader, monkeypatch):
    """The store keeps the nodes it has read; that their file is gone is told where its chunks are read."""
    reader.read(0, 1)
    monkeypatch.setattr(Dump, "root", lambda *_: "btreenode::d/" + "0" * 32 + ":0:100")
    for at in range(1, 40):
        assert is_right(reader, at * STEPS, at * STEPS + 1)

    assert reader._database._short._files is None


def test_a_vault_that_fits_is_kept_whole(reader, monkeypatch):
    """Its long reads too are a copy, from the second one on."""
    monkeypatch.setattr(short_reads, "_SHORT_CHUNKS", 10)
    assert is_right(reader, 0, LENGTH)
    monkeypatch.setattr(reader._database._short._files, "read", None)
    monkeypatch.setattr(reader._database, "arrays", {})

    assert is_right(reader, 0, LENGTH)


def test_long_reads_of_a_larger_vault_are_not_kept(path, reader, monkeypatch):
    """They would drive out what short ones want."""
    monkeypatch.setattr(short_reads, "_CACHE_BYTES", LEAVES["x"].nbytes - 1)
    monkeypatch.setattr(short_reads, "_SHORT_CHUNKS", 10)
    with VaultReader.open(path) as opened:
        for _ in range(3):
            assert is_right(opened, 0, LENGTH)

        assert opened._database._short._cache.num_bytes == 0


def test_of_the_last_chunk_only_what_counts_is_kept(path):
    """A chunk may hold many more timesteps than were written."""
    with VaultWriter.create(path, SPEC, chunk_steps=1 << 14) as writer:
        writer.append({"x": LEAVES["x"][:, :50]})
    with VaultReader.open(path) as opened:
        short = opened._database._short
        short._enough = 0

        assert is_right(opened, 10, 50) and short._files is not None
        assert sum(chunk.nbytes for chunk in short._cache._chunks.values()) == LEAVES["x"][:, :50].nbytes
        assert all(chunk.base is None for chunk in short._cache._chunks.values())
