"""A queue over HTTP: what is taken, what is refused and how, and what its page shows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from bs4 import BeautifulSoup
from queue_data import SPEC, leaves, sequences

from tests.app.support import Api, arrays_of, assert_refused, buffer_body, send, serve

Q = "/api/v1/buffers/q"


@pytest.fixture
def api(tmp_path) -> Iterator[Api]:
    """A service with a queue of 2 rows, 10 slots and sequences of 3 timesteps."""
    with serve(tmp_path) as api:
        assert api.post("/api/v1/buffers", json=body()).status_code == 201
        yield api


def body(**given) -> dict:
    """Return the body of the queue."""
    return {
        "name": "q",
        "kind": "trajectory_queue",
        "spec": SPEC,
        "add_batch_size": 2,
        "add_sequence_length": 2,
        "sample_sequence_length": 3,
        "max_length_time_axis": 10,
    } | given


def add(api: Api, start: int, count: int, query: str = ""):
    """Add numbered timesteps."""
    return send(api, f"{Q}/experience{query}", leaves(start, count))


def test_the_answer_about_a_queue_says_what_waits(api: Api) -> None:
    """Timesteps over all rows: 18 added, 6 taken and reserved, 12 that wait; no room for two more."""
    fresh = api.get(Q).json()
    assert (fresh["can_sample"], fresh["can_add"], fresh["needed"]) == (False, True, 3)
    assert add(api, 0, 9).json()["size"] == 18
    api.post(f"{Q}/take", headers={"idempotency-key": "k"})

    told = api.get(Q).json()
    names = ("added", "taken", "waiting", "reserved", "size", "sampled", "needed", "can_add", "is_full")
    assert [told[n] for n in names] == [18, 6, 12, 6, 12, 2, 0, False, False]
    assert (told["rows"], told["time_axis"], told["capacity"]) == (2, 10, 20)


@pytest.mark.parametrize("format", ["safetensors", "npz", "msgpack", "json"])
def test_a_take_answers_in_every_format(api: Api, format: str) -> None:
    """Four sequences: one of each row, then the next of each, with where they began."""
    add(api, 0, 7)
    answer = api.post(f"{Q}/take?batch_size=4&format={format}")

    arrays = arrays_of(answer)
    assert (arrays["experience/step"] == sequences(0, 2)).all()
    assert arrays["experience/frame"].shape == (4, 3, 2)
    assert (answer.headers["x-position"], answer.headers["x-sequence"]) == ("0", "2")
    assert (answer.headers["x-duplicate"], answer.headers["cache-control"]) == ("false", "no-store")


def test_a_repeat_gets_the_same_bytes_until_its_client_takes_again(api: Api) -> None:
    """The same key, the same body; after the client's next take it is 409 `reservation_ended`."""
    add(api, 0, 10)
    first, again = (
        api.post(f"{Q}/take?client=a&format=safetensors", headers={"idempotency-key": "k"}) for _ in range(2)
    )
    assert first.content == again.content
    assert again.headers["x-duplicate"] == "true"
    assert_refused(
        api.post(f"{Q}/take?client=a&batch_size=4", headers={"idempotency-key": "k"}),
        409, "idempotency_conflict",
    )  # fmt: skip

    assert api.post(f"{Q}/take?client=a").status_code == 200
    ended = api.post(f"{Q}/take?client=a", headers={"idempotency-key": "k"})
    assert_refused(ended, 409, "reservation_ended", "no longer kept")


def test_too_little_and_too_much_are_refused_with_numbers(api: Api) -> None:
    """409 with `needed` where too little waits; 503 with `Retry-After` and numbers where there is no room."""
    add(api, 0, 2)
    assert assert_refused(api.post(f"{Q}/take?timeout_ms=20"), 409, "not_enough_data")["needed"] == 1
    full = add(api, 2, 9, "?timeout_ms=20")
    problem = assert_refused(full, 503, "queue_full", "room for 9 timesteps a row, got 8 of 10")
    assert full.headers["retry-after"] == "1"
    assert problem["queue"] == {"time_axis": 10, "waiting": 2, "reserved": 0, "room": 8}
    assert api.get(Q).json()["added"] == 4


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("batch_size=3", "invalid_argument"),
        ("batch_size=8", "invalid_argument"),
        ("batch_size=0", "invalid_argument"),
        ("timeout_ms=30001", "invalid_argument"),
        ("client=", "invalid_argument"),
        ("seed=1", "not_supported"),
        ("peek=true", "not_supported"),
    ],
)
def test_a_wrong_parameter_of_a_take_is_named(api: Api, query: str, code: str) -> None:
    """422 with the parameter, and nothing is taken."""
    add(api, 0, 10)
    problem = assert_refused(api.post(f"{Q}/take?{query}"), 422, code)
    assert problem["errors"][0]["loc"] == ["query", query.partition("=")[0]]
    assert api.get(Q).json()["taken"] == 0


def test_a_body_is_refused(api: Api) -> None:
    """Parameters belong into the query."""
    assert_refused(api.post(f"{Q}/take", json={"batch_size": 2}), 422, "not_supported")


def test_a_queue_is_not_sampled_and_a_buffer_not_taken_from(api: Api) -> None:
    """405 with `Allow` and the call to use; a GET of `take` is 405 that allows POST; priorities are 422."""
    add(api, 0, 6)
    for method in ("GET", "POST"):
        refused = api.request(method, f"{Q}/sample")
        assert_refused(refused, 405, "method_not_allowed", "Use `take`")
        assert refused.headers["allow"] == ""
    assert api.get(f"{Q}/take").headers["allow"] == "POST"
    values = {"indices": np.zeros(1, np.int32), "priorities": np.ones(1, np.float32)}
    values["generations"] = np.zeros(1, np.int64)
    assert_refused(send(api, f"{Q}/priorities", values, method="PATCH"), 422, "invalid_argument")

    api.post("/api/v1/buffers", json=buffer_body("b"))
    refused = api.post("/api/v1/buffers/b/take")
    assert_refused(refused, 405, "method_not_allowed", "Use `sample`")
    assert refused.headers["allow"] == ""


def test_what_a_queue_cannot_be_is_named(api: Api) -> None:
    """A limiter is not served, a sequence longer than the time axis or an add longer than it is refused."""
    limiter = {"samples_per_insert": 1, "min_size": 1, "error_buffer": 10}
    refused = api.post("/api/v1/buffers", json=body(name="x", rate_limiter=limiter))
    assert assert_refused(refused, 422, "not_supported")["errors"][0]["loc"] == ["rate_limiter"]
    for field in ("sample_sequence_length", "add_sequence_length"):
        refused = api.post("/api/v1/buffers", json=body(name="x", **{field: 11}))
        assert assert_refused(refused, 422, "invalid_argument")["errors"][0]["loc"] == [field]
    sized = api.post("/api/v1/buffers?dry_run=true", json=body(name="x", max_size=17)).json()
    assert (sized["time_axis"], sized["capacity"]) == (8, 16)
    assert "1 cut" in sized["warnings"][-1]


def test_deleting_asks_about_what_waits(api: Api) -> None:
    """Two timesteps of two rows that nobody took are four to lose; a queue that is empty just goes."""
    add(api, 0, 5)
    api.post(f"{Q}/take")
    assert assert_refused(api.delete(Q), 409, "unpersisted_data")["unpersisted"] == 4
    assert_refused(api.post(f"{Q}/reset"), 409, "unpersisted_data")
    add(api, 5, 1)
    api.post(f"{Q}/take")
    assert api.delete(Q).status_code == 204


def test_a_queue_begins_with_timesteps_of_a_vault(api: Api) -> None:
    """`from` a vault another queue filled: they wait in order."""
    api.put("/api/v1/buffers/r", json=body(name="r", persist_to="runs/1"))
    send(api, "/api/v1/buffers/r/experience", leaves(0, 9))
    api.post("/api/v1/buffers/r/take?batch_size=4")
    made = api.post("/api/v1/buffers", json=body(name="s") | {"from": {"vault": "runs/1"}})
    assert made.json()["waiting"] == 18
    assert (arrays_of(api.post("/api/v1/buffers/s/take"))["experience/step"] == sequences(0, 1)).all()


def test_the_page_shows_what_waits_next_and_takes_nothing(api: Api) -> None:
    """Fill and numbers are those of the API, the next sequence is shown, and no sample is offered."""
    add(api, 0, 7)
    api.post(f"{Q}/take")
    soup = BeautifulSoup(api.get("/buffers/q").text, "html.parser")

    assert soup.select_one(".ring [data-live=size]").get_text() == "8"
    assert "of 20 timesteps waiting" in soup.select_one(".ring-facts").get_text()
    assert soup.select_one(".tiles [data-live=taken]").get_text() == "6"
    assert soup.select_one("#draw") is None
    shown = [cell.get_text(strip=True) for cell in soup.select("#sample tbody tr:first-child td")]
    assert "3" in shown  # the step after those taken
    assert soup.select_one("#take-curl") and soup.select_one("#take-python")
    assert api.get(Q).json()["waiting"] == 8

    api.post(f"{Q}/take")
    soup = BeautifulSoup(api.get("/buffers/q").text, "html.parser")
    reason = soup.select_one("#why-not").get_text()
    assert "needs 2 more timesteps in each row before it can be taken from" in reason
    assert api.get("/buffers/q.json").json()["buffer"]["taken"] == 12


def test_events_tell_what_waits(api: Api) -> None:
    """A `buffers` event has the queue's numbers and their text."""
    add(api, 0, 7)
    with api.stream("GET", "/api/v1/events?topics=buffer:q") as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert '"waiting":14' in line and '"taken":"0"' in line
