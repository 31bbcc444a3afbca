"""kill -9 in the middle of appends: the vault opens, whole, with everything acknowledged."""

import random
import subprocess
import sys
import time

import pytest

from fbxcore.spec import parse_spec
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.verify import verify

LEAVES = {"a": {"shape": [], "dtype": "int32"}, "b": {"shape": [64], "dtype": "float32"}}

APPENDER = """
import sys
import numpy as np
from pathlib import Path
from fbxcore.vault.store import VaultWriter

with VaultWriter.open(Path(sys.argv[1])) as writer:
    while True:
        steps = np.arange(writer.length, writer.length + 3)[None]
        leaves = {"a": steps.astype("int32"), "b": np.repeat(steps[..., None], 64, -1).astype("float32")}
        print(writer.append(leaves, keys={"_flashdeck/n": b"%d" % (writer.length + 3)}), flush=True)
"""

BUSY = """
import sys
import numpy as np
from pathlib import Path
from fbxcore.vault.store import VaultWriter
from fbxcore.vault.sweep import sweep
from fbxcore.vault.versions import create_version

with VaultWriter.open(Path(sys.argv[1])) as writer:
    catalog = Path(sys.argv[1]).parents[1] / "catalog"
    while True:
        for _ in range(4):
            steps = np.arange(writer.length, writer.length + 3)[None]
            leaves = {"a": steps.astype("int32"), "b": np.repeat(steps[..., None], 64, -1).astype("float32")}
            print(writer.append(leaves), flush=True)
        create_version(writer, catalog, tags=["last"])
        sweep(writer, catalog, grace_s=0)
"""


def test_five_kills_lose_nothing_acknowledged(tmp_path):
    """After each kill every leaf is equally long, agrees with our key, and holds what was acknowledged."""
    path = tmp_path / "run" / "1"
    VaultWriter.create(path, parse_spec(LEAVES), rows=1).close()
    draw = random.Random(7)
    for _ in range(5):
        acknowledged = _run_and_kill(path, draw.uniform(0.02, 0.3), APPENDER)
        with VaultReader.open(path) as reader:
            got = reader.read()
            assert reader.length >= acknowledged > 0
            assert reader.length % 3 == 0
            assert int(reader.get("_flashdeck/n")) == reader.length
            assert got["a"][0].tolist() == list(range(reader.length))
            assert (got["b"] == got["a"][..., None]).all()


@pytest.mark.long
def test_two_hundred_kills_over_commits_versions_and_sweeps(tmp_path):
    """The vault opens every time, no leaf longer than another, every recorded version whole."""
    path = tmp_path / "run" / "1"
    VaultWriter.create(path, parse_spec(LEAVES), rows=1).close()
    draw = random.Random(8)
    for kill in range(200):
        acknowledged = _run_and_kill(path, draw.uniform(0.0, 0.4), BUSY)
        with VaultReader.open(path) as reader:
            got = reader.read()
            assert reader.length >= acknowledged > 0
            assert got["a"][0].tolist() == list(range(reader.length))
            assert (got["b"] == got["a"][..., None]).all()
        if kill % 20 == 19:
            assert verify(path).findings == ()


def _run_and_kill(path, seconds, program):
    """Append in a process of its own, kill it so long after its first reply; returns the last reply."""
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        first = process.stdout.readline()
        time.sleep(seconds)
    finally:
        process.kill()
    rest = process.stdout.read().split("\n")[:-1]  # what stands behind the last line feed was cut
    process.stdout.close()
    process.wait()
    return int(rest[-1] if rest else first)
