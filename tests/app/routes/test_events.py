"""The event stream against a real server: full state first, missed points, no stream left behind."""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from fbxcore.client import Client
from tests.app.support import SPEC, Api, assert_refused, steps
from tests.served import Served, serve

URL = "/api/v1/events"
ARGUMENTS = {"max_length": 64, "min_length": 8, "sample_batch_size": 4, "add_batch_size": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with one buffer that holds 2 × 10 steps in a vault."""
    with serve(tmp_path_factory.mktemp("served")) as server, Client(server.url) as client:
        buffer = client.create_buffer("cartpole", "flat", SPEC, persist_to="cartpole/run1", **ARGUMENTS)
        buffer.add(steps(2, 10))
        yield server


class Stream:
    """A client of the stream that reads one event at a time."""

    def __init__(self, server: Served, topics: str, **headers: str):
        self.connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
        self.connection.request("GET", f"{URL}?topics={topics}", headers=headers)
        self.answer = self.connection.getresponse()

    def event(self) -> tuple[str, str, dict]:
        """Return name, id and data of the next event."""
        fields: dict[str, str] = {}
        line = ""
        while "data" not in fields or line.strip():
            line = self.answer.readline().decode()
            if not line:
                raise EOFError
            name, _, value = line.partition(": ")
            fields[name] = value.rstrip("\n")
        return fields["event"], fields["id"], json.loads(fields["data"])

    def close(self) -> None:
        """Go away without a word."""
        self.answer.close()
        self.connection.close()


def history(server: Served, **headers: str) -> dict:
    """Return the answer to somebody who asks for JSON."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.request(
        "GET", f"{URL}?topics=buffer:cartpole", headers={"accept": "application/json"} | headers
    )
    with connection.getresponse() as answer:
        found = json.loads(answer.read())
    connection.close()
    return found


def test_first_event_carries_the_full_state(server: Served) -> None:
    """One event in, the counters are those of GET /buffers/cartpole."""
    stream = Stream(server, "buffer:cartpole")
    name, _, data = stream.event()
    stream.close()
    with Client(server.url) as client:
        shown = client.buffer("cartpole").describe()

    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    assert name == "buffers"
    values = data["items"][0]["values"]
    assert {key: values[key] for key in ("size", "capacity", "added", "position", "can_sample")} == {
        key: shown[key] for key in ("size", "capacity", "added", "position", "can_sample")
    }


def test_events_follow_what_is_added(server: Served) -> None:
    """Within three events after an add of 2 × 4 steps, `added` has grown by 8."""
    stream = Stream(server, "buffer:cartpole")
    before = stream.event()[2]["items"][0]["values"]["added"]
    with Client(server.url) as client:
        client.buffer("cartpole").add(steps(2, 4))
    after = [stream.event()[2]["items"][0]["values"]["added"] for _ in range(3)]
    stream.close()

    assert after[-1] == before + 8


def test_vault_topic_tells_length_and_pending(server: Served) -> None:
    """The event of a vault says what GET says of it."""
    stream = Stream(server, "vault:cartpole/run1")
    name, _, data = stream.event()
    stream.close()
    with Client(server.url) as client:
        shown = client.vault("cartpole/run1").describe()

    assert name == "vaults"
    assert data["items"][0]["values"] == {"length": shown["length"], "pending": shown["pending"]}


def test_a_client_that_comes_back_gets_the_points_it_missed(server: Served) -> None:
    """With the id of three seconds ago, the first event holds the points since then, oldest first."""
    stream = Stream(server, "buffer:cartpole")
    _, last, _ = stream.event()
    stream.close()
    time.sleep(3.2)
    stream = Stream(server, "buffer:cartpole", **{"Last-Event-ID": last})
    points = stream.event()[2]["points"]["cartpole"]
    stream.close()

    assert 2 <= len(points["times"]) <= 4
    assert points["times"] == sorted(points["times"])
    assert points["times"][0] > int(last) / 1000
    assert len(points["added"]) == len(points["sampled"]) == len(points["times"])


def test_history_is_the_same_as_a_list(server: Served) -> None:
    """`Accept: application/json` answers points with growing ids, none older than Last-Event-ID."""
    items = history(server)["items"]
    later = history(server, **{"last-event-id": items[-2]["id"]})["items"]

    assert [item["id"] for item in items] == sorted(item["id"] for item in items)
    assert items[0]["topic"] == "buffer:cartpole"
    assert all(int(item["id"]) >= int(items[-2]["id"]) for item in later)


def test_fifty_streams_that_are_dropped_leave_nothing_behind(server: Served) -> None:
    """WB-02: 50 open streams are counted, and ten seconds after they go away none is."""
    streams = [Stream(server, "buffers") for _ in range(50)]
    for stream in streams:
        stream.event()
    open_then = history(server)["streams"]
    for stream in streams:
        stream.close()
    deadline = time.monotonic() + 10
    while (left := history(server)["streams"]) and time.monotonic() < deadline:
        time.sleep(0.2)

    assert open_then == 50
    assert left == 0


def test_server_stops_while_a_stream_is_open(tmp_path) -> None:
    """WB-02: told to stop with three streams open, the server ends within 10 seconds, and so do they."""
    with serve(tmp_path) as server:
        streams = [Stream(server, "buffers") for _ in range(3)]
        for stream in streams:
            stream.event()
        begin = time.monotonic()
        server.process.terminate()
        status = server.process.wait(15)

        assert status in (0, -signal.SIGTERM)
        assert time.monotonic() - begin < 10
        for stream in streams:
            with pytest.raises((EOFError, ConnectionError)):
                for _ in range(5):
                    stream.event()
            stream.close()


def test_an_unknown_topic_is_refused(api: Api) -> None:
    """A word that is no topic is 422, a buffer or vault that is not there is 404."""
    assert_refused(api.get(f"{URL}?topics=weather"), 422, "invalid_argument", "'weather'")
    assert_refused(api.get(f"{URL}?topics=buffer:nope"), 404, "not_found", "'nope'")
    assert_refused(api.get(f"{URL}?topics=vault:nope/run1"), 404, "not_found", "'nope/run1'")


def test_a_last_event_id_of_somebody_else_is_refused(api: Api) -> None:
    """`Last-Event-ID` must be a number."""
    headers = {"last-event-id": "abc", "accept": "application/json"}

    assert_refused(api.get(URL, headers=headers), 422, "invalid_argument", "Last-Event-ID")
