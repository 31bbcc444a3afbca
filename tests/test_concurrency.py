"""Many clients at once on a real server: nothing torn, nothing above capacity, every count right.

Clients that vanish in the middle leave nothing behind.
"""

import os
import socket
import threading
import time
import urllib.parse
from contextlib import suppress

import numpy as np
import pytest

from fbxcore.client import Client, ClientError
from fbxcore.errors import NotFoundError
from tests.served import serve

SPEC = {
    "number": {"shape": [], "dtype": "int32"},
    "vector": {"shape": [5], "dtype": "float32"},
    "wide": {"shape": [2], "dtype": "int64"},
}
ROWS, CAPACITY = 2, 200
FLAT = {"max_length": CAPACITY, "min_length": 4, "sample_batch_size": 16, "add_batch_size": ROWS}
ALLOWED = {404, 409, 410, 503}  # what another client's reset or delete, or a full house, may answer


def constant(number, count):
    """Return leaves that all hold one number."""
    return {
        name: np.full((ROWS, count, *leaf["shape"]), number, leaf["dtype"]) for name, leaf in SPEC.items()
    }


def assert_whole(experience):
    """Check that every timestep of a batch comes from one add: its leaves hold one number."""
    for part in (experience["first"], experience["second"]):
        assert (part["vector"] == part["number"][:, None]).all()
        assert (part["wide"] == part["number"][:, None]).all()


class Crowd:
    """Clients that each repeat one thing until they are told to stop; what goes wrong is kept."""

    def __init__(self, url):
        self.url = url
        self.acknowledged = {"kept": 0, "reset": 0, "vault": 0}
        self.versions = []
        self.done = {}
        self.faults = []
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, seconds, *jobs):
        """Run jobs side by side for a while."""
        threads = [threading.Thread(target=self._repeat, args=(n, job)) for n, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._stop.set()
        for thread in threads:
            thread.join()

    def _repeat(self, number, job):
        client, turn = Client(self.url, timeout=30), 0
        while not self._stop.is_set():
            turn += 1
            try:
                job(self, client, number, turn)
                self._count(self.done, job.__name__, 1)
            except ClientError as error:
                if error.status not in ALLOWED:
                    self.faults.append((job.__name__, error.status, str(error)))
            except AssertionError as error:
                self.faults.append((job.__name__, "wrong", str(error)))

    def _count(self, counts, name, number):
        with self._lock:
            counts[name] = counts.get(name, 0) + number

    def add(self, client, number, turn):
        """Add to both buffers."""
        for name in ("kept", "reset"):
            count = 1 + turn % 7
            answer = client.buffer(name).add(constant(number * 100_000 + turn, count))
            self._count(self.acknowledged, name, answer.added)
            assert answer.added == count * ROWS and answer.size <= CAPACITY

    def append(self, client, number, turn):
        """Append to a vault of its own log."""
        answer = client.vault("crowd/direct").add(constant(turn, 3))
        self._count(self.acknowledged, "vault", answer.added)

    def sample(self, client, number, turn):
        """Sample both buffers and look at every number."""
        for name in ("kept", "reset"):
            assert_whole(client.buffer(name).sample(timeout_ms=50).experience)

    def prioritise(self, client, number, turn):
        """Sample, then set priorities."""
        drawn = client.buffer("kept").sample(16)
        answer = client.buffer("kept").set_priorities(drawn, np.linspace(0.1, 2, 16))
        assert answer.updated + answer.stale == 16

    def look(self, client, number, turn):
        """Read what pages read."""
        for name in ("kept", "reset"):
            told = client.buffer(name).stats()
            assert told["size"] <= CAPACITY and told["added"] % ROWS == 0
        client.buffer("kept").histogram("priority")

    def version(self, client, number, turn):
        """Make a version and read it back."""
        for name in ("crowd/kept", "crowd/direct"):
            made = client.vault(name).create_version(f"turn {turn}")
            last = client.vault(name).slice(made["version"], timesteps=5)
            again = client.vault(name).slice(made["version"], timesteps=5)
            assert last["number"].shape[1] == min(5, made["length"])
            assert (last["number"] == again["number"]).all()
            self.versions.append((name, made["version"], made["length"]))
        time.sleep(0.2)

    def photograph(self, client, number, turn):
        """Take a snapshot, begin a buffer from it, and find there what the snapshot says."""
        taken = client.buffer("kept").snapshot()
        copy = client.create_buffer("copy", "prioritised_flat", from_={"snapshot": taken["id"]})
        told = copy.describe()
        assert (told["size"], told["position"]) == (taken["size"], taken["position"])
        assert_whole(copy.sample().experience)
        copy.delete(discard=True)

    def empty(self, client, number, turn):
        """Reset one buffer."""
        client.buffer("reset").reset(discard=True)
        time.sleep(0.1)

    def come_and_go(self, client, number, turn):
        """Make a buffer, use it and delete it."""
        name = f"guest-{number}"
        client.create_buffer(name, "flat", SPEC, **FLAT)
        client.buffer(name).add(constant(turn, 8))
        assert_whole(client.buffer(name).sample().experience)
        client.buffer(name).delete(discard=True)
        with pytest.raises(NotFoundError):
            client.buffer(name).describe()


def crowded(folder, seconds):
    """Let sixteen clients loose on a server for a while; return the crowd and what it says at the end."""
    with serve(folder) as server:
        client = Client(server.url)
        client.create_buffer("kept", "prioritised_flat", SPEC, persist_to="crowd/kept", **FLAT)
        client.create_buffer("reset", "flat", SPEC, **FLAT)
        client.create_vault("crowd/direct", SPEC, rows=ROWS)
        crowd = Crowd(server.url)
        jobs = [Crowd.add] * 4 + [Crowd.sample] * 3 + [Crowd.prioritise] * 2 + [Crowd.append] * 2
        jobs += [Crowd.look, Crowd.version, Crowd.photograph, Crowd.empty, Crowd.come_and_go]
        crowd.run(seconds, *jobs)
        for name in ("crowd/kept", "crowd/direct"):
            client.vault(name).create_version("the end")
        told = {name: client.buffer(name).describe() for name in ("kept", "reset")}
        told |= {name: client.vault(name).describe() for name in ("crowd/kept", "crowd/direct")}
        held = {name: client.vault(name).slice() for name in ("crowd/kept", "crowd/direct")}
        assert "Traceback" not in server.log
    return crowd, told, held


def check_crowd(crowd, told, held):
    """Check that every count is what was acknowledged, and that versions only grew."""
    assert crowd.faults == []
    assert min(crowd.done.get(job, 0) for job in ("add", "sample", "prioritise", "append", "version")) > 0
    assert told["kept"]["added"] == crowd.acknowledged["kept"]
    assert told["reset"]["added"] == crowd.acknowledged["reset"]
    assert told["kept"]["size"] == min(CAPACITY, told["kept"]["added"])
    assert told["crowd/kept"]["length"] * ROWS == crowd.acknowledged["kept"]
    assert told["crowd/direct"]["length"] * ROWS == crowd.acknowledged["vault"]
    for leaves in held.values():
        assert (leaves["vector"] == leaves["number"][..., None]).all()
        assert (leaves["wide"] == leaves["number"][..., None]).all()
    for name in ("crowd/kept", "crowd/direct"):
        lengths = [length for of, _, length in crowd.versions if of == name]
        assert lengths == sorted(lengths)


def test_sixteen_clients_at_once_tear_nothing(tmp_path):
    """Adds, samples, priorities, versions, resets and deletes side by side keep every promise."""
    check_crowd(*crowded(tmp_path, 5))


@pytest.mark.long
def test_sixteen_clients_for_a_minute_tear_nothing(tmp_path):
    """The same for a minute."""
    crowd, told, held = crowded(tmp_path, 60)

    check_crowd(crowd, told, held)
    print(f"\n{crowd.done}, acknowledged {crowd.acknowledged}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server for clients that vanish."""
    with serve(tmp_path_factory.mktemp("vanish")) as served:
        yield served


def hang_up(url, request, *, after):
    """Send the beginning of a request, wait, and close the connection."""
    address = urllib.parse.urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(request)
        time.sleep(after)


def connections(process):
    """Return how many sockets a process holds."""
    count = 0
    for entry in os.scandir(f"/proc/{process.pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(entry.path).startswith("socket:")
    return count


def test_a_learner_that_vanishes_is_not_served(server):
    """Who hung up while it waited for data takes nothing when they come."""
    client = Client(server.url)
    client.create_buffer("learner", "flat", SPEC, **FLAT)
    before = connections(server.process)
    request = b"GET /api/v1/buffers/learner/sample?timeout_ms=20000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    hang_up(server.url, request, after=0.3)

    time.sleep(0.7)
    client.buffer("learner").add(constant(1, 20))
    time.sleep(0.3)

    assert client.buffer("learner").describe()["sampled"] == 0
    assert connections(server.process) <= before


def test_a_writer_that_vanishes_while_it_waits_adds_nothing(server):
    """Who hung up while the limiter held it back is not let through afterwards."""
    limiter = {"samples_per_insert": 1.0, "min_size": 4, "error_buffer": 60}
    client = Client(server.url)
    client.create_buffer("writer", "flat", SPEC, rate_limiter=limiter, **FLAT)
    while True:
        try:
            client.buffer("writer").add(constant(1, 8))
        except ClientError:
            break
    added = client.buffer("writer").describe()["added"]
    head = (
        b"POST /api/v1/buffers/writer/experience?timeout_ms=20000 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    row = '{"number": [[7],[7]], "vector": [[[7,7,7,7,7]],[[7,7,7,7,7]]], "wide": [[[7,7]],[[7,7]]]}'
    hang_up(server.url, head % len(row) + row.encode(), after=0.3)

    time.sleep(0.7)
    for _ in range(4):
        client.buffer("writer").sample(16)
    time.sleep(0.3)

    assert client.buffer("writer").describe()["added"] == added


def test_a_body_that_ends_in_the_middle_adds_nothing_and_frees_its_connection(server):
    """Half a body is nothing, and a second later its connection is gone."""
    client = Client(server.url)
    client.create_buffer("half", "flat", SPEC, **FLAT)
    before = connections(server.process)
    head = (
        b"POST /api/v1/buffers/half/experience HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/x-npz\r\nContent-Length: 1000000\r\n\r\n"
    )
    hang_up(server.url, head + bytes(500_000), after=0.2)

    time.sleep(0.8)

    assert client.buffer("half").describe()["added"] == 0
    assert connections(server.process) <= before
