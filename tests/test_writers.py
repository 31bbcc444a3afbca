"""Actors of their own speed that die and come back, on a server that is killed: nothing joined or lost."""

import signal
import socket
import subprocess
import threading
import time
from collections import Counter

import numpy as np
import pytest

from fbxcore.client import Client, ClientError
from fbxcore.vault import VaultReader
from tests.served import BIN, environment, wait_ready

LEAVES = ("actor", "episode", "step")
SPEC = {name: {"shape": [], "dtype": "int32"} for name in LEAVES}


def start(folder, port):
    """Serve from a folder on a port of its own."""
    command = [str(BIN / "flashdeck"), "serve", "--port", str(port), "--data", str(folder / "data")]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=log, stderr=log)
    wait_ready(f"http://127.0.0.1:{port}", time.monotonic() + 90)
    return process


class Actor(threading.Thread):
    """One environment: episodes of random lengths, steps of random sizes, now and then a death."""

    def __init__(self, url, number, stop):
        super().__init__(daemon=True)
        self.url, self.number, self.stop = url, number, stop
        self.random = np.random.default_rng(number)
        self.pause = 0.001 * 2 ** self.random.integers(0, 6)  # 1 to 32 ms
        self.told, self.untold = [], []  # steps that were acknowledged, and others that were sent
        self.episode = 0

    def run(self):
        while not self.stop.is_set():
            try:
                with Client(self.url, timeout=20) as client:
                    self.live(client.buffer("b").writer(f"actor-{self.number}", batch_steps=4))
            except (ClientError, OSError):
                time.sleep(0.1)

    def live(self, writer):
        """Play episodes until the end or a death, which leaves one open."""
        while not self.stop.is_set() and self.random.random() > 0.1:
            self.episode += 1
            pending, length = [], int(self.random.integers(1, 30))
            try:
                for step in range(length):
                    pending.append((self.episode, step))
                    self.note(pending, self.insist(writer, lambda s=step: writer.add(self.leaves([s]))))
                    if self.random.random() < 0.01:
                        return
                pending.append((self.episode, length))
                last = {name: leaf[0] for name, leaf in self.leaves([length]).items()}
                end = ("terminated", "truncated")[self.random.integers(2)]
                self.note(pending, self.insist(writer, lambda e=end, f=last: writer.end(e, f)))
            finally:
                self.untold += pending

    def insist(self, writer, send):
        """Send, and again until there is an answer: what could not be sent goes first."""
        time.sleep(self.pause)
        try:
            return send()
        except (ClientError, OSError):
            for _ in range(600):
                time.sleep(0.05)
                try:
                    return writer.flush()
                except (ClientError, OSError):
                    continue
            raise

    def note(self, pending, answer):
        """Note what an answer acknowledges."""
        if answer is not None:
            self.told += pending
            pending.clear()

    def leaves(self, steps):
        """Return `[T]` of this actor's present episode."""
        steps = np.array(steps, np.int32)
        return {
            "actor": np.full_like(steps, self.number),
            "episode": np.full_like(steps, self.episode),
            "step": steps,
        }


def learn(url, stop, seen):
    """Sample sequences and count those that are not consecutive steps of one episode of one actor."""
    while not stop.is_set():
        try:
            with Client(url, timeout=20) as client:
                drawn = client.buffer("b").sample(256, timeout_ms=1000).experience
        except (ClientError, OSError):
            time.sleep(0.05)
            continue
        same = [(np.diff(drawn[name], axis=1) == 0).all() for name in ("actor", "episode")]
        seen["good" if all(same) and (np.diff(drawn["step"], axis=1) == 1).all() else "bad"] += 1


def play(folder, port, *, actors, kills, steps, kind):
    """Let actors play, with a kill after so many steps again and again; return them, and what was sampled."""
    url, server = f"http://127.0.0.1:{port}", start(folder, port)
    sizes = {"max_length_time_axis": 50, "min_length_time_axis": 3, "sample_sequence_length": 3, "period": 1}
    Client(url).create_buffer(
        "b", kind, SPEC, writers="independent", add_batch_size=actors, idle_end_s=5, sample_batch_size=8,
        persist_to="run/1", **sizes,
    )  # fmt: skip
    stop, seen = threading.Event(), Counter()
    playing = [Actor(url, number, stop) for number in range(actors)]
    learner = threading.Thread(target=learn, args=(url, stop, seen), daemon=True)
    for thread in (*playing, learner):
        thread.start()
    try:
        for kill in range(kills + 1):
            enough = steps + sum(len(actor.told) for actor in playing)
            seen["good"] = 0
            wait_until(
                lambda n=enough: seen["good"] > 3 and sum(len(a.told) for a in playing) > n, seconds=300
            )
            if kill < kills:
                server.send_signal(signal.SIGKILL)
                server.wait()
                server = start(folder, port)
        stop.set()
        for thread in (*playing, learner):
            thread.join(120)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) in (0, -signal.SIGTERM)
    return playing, seen


def wait_until(condition, *, seconds):
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_vault(folder, playing):
    """Check that the vault has each acknowledged step once, in its episode, and segments join nothing."""
    with VaultReader.open(folder / "data" / "vaults" / "run" / "1") as reader:
        held = {name: leaf[0] for name, leaf in reader.read().items()}
        segments = reader.segments()
        length = reader.length
    assert sum(s.stop - s.start for s in segments) == length
    for s in segments:
        actor, episode, step = (held[name][s.start : s.stop] for name in LEAVES)
        assert len(set(actor)) <= 1 and len(set(episode)) <= 1 and (np.diff(step) == 1).all()
        assert all(s.writer == f"actor-{number}" for number in set(actor))
    for one in playing:
        mine = held["actor"] == one.number
        stored = Counter(zip(held["episode"][mine].tolist(), held["step"][mine].tolist(), strict=True))
        assert not [step for step in one.told if stored[step] != 1]
        assert set(stored) - set(one.told) <= set(one.untold) and set(stored.values()) <= {1}


def free_port():
    """Return a port nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_actors_that_die_on_a_server_that_is_killed(tmp_path):
    """24 actors, one kill: no sampled sequence joins two episodes, the vault has each step once."""
    playing, seen = play(tmp_path, free_port(), actors=24, kills=1, steps=300, kind="trajectory")

    assert seen["bad"] == 0
    check_vault(tmp_path, playing)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["trajectory", "prioritised_trajectory"])
def test_64_actors_through_eight_kills(tmp_path, kind):
    """64 actors, with a kill whenever they have sent another 3,000 steps, join, lose and repeat nothing."""
    playing, seen = play(tmp_path, free_port(), actors=64, kills=8, steps=3000, kind=kind)

    assert seen["bad"] == 0
    check_vault(tmp_path, playing)
