"""Independent writers over HTTP."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.app.support import Api, arrays_of, assert_refused, send

URL = "/api/v1/buffers"
_NAMES = (f"own{n}" for n in itertools.count())
SPEC = {"obs": {"shape": [2], "dtype": "float32"}, "done": {"shape": [], "dtype": "bool"}}


@pytest.fixture
def made(api: Api) -> str:
    """The address of a fresh buffer of two rows for independent writers."""
    body = {
        "name": next(_NAMES), "kind": "flat", "spec": SPEC, "writers": "independent",
        "max_length": 40, "min_length": 2, "sample_batch_size": 32, "add_batch_size": 2,
    }  # fmt: skip
    answer = api.post("/api/v1/buffers", json=body)
    assert answer.status_code == 201, answer.text
    return f"/api/v1/buffers/{body['name']}"


def steps(*numbers: float) -> dict[str, np.ndarray]:
    """Return `[T, ...]` whose observations are the numbers."""
    obs = np.array(numbers, np.float32)
    return {"obs": np.stack([obs, obs], -1), "done": np.zeros(len(numbers), bool)}


def pairs(api: Api, made: str) -> set[tuple[float, float]]:
    """Return the distinct transitions of a few samples."""
    found = set()
    for seed in range(6):
        arrays = arrays_of(api.get(f"{made}/sample?seed={seed}&format=npz"))
        first, second = arrays["experience/first/obs"], arrays["experience/second/obs"]
        found |= set(zip(first[:, 0].tolist(), second[:, 0].tolist(), strict=True))
    return found


def test_an_episode_is_sent_ended_and_sampled(api: Api, made: str) -> None:
    """Steps, a true last observation and the next episode: no pair of two episodes, the last one used."""
    assert send(api, f"{made}/experience?writer=a&sequence=1", steps(0, 1)).json()["row"] == 0
    last = {"final/obs": np.array([3, 3], np.float32)}
    ended = send(api, f"{made}/experience?writer=a&sequence=2&end=truncated", steps(2) | last)
    send(api, f"{made}/experience?writer=a&sequence=3", steps(10, 11))

    assert ended.status_code == 201 and ended.json()["added"] == 2 and ended.json()["steps"] == 4
    assert pairs(api, made) == {(0, 1), (1, 2), (2, 3), (10, 11)}


def test_json_nests_the_last_observation(api: Api, made: str) -> None:
    """`final` is a group of the body, its numbers take the spec's dtypes."""
    body = {"obs": [[0, 0]], "done": [False], "final": {"obs": [1, 1], "done": True}}
    answer = api.post(f"{made}/experience?writer=a&end=terminated&format=json", json=body)

    assert answer.status_code == 201, answer.text
    assert pairs(api, made) == {(0, 1)}


def test_json_ends_an_episode_without_timesteps(api: Api, made: str) -> None:
    """An empty list is no timestep of any shape."""
    send(api, f"{made}/experience?writer=a&sequence=1", steps(0, 1))
    body = {"obs": [], "done": [], "final": {"obs": [2, 2]}}
    answer = api.post(f"{made}/experience?writer=a&end=truncated&format=json", json=body)

    assert answer.status_code == 201, answer.text
    assert pairs(api, made) == {(0, 1), (1, 2)}


def test_a_key_of_another_writer_is_a_conflict(api: Api, made: str) -> None:
    """Equal timesteps of two writers are not one request: the second are not taken for a repeat."""
    key = {"idempotency-key": "k"}
    send(api, f"{made}/experience?writer=a", steps(0, 1), headers=key)
    refused = send(api, f"{made}/experience?writer=b", steps(0, 1), headers=key)

    assert_refused(refused, 409, "idempotency_conflict", "'k'")


def test_a_repeat_of_a_lost_answer_adds_nothing(api: Api, made: str) -> None:
    """The same sequence, and the same key, get the first answer with `duplicate`."""
    for identity, headers in (("&sequence=1", {}), ("", {"idempotency-key": "k"})):
        url = f"{made}/experience?writer=a{identity}"
        first, again = (send(api, url, steps(0, 1), headers=headers).json() for _ in range(2))
        assert again == first | {"duplicate": True}
    assert api.get(made).json()["size"] == 4


def test_no_free_row_is_503_with_retry_after(api: Api, made: str) -> None:
    """A third writer of a buffer of two rows is told when to come again."""
    for writer in "ab":
        send(api, f"{made}/experience?writer={writer}", steps(0))
    refused = send(api, f"{made}/experience?writer=c", steps(0))

    assert_refused(refused, 503, "no_free_row", "2 rows")
    assert refused.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("query", "leaves", "code", "loc"),
    [
        ("", steps(0), "invalid_argument", ["query", "writer"]),
        ("?writer=..", steps(0), "invalid_argument", ["query", "writer"]),
        ("?writer=%0A", steps(0), "invalid_argument", ["query", "writer"]),
        ("?writer=a&end=over", steps(0), "invalid_argument", ["query", "end"]),
        ("?writer=a", steps(0) | {"final/obs": np.zeros(2)}, "invalid_argument", ["query", "end"]),
        ("?writer=a&end=cut", steps(0) | {"final/x": np.zeros(2)}, "structure_mismatch", ["final/x"]),
        ("?writer=a", {n: x[None] for n, x in steps(0).items()}, "structure_mismatch", ["done"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_422(
    api: Api, made: str, query: str, leaves: dict, code: str, loc: list
) -> None:
    """Each names its field, and nothing is added."""
    problem = assert_refused(send(api, f"{made}/experience{query}", leaves), 422, code)

    assert problem["errors"][0]["loc"][-len(loc) :] == loc
    assert api.get(made).json()["size"] == 0


def test_end_is_refused_in_lockstep(api: Api) -> None:
    """Rows that advance together have no episodes of their own."""
    body = {
        "name": next(_NAMES),
        "kind": "flat",
        "spec": SPEC,
        "max_length": 40,
        "min_length": 2,
        "sample_batch_size": 4,
    }
    api.post("/api/v1/buffers", json=body)
    leaves = {name: x[None] for name, x in steps(0).items()}

    assert_refused(
        send(api, f"/api/v1/buffers/{body['name']}/experience?end=cut", leaves), 422, "invalid_argument"
    )
    refused = api.delete(f"/api/v1/buffers/{body['name']}/writers/a")
    assert_refused(refused, 422, "invalid_argument", "lockstep")


def test_writers_are_listed_described_and_ended(api: Api, made: str) -> None:
    """The list tells sequences, rows and episodes; metadata go to the open episode, and with it."""
    send(api, f"{made}/experience?writer=a/1&sequence=5", steps(0, 1))
    described = api.put(f"{made}/writers/a%2F1/episode", json={"seed": 7})
    send(api, f"{made}/experience?writer=b&sequence=2&end=terminated", steps(0, 1, 2))
    page = api.get(f"{made}/writers?limit=1")
    rest = api.get(page.headers["link"].split(">")[0][1:]).json()

    assert described.status_code == 200, described.text
    assert described.json()["episode"]["metadata"] == {"seed": 7}
    (first,), (second,) = page.json()["items"], rest["items"]
    assert (first["writer"], first["sequence"], first["episode"]["steps"]) == ("a/1", 5, 2)
    assert (second["writer"], second["sequence"], second["episode"], second["row"]) == ("b", 2, None, 1)
    assert page.json()["total"] == {"value": 2, "exact": True} and rest["next"] is None
    for _ in range(2):
        assert api.delete(f"{made}/writers/a%2F1").status_code == 204
    assert_refused(api.put(f"{made}/writers/a%2F1/episode", json={}), 409, "no_episode")
    assert_refused(api.put(f"{made}/writers/b/episode", json={"x": "y" * 70_000}), 422, "invalid_argument")


def test_a_dry_run_tells_what_the_buffer_would_be(api: Api) -> None:
    """`idle_end_s` is 60 unless given; items stand alone."""
    body = {"name": next(_NAMES), "kind": "flat", "spec": SPEC, "writers": "independent",
            "max_length": 40, "min_length": 2, "sample_batch_size": 4, "add_batch_size": 2}  # fmt: skip
    told = api.post("/api/v1/buffers?dry_run=true", json=body).json()

    assert told["config"]["idle_end_s"] == 60 and (told["needed"], told["can_sample"]) == (2, False)
    item = {k: v for k, v in body.items() if k != "add_batch_size"} | {"kind": "item"}
    assert_refused(api.post("/api/v1/buffers", json=item), 422, "invalid_argument", "Items stand alone")
    idle = body | {"idle_end_s": 0}
    assert_refused(api.post("/api/v1/buffers", json=idle), 422, "invalid_argument", "idle_end_s")


def test_the_page_shows_who_writes(api: Api, made: str) -> None:
    """Each writer with its row and episode, before and after there are any, and code that runs for it."""
    page = made.removeprefix("/api/v1")
    empty = api.get(page).text
    send(api, f"{made}/experience?writer=actor-7&sequence=12", steps(0, 1, 2))
    shown = api.get(page).text

    assert "Nobody has added anything yet" in empty and "0 of 2 rows in an episode, 0 writers" in empty
    assert "1 of 2 rows in an episode, 1 writer<" in shown and ">actor-7</th>" in shown
    assert "each row of 20 slots goes on by itself" in shown and "write head at slot" not in shown
    assert ".writer(&#34;me&#34;) as writer:" in shown and "experience?writer=me&amp;end=cut" in shown
    assert api.get(f"{page}.json").json()["buffer"]["config"]["writers"] == "independent"


def test_it_is_changed_while_it_runs_and_begun_again_from_a_snapshot(api: Api, made: str) -> None:
    """A limiter counts all rows, durability goes to none and back, a snapshot has open episodes too."""
    send(api, f"{made}/experience?writer=a&sequence=1", steps(0, 1, 2))
    api.patch(made, json={"rate_limiter": {"samples_per_insert": 1.0, "min_size": 4, "error_buffer": 40}})
    assert_refused(api.get(f"{made}/sample"), 503, "rate_limited", "3 timesteps added")
    assert api.patch(made, json={"rate_limiter": None}).status_code == 200
    for durability in ("none", "os", "fsync"):
        assert api.patch(made, json={"durability": durability}).json()["durability"] == durability
    assert send(api, f"{made}/experience?writer=a&sequence=2", steps(3)).json()["durable"] is True
    snapshot = api.post(f"{made}/snapshot").json()
    name = next(_NAMES)
    begun = api.post("/api/v1/buffers", json={"name": name, "from": {"snapshot": snapshot["id"]}})

    assert begun.status_code == 201, begun.text
    assert snapshot["size"] == begun.json()["size"] == 4
    other = f"/api/v1/buffers/{name}"
    added = send(api, f"{other}/experience?writer=a&sequence=3", steps(4)).json()
    assert (added["steps"], added["episode"], added["size"]) == (5, 1, 5)
    assert pairs(api, other) == {(0, 1), (1, 2), (2, 3), (3, 4)}


def test_it_begins_with_the_episodes_of_a_vault(api: Api) -> None:
    """Each segment of a version is a run, whatever was added later; a vault of lockstep is refused."""
    sizes = {"max_length": 40, "min_length": 2, "sample_batch_size": 32}
    shared = {"kind": "flat", "spec": SPEC, "writers": "independent", "add_batch_size": 2, **sizes}
    first, second = next(_NAMES), next(_NAMES)
    api.post(URL, json={"name": first, "persist_to": "paced/1", **shared})
    last = {"final/obs": np.zeros(2, np.float32)}
    send(api, f"{URL}/{first}/experience?writer=a&end=truncated", steps(0, 1) | last)
    send(api, f"{URL}/{first}/experience?writer=b", steps(100, 101))
    assert api.post("/api/v1/vaults/paced/1/versions", json={}).status_code == 201
    send(api, f"{URL}/{first}/experience?writer=b", steps(102))
    source = {"vault": "paced/1", "ref": 1}
    begun = api.post(URL, json={"name": second, "from": source, **shared})

    assert begun.status_code == 201, begun.text
    assert begun.json()["size"] == 5 and pairs(api, f"{URL}/{second}") == {(0, 1), (1, 0), (100, 101)}
    too_small = shared | {"name": "small", "from": source, "max_length": 4, "sample_batch_size": 2}
    assert_refused(api.post(URL, json=too_small), 422, "invalid_argument", "`from`", "2 rows of 2 timesteps")
    lockstep = {"name": next(_NAMES), "kind": "flat", "spec": SPEC, "persist_to": "paced/2", **sizes}
    api.post(URL, json=lockstep)
    send(api, f"{URL}/{lockstep['name']}/experience", {name: x[None] for name, x in steps(0, 1).items()})
    other = shared | {"name": "other", "from": {"vault": "paced/2"}}
    assert_refused(api.post(URL, json=other), 422, "invalid_argument", "`from`", "rows in lockstep")
