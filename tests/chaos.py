"""A server that is killed again and again, actors that keep using it, and what must hold afterwards.

Each actor repeats one kind of work and sends every request again until it is acknowledged, so that at the
end it knows exactly what the server owes it. An answer of 500 or more that does not say "come again" is a
fault.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np

from fbxcore.client import Client, ClientError
from fbxcore.errors import ConflictError, UnavailableError
from fbxcore.vault.store import VaultReader
from fbxcore.vault.versions import read_history
from tests.served import environment

SPEC = {
    "writer": {"shape": [], "dtype": "int32"},
    "number": {"shape": [], "dtype": "int32"},
    "sum": {"shape": [3], "dtype": "int64"},
}
SIZES = {"max_length": 500, "min_length": 2, "sample_batch_size": 8}
EPISODE = 7
EXPECTED = {404, 409, 410, 422, 503, 507}  # what the state of a restarted or full server may answer


def leaves(writer: int, number: int, count: int, *lead: int) -> dict[str, np.ndarray]:
    """Return `count` timesteps of a writer's batch; every leaf says whose and which."""
    shape = (*lead, count)
    total = np.full((*shape, 3), writer + 1000 * number, np.int64)
    return {
        "writer": np.full(shape, writer, np.int32),
        "number": np.full(shape, number, np.int32),
        "sum": total,
    }


def count_of(number: int) -> int:
    """Return how many timesteps a writer's batch has."""
    return 1 + number % 3


def assert_untorn(part: dict[str, np.ndarray]) -> None:
    """Check that the leaves of each timestep belong together."""
    total = part["writer"].astype(np.int64) + 1000 * part["number"].astype(np.int64)
    assert (part["sum"] == total[..., None]).all()


class Server:
    """`flashdeck serve` as a process that may be killed; its faults file makes clock and disk misbehave."""

    def __init__(self, folder: Path, data: Path | None = None):
        self.folder = folder
        self.data = data if data is not None else folder / "data"
        self.data.mkdir(exist_ok=True)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start, and wait until somebody listens."""
        script = [sys.executable, str(Path(__file__).with_name("faulty.py"))]
        script += [str(self.folder / "faults.json"), "serve"]
        options = ["--port", str(self.port), "--data", str(self.data)]
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [*script, *options], stdout=log, stderr=log, cwd=self.folder, env=environment()
            )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return
            except OSError:
                assert self.process.poll() is None, self.log[-3000:]
                time.sleep(0.05)
        raise TimeoutError("the server did not start")

    def kill(self) -> None:
        """Kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait for the end it must come to by itself."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) in (0, -signal.SIGTERM), self.log[-3000:]

    def suffer(self, **faults: float) -> None:
        """Let clock or disk misbehave from now on."""
        draft = self.folder / "faults.draft"
        draft.write_text(json.dumps(faults))
        draft.replace(self.folder / "faults.json")

    @property
    def log(self) -> str:
        """What it has written."""
        return (self.folder / "server.log").read_text()

    def footprint(self) -> tuple[int, int]:
        """Return resident bytes and open files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
        return resident, len(os.listdir(f"/proc/{self.process.pid}/fd"))


class Actor:
    """Repeats `turn` until told to stop; a turn that was refused or not answered is done again."""

    pause = 0.0

    def __init__(self, name: str):
        self.name = name
        self.number = 0  # of the last turn that was acknowledged
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def prepare(self, client: Client) -> None:
        """Make what the actor needs; may find it made."""

    def turn(self, client: Client, number: int) -> None:
        """Do the work of one number."""
        raise NotImplementedError

    def check(self, server: Server) -> None:
        """Check, with the server stopped, that what was acknowledged is there."""

    def run(self, url: str, stop: threading.Event) -> None:
        """Work until told to stop."""
        client = Client(url, timeout=20)
        while not stop.is_set():
            try:
                self.turn(client, self.number + 1)
            except (ClientError, OSError) as error:
                self._note(error)
                stop.wait(0.05)
            except AssertionError as error:
                self.faults.append(f"{self.name} {self.number + 1}: {error!r}"[:500])
                stop.wait(0.05)
            else:
                self.number += 1
                stop.wait(self.pause)

    def _note(self, error: Exception) -> None:
        status = getattr(error, "status", None)
        self.counts[f"{status} {getattr(error, 'code', '')}"] += 1
        if status is not None and status not in EXPECTED:
            self.faults.append(f"{self.name}: {status} {error}"[:500])


class Writer(Actor):
    """Adds numbered batches to a persisted prioritised buffer, as a named writer."""

    def __init__(self, index: int):
        super().__init__(f"w{index}")
        self.index = index

    def prepare(self, client: Client) -> None:
        """Make the buffer."""
        client.create_buffer("b", "prioritised_flat", SPEC, persist_to="run/1", **SIZES)

    def turn(self, client: Client, number: int) -> None:
        """Add the batch of a number."""
        batch = leaves(self.index, number, count_of(number), 1)
        client.buffer("b").add(batch, writer=self.name, sequence=number)

    def check(self, server: Server) -> None:
        """Its batches lie in the vault once and in order, and at most one more than it was told of."""
        check_order(vault_of(server, "run/1"), self.index, self.number)


class Appender(Actor):
    """Appends numbered batches to a vault with a log of its own, under keys."""

    def prepare(self, client: Client) -> None:
        """Make the vault."""
        with suppress(ConflictError):  # made before
            client.create_vault("run/2", SPEC)

    def turn(self, client: Client, number: int) -> None:
        """Append the batch of a number."""
        batch = leaves(0, number, count_of(number), 1)
        client.vault("run/2").add(batch, idempotency_key=f"{self.name}-{number}")

    def check(self, server: Server) -> None:
        """As a writer's."""
        check_order(vault_of(server, "run/2"), 0, self.number)


class Learner(Actor):
    """Samples, looks at every number, and sets priorities."""

    pause = 0.005

    def turn(self, client: Client, number: int) -> None:
        """Sample once."""
        drawn = client.buffer("b").sample()
        for part in ("first", "second"):
            assert_untorn(drawn.experience[part])
        client.buffer("b").set_priorities(drawn, np.linspace(0.1, 2.0, 8))


class Librarian(Actor):
    """Makes versions of the vaults, reads old ones back, and sweeps what is no longer pinned."""

    pause = 0.1

    def __init__(self, name: str):
        super().__init__(name)
        self.records: dict[tuple[str, int], tuple[int, str]] = {}

    def turn(self, client: Client, number: int) -> None:
        """Make a version of one vault, look at its newest ones, now and then sweep."""
        name = f"run/{1 + number % 2}"
        made = client.vault(name).create_version(f"turn {number}")
        self.records[name, made["version"]] = made["length"], made["digest"]
        if made["length"]:
            last = client.vault(name).slice(made["version"], timesteps=50)
            assert_untorn(last)
        if number % 5 == 0:
            client.vault(name).sweep(keep=5, grace_s=0)

    def check(self, server: Server) -> None:
        """Every version it was told of that still is one has the length and digest it was told."""
        for name in ("run/1", "run/2"):
            with VaultReader.open(server.data / "vaults" / name) as reader:
                found = {version.number: version for version in read_history(reader).versions}
            told = {n: record for (of, n), record in self.records.items() if of == name}
            for number, (length, digest) in told.items():
                if number in found:
                    assert (found[number].length, found[number].digest) == (length, digest)
            assert not told or max(told) in found


class Feeder(Actor):
    """Adds numbered batches to a queue."""

    def prepare(self, client: Client) -> None:
        """Make the queue."""
        sizes = {"max_length_time_axis": 64, "add_sequence_length": 1, "sample_sequence_length": 1}
        client.create_buffer("q", "trajectory_queue", SPEC, add_batch_size=1, **sizes)

    def turn(self, client: Client, number: int) -> None:
        """Add the batch of a number once there is room."""
        batch = leaves(7, number, count_of(number), 1)
        client.buffer("q").add(batch, writer=self.name, sequence=number, timeout_ms=200)


class Taker(Actor):
    """Takes from the queue, one take at a time, and keeps what it got."""

    def __init__(self, name: str):
        super().__init__(name)
        self.taken: list[int] = []

    def turn(self, client: Client, number: int) -> None:
        """Take a few, under a key of the turn's own, so that a lost answer is asked for again."""
        got = client.buffer("q").take(1 + number % 4, timeout_ms=200, idempotency_key=f"take-{number}")
        assert_untorn(got.experience)
        self.taken += got.experience["number"][:, 0].tolist()

    def check(self, server: Server) -> None:
        """What it took is what was fed: in order, nothing twice, nothing left out."""
        fed = max(self.taken, default=0)
        order = np.repeat(np.arange(1, fed + 1), [count_of(n) for n in range(1, fed + 1)])
        assert self.taken == order[: len(self.taken)].tolist()


class Roamer(Actor):
    """An independent writer: numbered batches of its own, an episode of `EPISODE` batches after the other."""

    def __init__(self, index: int):
        super().__init__(f"r{index}")
        self.index = index

    def prepare(self, client: Client) -> None:
        """Make the buffer."""
        sizes = SIZES | {"add_batch_size": 4, "writers": "independent", "persist_to": "run/3"}
        client.create_buffer("r", "prioritised_flat", SPEC, **sizes)

    def turn(self, client: Client, number: int) -> None:
        """Add the batch of a number; at the end of an episode with what was observed last."""
        batch, end = leaves(self.index, number, count_of(number)), None
        if number % EPISODE == 0:
            last = leaves(self.index, number, 1)
            batch |= {f"final/{name}": leaf[0] for name, leaf in last.items()}
            end = "terminated"
        client.buffer("r").add(batch, writer=self.name, sequence=number, end=end, timeout_ms=200)

    def check(self, server: Server) -> None:
        """As a writer's; the last observation of an episode is one timestep more."""
        with_last = lambda number: count_of(number) + (number % EPISODE == 0)  # noqa: E731
        check_order(vault_of(server, "run/3"), self.index, self.number, with_last)


class Watcher(Actor):
    """Samples what the roamers add: no pair joins two of them, or two episodes."""

    pause = 0.005

    def turn(self, client: Client, number: int) -> None:
        """Sample once."""
        drawn = client.buffer("r").sample()
        first, second = drawn.experience["first"], drawn.experience["second"]
        assert_untorn(first)
        assert_untorn(second)
        step = second["number"] - first["number"]
        assert (first["writer"] == second["writer"]).all()
        assert ((step == 0) | ((step == 1) & (first["number"] % EPISODE != 0))).all()
        client.buffer("r").set_priorities(drawn, np.linspace(0.1, 2.0, 8))


class Photographer(Actor):
    """Takes snapshots, and begins a buffer from each."""

    pause = 1.0

    def turn(self, client: Client, number: int) -> None:
        """Take one, begin from it, look, and tidy up."""
        taken = client.buffer("b").snapshot()
        name = f"copy-{taken['id']}"  # a new one each time: a kill may leave the last
        copy = client.create_buffer(name, "prioritised_flat", from_={"snapshot": taken["id"]})
        told = copy.describe()
        assert (told["size"], told["position"]) == (taken["size"], taken["position"])
        if told["can_sample"]:
            assert_untorn(copy.sample().experience["second"])
        copy.delete(discard=True)


class Guest(Actor):
    """Makes a buffer, uses it and deletes it."""

    pause = 0.5

    def turn(self, client: Client, number: int) -> None:
        """Come and go once."""
        client.create_buffer("guest", "flat", SPEC, **SIZES)
        client.buffer("guest").add(leaves(9, number, 5, 1))
        assert_untorn(client.buffer("guest").sample().experience["second"])
        client.buffer("guest").delete(discard=True)


def vault_of(server: Server, name: str) -> dict[str, np.ndarray]:
    """Return all of a vault of one row, once each leaf is found to be as long as the others."""
    with VaultReader.open(server.data / "vaults" / name) as reader:
        held = {leaf: x[0] for leaf, x in reader.read(0, reader.length).items()}
    assert {len(x) for x in held.values()} == {reader.length}
    assert_untorn(held)
    return held


def check_order(held: dict[str, np.ndarray], writer: int, last: int, count=count_of) -> None:
    """Check that a writer's batches up to `last` are held once and in order, and one more at most."""
    numbers = held["number"][held["writer"] == writer]
    expected = np.repeat(np.arange(1, last + 1), [count(n) for n in range(1, last + 1)])
    assert (numbers[: len(expected)] == expected).all()
    rest = numbers[len(expected) :]
    assert len(rest) in (0, count(last + 1)) and (rest == last + 1).all()


def crew() -> list[Actor]:
    """Return one of everybody."""
    return [
        *(Writer(index) for index in range(4)),
        Appender("appender"),
        Learner("learner"),
        Librarian("librarian"),
        Feeder("feeder"),
        Taker("taker"),
        *(Roamer(index) for index in range(3)),
        Watcher("watcher"),
        Photographer("photographer"),
        Guest("guest"),
    ]


class Play:
    """Actors at work on a server, between `begin` and `end`."""

    def __init__(self, server: Server, actors: list[Actor]):
        self.server, self.actors = server, actors
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=a.run, args=(server.url, self._stop)) for a in actors]

    def __enter__(self) -> Play:
        self.server.start()
        client = Client(self.server.url, timeout=60)
        for actor in self.actors:
            insist(lambda actor=actor: actor.prepare(client))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.server.process.poll() is None:
            self._commit()
            self.server.stop()

    def _commit(self) -> None:
        """Let every vault hold all that was acknowledged; a stop leaves in the log what takes too long."""
        client = Client(self.server.url, timeout=60)
        for vault in client.vaults("run/"):
            name = f"{vault['vault_name']}/{vault['vault_uid']}"
            insist(lambda name=name: client.vault(name).create_version("the end"))

    def check(self) -> dict[str, int]:
        """Check what every actor is owed; return how far each came."""
        assert [fault for actor in self.actors for fault in actor.faults] == []
        assert "Traceback" not in self.server.log, self.server.log[-5000:]
        for actor in self.actors:
            actor.check(self.server)
        return {actor.name: actor.number for actor in self.actors}


def insist(call, seconds: float = 60):
    """Return what a call returns once the server is ready for it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (UnavailableError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
