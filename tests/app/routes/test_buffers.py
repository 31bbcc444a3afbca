"""Buffers over HTTP: made, found again, listed, described, removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.schemas.buffers import BufferPublic
from tests.app.support import SPEC, Api, assert_refused, buffer_body, send, serve, steps

URL = "/api/v1/buffers"


def make(api: Api, name: str, **given) -> dict:
    """Make a buffer."""
    answer = api.post(URL, json=buffer_body(name, **given))
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_created_buffer_answers_with_its_effective_sizes(api: Api) -> None:
    """63 over 2 rows becomes 31 a row and 62 in all, and a warning says what was cut."""
    made = make(api, "sizes", max_length=63)

    BufferPublic.model_validate(made)
    assert (made["rows"], made["time_axis"], made["capacity"]) == (2, 31, 62)
    assert made["warnings"] and "62" in made["warnings"][0] + str(made["capacity"])
    assert (made["size"], made["added"], made["sampled"], made["is_full"]) == (0, 0, 0, False)
    assert made["spec"] == SPEC
    assert made["needed"] == 5  # Flashbax: 8 // 2 + 1, a transition has two steps
    assert api.get(f"{URL}/sizes").json() == made


def test_location_names_the_new_buffer(api: Api) -> None:
    """`Location` of 201 is where GET finds the buffer."""
    answer = api.post(URL, json=buffer_body("located"))

    assert api.get(answer.headers["location"]).json()["name"] == "located"


def test_a_second_post_is_refused_and_changes_nothing(api: Api) -> None:
    """POST of an existing name is 409, also with another configuration."""
    made = make(api, "twice")

    assert_refused(
        api.post(URL, json=buffer_body("twice", max_length=128)), 409, "exists", "`name`", "'twice'"
    )
    assert api.get(f"{URL}/twice").json() == made


def test_put_can_be_run_twice(api: Api) -> None:
    """PUT makes, then finds; another configuration is 409 and says how it differs."""
    body = buffer_body("put")

    assert api.put(f"{URL}/put", json=body).status_code == 201
    assert api.put(f"{URL}/put", json=body).status_code == 200
    problem = assert_refused(
        api.put(f"{URL}/put", json=body | {"max_length": 128}), 409, "config_differs", "`max_length`"
    )
    assert problem["difference"] == {"max_length": {"is": 64, "given": 128}}


def test_put_takes_defaults_for_what_is_left_out(api: Api) -> None:
    """A default written out is no difference."""
    api.put(f"{URL}/defaults", json=buffer_body("defaults"))

    again = api.put(f"{URL}/defaults", json=buffer_body("defaults", durability="fsync", add_sequences=False))
    assert again.status_code == 200, again.text


def test_put_refuses_another_name_in_the_body(api: Api) -> None:
    """The path names the buffer."""
    assert_refused(
        api.put(f"{URL}/one", json=buffer_body("other")), 422, "invalid_argument", "`name`", "'one'"
    )


def test_a_dry_run_answers_the_same_and_makes_nothing(api: Api) -> None:
    """`dry_run=true` is 200 with the effective sizes, and the buffer does not exist after."""
    answer = api.post(f"{URL}?dry_run=true", json=buffer_body("dry"))

    assert answer.status_code == 200
    assert_refused(api.get(f"{URL}/dry"), 404, "not_found", "'dry'")
    made = make(api, "dry")
    assert {k: v for k, v in answer.json().items() if k != "created_at"} == {
        k: v for k, v in made.items() if k != "created_at"
    }


def test_a_dry_run_of_put_makes_nothing_and_finds_what_is_there(api: Api) -> None:
    """It answers 200 before and after, and 409 where the configuration differs."""
    url, changed = f"{URL}/dry-put?dry_run=true", buffer_body("dry-put", sample_batch_size=5)

    before = api.put(url, json=buffer_body("dry-put"))
    assert_refused(api.get(f"{URL}/dry-put"), 404, "not_found", "'dry-put'")
    make(api, "dry-put")
    after = api.put(url, json=buffer_body("dry-put"))
    assert (before.status_code, after.status_code) == (200, 200)
    assert_refused(api.put(url, json=changed), 409, "config_differs", "`sample_batch_size`")
    assert_refused(
        api.post(f"{URL}?dry_run=true&dry_run=false", json=changed), 422, "invalid_argument", "`dry_run`"
    )


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"kind": "data_buffer"}, "not_supported", "kind"),
        ({"kind": "magic"}, "invalid_argument", "kind"),
        ({"kind": None}, "invalid_argument", "kind"),
        ({"kind": ["flat"]}, "invalid_argument", "kind"),
        ({"writers": "both"}, "invalid_argument", "writers"),
        ({"idle_end_s": 5}, "invalid_argument", "idle_end_s"),
        ({"from": {"snapshot": 7}}, "invalid_argument", "snapshot"),
        ({"colour": "red"}, "invalid_argument", "colour"),
        ({"max_length": "many"}, "invalid_argument", "max_length"),
        ({"max_length": 0}, "invalid_argument", "max_length"),
        ({"max_length": 10**15}, "limit_exceeded", "max_length"),
        ({"max_length": 10**30}, "invalid_argument", "max_length"),
        ({"max_length": True}, "invalid_argument", "max_length"),
        ({"add_batch_size": 5000, "max_length": 50_000}, "limit_exceeded", "add_batch_size"),
        ({"add_batch_size": 2**31}, "limit_exceeded", "`add_batch_size` must"),
        ({"max_length": 2**31}, "limit_exceeded", "`max_length` must"),
        ({"sample_batch_size": 65}, "invalid_argument", "sample_batch_size"),
        ({"priority_exponent": 2.0}, "invalid_argument", "priority_exponent"),
        ({"durability": "maybe"}, "invalid_argument", "durability"),
        ({"durability": ["os"]}, "invalid_argument", "durability"),
        ({"persist_to": "../x"}, "invalid_argument", "persist_to"),
        ({"persist_to": "a/../../b"}, "invalid_argument", "persist_to"),
        ({"persist_to": "/etc/passwd"}, "invalid_argument", "persist_to"),
        ({"rate_limiter": {"samples_per_insert": 1}}, "invalid_argument", "rate_limiter"),
        ({"spec": {}}, "invalid_argument", "spec"),
        ({"spec": None}, "invalid_argument", "spec"),
        ({"spec": {"x": {"shape": [2], "dtype": "object"}}}, "invalid_argument", "dtype"),
        ({"spec": {"x": {"shape": [-1], "dtype": "int32"}}}, "invalid_argument", "shape"),
        ({"spec": {"x": {"shape": [1] * 40, "dtype": "int32"}}}, "invalid_argument", "shape"),
        (
            {"spec": {"a/b": {"shape": [], "dtype": "int32"}, "a.b": {"shape": [], "dtype": "int32"}}},
            "invalid_argument",
            "spec",
        ),
        ({"spec": {"..": {"shape": [], "dtype": "int32"}}}, "invalid_argument", ".."),
        ({"spec": {"x\0": {"shape": [], "dtype": "int32"}}}, "invalid_argument", "spec"),
        ({"spec": {str(i): {"shape": [], "dtype": "int32"} for i in range(300)}}, "invalid_argument", "spec"),
    ],
)
def test_a_wrong_configuration_names_its_field_and_makes_nothing(
    api: Api, change: dict, code: str, field: str
) -> None:
    """Each wrong field is 422 with the field's name in the sentence or place, by POST, PUT and dry run."""
    before = api.get(URL).json()

    for answer in (
        api.post(URL, json=buffer_body("wrong", **change)),
        api.put(f"{URL}/wrong", json=buffer_body("wrong", **change)),
        api.post(f"{URL}?dry_run=true", json=buffer_body("wrong", **change)),
    ):
        problem = assert_refused(answer, 422, code)
        assert field in problem["detail"] + str(problem["errors"]), problem
    assert api.get(URL).json() == before


TRAJECTORY = {
    "kind": "trajectory", "spec": SPEC, "add_batch_size": 2, "sample_batch_size": 4, "period": 2,
    "sample_sequence_length": 4, "min_length_time_axis": 8, "max_size": 64,
}  # fmt: skip
QUEUE = {
    "kind": "trajectory_queue", "spec": SPEC, "add_batch_size": 2, "add_sequence_length": 4,
    "sample_sequence_length": 4, "max_size": 64,
}  # fmt: skip
WIDE = {"x": {"shape": [1 << 20], "dtype": "uint8"}}


@pytest.mark.parametrize(
    ("body", "change", "name"),
    [
        (TRAJECTORY, {"period": 2**31}, "period"),
        (TRAJECTORY, {"max_size": 2**31 - 1}, "max_size"),
        (TRAJECTORY, {"max_size": None, "max_length_time_axis": 2**30 - 1}, "max_length_time_axis"),
        (TRAJECTORY, {"add_batch_size": 2**31}, "add_batch_size"),
        (QUEUE, {"add_batch_size": 2**31}, "add_batch_size"),
        (QUEUE, {"max_size": 2**31 - 1}, "max_size"),
        (QUEUE, {"spec": WIDE, "add_batch_size": 1024, "max_size": 4096}, "add_batch_size"),
    ],
)
def test_a_size_too_great_is_named_by_the_argument_that_was_typed(
    api: Api, body: dict, change: dict, name: str
) -> None:
    """Whatever limit it breaks: 32 bits, rows, memory, or the items of an answer."""
    problem = api.post(URL, json={"name": "great", **body, **change}).json()

    assert (problem["status"], problem["errors"][0]["loc"]) == (422, [name]), problem
    assert problem["detail"].startswith(f"`{name}` must")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a\\..\\b", "x" * 300, "null\0byte", "-dash", "é", " x", None, 7, ["x"]],
)
def test_a_wrong_name_is_refused_and_no_file_is_made(tmp_path: Path, api: Api, name: object) -> None:
    """Names that are no plain names, WB-07, are 422 with the rule in the sentence."""
    assert_refused(
        api.post(URL, json=buffer_body("x") | {"name": name}), 422, "invalid_argument", "`name` must match"
    )


@pytest.mark.parametrize("path", ["..%2fx", "%2e%2e", "a%2f..%2f..%2fb", "a%00b", "x" * 300, "a%5c..%5cb"])
def test_a_wrong_name_in_a_path_is_not_found(api: Api, path: str) -> None:
    """Paths that lead elsewhere are 404 or 422 for every verb, never a file."""
    for method in ("GET", "PUT", "DELETE"):
        answer = api.request(method, f"{URL}/{path}", json=buffer_body("ok") if method == "PUT" else None)
        assert answer.status_code in (404, 405, 422), answer.text
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nul", b'"x"', b"\xff\xfe", b'{"a":' * 100_000, b"NaN"])
def test_a_body_that_is_no_json_object_is_refused(api: Api, body: bytes) -> None:
    """Broken JSON is 422 for every resource that takes JSON."""
    for method, url in (("POST", URL), ("PUT", f"{URL}/x"), ("POST", "/api/v1/vaults")):
        answer = api.request(method, url, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_unknown_parameters_are_named_and_never_ignored(api: Api) -> None:
    """`?dryrun=1` is 422 naming it, and nothing is made."""
    problem = assert_refused(
        api.post(f"{URL}?dryrun=1", json=buffer_body("typo")), 422, "not_supported", "`dryrun`"
    )

    assert problem["errors"][0]["loc"] == ["query", "dryrun"]
    assert_refused(api.get(f"{URL}/typo"), 404, "not_found")


def test_a_list_is_cut_into_pages_that_hold_each_buffer_once(api: Api) -> None:
    """Following `next` with limit 2 gives every buffer once, by name; `Link` says the same."""
    for name in ("page-a", "page-b", "page-c", "page-d", "page-e"):
        make(api, name)
    names, url = [], f"{URL}?query=page-&limit=2"
    while url:
        answer = api.get(url)
        names += [item["name"] for item in answer.json()["items"]]
        assert answer.json()["total"] == {"value": 5, "exact": True}
        link = answer.headers.get("link")
        assert (link is None) == (answer.json()["next"] is None)
        url = link[1 : link.index(">")] if link else None

    assert names == [f"page-{letter}" for letter in "abcde"]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "next=!!", "next=W10", "offset=3"])
def test_wrong_list_parameters_are_refused(api: Api, query: str) -> None:
    """Limits outside 1 to 500 and a `next` that is not ours are 422 naming the parameter."""
    answer = api.get(f"{URL}?{query}")

    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.json()["detail"]


def test_a_buffer_with_data_that_lie_nowhere_else_is_not_deleted(api: Api) -> None:
    """DELETE is 409 with the number of timesteps, until `discard=true`."""
    make(api, "precious")
    send(api, f"{URL}/precious/experience", steps(2, 3))

    problem = assert_refused(
        api.delete(f"{URL}/precious"), 409, "unpersisted_data", "6 timesteps", "discard=true"
    )
    assert problem["unpersisted"] == 6
    assert_refused(api.post(f"{URL}/precious/reset"), 409, "unpersisted_data")
    assert api.get(f"{URL}/precious").json()["size"] == 6
    assert api.delete(f"{URL}/precious?discard=true").status_code == 204
    assert_refused(api.get(f"{URL}/precious"), 404, "not_found")
    assert make(api, "precious")["size"] == 0


def test_an_empty_buffer_is_deleted_without_asking(api: Api) -> None:
    """Nothing can be lost, so 204."""
    make(api, "empty")

    assert api.delete(f"{URL}/empty").status_code == 204


@pytest.mark.parametrize("path", [f"{URL}/bare/reset", f"{URL}/bare/snapshot", "/api/v1/scan"])
def test_a_body_where_none_is_served_is_not_ignored(api: Api, path: str) -> None:
    """What a caller meant by it would not happen."""
    api.put(f"{URL}/bare", json=buffer_body("bare"))

    assert_refused(api.post(path, json={"discard": True}), 422, "not_supported", "`body`")
    assert api.post(path).status_code < 300


def test_reset_forgets_the_items(api: Api) -> None:
    """After reset the size is 0, and `added` still counts all there ever were."""
    make(api, "reset")
    send(api, f"{URL}/reset/experience", steps(2, 5))

    answer = api.post(f"{URL}/reset/reset?discard=true")
    assert (answer.json()["size"], answer.json()["position"], answer.json()["added"]) == (0, 0, 10)
    assert_refused(api.get(f"{URL}/reset/sample"), 409, "not_enough_data")


def test_a_persisted_buffer_is_deleted_and_its_vault_stays(api: Api) -> None:
    """Nothing is lost with the buffer, so DELETE needs no word; the vault has every step."""
    make(api, "kept", persist_to="kept/run1")
    send(api, f"{URL}/kept/experience", steps(2, 5))

    assert api.delete(f"{URL}/kept").status_code == 204
    assert api.get("/api/v1/vaults/kept/run1").json()["length"] == 5


def test_two_buffers_never_write_one_vault(api: Api) -> None:
    """`persist_to` of a vault in use is 409 and leaves no buffer behind."""
    make(api, "first", persist_to="shared/run1")

    answer = api.post(URL, json=buffer_body("second", persist_to="shared/run1"))
    assert_refused(answer, 409, "vault_in_use", "`persist_to`", "'first'")
    assert_refused(api.get(f"{URL}/second"), 404, "not_found")


def test_a_vault_is_continued_only_with_equal_spec_and_rows(api: Api) -> None:
    """A later buffer of the same spec goes on behind what is there; another spec is 409, nothing changes."""
    make(api, "before", persist_to="continued/run1")
    send(api, f"{URL}/before/experience", steps(2, 5))
    api.delete(f"{URL}/before")

    other = buffer_body("other", persist_to="continued/run1") | {
        "spec": {"x": {"shape": [], "dtype": "int32"}}
    }
    assert_refused(api.post(URL, json=other), 409, "vault_differs", "`persist_to`")
    rows = buffer_body("other", persist_to="continued/run1", add_batch_size=4)
    assert_refused(api.post(URL, json=rows), 409, "vault_differs", "`persist_to`")
    made = make(api, "after", persist_to="continued/run1")
    assert made["size"] == 0  # it refills only from what it wrote itself
    send(api, f"{URL}/after/experience", steps(2, 3, start=5))
    assert api.get("/api/v1/vaults/continued/run1").json()["length"] == 8


def test_what_a_buffer_keeps_for_good_cannot_be_changed(api: Api) -> None:
    """PATCH names the field and the fields that can be, and applies none of the others."""
    make(api, "fixed")

    for field, value in {"max_length": 9, "spec": {}, "persist_to": "a/b", "name": "x", "colour": 1}.items():
        given = {"durability": "os", field: value}
        refused = assert_refused(api.patch(f"{URL}/fixed", json=given), 422, "not_supported", f"`{field}`")
        assert refused["errors"][0]["loc"] == [field] and "`rate_limiter`" in refused["detail"]
    assert api.patch(f"{URL}/fixed", json={}).json()["durability"] == "fsync"


def test_limiter_and_durability_change_while_a_buffer_runs(api: Api) -> None:
    """GET, PUT and what is durable follow; null takes the limiter away; a wrong one is 422."""
    tight = {"samples_per_insert": 4.0, "min_size": 8, "error_buffer": 50.0}
    given, looser = buffer_body("running", rate_limiter=tight), tight | {"error_buffer": 500.0}
    make(api, "running", rate_limiter=tight)
    changed = api.patch(f"{URL}/running", json={"rate_limiter": looser, "durability": "os"})
    added = send(api, f"{URL}/running/experience", steps(2, 1))

    assert changed.status_code == 200, changed.text
    assert changed.json()["limiter"]["error_buffer"] == 500 and added.json()["durable"] is False
    problem = assert_refused(api.put(f"{URL}/running", json=given), 409, "config_differs")
    assert set(problem["difference"]) == {"rate_limiter", "durability"}
    same = given | {"rate_limiter": looser, "durability": "os"}
    assert api.put(f"{URL}/running", json=same).status_code == 200
    wrong = {"rate_limiter": tight | {"error_buffer": 0.5}, "durability": "none"}
    assert_refused(api.patch(f"{URL}/running", json=wrong), 422, "invalid_argument", "`error_buffer`")
    assert api.patch(f"{URL}/running", json={"rate_limiter": None}).json()["limiter"] is None
    assert api.get(f"{URL}/running").json()["durability"] == "os"
    assert_refused(api.patch(f"{URL}/nobody", json={}), 404, "not_found")


def test_stats_histogram_and_timeseries_tell_of_the_same_buffer(api: Api) -> None:
    """After 2 x 10 steps: 20 added, 18 transitions of priority 1, and a series of sizes."""
    make(api, "numbers")
    send(api, f"{URL}/numbers/experience", steps(2, 10))

    stats = api.get(f"{URL}/numbers/stats").json()
    histogram = api.get(f"{URL}/numbers/histogram?field=priority&bins=7").json()
    series = api.get(f"{URL}/numbers/timeseries?metric=size&points=10").json()
    assert (stats["added"], stats["size"]) == (20, 20)
    assert (histogram["count"], sum(histogram["counts"]), histogram["exact"]) == (18, 18, True)
    assert len(series["times"]) == len(series["values"])


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("histogram?field=colour", "field"),
        ("histogram?field=times_sampled", "field"),
        ("histogram", "field"),
        ("histogram?field=age&bins=0", "bins"),
        ("timeseries?metric=colour", "metric"),
        ("timeseries", "metric"),
        ("timeseries?metric=size&points=0", "points"),
    ],
)
def test_wrong_statistics_are_refused(api: Api, url: str, field: str) -> None:
    """Unknown fields and metrics are 422 naming the parameter."""
    api.put(f"{URL}/asked", json=buffer_body("asked"))

    answer = api.get(f"{URL}/asked/{url}")
    assert answer.status_code == 422
    assert f"`{field}`" in answer.json()["detail"]


def test_a_link_in_the_data_directory_is_never_followed(tmp_path: Path) -> None:
    """A buffer or vault that is a link elsewhere is refused, and nothing is written there, WB-07."""
    outside = tmp_path / "outside"
    outside.mkdir()
    with serve(tmp_path / "data") as api:
        (tmp_path / "data/buffers/linked").symlink_to(outside)
        (tmp_path / "data/vaults/linked").symlink_to(outside)

        assert_refused(api.post(URL, json=buffer_body("linked")), 422, "link_in_path", "'linked'")
        assert_refused(
            api.post(URL, json=buffer_body("ok", persist_to="linked/x")), 422, "link_in_path", "'linked'"
        )
        vault = {"vault_name": "linked", "vault_uid": "x", "spec": SPEC}
        assert_refused(api.post("/api/v1/vaults", json=vault), 422, "link_in_path", "'linked'")
    assert list(outside.iterdir()) == []
    with serve(tmp_path / "data") as api:
        assert_refused(api.get(f"{URL}/linked"), 404, "not_found")
