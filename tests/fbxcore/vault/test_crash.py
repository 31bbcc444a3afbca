"""kill -9 in the middle of appends: the vault opens, whole, with everything acknowledged."""

import random
import subprocess
import sys
import time

import pytest

from fbxcore.spec import parse_spec
from fbxcore.vault.files import remove_half_made
from fbxcore.vault.rollover import continues, uids_of
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
from fbxcore.errors import ConflictError
from fbxcore.vault import store
from fbxcore.vault.freeing import free
from fbxcore.vault.rollover import go_on_in, newest_of, planned_path
from fbxcore.vault.sweep import sweep
from fbxcore.vault.versions import create_version, delete_versions, list_versions

store.MAX_LENGTH = 9_000
path = newest_of(Path(sys.argv[1]))
catalog = path.parents[1] / "catalog"
writer = store.VaultWriter.open(path)
while True:
    for _ in range(4):
        start = int(writer.get("_flashdeck/total") or 0)
        steps = np.arange(start, start + 150)[None]
        leaves = {"a": steps.astype("int32"), "b": np.repeat(steps[..., None], 64, -1).astype("float32")}
        keys = {"_flashdeck/total": b"%d" % (start + 150)}
        if writer.length + 150 > store.MAX_LENGTH:
            full, keys_before = writer, {"_flashdeck/total": b"%d" % start}
            writer = go_on_in(full, planned_path(full), keys_before)
            full.close()
        writer.append(leaves, keys=keys)
        print(start + 150, flush=True)
    create_version(writer, catalog / writer.path.name, tags=["last"])
    versions = list_versions(writer.path)
    if len(versions) > 5:
        delete_versions(writer, catalog / writer.path.name, [version.number for version in versions[:2]])
    free(writer, 2_000)
    sweep(writer, catalog / writer.path.name, grace_s=0)
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


def check_chain(path, acknowledged):
    """Check that the vaults hold consecutive steps up to all that was acknowledged; returns their paths."""
    paths, at = [path.with_name(uid) for uid in uids_of(path)], 0
    for number, one in enumerate(paths):
        with VaultReader.open(one) as reader:
            got = reader.read()
            assert got["a"][0].tolist() == list(range(at + reader.first, at + reader.length))
            assert (got["b"] == got["a"][..., None]).all()
            assert reader.length - reader.first >= min(2_000, reader.length)
            assert continues(reader) == (paths[number - 1].name if number else None)
            at += reader.length
    assert at >= acknowledged > 0
    assert {p.name for p in path.parent.iterdir() if p.is_dir()} == {p.name for p in paths}
    return paths


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.long)])
def test_kills_over_commits_versions_freeing_sweeps_and_rollovers(tmp_path, kills):
    """Every vault opens, no leaf longer than another, nothing acknowledged missing, every version whole."""
    path = tmp_path / "run" / "1"
    VaultWriter.create(path, parse_spec(LEAVES), rows=1).close()
    draw = random.Random(8)
    for kill in range(kills):
        acknowledged = _run_and_kill(path, draw.uniform(0.0, 1.0), BUSY)
        remove_half_made(tmp_path)
        paths = check_chain(path, acknowledged)
        if kill % 20 == 19 or kill == kills - 1:
            for one in paths[-2:]:
                assert verify(one).findings == ()
    assert len(paths) > 2 or kills < 200


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
