"""The ten traps of the array store and of JAX that cost others their data: which test holds each.

1. Separate contexts are not atomic: `vault/test_store.py::test_a_commit_makes_one_generation_and_one_file`,
   `::test_leaves_are_equally_long_at_every_generation`.
2. A dropped future cancels its write: `vault/test_store.py::test_no_write_of_fifty_is_dropped`.
3. A stale manifest lock corrupts: `vault/test_store.py::test_a_stale_manifest_lock_does_no_harm`,
   `::test_without_the_cure_a_stale_lock_corrupts`, `vault/test_verify.py`.
4. Without the store's own locking commits get lost beside another program: below, and
   `live/test_foreign.py::test_nothing_of_either_is_lost_while_both_write`.
5. Nothing is ever deleted: `vault/test_sweep.py`, `vault/test_freeing.py`.
6. An int32 says how long a vault is: `vault/test_store.py::test_the_index_is_int32_of_shape_one`,
   `vault/test_rollover.py`, `live/test_rollover.py`.
7. Sampling while the state is donated: below.
8. An array that is changed after it was handed in: below.
9. A view of the state makes the next add copy all of it: `live/test_ring.py::test_a_sample_is_a_copy`,
   `::test_adding_after_sampling_writes_in_place`.
10. `asyncio.run` inside a loop: `vault/test_vault.py::test_it_works_inside_a_running_loop`.
"""

import asyncio
import threading

import numpy as np
import pytest
import tensorstore as ts

from fbxcore.errors import ConflictError
from fbxcore.live import LiveBuffer, LiveVault
from fbxcore.spec import parse_spec
from fbxcore.vault.store import VaultReader, VaultWriter
from tests.live_data import config, steps

SPEC = parse_spec({"obs": {"shape": [3], "dtype": "float32"}, "step": {"shape": [], "dtype": "int32"}})


def test_no_commit_of_two_programs_is_lost(tmp_path):
    """Trap 4: keys that another program and we write at the same time are all there."""
    path, number = tmp_path / "run" / "1", 60
    writer = VaultWriter.create(path, SPEC)
    base = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
    other = ts.KvStore.open(base, context=ts.Context()).result()

    def write() -> None:
        for at in range(number):
            other.write(f"other/{at}", b"x").result()

    thread = threading.Thread(target=write)
    thread.start()
    for at in range(number):
        while True:
            try:
                writer.put({f"ours/{at}": b"x"})
                break
            except ConflictError:
                writer.refresh()
    thread.join()
    writer.close()
    with VaultReader.open(path) as reader:
        assert [len(reader.keys(prefix)) for prefix in ("other/", "ours/")] == [number, number]


@pytest.mark.anyio
async def test_samples_and_adds_at_once_are_whole(tmp_path):
    """Trap 7: many of both at the same time: no error, and no sample that is half of one state."""
    made = config(max_length=64, sample_batch_size=8)
    buffer = await LiveBuffer.open(tmp_path / "b", made, vaults=tmp_path / "vaults")
    await buffer.add(steps(0, 32))

    async def add(times):
        for at in range(times):
            await buffer.add(steps(32 + at, 1))

    async def sample(times):
        for _ in range(times):
            arrays = (await buffer.sample()).arrays
            first, second = (arrays[f"experience/{part}/step"] for part in ("first", "second"))
            assert (arrays["experience/first/obs"] == first[..., None]).all() and (second == first + 1).all()

    await asyncio.gather(add(150), *[sample(60) for _ in range(4)])
    await buffer.close()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["buffer", "vault"])
async def test_an_array_may_be_used_again_once_its_add_is_answered(tmp_path, kind):
    """Trap 8: what was acknowledged does not change with the caller's array, in ring, log or vault."""
    path = tmp_path / "vaults" / "run" / "1"
    if kind == "buffer":
        made = config(persist_to="run/1", sample_batch_size=64)
        one = await LiveBuffer.open(tmp_path / "b", made, vaults=tmp_path / "vaults")
    else:
        VaultWriter.create(path, SPEC, rows=2).close()
        one = await LiveVault.open(path, tmp_path / "log")
    leaves = {name: np.ascontiguousarray(leaf) for name, leaf in steps(0, 4).items()}
    for at in range(0, 40, 4):
        for name, leaf in steps(at, 4).items():
            leaves[name][...] = leaf
        await one.add(leaves)
    for leaf in leaves.values():
        leaf[...] = -1
    if kind == "buffer":
        assert min((await one.sample()).arrays["experience/first/step"]) >= 0
    await one.flush()

    with VaultReader.open(path) as reader:
        assert reader.read()["step"].tolist() == [list(range(40))] * 2
    await one.close()
