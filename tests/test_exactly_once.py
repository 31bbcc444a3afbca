"""A queue under four writers and eight takers whose answers get lost and whose server is killed.

Every timestep that was added is taken by exactly one taker; by position, each writer's come in order.
"""

import threading
import time

import numpy as np
import pytest

from fbxcore.client import Client
from fbxcore.errors import NotEnoughDataError, UnavailableError
from tests.chaos import Server
from tests.lossy import lossy

SPEC = {"writer": {"shape": [], "dtype": "int32"}, "number": {"shape": [], "dtype": "int64"}}
QUEUE = {
    "add_batch_size": 2,
    "add_sequence_length": 3,
    "sample_sequence_length": 3,
    "max_length_time_axis": 60,
}
WRITERS, TAKERS = 4, 8


def write(url, writer, batches):
    """Add numbered batches of three, each under its key until it is acknowledged."""
    queue = Client(url, timeout=5).buffer("q")
    for batch in range(batches):
        number = np.broadcast_to(3 * batch + np.arange(3), (2, 3))
        again(queue.add, {"writer": np.full((2, 3), writer, np.int32), "number": number.astype(np.int64)})


def again(call, *arguments):
    """Call until the server answers yes, always under the key that the first call had."""
    key, give_up = f"{time.monotonic_ns()}-{threading.get_ident()}", time.monotonic() + 50
    while True:
        try:
            return call(*arguments, timeout_ms=200, idempotency_key=key)
        except UnavailableError:
            assert time.monotonic() < give_up
            time.sleep(0.02)


def take(url, stop, took):
    """Take one or two sequences of each row until nothing is left to come."""
    queue = Client(url, timeout=5).buffer("q")
    while True:
        done = stop.is_set()
        for batch_size in (4, 2):
            try:
                took.append(again(queue.take, batch_size))
            except NotEnoughDataError:
                if done and batch_size == 2:
                    return


def play(folder, *, batches, kills, loss, seed):
    """Let everybody work against one server; return what was taken, in the order of positions."""
    server, random = Server(folder), np.random.default_rng(seed)
    server.start()
    Client(server.url).create_buffer("q", "trajectory_queue", SPEC, **QUEUE)
    with lossy(server.port, loss=loss, seed=seed) as url:
        stop, took = threading.Event(), []
        writers = [threading.Thread(target=write, args=(url, w, batches)) for w in range(WRITERS)]
        takers = [threading.Thread(target=take, args=(url, stop, took)) for _ in range(TAKERS)]
        for thread in writers + takers:
            thread.start()
        for _ in range(kills):
            time.sleep(1.5 * random.random())
            server.kill()
            server.start()
        for thread in writers:
            thread.join()
        stop.set()
        for thread in takers:
            thread.join()
    told = Client(server.url).buffer("q").describe()
    server.stop()
    assert told["waiting"] == 0
    assert told["added"] == told["taken"] == 2 * 3 * WRITERS * batches
    return sorted(took, key=lambda taken: taken.position)


def check(took, batches):
    """Each writer's numbers were taken once, in order, and both rows alike."""
    parts = {name: np.concatenate([t.experience[name] for t in took]) for name in SPEC}
    for row in range(2):  # sequences alternate between the rows
        writer, number = (parts[name][row::2].reshape(-1) for name in ("writer", "number"))
        for w in range(WRITERS):
            assert number[writer == w].tolist() == list(range(3 * batches))


def test_every_item_is_taken_once_though_answers_are_lost_and_the_server_is_killed(tmp_path):
    """With every tenth answer lost and one kill, no timestep of 240 a row is lost or comes twice."""
    took = play(tmp_path, batches=20, kills=1, loss=0.1, seed=0)

    check(took, 20)
    assert any(taken.duplicate for taken in took)  # some answers were lost and asked for again


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
def test_every_item_is_taken_once_over_many_kills(tmp_path, seed):
    """The same over ten kills and five thousand batches."""
    check(play(tmp_path, batches=1250, kills=10, loss=0.02, seed=seed), 1250)
