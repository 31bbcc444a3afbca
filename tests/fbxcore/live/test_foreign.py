"""Real Flashbax writes to a vault that we write: at once found, told, and taken over without a loss."""

import asyncio
import subprocess
import sys
import time

import numpy as np
import pytest

from fbxcore.buffers.trajectory_buffer import TrajectoryBufferState
from fbxcore.errors import ConflictError
from fbxcore.live import LiveBuffer, LiveVault
from fbxcore.live.durable.applied import Applied, Stretches, adopt
from fbxcore.spec import parse_spec
from fbxcore.vault import Vault
from fbxcore.vault.foreign import Foreign, take_over
from fbxcore.vault.store import VaultReader, VaultWriter
from tests.live_data import config, steps

pytestmark = pytest.mark.anyio
SPEC = parse_spec({"obs": {"shape": [3], "dtype": "float32"}, "step": {"shape": [], "dtype": "int32"}})
PLAYER = """
import contextlib, io, sys, time
import jax.numpy as jnp
import numpy as np
from flashbax.buffers.trajectory_buffer import TrajectoryBufferState
from flashbax.vault import Vault

root, pause, writes, first = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
with contextlib.redirect_stdout(io.StringIO()):
    experience = {"obs": jnp.zeros((2, 8, 3), jnp.float32), "step": jnp.zeros((2, 8), jnp.int32)}
    vault = Vault("run", experience, rel_dir=root, vault_uid="1")
print("ready", flush=True)
sys.stdin.readline()
for number in range(writes):
    at = 1_000_000 + first + 7 * number
    step = np.arange(at, at + 7, dtype=np.int32)[None].repeat(2, 0)
    leaves = {"obs": np.repeat(step[..., None], 3, 2).astype(np.float32), "step": step}
    state = TrajectoryBufferState(
        experience={name: jnp.asarray(np.concatenate([v, v[:, :1]], 1)) for name, v in leaves.items()},
        current_index=jnp.int32(7), is_full=jnp.bool_(False),
    )
    vault.write(state, source_interval=(0, 7))
    time.sleep(pause)
print("done", flush=True)
"""


class Player:
    """Real Flashbax in a process of its own: it opens the vault, and writes when told to."""

    def __init__(self, folder, *, pause=0.0, writes=5, first=0):
        given = [str(folder), str(pause), str(writes), str(first)]
        command = [sys.executable, "-c", PLAYER, *given]
        self.numbers = list(range(1_000_000 + first, 1_000_000 + first + 7 * writes))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._process.stdout.readline() == "ready\n"

    def start(self):
        self._process.stdin.write("\n")

    def is_running(self):
        return self._process.poll() is None

    def wait(self):
        rest, _ = self._process.communicate()
        assert (rest, self._process.returncode) == ("done\n", 0)


def held(path):
    """Return a vault's timesteps, after seeing that every leaf of both rows agrees."""
    with VaultReader.open(path) as reader:
        arrays = reader.read()
    assert (arrays["step"][0] == arrays["step"][1]).all()
    assert (arrays["obs"] == arrays["step"][..., None]).all()
    return arrays["step"][0].tolist()


def check(path, acknowledged, player):
    """Check that both programs' timesteps are there, each once and in its own order."""
    found = held(path)
    assert [number for number in found if number < 1_000_000] == list(range(acknowledged))
    assert [number for number in found if number >= 1_000_000] == player.numbers


@pytest.fixture
async def writers(tmp_path):
    """Return a function that opens one of our writers on the vault `run/1`, empty but for 40 timesteps."""
    opened = []

    async def make(kind):
        path = tmp_path / "vaults" / "run" / "1"
        if kind == "buffer":
            made = config(persist_to="run/1")
            one = await LiveBuffer.open(tmp_path / "b", made, vaults=tmp_path / "vaults")
        else:
            if not path.exists():
                VaultWriter.create(path, SPEC, rows=2).close()
            one = await LiveVault.open(path, tmp_path / "log")
        await one.add(steps(0, 40))
        await one.flush()
        opened.append(one)
        return one, path

    yield make
    for one in opened:
        await one.close()


@pytest.mark.parametrize("kind", ["vault", "buffer"])
@pytest.mark.parametrize("is_stale", [False, True])
async def test_the_next_add_is_refused_and_adopting_goes_on(tmp_path, writers, kind, is_stale):
    """What waited in the log follows behind theirs; what they wrote over is there again; a restart knows."""
    one, path = await writers(kind)
    if is_stale:
        player = Player(tmp_path / "vaults", writes=2)
    await one.add(steps(40, 10))
    await one.flush() if is_stale else None
    await one.add(steps(50, 5))
    if not is_stale:
        player = Player(tmp_path / "vaults", writes=2)
    player.start()
    player.wait()
    with pytest.raises(ConflictError, match="got a commit of another program.*--adopt") as raised:
        await one.add(steps(55, 5))
    assert raised.value.code == "foreign_writer"

    found = await one.adopt()
    assert (found.num_hidden, found.length) == (10 if is_stale else 0, 54)
    await one.add(steps(55, 5))
    await one.flush()
    check(path, 60, player)
    if kind == "buffer":
        drawn = (await one.sample(64, seed=1)).arrays
    await one.close()
    if kind == "buffer":
        again = await LiveBuffer.open(tmp_path / "b", vaults=tmp_path / "vaults")
        redrawn = (await again.sample(64, seed=1)).arrays
        assert all((redrawn[name] == drawn[name]).all() for name in drawn)
    else:
        again = await LiveVault.open(path, tmp_path / "log")
    await again.add(steps(60, 3))
    await again.close()
    check(path, 63, player)


async def test_a_look_at_every_add_finds_it_within_a_second(tmp_path, writers):
    """While adds come in all the time, at most those of the moment of its commit are taken behind it."""
    vault, path = await writers("vault")
    player, acknowledged, seen = Player(tmp_path / "vaults", writes=1), 40, None
    player.start()
    with pytest.raises(ConflictError, match="another program"):
        while True:
            with VaultReader.open(path) as reader:
                if seen is None and reader.get("_flashdeck/commit") != b"%d" % reader.generation:
                    seen = time.monotonic()
            await vault.add(steps(acknowledged, 1))
            acknowledged += 1
            await asyncio.sleep(0)
    assert seen is None or time.monotonic() - seen < 1
    player.wait()
    await vault.adopt()
    await vault.flush()
    check(path, acknowledged, player)


async def test_what_cannot_be_opened_is_adopted_in_its_files(tmp_path, writers):
    """After a stop the log still waits: adopting the directory lets it be opened again."""
    vault, path = await writers("vault")
    await vault.add(steps(40, 7))
    player = Player(tmp_path / "vaults", writes=1)
    player.start()
    player.wait()
    await vault.close()
    with pytest.raises(ConflictError, match="--adopt"):
        await LiveVault.open(path, tmp_path / "log")

    with VaultWriter.open(path, takes_over=True) as writer:
        assert adopt(writer).length == 47
        assert adopt(writer) is None
    vault = await LiveVault.open(path, tmp_path / "log")
    await vault.flush()
    check(path, 47, player)
    await vault.close()


async def test_a_program_of_ours_that_appends_without_the_log_is_adopted_too(tmp_path, writers):
    """Its timesteps are part of the vault, and the log's follow."""
    vault, path = await writers("vault")
    await vault.close()
    with VaultWriter.open(path) as writer:
        writer.append(steps(900, 3))
    with pytest.raises(ConflictError, match="must hold 40 timesteps, got 43"):
        await LiveVault.open(path, tmp_path / "log")

    with VaultWriter.open(path) as writer:
        adopt(writer)
    vault = await LiveVault.open(path, tmp_path / "log")
    await vault.add(steps(40, 2))
    await vault.close()
    assert held(path) == [*range(40), 900, 901, 902, 40, 41]


ONE_RUN, TWO_RUNS = Applied("log", 0, 100), Applied("log", 20, 100, 7, 60, ((0, 10),))


@pytest.mark.parametrize(
    ("record", "found", "expected"),
    [
        (ONE_RUN, (100, 100, 107), {99: 99, 100: 107}),
        (ONE_RUN, (90, 100, 95), {89: 89, 90: 95, 99: 104, 100: 105}),
        (ONE_RUN, (0, 100, 5), {0: 5, 99: 104}),
        (ONE_RUN, (100, 110, 105), {99: 99, 100: 115}),
        (TWO_RUNS, (45, 120, 50), {34: 44, 35: 50, 59: 74, 60: 85, 99: 124, 100: 125}),
        (TWO_RUNS, (75, 120, 90), {59: 69, 60: 95, 99: 134}),
    ],
)
def test_the_record_says_where_each_timestep_went(tmp_path, record, found, expected):
    """Checked by hand: those before the difference stay, the others lie behind the other program's."""
    moved = record.moved(Foreign(3, *found))
    with VaultWriter.create(tmp_path / "v" / "1", SPEC) as writer:
        stretches = Stretches(writer, moved)

    assert {p: stretches.of(p).base + p for p in expected} == expected
    assert moved.length == found[2] + found[1] - found[0]


class Ours:
    """One of our three writers, that adds numbered timesteps until it is refused, and adopts."""

    def __init__(self, kind, one, path):
        self.kind, self.one, self.path = kind, one, path
        self.acknowledged = 40

    async def add(self, count):
        leaves = steps(self.acknowledged, count)
        if self.kind == "library":
            self.one.write(TrajectoryBufferState(leaves, np.int32(0), np.bool_(True)))
        else:
            await self.one.add(leaves)
        self.acknowledged += count
        if self.kind != "library" and self.acknowledged % 3 == 0:
            await self.one.flush()

    async def adopt(self):
        if self.kind == "library":
            with VaultWriter.open(self.path, takes_over=True) as writer:
                take_over(writer)
            self.one = Vault("run", rel_dir=self.path.parent.parent, vault_uid="1")
        else:
            await self.one.adopt()


async def fight(ours, folder, *, rounds, writes):
    """Let a real Flashbax write beside ours again and again; return every number it wrote."""
    theirs, refused = [], 0
    for number in range(rounds):
        player = Player(folder, pause=0.005, writes=writes, first=len(theirs))
        theirs += player.numbers
        player.start()
        try:
            while player.is_running():
                await ours.add(1 + ours.acknowledged % 4)
                await asyncio.sleep(0.001 * (number % 3))
            await ours.add(1)
        except ConflictError as error:
            assert error.code == "foreign_writer"
            refused += 1
        player.wait()
        await ours.adopt()
        await ours.add(2)
    assert refused == rounds
    return theirs


@pytest.mark.parametrize("kind", ["vault", "buffer", "library"])
@pytest.mark.parametrize("rounds", [1, pytest.param(25, marks=pytest.mark.long)])
async def test_nothing_of_either_is_lost_while_both_write(tmp_path, writers, kind, rounds):
    """Flashbax beside each of our writers: refused, adopted, and everything is there once, in order."""
    one, path = await writers("buffer" if kind == "buffer" else "vault")
    if kind == "library":
        await one.close()
        one = Vault("run", rel_dir=tmp_path / "vaults", vault_uid="1")
    ours = Ours(kind, one, path)

    theirs = await fight(ours, tmp_path / "vaults", rounds=rounds, writes=5)
    if kind != "library":
        await one.flush()
    found = held(path)
    assert [number for number in found if number < 1_000_000] == list(range(ours.acknowledged))
    assert [number for number in found if number >= 1_000_000] == theirs


async def test_many_adds_look_seldom(writers, monkeypatch):
    """A look at the manifest is not free: once in ten milliseconds is soon enough."""
    vault, _ = await writers("vault")
    looks, is_alone = [], VaultWriter.is_alone
    monkeypatch.setattr(VaultWriter, "is_alone", lambda self: looks.append(1) or is_alone(self))
    began = time.monotonic()
    for at in range(100):
        await vault.add(steps(40 + at, 1))

    assert 1 <= len(looks) <= min(100, (time.monotonic() - began) / 0.01 + 1)
