"""The cache of chunks gives what the array holds, from at most so many bytes."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fbxcore.spec import parse_spec
from fbxcore.vault import short_reads
from fbxcore.vault.chunk_cache import ChunkCache, Window
from fbxcore.vault.store import VaultReader, VaultWriter

LENGTH, STEPS = 53, 10
LEAF = np.arange(3 * LENGTH * 2).reshape(3, LENGTH, 2)
WINDOWS = st.tuples(st.integers(0, LENGTH - 1), st.integers(1, LENGTH)).map(
    lambda pair: (pair[0], min(LENGTH, pair[0] + pair[1]))
)
ROWS = st.sampled_from([slice(None), slice(1, 2), slice(0, 3, 2), slice(None, None, -1)])


class Source:
    """An array that counts which timesteps are asked of it."""

    def __init__(self):
        self.asked = []

    def load(self, start, stop):
        self.asked.append((start, min(stop, LENGTH)))
        return SimpleNamespace(result=lambda: LEAF[:, start:stop].copy())


@settings(deadline=None)
@given(st.lists(st.tuples(WINDOWS, ROWS), max_size=12), st.sampled_from([0, 500, 1500, 1 << 20]))
def test_any_window_is_what_the_array_holds(windows, max_bytes):
    """Whatever is here, missing, or was dropped; and the bytes kept are bounded and counted right."""
    cache, source = ChunkCache(max_bytes), Source()
    for (start, stop), rows in windows:
        got = Window(cache, "x", STEPS, start, stop, source.load).take(rows)

        np.testing.assert_array_equal(got, LEAF[rows, start:stop])
        assert got.flags.c_contiguous and got.flags.writeable
        assert cache.num_bytes <= max_bytes
        assert cache.num_bytes == sum(chunk.nbytes for chunk in cache._chunks.values())


def test_only_what_is_missing_is_read_neighbours_together():
    """The chunks of 10: first 1 and 2, then the rest around them, then nothing."""
    cache, source = ChunkCache(1 << 20), Source()
    for start, stop in [(12, 25), (0, 53), (3, 50)]:
        Window(cache, "x", STEPS, start, stop, source.load).take(slice(None))

    assert source.asked == [(10, 30), (0, 10), (30, 53)]


def test_leaves_do_not_mix():
    """The same chunk of two leaves is two chunks."""
    cache, source = ChunkCache(1 << 20), Source()
    for name in ("x", "y"):
        Window(cache, name, STEPS, 0, 5, source.load).take(slice(None))

    assert source.asked == [(0, 10), (0, 10)]


def test_what_was_used_longest_ago_is_dropped():
    """Room for two chunks: the one used again stays."""
    cache, source = ChunkCache(2 * LEAF[:, :STEPS].nbytes), Source()
    for at in (0, 1, 0, 2):
        Window(cache, "x", STEPS, at * STEPS, at * STEPS + 1, source.load).take(slice(None))

    assert [chunk is not None for chunk in cache.get("x", range(3))] == [True, False, True]


def test_what_a_read_gave_may_be_changed(writer, make, path):
    """It is a copy, so the next read gives what is on disk; dtypes that NumPy lacks included."""
    writer.append(make(0, 40))
    with VaultReader.open(path) as reader:
        for leaf in reader.read(3, 30).values():
            leaf[...] = 0

        again = reader.read(3, 30)
    for name, leaf in make(3, 30).items():
        assert again[name].dtype == leaf.dtype
        np.testing.assert_array_equal(again[name], leaf)


@pytest.mark.parametrize("asked", [dict(start=5, stop=9), dict(start=0, stop=40), dict(start=38)])
def test_a_second_read_asks_the_store_for_nothing(writer, make, path, asked, monkeypatch):
    """Short reads of an open reader are answered from what it decoded before."""
    writer.append(make(0, 40))
    with VaultReader.open(path) as reader:
        first = reader.read(**asked)
        monkeypatch.setattr(reader._database, "arrays", {})

        second = reader.read(**asked)
    for name, leaf in first.items():
        np.testing.assert_array_equal(second[name], leaf)


def test_threads_may_share_a_reader(writer, make, path):
    """Each gets what is on disk, also while the others drive its chunks out."""
    writer.append(make(0, 4000))
    whole = make(0, 4000)
    with VaultReader.open(path) as reader, ThreadPoolExecutor(4) as threads:
        reader._database._short._cache.max_bytes = 20_000

        def differs(start):
            read = reader.read(start, start + 700)
            return any((read[name] != leaf[:, start : start + 700]).any() for name, leaf in whole.items())

        assert not any(threads.map(differs, np.random.default_rng(0).integers(0, 3300, 200).tolist()))


def test_long_reads_leave_the_cache_alone(tmp_path, monkeypatch):
    """More than 8 MiB at once, of what cannot be kept whole, is decoded into the result and not kept."""
    monkeypatch.setattr(short_reads, "_CACHE_BYTES", 9 << 20)
    spec = parse_spec({"x": {"shape": [1024], "dtype": "uint8"}})
    leaf = np.random.default_rng(0).integers(0, 256, (1, 10_000, 1024), np.uint8)
    with VaultWriter.create(tmp_path / "v" / "1", spec) as writer:
        writer.append({"x": leaf})
    with VaultReader.open(writer.path) as reader:
        np.testing.assert_array_equal(reader.read()["x"], leaf)
        assert reader._database._short._cache.num_bytes == 0

        reader.read(0, 100)
        assert 0 < reader._database._short._cache.num_bytes < 1 << 20
