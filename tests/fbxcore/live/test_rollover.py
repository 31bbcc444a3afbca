"""Live vaults and buffers over the end of a vault: every step once, whole, and told where it lies."""

import asyncio
import shutil

import numpy as np
import pytest

from fbxcore.live import LiveBuffer, LiveVault
from fbxcore.live.durable.applied import Applied
from fbxcore.spec import parse_spec
from fbxcore.vault import rollover, store
from fbxcore.vault.store import VaultReader, VaultWriter
from tests.live_data import config, steps

pytestmark = pytest.mark.anyio
COUNTS = [9, 13, 20, 1, 30, 7, 28, 5, 17, 25, 3]
SPEC = parse_spec({"obs": {"shape": [3], "dtype": "float32"}, "step": {"shape": [], "dtype": "int32"}})


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Vaults of thirty timesteps."""
    monkeypatch.setattr(store, "MAX_LENGTH", 30)


def expected(counts):
    """Return where each batch must lie, `(uid, first, count)`: whole, thirty steps a vault at most."""
    uid, length, at, found = 1, 0, 0, []
    for count in counts:
        if length + count > 30:
            uid, length = uid + 1, 0
        found.append(("1" if uid == 1 else f"1-{uid}", at, count))
        length, at = length + count, at + count
    return found


def check(folder, counts):
    """Check that the vaults hold exactly those batches."""
    lie = expected(counts)
    for uid in {uid for uid, *_ in lie}:
        mine = [np.arange(first, first + count) for name, first, count in lie if name == uid]
        with VaultReader.open(folder / uid) as reader:
            assert (reader.read()["step"] == np.concatenate(mine)).all(), uid
    assert {path.name for path in folder.iterdir()} == {uid for uid, *_ in lie}


@pytest.mark.parametrize("flushes", [False, True])
async def test_a_live_vault_says_where_each_batch_lies(tmp_path, flushes):
    """The answer names uid and length there, before the vault is even made, and again to a repeat."""
    path = tmp_path / "run" / "1"
    VaultWriter.create(path, SPEC, rows=2).close()
    vault, at = await LiveVault.open(path, tmp_path / "log"), 0
    answers = []
    for number, (count, (uid, *_)) in enumerate(zip(COUNTS, expected(COUNTS), strict=True)):
        answers.append(await vault.add(steps(at, count), writer="w", sequence=number))
        at += count
        assert answers[-1].vault_uid == uid
        if flushes:
            await vault.flush()
    await vault.flush()
    assert vault.length == answers[-1].length <= 30
    await vault.close()

    check(tmp_path / "run", COUNTS)
    vault = await LiveVault.open(path, tmp_path / "log")
    again = await vault.add(steps(at - COUNTS[-1], COUNTS[-1]), writer="w", sequence=len(COUNTS) - 1)
    assert (again.duplicate, again.vault_uid, again.length) == (True, *_where(answers[-1]))
    assert vault.writer.path.name == answers[-1].vault_uid
    await vault.close()


def _where(answer):
    return answer.vault_uid, answer.length


@pytest.mark.parametrize("dies_in", ["continued_in", "_make", "_check_continues", "commit"])
async def test_a_crash_at_the_end_of_a_vault_repeats_nothing(tmp_path, monkeypatch, dies_in):
    """Wherever the first rollover breaks off, the log begins it again: every batch once, keys as before."""
    path = tmp_path / "run" / "1"
    VaultWriter.create(path, SPEC, rows=2).close()
    vault = await LiveVault.open(path, tmp_path / "log")
    answers = [await vault.add(steps(0, 20), idempotency_key="a")]
    answers += [await vault.add(steps(20, 15), idempotency_key="b")]

    def dies(*arguments, **named):
        raise RuntimeError("the power went")

    with monkeypatch.context() as patched:
        if dies_in == "commit":
            commit = VaultWriter._commit
            patched.setattr(
                VaultWriter, "_commit", lambda *a: dies() if a[0].path.name == "1-2" else commit(*a)
            )
        else:
            patched.setattr(rollover, dies_in, dies)
        await vault.close()

    vault = await LiveVault.open(path, tmp_path / "log")
    for key, answer, at, count in (("a", answers[0], 0, 20), ("b", answers[1], 20, 15)):
        again = await vault.add(steps(at, count), idempotency_key=key)
        assert (again.duplicate, *_where(again)) == (True, *_where(answer))
    await vault.close()
    check(tmp_path / "run", [20, 15])


@pytest.mark.parametrize("crash", [False, True])
async def test_a_buffer_comes_back_from_several_vaults(tmp_path, crash):
    """Its ring is longer than a vault: after a stop or a crash the same seed draws the same bytes."""
    buffer = await LiveBuffer.open(tmp_path / "b", config(persist_to="run/1"), vaults=tmp_path / "vaults")
    at = 0
    for count in COUNTS:
        await buffer.add(steps(at, count))
        at += count
        if at == 51:
            await buffer.flush()
    await buffer._housekeeper.checkpoint()
    drawn = (await buffer.sample(512, seed=3)).arrays
    while buffer.describe()["persisted"]["vault_uid"] != expected(COUNTS)[-1][0]:
        await asyncio.sleep(0.01)  # the next vault is begun by itself
    if crash:
        for name in ("b", "vaults"):
            shutil.copytree(tmp_path / name, tmp_path / "after" / name)
    await buffer.close()
    place = tmp_path / "after" if crash else tmp_path

    buffer = await LiveBuffer.open(place / "b", vaults=place / "vaults")
    redrawn = (await buffer.sample(512, seed=3)).arrays
    assert all((redrawn[name] == drawn[name]).all() for name in drawn)
    await buffer.add(steps(at, 4))
    await buffer.close()
    check(place / "vaults" / "run", [*COUNTS, 4])


async def test_the_next_vault_knows_its_log_from_the_first_moment(tmp_path):
    """The record that is made with it says that nothing of the log is missing before it."""
    path = tmp_path / "run" / "1"
    VaultWriter.create(path, SPEC, rows=2).close()
    vault = await LiveVault.open(path, tmp_path / "log")
    await vault.add(steps(0, 20))
    await vault.add(steps(20, 15))
    await vault.flush()
    await vault.close()

    with VaultReader.open(path.with_name("1-2")) as reader:
        applied = Applied.saved_in(reader)
        assert (applied.base, applied.start, applied.position, applied.length) == (-20, 20, 35, 15)
        with VaultReader.open(path.with_name("1-2"), generation=3) as first:
            assert (Applied.saved_in(first).position, first.length) == (20, 0)
