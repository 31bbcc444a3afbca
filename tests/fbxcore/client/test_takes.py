"""Taking through the client: arrays come nested, errors are typed, and a lost answer is asked for again."""

import itertools
import socket
import threading
import time

import pytest
from queue_data import SPEC, leaves, sequences

from fbxcore.client import Client, errors
from tests.lossy import lossy
from tests.served import serve

QUEUE = {
    "add_batch_size": 2,
    "add_sequence_length": 2,
    "sample_sequence_length": 3,
    "max_length_time_axis": 10,
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("client")) as server:
        yield server


@pytest.fixture
def queue(served):
    """An empty queue of 2 rows, 10 slots and sequences of 3 timesteps."""
    return Client(served.url).create_buffer(f"q{next(_numbers)}", "trajectory_queue", SPEC, **QUEUE)


def test_a_take_is_what_was_added_first(queue):
    """Two sequences of each row, nested, with where they began."""
    queue.add(leaves(0, 7))
    taken = queue.take(4)

    assert (taken.experience["step"] == sequences(0, 2)).all()
    assert (taken.position, taken.duplicate) == (0, False)
    assert queue.describe()["waiting"] == 2


def test_a_thread_keeps_its_last_take_alone(queue):
    """A key can be repeated until the same thread takes again; another thread's take changes nothing."""
    queue.add(leaves(0, 9))
    queue.take(idempotency_key="k")
    other = threading.Thread(target=queue.take)
    other.start()
    other.join()
    again = queue.take(idempotency_key="k")
    assert again.duplicate and again.experience["step"].tolist() == sequences(0, 1).tolist()

    queue.take()
    with pytest.raises(errors.ConflictError, match="no longer kept") as caught:
        queue.take(idempotency_key="k")
    assert caught.value.code == "reservation_ended"


def test_refusals_are_typed(queue):
    """Too little is NotEnoughDataError; no room UnavailableError; sampling is refused with the status 405."""
    with pytest.raises(errors.NotEnoughDataError) as caught:
        queue.take()
    assert caught.value.details["needed"] == 3
    queue.add(leaves(0, 9))
    with pytest.raises(errors.UnavailableError) as caught:
        queue.add(leaves(9, 2))
    assert caught.value.code == "queue_full"
    with pytest.raises(errors.ClientError) as caught:
        queue.sample()
    assert caught.value.status == 405


def test_takes_go_on_while_somebody_adds(queue):
    """The iterator waits for what comes and gives every timestep once, in order."""

    def feed():
        for start in range(0, 30, 2):
            queue.add(leaves(start, 2), timeout_ms=5000)

    feeding = threading.Thread(target=feed)
    feeding.start()
    found = [taken.experience["step"] for taken in itertools.islice(queue.takes(), 10)]
    feeding.join()
    assert [x.tolist() for x in found] == [sequences(3 * i, 1).tolist() for i in range(10)]


def test_a_lost_answer_is_asked_for_again(served, queue):
    """Over a line that loses every third answer each item still comes once, in order."""
    port = int(served.url.rpartition(":")[2])
    with lossy(port, loss=0.35, seed=1) as url:
        far = Client(url, timeout=5).buffer(queue.name)
        for start in range(0, 30, 3):
            queue.add(leaves(start, 3))
            taken = next(far.takes())
            assert taken.experience["step"].tolist() == sequences(start, 1).tolist()


def test_who_hangs_up_while_waiting_takes_nothing(served, queue):
    """A client that left before anything was there is not handed what comes later."""
    address = served.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as line:
        line.sendall(
            f"POST /api/v1/buffers/{queue.name}/take?timeout_ms=20000 HTTP/1.1\r\nHost: {':'.join(address)}"
            "\r\nContent-Length: 0\r\n\r\n".encode()
        )
        time.sleep(0.3)
    time.sleep(0.7)
    queue.add(leaves(0, 3))
    time.sleep(0.2)
    assert queue.describe()["waiting"] == 6


def test_an_error_that_leaves_it_open_has_the_key(queue):
    """Where nobody answers, the error says under which key to take again."""
    nowhere = Client("http://127.0.0.1:9").buffer(queue.name)
    with pytest.raises(errors.UnreachableError) as caught:
        nowhere.take(idempotency_key="k")
    assert caught.value.details["idempotency_key"] == "k"
