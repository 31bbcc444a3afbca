"""A stream gives each window once an epoch, right, in an order of its seed, within its memory."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from fbxcore.errors import InvalidArgumentError
from fbxcore.spec import dtype_of, parse_spec
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.stream import WindowStream

SPEC = parse_spec(
    {
        "step": {"shape": [], "dtype": "int32"},
        "obs": {"shape": [5], "dtype": "float32"},
        "half": {"shape": [1], "dtype": "bfloat16"},
        "odd": {"shape": [], "dtype": "bool"},
    }
)


@pytest.fixture
def reader(tmp_path):
    """Return a function that opens a vault whose leaves tell row and step."""
    opened = []

    def make(length, rows=2):
        step = np.arange(length, dtype=np.int32)[None] + 100_000 * np.arange(rows, dtype=np.int32)[:, None]
        obs = (step[..., None] + np.arange(5) / 8).astype(np.float32)
        with VaultWriter.create(tmp_path / "v" / str(len(opened)), SPEC, rows=rows) as writer:
            half = (step[..., None] % 100).astype(dtype_of("bfloat16"))
            writer.append({"step": step, "obs": obs, "half": half, "odd": step % 2 == 1})
        opened.append(VaultReader.open(writer.path))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


CASES = [
    (3000, 2, 32, 1, 64, 40_000),  # several groups and blocks, windows across block ends
    (3000, 2, 32, 7, 64, 40_000),
    (3000, 1, 32, 50, 7, 1 << 20),  # windows with gaps, one group
    (100, 3, 100, 1, 2, 1 << 20),  # one window a row
    (101, 1, 100, 1, 64, 4 * 27 * 100),  # a batch larger than the epoch, blocks of one window
    (2500, 2, 1, 1, 999, 20_000),
]


@pytest.mark.parametrize(("length", "rows", "sequence", "period", "batch", "memory"), CASES)
def test_each_window_comes_once_and_is_right(reader, length, rows, sequence, period, batch, memory):
    """All starts of all rows, full batches save the last, and the steps that are there."""
    stream = WindowStream(
        reader(length, rows), sequence_length=sequence, batch_size=batch, period=period, max_bytes=memory
    )
    seen = []
    sizes = []
    for windows in stream.epoch(0):
        seen += zip(windows.rows.tolist(), windows.starts.tolist(), strict=True)
        sizes.append(len(windows.rows))
        expected = (windows.rows * 100_000 + windows.starts)[:, None] + np.arange(sequence)
        np.testing.assert_array_equal(windows.leaves["step"], expected)
        np.testing.assert_array_equal(windows.leaves["obs"][..., 4], expected.astype(np.float32) + 0.5)
        np.testing.assert_array_equal(windows.leaves["half"][..., 0].astype(int), expected % 100)
        np.testing.assert_array_equal(windows.leaves["odd"], expected % 2 == 1)

    starts = range(0, length - sequence + 1, period)
    assert sorted(seen) == [(row, start) for row in range(rows) for start in starts]
    assert len(seen) == stream.num_windows and len(sizes) == stream.num_batches
    assert set(sizes[:-1]) <= {batch}


def test_the_order_follows_from_seed_and_epoch(reader):
    """Equal ones give equal batches, others another order."""
    opened = reader(2000)

    def order(seed, epoch):
        stream = WindowStream(opened, sequence_length=8, batch_size=100, seed=seed, max_bytes=60_000)
        return np.concatenate([windows.starts for windows in stream.epoch(epoch)])

    np.testing.assert_array_equal(order(1, 0), order(1, 0))
    assert (order(1, 0) != order(1, 1)).mean() > 0.9
    assert (order(1, 0) != order(2, 0)).mean() > 0.9


def test_a_batch_mixes_the_blocks_of_its_group(reader):
    """Batches of 64 of a group of 16 blocks or more hold windows of nearly all of them."""
    stream = WindowStream(reader(16_000), sequence_length=4, batch_size=64, max_bytes=400_000)
    assert stream._per_group >= 16

    blocks = [len(set(windows.starts // stream._per_block)) for windows in stream.epoch(0)]
    assert np.mean(blocks) > 12


def test_only_the_leaves_asked_for_are_read(reader):
    """Memory then counts those alone."""
    stream = WindowStream(
        reader(50), sequence_length=10, batch_size=4, leaves=["step"], max_bytes=2 * 10 * 4 * 2
    )

    assert all(list(windows.leaves) == ["step"] for windows in stream.epoch(0))


def test_an_epoch_may_be_left_early(reader):
    """While it runs a thread reads ahead; once it is closed no thread of it is left."""
    before = set(threading.enumerate())
    epoch = WindowStream(reader(3000), sequence_length=8, batch_size=8, max_bytes=40_000).epoch(0)
    next(epoch)
    reading = set(threading.enumerate()) - before
    epoch.close()
    for thread in reading:
        thread.join(10)

    assert reading and not any(thread.is_alive() for thread in reading)


@pytest.mark.parametrize(
    ("given", "match"),
    [({"sequence_length": 51}, "at most the vault's 50 timesteps, got 51"),
     ({"sequence_length": 0}, "`sequence_length` must be at least 1"), ({"period": 0}, "`period`"),
     ({"batch_size": 0}, "`batch_size`"), ({"max_bytes": 1079}, "`max_bytes` must be at least 1080")],
)  # fmt: skip
def test_a_stream_that_cannot_be_is_refused(reader, given, match):
    """No window, no batch, no room for two of them."""
    with pytest.raises(InvalidArgumentError, match=match):
        WindowStream(reader(50), **{"sequence_length": 10, "batch_size": 4} | given)


_CHILD = r"""
import re, sys
import numpy as np
from fbxcore.vault.store import VaultReader
from fbxcore.vault.stream import WindowStream
def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) << 10
with VaultReader.open(sys.argv[1]) as reader:
    reader.read(0, 2048)
    before = peak()
    stream = WindowStream(reader, sequence_length=16, batch_size=64, max_bytes=int(sys.argv[2]))
    count = sum(len(windows.rows) for windows in stream.epoch(0))
    print(count, peak() - before)
"""


def test_memory_is_bounded(tmp_path):
    """Of a vault of over three times the memory allowed: two groups, and little else."""
    spec = parse_spec({"obs": {"shape": [512], "dtype": "float32"}})
    steps, allowed = 81_920, 48 << 20  # 160 MiB
    with VaultWriter.create(tmp_path / "v" / "1", spec) as writer:
        for start in range(0, steps, 4096):
            obs = np.random.default_rng(start).standard_normal((1, 4096, 512), np.float32)
            writer.append({"obs": obs})
    found = subprocess.run(
        [sys.executable, "-c", _CHILD, str(writer.path), str(allowed)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    count, grown = map(int, found.stdout.split())
    assert count == steps - 15
    assert allowed / 2 < grown < allowed + (32 << 20), f"{grown >> 20} MiB"
