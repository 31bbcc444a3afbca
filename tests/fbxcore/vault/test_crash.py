"""kill -9 in the middle of appends: the vault opens, whole, with everything acknowledged."""

import random
import subprocess
import sys
import time

from fbxcore.vault.store import VaultReader, VaultWriter

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


def test_five_kills_lose_nothing_acknowledged(tmp_path):
    """After each kill every leaf is equally long, agrees with our key, and holds what was acknowledged."""
    from fbxcore.spec import parse_spec

    path = tmp_path / "run" / "1"
    leaves = {"a": {"shape": [], "dtype": "int32"}, "b": {"shape": [64], "dtype": "float32"}}
    VaultWriter.create(path, parse_spec(leaves), rows=1).close()
    draw = random.Random(7)
    for _ in range(5):
        acknowledged = _run_and_kill(path, draw.uniform(0.02, 0.3))
        with VaultReader.open(path) as reader:
            got = reader.read()
            assert reader.length >= acknowledged > 0
            assert reader.length % 3 == 0
            assert int(reader.get("_flashdeck/n")) == reader.length
            assert got["a"][0].tolist() == list(range(reader.length))
            assert (got["b"] == got["a"][..., None]).all()


def _run_and_kill(path, seconds):
    """Append in a process of its own, kill it so long after its first reply; returns the last reply."""
    process = subprocess.Popen([sys.executable, "-c", APPENDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        first = process.stdout.readline()
        time.sleep(seconds)
    finally:
        process.kill()
    rest = process.stdout.read().split("\n")[:-1]  # what stands behind the last line feed was cut
    process.stdout.close()
    process.wait()
    return int(rest[-1] if rest else first)
