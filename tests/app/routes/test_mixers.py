"""Mixers over HTTP: joined samples of several buffers, in their proportions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from bs4 import BeautifulSoup

from fbxcore.errors import InvalidArgumentError
from fbxcore.live import MixerConfig
from tests.app.support import Api, arrays_of, assert_refused, buffer_body, send, serve, steps

BUFFERS = "/api/v1/buffers"


def add(api: Api, name: str, start: int, count: int = 20):
    """Add numbered timesteps."""
    answer = send(api, f"{BUFFERS}/{name}/experience", steps(2, count, start))
    assert answer.status_code == 201, answer.text


def mix(**given) -> dict:
    """Return the body of a mixer of `a`, a quarter, and `b`."""
    body = {"name": "m", "kind": "mixer", "buffers": ["a", "b"], "proportions": [1, 3]}
    return body | {"sample_batch_size": 16} | given


@contextmanager
def mixing(folder: Path) -> Iterator[Api]:
    """Serve two filled prioritised buffers, whose numbers tell them apart, and their mixer."""
    with serve(folder) as api:
        for name in ("a", "b"):
            assert api.post(BUFFERS, json=buffer_body(name)).status_code == 201
        add(api, "a", 0)
        add(api, "b", 5000)
        made = api.post(BUFFERS, json=mix())
        assert made.status_code == 201, made.text
        yield api


@pytest.fixture
def api(tmp_path) -> Iterator[Api]:
    """A service of the test's own."""
    with mixing(tmp_path) as api:
        yield api


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Api]:
    """A service for tests that change nothing, with a buffer `x` of another spec."""
    with mixing(tmp_path_factory.mktemp("mixers")) as api:
        other = buffer_body("x") | {"spec": {"obs": {"shape": [], "dtype": "float32"}}}
        assert api.post(BUFFERS, json=other).status_code == 201
        yield api


def actions(answer) -> np.ndarray:
    """Return the first timestep's `action` of every item."""
    return arrays_of(answer)["experience/first/action"]


@pytest.mark.parametrize("format", ["safetensors", "npz", "json"])
def test_items_come_from_each_member_in_proportion(shared: Api, format: str) -> None:
    """Of 16 items the first 4 are of `a`, the other 12 of `b`, as the engine's mixer joins them."""
    answer = shared.get(f"{BUFFERS}/m/sample?seed=5&format={format}")

    found = actions(answer)
    assert found.shape == (16,)
    assert (found[:4] < 5000).all() and (found[4:] >= 5000).all()
    assert arrays_of(answer)["indices"].shape == (16,)
    assert answer.headers["x-seed"] == "5"


def test_what_rounding_leaves_goes_to_the_first(shared: Api) -> None:
    """Of 10 items 3 are of `a`: 2.5 and 7.5 are cut to 2 and 7, and the first gets the one left."""
    found = actions(shared.get(f"{BUFFERS}/m/sample?batch_size=10"))
    assert ((found < 5000).sum(), len(found)) == (3, 10)


def test_the_same_seed_on_the_same_states_gives_the_same_bytes(api: Api) -> None:
    """A seed repeats; another one, or a member that changed, gives others."""
    ask = f"{BUFFERS}/m/sample?seed=7&format=safetensors"
    first, again, other = api.get(ask), api.get(ask), api.get(ask.replace("7", "8"))
    assert first.content == again.content != other.content
    add(api, "a", 100)
    assert api.get(ask).content != first.content


def test_what_is_handed_out_counts_with_the_members_and_a_peek_does_not(api: Api) -> None:
    """16 items are 4 of `a` and 12 of `b`."""
    api.get(f"{BUFFERS}/m/sample?peek=true")
    api.get(f"{BUFFERS}/m/sample")
    counts = [api.get(f"{BUFFERS}/{name}").json()["sampled"] for name in ("a", "b", "m")]
    assert counts == [4, 12, 16]


def test_priorities_are_set_on_the_member_an_item_came_from(api: Api) -> None:
    """Indices and generations of the first four items are those of `a`."""
    drawn = arrays_of(api.get(f"{BUFFERS}/m/sample?seed=1"))
    values = {name: drawn[name][:4] for name in ("indices", "generations")}
    values["priorities"] = np.full(4, 2.0, np.float32)
    answer = send(api, f"{BUFFERS}/a/priorities", values, method="PATCH")
    assert answer.json() == {"updated": 4, "stale": 0}


def test_a_member_that_lacks_data_is_named_and_waited_for(api: Api) -> None:
    """409 with the member and what it needs; with a timeout the sample comes once it has that."""
    api.post(BUFFERS, json=buffer_body("c"))
    api.post(BUFFERS, json=mix(name="n", buffers=["a", "c"]))
    problem = assert_refused(api.get(f"{BUFFERS}/n/sample"), 409, "not_enough_data", "Member 'c'")
    assert (problem["buffer"], problem["needed"]) == ("c", 5)
    assert api.get(f"{BUFFERS}/a").json()["sampled"] == 0  # what was drawn for it was not handed out
    told = api.get(f"{BUFFERS}/n").json()
    assert (told["can_sample"], told["needed"]) == (False, 5)

    def feed() -> None:
        time.sleep(0.2)
        add(api, "c", 9000)

    feeding = threading.Thread(target=feed)
    feeding.start()
    assert len(actions(api.get(f"{BUFFERS}/n/sample?timeout_ms=10000"))) == 16
    feeding.join()


def test_a_member_in_use_stays(api: Api) -> None:
    """409 `in_use` names the mixer; without the mixer it goes."""
    problem = assert_refused(api.delete(f"{BUFFERS}/a?discard=true"), 409, "in_use", "'m'")
    assert problem["mixer"] == "m"
    assert len(actions(api.get(f"{BUFFERS}/m/sample"))) == 16
    assert api.delete(f"{BUFFERS}/m").status_code == 204
    assert api.delete(f"{BUFFERS}/a?discard=true").status_code == 204
    assert api.get(f"{BUFFERS}/m").status_code == 404


def test_a_restart_brings_a_mixer_back(tmp_path) -> None:
    """The same seed on the restored members draws the same bytes, and its members are still in use."""
    ask = f"{BUFFERS}/z-mixer/sample?seed=3&format=safetensors"
    with serve(tmp_path) as api:
        for name in ("a", "b"):
            api.post(BUFFERS, json=buffer_body(name))
        add(api, "a", 0)
        add(api, "b", 5000)
        made = api.post(BUFFERS, json=mix(name="z-mixer")).json()
        before = api.get(ask).content
    with serve(tmp_path) as api:
        assert api.get(ask).content == before
        assert api.get(f"{BUFFERS}/z-mixer").json()["created_at"] == made["created_at"]
        assert_refused(api.delete(f"{BUFFERS}/b?discard=true"), 409, "in_use")
        assert api.put(f"{BUFFERS}/z-mixer", json=mix(name="z-mixer")).status_code == 200


def test_putting_it_again_finds_it_or_says_how_it_differs(api: Api) -> None:
    """200 for the same, 409 with the difference for other proportions or for a buffer of that name."""
    assert api.put(f"{BUFFERS}/m", json=mix()).status_code == 200
    differs = api.put(f"{BUFFERS}/m", json=mix(proportions=[1, 1]))
    assert assert_refused(differs, 409, "config_differs")["difference"] == {
        "proportions": {"is": [1, 3], "given": [1, 1]}
    }
    assert_refused(api.put(f"{BUFFERS}/m", json=buffer_body("m")), 409, "config_differs")
    assert_refused(
        api.put(f"{BUFFERS}/a", json=mix(name="a", buffers=["b"], proportions=[1])), 409, "config_differs"
    )
    assert_refused(api.post(BUFFERS, json=mix()), 409, "exists")


@pytest.mark.parametrize(
    ("given", "code", "loc"),
    [
        ({"buffers": ["a", "nobody"]}, "invalid_argument", ["buffers", 1]),
        ({"buffers": ["a", "m"]}, "invalid_argument", ["buffers", 1]),
        ({"buffers": ["a", "a"]}, "invalid_argument", ["buffers", 1]),
        ({"buffers": ["a", "x"]}, "invalid_argument", ["buffers", 1]),
        ({"buffers": "a"}, "invalid_argument", ["buffers"]),
        ({"buffers": []}, "invalid_argument", ["buffers"]),
        ({"buffers": ["../a", "b"]}, "invalid_argument", ["buffers", 0]),
        ({"proportions": [1]}, "invalid_argument", ["proportions"]),
        ({"proportions": [0, 0]}, "invalid_argument", ["proportions"]),
        ({"proportions": [1e308, 1e308]}, "invalid_argument", ["proportions"]),
        ({"proportions": [-1, 2]}, "invalid_argument", ["proportions"]),
        ({"proportions": ["1", 2]}, "invalid_argument", ["proportions"]),
        ({"sample_batch_size": 0}, "invalid_argument", ["sample_batch_size"]),
        ({"sample_batch_size": 1 << 30}, "invalid_argument", ["sample_batch_size"]),
        ({"max_length": 5}, "invalid_argument", ["max_length"]),
        ({"name": "../m"}, "invalid_argument", ["name"]),
    ],
)
def test_what_cannot_be_mixed_is_named(shared: Api, given: dict, code: str, loc: list) -> None:
    """422 with the field; nothing is made."""
    refused = shared.post(BUFFERS, json=mix(name="n") | given)
    problem = assert_refused(refused, 422, code, f"`{loc[0]}`")
    assert problem["errors"][0]["loc"] == loc
    assert shared.get(f"{BUFFERS}/n").status_code == 404


def test_samples_of_other_forms_and_queues_are_not_mixed(api: Api) -> None:
    """A uniform buffer has no indices to join with a prioritised one's; a queue is not sampled."""
    api.post(BUFFERS, json=buffer_body("u", kind="flat"))
    queue = {"add_batch_size": 2, "add_sequence_length": 1, "sample_sequence_length": 2}
    body = {"name": "q", "kind": "trajectory_queue", "spec": buffer_body("q")["spec"], **queue}
    assert api.post(BUFFERS, json=body | {"max_length_time_axis": 8}).status_code == 201
    for name, words in (("u", "samples of one form"), ("q", "a queue")):
        refused = api.post(BUFFERS, json=mix(name="n", buffers=["a", name]))
        assert_refused(refused, 422, "invalid_argument", words)


def test_only_samples_are_served(shared: Api) -> None:
    """Experience, take, priorities, reset and change are 405 and name the members; a histogram is 422."""
    api = shared
    for refused in (
        send(api, f"{BUFFERS}/m/experience", steps(2, 3)),
        api.post(f"{BUFFERS}/m/take"),
        api.patch(f"{BUFFERS}/m/priorities", content=b"{}", headers={"content-type": "application/json"}),
        api.post(f"{BUFFERS}/m/reset"),
        api.patch(f"{BUFFERS}/m", json={"durability": "os"}),
    ):
        assert_refused(refused, 405, "method_not_allowed", "'a', 'b'")
        assert refused.headers["allow"] == ""
    assert_refused(api.get(f"{BUFFERS}/m/histogram?field=age"), 422, "invalid_argument", "'a', 'b'")
    assert_refused(api.get(f"{BUFFERS}/m/sample?batch_size=99999999"), 422, "invalid_argument")


def test_a_dry_run_tells_what_it_would_be(shared: Api) -> None:
    """200 with the parts, and nothing is made."""
    told = shared.post(f"{BUFFERS}?dry_run=true", json=mix(name="n"))
    assert told.status_code == 200
    assert [(m["name"], m["proportion"], m["items"]) for m in told.json()["members"]] == [
        ("a", 1, 4),
        ("b", 3, 12),
    ]
    assert shared.get(f"{BUFFERS}/n").status_code == 404


def test_lists_pages_and_events_show_it(api: Api) -> None:
    """Its page links the members and draws a sample; the totals of the overview count nothing twice."""
    assert [b["name"] for b in api.get(BUFFERS).json()["items"]] == ["a", "b", "m"]
    assert api.get(f"{BUFFERS}/m/stats").json()["kind"] == "mixer"
    assert api.get(f"{BUFFERS}/m/timeseries?metric=sampled").status_code == 200
    soup = BeautifulSoup(api.get("/buffers/m?seed=3").text, "html.parser")
    assert [a.get_text() for a in soup.select("#members a.name")] == ["a", "b"]
    assert soup.select_one("#sample #seed").get_text() == "3"
    assert soup.select_one("#sample-python") and not soup.select_one("#add-python")
    assert api.get("/buffers/m.json").json()["buffer"]["members"][1]["items"] == 12

    assert BeautifulSoup(api.get("/buffers").text, "html.parser").select_one("tr[data-buffer=m]")
    totals = api.get("/overview.json").json()["totals"]
    assert (totals["size"], totals["buffers"]) == (80, 2)
    with api.stream("GET", "/api/v1/events?topics=buffer:m") as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert '"name":"m"' in line


def test_capabilities_name_it(shared: Api) -> None:
    """With its arguments."""
    kinds = shared.get("/api/v1/capabilities").json()["kinds"]
    assert kinds["mixer"] == ["buffers", "proportions", "sample_batch_size"]


def test_a_number_that_is_none_is_refused() -> None:
    """Not a number and infinity cannot be a proportion."""
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match="`proportions` must be numbers from 0 on"):
            MixerConfig.parse(mix(proportions=[1.0, bad]))
