"""The client's independent writer: it gathers, numbers, ends, and begins clean."""

import itertools

import numpy as np
import pytest

from fbxcore.client import Client
from fbxcore.client.errors import ConflictError, UnreachableError
from fbxcore.errors import InvalidArgumentError
from tests.served import serve

SPEC = {"obs": {"shape": [2], "dtype": "float32"}, "step": {"shape": [], "dtype": "int32"}}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of a server of its own."""
    with serve(tmp_path_factory.mktemp("writer")) as server, Client(server.url) as client:
        yield client


@pytest.fixture
def buffer(client):
    """An empty buffer of two rows for independent writers."""
    sizes = {"max_length": 80, "min_length": 2, "sample_batch_size": 64, "add_batch_size": 2}
    return client.create_buffer(f"b{next(_numbers)}", "flat", SPEC, writers="independent", **sizes)


def steps(*numbers):
    """Return `[T, ...]` whose numbers are the given ones."""
    step = np.array(numbers, np.int32)
    return {"obs": np.stack([step, step], -1).astype(np.float32), "step": step}


def pairs(buffer):
    """Return the distinct transitions of a sample by their steps."""
    drawn = buffer.sample(seed=0).experience
    return set(zip(drawn["first"]["step"].tolist(), drawn["second"]["step"].tolist(), strict=True))


def test_steps_are_gathered_and_sent_with_the_end(buffer):
    """Three steps go when there are three, the fourth with the end and what was observed then."""
    with buffer.writer("a", batch_steps=3) as writer:
        told = [writer.add(steps(n)) for n in range(4)]
        ended = writer.end("truncated", final={"obs": np.zeros(2, np.float32), "step": np.int32(4)})

    assert [answer and answer.steps for answer in told] == [None, None, 3, None]
    assert (ended.added, ended.steps, ended.episode) == (2, 5, 1)
    assert pairs(buffer) == {(0, 1), (1, 2), (2, 3), (3, 4)}
    assert [(w["writer"], w["sequence"], w["episode"]) for w in buffer.writers()] == [("a", 2, None)]


def test_leaving_the_block_sends_the_rest_and_cuts(buffer):
    """Nothing gathered is lost, and the row is free."""
    with buffer.writer("a", batch_steps=100) as writer:
        writer.add(steps(0, 1))
        writer.describe({"seed": 3})
        assert buffer.writers()[0]["episode"]["metadata"] == {"seed": 3}
        writer.add(steps(2))

    assert pairs(buffer) == {(0, 1), (1, 2)} and buffer.writers()[0]["episode"] is None


def test_a_second_life_begins_clean(buffer):
    """A writer that was abandoned in an episode is not joined to the next of its name, and counts on."""
    first = buffer.writer("a", batch_steps=1)
    first.add(steps(0))
    first.add(steps(1))
    second = buffer.writer("a", batch_steps=1)
    added = second.add(steps(10, 11))

    assert (added.duplicate, added.episode) == (False, 2)
    assert pairs(buffer) == {(0, 1), (10, 11)}


def test_what_could_not_be_sent_goes_first_and_once(buffer, monkeypatch):
    """An add whose answer is lost is sent again under its number before the next."""
    writer = buffer.writer("a", batch_steps=1)
    add = buffer.add

    def lose(*given, **how):
        add(*given, **how)
        raise UnreachableError("The answer was lost.")

    monkeypatch.setattr(buffer, "add", lose)
    with pytest.raises(UnreachableError):
        writer.add(steps(0))
    monkeypatch.setattr(buffer, "add", add)
    writer.add(steps(1))
    writer.end("terminated")

    assert buffer.describe()["size"] == 2 and pairs(buffer) == {(0, 1)}


def test_an_end_without_steps_stays_until_it_is_sent(buffer, monkeypatch):
    """While nobody answers at all, the end of an episode waits, and no later step joins those before it."""
    writer = buffer.writer("a", batch_steps=1)
    writer.add(steps(0, 1))
    send = buffer._transport.send

    def fail(_request):
        raise UnreachableError("Nobody is there.")

    monkeypatch.setattr(buffer._transport, "send", fail)
    with pytest.raises(UnreachableError):
        writer.end("truncated")
    monkeypatch.setattr(buffer._transport, "send", send)
    writer.add(steps(10, 11))

    assert pairs(buffer) == {(0, 1), (10, 11)}


def test_an_end_that_the_server_made_already_is_no_error(buffer):
    """A writer that was idle too long finds its episode ended; it goes on with the next."""
    writer = buffer.writer("a", batch_steps=1)
    writer.add(steps(0, 1))
    buffer.end_episode("a")

    assert writer.end("terminated") is None
    assert writer.add(steps(5)).episode == 2


def test_an_add_may_end_an_episode_by_itself(buffer):
    """`Buffer.add` has `end`, and `final` as a group of the experience."""
    added = buffer.add(
        steps(0, 1) | {"final": {"obs": np.ones(2, np.float32)}}, writer="b", sequence=1, end="truncated"
    )

    assert (added.added, added.row, added.steps) == (3, 0, 3)
    with pytest.raises(ConflictError, match="open episode"):
        buffer.describe_episode("b", {})


def test_a_batch_must_have_steps(buffer):
    """Zero is refused before anything is sent."""
    with pytest.raises(InvalidArgumentError, match="`batch_steps` must be at least 1, got 0"):
        buffer.writer("a", batch_steps=0)
