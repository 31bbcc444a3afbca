"""The forms on a buffer's page, without a browser: what they change, and how they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bs4 import BeautifulSoup, Tag

from tests.app.support import SPEC, Api, assert_refused, buffer_body, send, steps

URL, PAGE = "/api/v1/buffers", "/buffers/tuned"
LIMITER = {"samples_per_insert": "8.5", "min_size": "20", "error_buffer": "400"}
HTML = {"accept": "text/html"}
IN_PLACE = HTML | {"hx-request": "true"}


@pytest.fixture
def tuned(api: Api) -> Iterator[Api]:
    """A service with a filled buffer that has a vault."""
    assert api.post(URL, json=buffer_body("tuned", persist_to="tuned/run1")).status_code == 201
    send(api, f"{URL}/tuned/experience", steps(2, 20))
    yield api
    for snapshot in api.get(f"{URL}/tuned/snapshots").json()["items"]:
        api.delete(f"{URL}/tuned/snapshots/{snapshot['id']}")
    for name in ("tuned", "tuned-again"):
        api.delete(f"{URL}/{name}?discard=true")
    api.delete("/api/v1/vaults/tuned/run1")


def submit(api: Api, form: Tag, headers: dict = HTML, **typed: str) -> Any:
    """Send a form as a browser does, with other values in some fields."""
    fields = {tag["name"]: tag.get("value", "") for tag in form.select("input")}
    fields |= {tag["name"]: tag.select_one("[selected]")["value"] for tag in form.select("select")}
    assert set(typed) <= set(fields)
    return api.request(form["method"], form["action"], data=fields | typed, headers=headers)


def form_of(answer: Any, selector: str) -> Tag:
    """Return a form of a page."""
    return BeautifulSoup(answer.text, "html.parser").select_one(f"{selector} form")


def panel_of(answer: Any, panel: str) -> str:
    """Return the words of a panel."""
    return " ".join(BeautifulSoup(answer.text, "html.parser").select_one(f"#{panel}").get_text(" ").split())


def test_what_is_saved_is_what_the_api_then_says(tuned: Api) -> None:
    """All fields at once lead back to the form, which shows them; blanks take limiter and retention away."""
    form = form_of(tuned.get(PAGE), "#controls")
    saved = submit(tuned, form, durability="os", retain_steps="5000", **LIMITER)

    assert (saved.status_code, saved.headers["location"]) == (303, f"{PAGE}#controls")
    config = tuned.get(f"{URL}/tuned").json()["config"]
    assert (config["durability"], config["retain_steps"]) == ("os", 5000)
    assert config["rate_limiter"] == {"samples_per_insert": 8.5, "min_size": 20, "error_buffer": 400}
    form = form_of(tuned.get(PAGE), "#controls")
    assert {tag["name"]: tag["value"] for tag in form.select("input")} == LIMITER | {"retain_steps": "5000"}
    submit(tuned, form, **dict.fromkeys([*LIMITER, "retain_steps"], " "))
    config = tuned.get(f"{URL}/tuned").json()["config"]
    assert (config["durability"], config["rate_limiter"], config["retain_steps"]) == ("os", None, None)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"durability": "maybe"}, "`durability` must be one of"),
        (LIMITER | {"min_size": ""}, "`min_size` must be given beside `samples_per_insert`"),
        (LIMITER | {"error_buffer": "1"}, "`error_buffer` must be at least"),
        (LIMITER | {"samples_per_insert": "many"}, "`samples_per_insert` must be a number, got 'many'"),
        (LIMITER | {"samples_per_insert": "nan"}, "`samples_per_insert` must be a positive number"),
        (LIMITER | {"min_size": "1e300"}, "`min_size` must be at most"),
        (LIMITER | {"min_size": "2.5"}, "`min_size` must be a positive integer"),
        ({"retain_steps": "0"}, "`retain_steps` must be at least 1"),
        ({"retain_steps": "9" * 400}, "`retain_steps` must be"),
    ],
)
@pytest.mark.parametrize("headers", [HTML, IN_PLACE])
def test_what_is_refused_says_so_above_the_form_and_stays_typed(
    tuned: Api, typed: dict, words: str, headers: dict
) -> None:
    """422 with the sentence of the API in the panel; what was typed is still there, and nothing changed."""
    before = tuned.get(f"{URL}/tuned").json()["config"]
    refused = submit(tuned, form_of(tuned.get(PAGE), "#controls"), headers, **typed)

    assert (refused.status_code, words in panel_of(refused, "controls")) == (422, True), refused.text
    assert "must" not in panel_of(refused, "snapshots")
    shown = {tag["name"]: tag["value"] for tag in form_of(refused, "#controls").select("input")}
    assert {name: shown[name] for name in typed if name != "durability"} == {
        name: value for name, value in typed.items() if name != "durability"
    }
    assert tuned.get(f"{URL}/tuned").json()["config"] == before


def test_a_form_sent_in_place_is_answered_with_the_page(tuned: Api) -> None:
    """What else shows the durability is in the same answer, and the panel says that it is saved."""
    saved = submit(tuned, form_of(tuned.get(PAGE), "#controls"), IN_PLACE, durability="none")

    assert (saved.status_code, "Saved." in panel_of(saved, "controls")) == (200, True)
    assert panel_of(saved, "risk") == "memory only" and "none" in panel_of(saved, "schema")
    assert "Saved." not in tuned.get(PAGE).text


def test_only_what_a_buffer_has_is_offered(tuned: Api) -> None:
    """A queue has no limiter, and without a vault nothing is retained there."""
    queue = {
        "name": "line", "kind": "trajectory_queue", "spec": SPEC, "add_batch_size": 2,
        "add_sequence_length": 4, "sample_sequence_length": 4, "max_length_time_axis": 16,
    }  # fmt: skip
    tuned.put(f"{URL}/line", json=queue)
    form = form_of(tuned.get("/buffers/line"), "#controls")

    assert [tag["name"] for tag in form.select("input, select")] == ["durability"]
    assert submit(tuned, form, durability="os").status_code == 303
    assert tuned.get(f"{URL}/line").json()["durability"] == "os"


def test_how_long_a_writer_may_be_idle_is_changed_there(tuned: Api) -> None:
    """The form of a buffer of independent writers shows it and changes it; left blank, it is refused."""
    sizes = {"max_length": 60, "min_length": 1, "sample_batch_size": 2, "add_batch_size": 3}
    made = {"name": "paced", "kind": "flat", "spec": SPEC, "writers": "independent"} | sizes
    assert tuned.put(f"{URL}/paced", json=made).status_code == 201
    form = form_of(tuned.get("/buffers/paced"), "#controls")
    shown = [tag["value"] for tag in form.select("input[name=idle_end_s]")]

    assert shown == ["60"] and submit(tuned, form, idle_end_s="2.5").status_code == 303
    assert tuned.get(f"{URL}/paced").json()["config"]["idle_end_s"] == 2.5
    refused = submit(tuned, form, idle_end_s="")
    assert "`idle_end_s` must be a number of seconds from 1 to 86400" in panel_of(refused, "controls")


def test_a_snapshot_is_taken_restored_and_deleted(tuned: Api) -> None:
    """Each by its button: the new buffer draws the same items; a name that exists is refused in place."""
    page = tuned.get(PAGE)
    assert "None yet." in panel_of(page, "snapshots")
    taken = submit(tuned, form_of(page, "#snapshots"))
    assert (taken.status_code, taken.headers["location"]) == (303, f"{PAGE}#snapshots")
    (snapshot,) = tuned.get(f"{URL}/tuned/snapshots").json()["items"]
    page = tuned.get(PAGE)
    assert "1 in all Take a snapshot just now 40 timesteps" in panel_of(page, "snapshots")
    assert tuned.get(f"{PAGE}.json").json()["snapshots"][0]["id"] == snapshot["id"]
    restore = form_of(page, "#snapshots li")

    refused = submit(tuned, restore, IN_PLACE, name="tuned")
    assert (refused.status_code, "`name` must be new" in panel_of(refused, "snapshots")) == (409, True)
    assert submit(tuned, restore, name="a b").status_code == 422
    assert submit(tuned, restore).headers["location"] == "/buffers/tuned-again"
    samples = [tuned.get(f"{URL}/{n}/sample?seed=1&peek=true").content for n in ("tuned", "tuned-again")]
    assert samples[0] == samples[1]
    config = panel_of(tuned.get("/buffers/tuned-again"), "config")
    assert f"Began with snapshot {snapshot['id']}" in config
    delete = BeautifulSoup(page.text, "html.parser").select("#snapshots li form")[1]
    assert "None yet." in panel_of(submit(tuned, delete, IN_PLACE), "snapshots")
    assert submit(tuned, delete).status_code == 404


def test_a_buffer_that_began_with_a_vault_says_of_what(tuned: Api) -> None:
    """Its page names the vault and the part in the words of the request."""
    tuned.post("/api/v1/vaults/tuned/run1/versions", json={})
    source = {"vault": "tuned/run1", "ref": "v1", "percentiles": [0, 50]}
    answer = tuned.post(URL, json=buffer_body("tuned-again", **{"from": source}))
    assert answer.status_code == 201, answer.text

    shown = panel_of(tuned.get("/buffers/tuned-again"), "config")
    assert "Began with vault tuned/run1, ref v1, percentiles [0, 50]" in shown


def test_a_restored_buffer_is_led_to_in_place_too(tuned: Api) -> None:
    """htmx is told where to go; it would put the other buffer's panel into this page."""
    submit(tuned, form_of(tuned.get(PAGE), "#snapshots"))
    restored = submit(tuned, form_of(tuned.get(PAGE), "#snapshots li"), IN_PLACE)

    assert (restored.status_code, restored.headers["hx-redirect"]) == (200, "/buffers/tuned-again")


@pytest.mark.parametrize(
    ("path", "given", "status", "code"),
    [
        ("controls", {"content": b"colour=red"}, 422, "not_supported"),
        ("controls", {"content": b"durability=os&durability=none"}, 422, "invalid_argument"),
        ("controls", {"content": b"durability=%ff"}, 422, "malformed_body"),
        ("controls", {"content": b"a=1&" * 70}, 422, "malformed_body"),
        ("controls", {"content": b"durability=" + b"x" * 70_000}, 413, "body_too_large"),
        ("controls", {"json": {"durability": "os"}}, 415, "unsupported_media_type"),
        ("controls?dry_run=true", {"content": b"durability=os"}, 422, "not_supported"),
        ("snapshots", {"content": b"name=x"}, 422, "not_supported"),
        ("snapshots/0/restore", {"content": b"name=x"}, 404, "not_found"),
        ("snapshots/" + "0" * 16 + "/delete", {}, 404, "not_found"),
        ("snapshots/..%2f..%2fx/delete", {}, 404, "not_found"),
        ("controls", {"content": b"", "headers": {"origin": "http://evil.example"}}, 403, "cross_site"),
    ],
)
def test_what_is_no_such_form_is_refused(tuned: Api, path: str, given: dict, status: int, code: str) -> None:
    """Other fields, bodies and sites: a problem that names what must change; nothing is made or changed."""
    headers = {"content-type": "application/x-www-form-urlencoded"} if "content" in given else {}
    answer = tuned.post(f"{PAGE}/{path}", **given | {"headers": headers | given.get("headers", {})})

    if answer.headers["content-type"].startswith("text/html"):
        assert answer.status_code == status
    else:
        assert_refused(answer, status, code)
    assert tuned.get(f"{URL}/tuned").json()["durability"] == "fsync"


@pytest.mark.parametrize("path", ["controls", "snapshots", f"snapshots/{'0' * 16}/restore"])
def test_forms_of_nothing_are_not_found(api: Api, path: str) -> None:
    """A buffer that is not there, or was deleted meanwhile, is 404 as a page."""
    answer = api.post(f"/buffers/nobody/{path}", headers=HTML)

    assert (answer.status_code, "text/html" in answer.headers["content-type"]) == (404, True)
