"""Vaults over HTTP: made, found, listed, appended to; on both databases."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from app.schemas.vaults import VaultPublic, VaultSummary
from fbxcore.spec import parse_spec
from fbxcore.vault import VaultReader
from fbxcore.vault.store import VaultWriter
from tests.app.support import SPEC, Api, arrays_of, assert_refused, buffer_body, send, serve, steps

URL = "/api/v1/vaults"


def make(api: Api, name: str, uid: str = "run1", **given) -> dict:
    """Make a vault of two rows."""
    body = {"vault_name": name, "vault_uid": uid, "spec": SPEC, "rows": 2} | given
    answer = api.post(URL, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_made_vault_is_empty_and_found_where_location_says(api: Api) -> None:
    """201 with length 0, the spec as given, metadata and fps; GET answers the same."""
    body = {
        "vault_name": "made",
        "vault_uid": "run1",
        "spec": SPEC,
        "rows": 2,
        "fps": 50.0,
        "metadata": {"env": "x"},
    }
    answer = api.post(URL, json=body)
    made = answer.json()

    VaultPublic.model_validate(made)
    assert (made["length"], made["pending"], made["rows"], made["read_only"]) == (0, 0, 2, False)
    assert (made["spec"], made["fps"], made["metadata"]) == (SPEC, 50.0, {"env": "x"})
    assert api.get(answer.headers["location"]).json() == made


def test_put_can_be_run_twice(api: Api) -> None:
    """PUT makes, then finds, also what was appended to and told more; another structure is 409 with it."""
    url, body = f"{URL}/put/run1", {"spec": SPEC, "rows": 2, "fps": 5, "metadata": {"env": "x", "seed": 1}}
    changes = {"rows": 3, "fps": 6.0, "metadata": {"env": "y"}, "spec": {"x": SPEC["reward"]}}

    made = api.put(url, json=body)
    assert made.status_code == 201, made.text
    assert send(api, f"{url}/experience", steps(2, 5)).status_code == 201
    api.patch(url, json={"metadata": {"note": "a"}})
    for given in (body, body | {"chunk_steps": 64, "vault_uid": "run1"}, {"spec": SPEC, "rows": 2}):
        found = api.put(url, json=given)
        assert (found.status_code, found.json()) == (200, api.get(url).json()), found.text
    for field, value in changes.items():
        problem = assert_refused(api.put(url, json=body | {field: value}), 409, "config_differs", f"`{field}")
        name = "metadata.env" if field == "metadata" else field
        assert problem["difference"] == {name: {"is": {**body, "metadata.env": "x"}[name], "given": value if
                                                       name == field else "y"}}  # fmt: skip


@pytest.mark.parametrize("fps", ["fast", True, [5], -1])
def test_what_is_no_rate_stays_in_the_metadata(api: Api, fps: object) -> None:
    """Metadata may say anything of `fps`, there and by PATCH: the vault and its page show it as it is."""
    body = {"vault_name": f"rate-{str(fps).strip('[]')}", "vault_uid": "1", "spec": SPEC, "rows": 1}
    made = api.post(URL, json=body | {"metadata": {"fps": fps}}).json()
    page = api.get(f"/vaults/{made['url']}")
    changed = api.patch(f"{URL}/{made['url']}", json={"metadata": {"fps": 25}}).json()

    assert (made["fps"], made["metadata"]) == (None, {"fps": fps})
    assert page.status_code == 200 and str(fps).replace("'", "&#39;") in page.text
    assert (changed["fps"], changed["metadata"]) == (25, {})


@pytest.mark.parametrize(
    ("path", "given", "field"),
    [("put/run2", {"vault_uid": "run3"}, "vault_uid"), ("a~b/run1", {}, "vault_name"),
     ("put/run2", {"rows": 2**31}, "rows"), ("put/run2", {"metadata": {"version": 1}}, "metadata"),
     ("put/run2", {"colour": 1}, "colour"), ("put/run2", {"chunk_steps": 2**40}, "chunk_steps")],
)  # fmt: skip
def test_put_refuses_what_post_refuses(api: Api, path: str, given: dict, field: str) -> None:
    """Another name than the path's, one that is none, and whatever breaks a rule; nothing is made."""
    answer = api.put(f"{URL}/{path}", json={"spec": SPEC} | given)

    assert (answer.status_code, f"`{field}` must" in answer.json()["detail"]) == (422, True), answer.text
    assert_refused(api.get(f"{URL}/put/run2"), 404, "not_found")


def test_many_putting_one_vault_make_it_once(api: Api) -> None:
    """Of eight at once one makes it and seven find it."""
    with ThreadPoolExecutor(8) as pool:
        body = {"spec": SPEC, "rows": 2}
        found = list(pool.map(lambda _: api.put(f"{URL}/crowd/run1", json=body).status_code, range(8)))

    assert sorted(found) == [200] * 7 + [201]


def test_put_finds_what_lies_there_and_refuses_what_is_not_ours(tmp_path: Path) -> None:
    """A vault that no scan has seen yet is found; one of the other folder cannot be appended to: 409."""
    for folder in ("data/vaults", "other"):
        VaultWriter.create(tmp_path / folder / folder[-4:] / "run1", parse_spec(SPEC), rows=2).close()
    with serve(tmp_path / "data", vaults=tmp_path / "other") as api:
        VaultWriter.create(tmp_path / "data/vaults/late/run1", parse_spec(SPEC), rows=2).close()
        body = {"spec": SPEC, "rows": 2}

        assert api.put(f"{URL}/late/run1", json=body).status_code == 200
        assert api.put(f"{URL}/ults/run1", json=body).status_code == 200
        assert_refused(api.put(f"{URL}/ther/run1", json=body), 409, "read_only")


def test_a_vault_without_uid_gets_the_time(api: Api) -> None:
    """The uid is 14 digits, as Flashbax makes it."""
    made = api.post(URL, json={"vault_name": "timed", "spec": SPEC}).json()

    assert made["vault_uid"].isdigit() and len(made["vault_uid"]) == 14
    assert made["rows"] == 1


def test_an_existing_vault_is_not_made_again(api: Api) -> None:
    """409, and nothing of it changes."""
    made = make(api, "again")

    answer = api.post(URL, json={"vault_name": "again", "vault_uid": "run1", "spec": {"x": SPEC["reward"]}})
    assert_refused(answer, 409, "exists", "`vault_uid`", "'again/run1'")
    assert api.get(f"{URL}/again/run1").json() == made


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"vault_name": "../x"}, "invalid_argument", "vault_name"),
        ({"vault_name": "a/b"}, "invalid_argument", "vault_name"),
        ({"vault_name": "/etc/passwd"}, "invalid_argument", "vault_name"),
        ({"vault_name": "x" * 300}, "invalid_argument", "vault_name"),
        ({"vault_name": "a\0b"}, "invalid_argument", "vault_name"),
        ({"vault_name": ""}, "invalid_argument", "vault_name"),
        ({"vault_name": None}, "invalid_argument", "vault_name"),
        ({"vault_uid": ".."}, "invalid_argument", "vault_uid"),
        ({"vault_uid": 3}, "invalid_argument", "vault_uid"),
        ({"spec": {}}, "invalid_argument", "spec"),
        ({"spec": {"x": {"shape": [2], "dtype": "float33"}}}, "invalid_argument", "float33"),
        ({"spec": 1}, "invalid_argument", "spec"),
        ({"rows": 0}, "invalid_argument", "rows"),
        ({"rows": 10**6}, "limit_exceeded", "rows"),
        ({"rows": "2"}, "invalid_argument", "rows"),
        ({"fps": -1}, "invalid_argument", "fps"),
        ({"metadata": {"version": 9}}, "invalid_argument", "version"),
        ({"metadata": {"structure_shape": {}}}, "invalid_argument", "structure_shape"),
        ({"metadata": {"x": "y" * 100_000}}, "invalid_argument", "metadata"),
        ({"chunk_steps": 0}, "invalid_argument", "chunk_steps"),
        ({"compression": "gzip"}, "invalid_argument", "`compression` must be"),
        ({"chunk_steps": {"nope": 4}}, "invalid_argument", "nope"),
        ({"compression": "gzip"}, "invalid_argument", "compression"),
        ({"compression": {"nope": "lz4"}}, "invalid_argument", "nope"),
        ({"colour": 1}, "not_supported", "colour"),
    ],
)
def test_a_wrong_vault_names_its_field_and_makes_nothing(
    api: Api, change: dict, code: str, field: str
) -> None:
    """Each wrong field is 422 with its name in the sentence, and no directory is made."""
    before = api.get(URL).json()["total"]

    answer = api.post(URL, json={"vault_name": "wrong", "vault_uid": "run1", "spec": SPEC} | change)
    assert field in assert_refused(answer, 422, code)["detail"]
    assert api.get(URL).json()["total"] == before


def test_a_missing_field_is_named(api: Api) -> None:
    """A vault without a name is 422 naming `vault_name`."""
    assert_refused(api.post(URL, json={"spec": SPEC}), 422, "invalid_argument", "`vault_name` must be given")


def test_a_body_over_the_limit_of_json_is_refused(api: Api) -> None:
    """2 MB of metadata are 413 before they are parsed."""
    answer = api.post(URL, json={"vault_name": "big", "spec": SPEC, "metadata": {"x": "y" * (2 << 20)}})

    assert_refused(answer, 413, "body_too_large")


def test_what_is_appended_is_read_back(api: Api) -> None:
    """Two appends are one time axis, in order, in every leaf; `added` counts both rows."""
    make(api, "append")

    first = send(api, f"{URL}/append/run1/experience", steps(2, 5))
    second = send(api, f"{URL}/append/run1/experience", steps(2, 3, start=5), format="npz")
    expected = {"added": 10, "length": 5, "vault_uid": "run1", "duplicate": False}
    assert (first.status_code, first.json()) == (201, expected)
    assert second.json() == {"added": 6, "length": 8, "vault_uid": "run1", "duplicate": False}
    read = arrays_of(api.get(f"{URL}/append/run1/slice"))
    for name, expected in steps(2, 8).items():
        np.testing.assert_array_equal(read[name], expected)
        assert read[name].dtype == expected.dtype


def test_a_layout_may_be_given(tmp_path: Path) -> None:
    """Chunks and compression of some leaves or of all, and what is appended is read back."""
    with serve(tmp_path) as api:
        make(api, "laid", chunk_steps={"obs/vector": 8}, compression={"obs/vector": "none", "reward": "lz4"})
        make(api, "laid", "run2", chunk_steps=4, compression="zstd")
        send(api, f"{URL}/laid/run1/experience", steps(2, 9))
        read = arrays_of(api.get(f"{URL}/laid/run1/slice"))
        np.testing.assert_array_equal(read["obs/vector"], steps(2, 9)["obs/vector"])

    with VaultReader.open(tmp_path / "vaults" / "laid" / "run1") as one:
        assert one.get("obs.vector./0.0.0") == steps(2, 8)["obs/vector"].tobytes()
        assert one.chunks("reward")[1] == 1024
    with VaultReader.open(tmp_path / "vaults" / "laid" / "run2") as two:
        assert {two.chunks(name)[1] for name in two.spec} == {4}


def test_an_append_is_counted_once(api: Api) -> None:
    """The same key at once and again is one append; a lower sequence is a duplicate."""
    make(api, "once")
    url, answers = f"{URL}/once/run1/experience", []
    call = lambda: answers.append(send(api, url, steps(2, 4), headers={"idempotency-key": "k"}))  # noqa: E731
    threads = [threading.Thread(target=call) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    assert sorted(answer.json()["duplicate"] for answer in answers) == [False, True, True]
    assert {answer.json()["length"] for answer in answers} == {4}
    other = send(api, url, steps(2, 5), headers={"idempotency-key": "k"})
    assert_refused(other, 409, "idempotency_conflict")
    taken = [send(api, f"{url}?writer=w&sequence={n}", steps(2, 1)).json()["duplicate"] for n in (2, 1, 2, 3)]
    assert taken == [False, True, True, False]
    assert api.get(f"{URL}/once/run1").json()["length"] == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e.pop("reward"), ["`reward`"]),
        (lambda e: e.update(x=e["reward"]), ["`x`"]),
        (lambda e: e.update(reward=e["reward"].astype(np.float64)), ["`reward`", "float32", "float64"]),
        (lambda e: e.update({n: x[:1] for n, x in e.items()}), ["2 rows"]),
        (lambda e: e.update({n: x[:, :0] for n, x in e.items()}), ["at least one"]),
    ],
)
def test_experience_of_another_structure_is_refused(api: Api, change, words: list[str]) -> None:
    """422 naming the leaf; the length stays."""
    api.post(URL, json={"vault_name": "strict", "vault_uid": "run1", "spec": SPEC, "rows": 2})
    given = steps(2, 3)
    change(given)

    assert_refused(send(api, f"{URL}/strict/run1/experience", given), 422, "structure_mismatch", *words)
    assert api.get(f"{URL}/strict/run1").json()["length"] == 0


def test_a_vault_that_a_buffer_fills_has_no_other_writer(api: Api) -> None:
    """Appending is 409 naming the buffer; reading works, and counts what is acknowledged."""
    api.post("/api/v1/buffers", json=buffer_body("filler", persist_to="filled/run1"))
    send(api, "/api/v1/buffers/filler/experience", steps(2, 6))

    problem = assert_refused(
        send(api, f"{URL}/filled/run1/experience", steps(2, 1)), 409, "vault_in_use", "'filler'"
    )
    assert problem["buffer"] == "filler"
    shown = api.get(f"{URL}/filled/run1").json()
    assert (shown["length"], shown["buffer"]) == (6, "filler")
    np.testing.assert_array_equal(
        arrays_of(api.get(f"{URL}/filled/run1/slice"))["action"], steps(2, 6)["action"]
    )


def test_a_buffer_takes_over_a_vault_that_was_appended_to(api: Api) -> None:
    """What was appended over HTTP is committed first, and nothing is there twice after."""
    make(api, "handed")
    send(api, f"{URL}/handed/run1/experience", steps(2, 4))

    answer = api.post("/api/v1/buffers", json=buffer_body("heir", persist_to="handed/run1"))
    assert answer.status_code == 201, answer.text
    send(api, "/api/v1/buffers/heir/experience", steps(2, 3, start=4))
    assert api.delete("/api/v1/buffers/heir").status_code == 204
    assert send(api, f"{URL}/handed/run1/experience", steps(2, 2, start=7)).json()["length"] == 9
    read = arrays_of(api.get(f"{URL}/handed/run1/slice"))["action"]
    np.testing.assert_array_equal(read, steps(2, 9)["action"])


def test_metadata_is_merged(api: Api) -> None:
    """PATCH adds, changes and takes away; other fields are not supported."""
    make(api, "notes", metadata={"env": "CartPole-v1", "seed": 1})

    answer = api.patch(f"{URL}/notes/run1", json={"metadata": {"seed": 2, "env": None, "who": "me"}})
    assert answer.json()["metadata"] == {"seed": 2, "who": "me"}
    assert api.get(f"{URL}/notes/run1").json()["metadata"] == {"seed": 2, "who": "me"}
    assert_refused(api.patch(f"{URL}/notes/run1", json={"rows": 3}), 422, "not_supported", "`rows`")


def test_unknown_vaults_are_not_found(api: Api) -> None:
    """Every resource of a vault says which there are."""
    make(api, "known")

    for method, path in [
        ("GET", ""),
        ("PATCH", ""),
        ("GET", "/slice"),
        ("GET", "/versions"),
        ("POST", "/versions"),
    ]:
        answer = api.request(method, f"{URL}/nobody/run1{path}", json={} if method != "GET" else None)
        assert_refused(answer, 404, "not_found", "'nobody/run1'")
    assert_refused(send(api, f"{URL}/nobody/run1/experience", steps(2, 1)), 404, "not_found", "'nobody/run1'")


@pytest.mark.parametrize(
    "path", ["..%2f..%2fetc/passwd", "%2e%2e/%2e%2e", "a%00b/run1", f"{'x' * 300}/run1", "~/x"]
)
def test_paths_that_lead_elsewhere_are_not_found(api: Api, path: str) -> None:
    """No path of a vault leaves the data directory, WB-07."""
    for suffix in ("", "/slice", "/versions"):
        answer = api.get(f"{URL}/{path}{suffix}")
        assert answer.status_code in (404, 422), answer.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/episodes"),
        ("GET", "/episodes/3"),
        ("GET", "/stats"),
        ("GET", "/diff?from=1&to=2"),
        ("POST", "/edits"),
    ],
)
def test_what_comes_later_says_so(api: Api, method: str, path: str) -> None:
    """Resources of the contract that are not served yet are 422 `not_supported`."""
    assert_refused(api.request(method, f"{URL}/any/run1{path}"), 422, "not_supported")


class TestLists:
    """Lists come from the mirror, on SQLite and on PostgreSQL alike."""

    @pytest.fixture(scope="class", autouse=True)
    def vaults(self, mirrored: Api) -> None:
        """Five vaults of lengths 3, 1, 4, 1, 5; two have tags."""
        for number, length in enumerate([3, 1, 4, 1, 5]):
            make(mirrored, f"list-{number}", f"run{length}")
            send(mirrored, f"{URL}/list-{number}/run{length}/experience", steps(2, length))
            if number in (1, 4):
                mirrored.post(f"{URL}/list-{number}/run{length}/versions", json={"tags": [f"best-{number}"]})
        mirrored.post("/api/v1/scan")

    @pytest.mark.parametrize("sort", ["name", "-name", "length", "-length", "updated_at", "-updated_at"])
    def test_pages_hold_each_vault_once_in_order(self, mirrored: Api, sort: str) -> None:
        """Following `next` with limit 2 visits all five once, sorted as asked."""
        items, url = [], f"{URL}?limit=2&sort={sort}"
        while url:
            answer = mirrored.get(url)
            assert answer.status_code == 200, answer.text
            items += answer.json()["items"]
            assert answer.json()["total"] == {"value": 5, "exact": True}
            link = answer.headers.get("link")
            url = link[1 : link.index(">")] if link else None

        assert sorted(item["vault_name"] for item in items) == [f"list-{n}" for n in range(5)]
        key = {"name": "vault_name"}.get(sort.removeprefix("-"), sort.removeprefix("-"))
        values = [item[key] for item in items]
        assert values == sorted(values, reverse=sort.startswith("-"))

    def test_a_query_matches_names_and_tags(self, mirrored: Api) -> None:
        """Part of a name, in any case, or of a tag; `%` and `_` mean themselves."""

        def found(query):
            return [i["vault_name"] for i in mirrored.get(URL, params={"query": query}).json()["items"]]  # noqa: E731

        assert found("LIST-3") == ["list-3"]
        assert found("3/run") == ["list-3"]
        assert found("best") == ["list-1", "list-4"]
        assert found("st_") == found("%") == []

    def test_items_hold_stored_columns(self, mirrored: Api) -> None:
        """Each item has spec, lengths, versions and tags, as the vault itself answers them."""
        for item in mirrored.get(URL).json()["items"]:
            VaultSummary.model_validate(item)
            shown = mirrored.get(f"{URL}/{item['url']}").json()
            assert (item["length"], item["spec"]) == (shown["length"], shown["spec"])
            assert (item["versions"], item["tags"]) == (shown["versions"], list(shown["tags"]))

    @pytest.mark.parametrize(
        "query", ["sort=colour", "limit=0", "limit=501", "next=x", "next=WyJhIl0", "query=%00", "offset=1"]
    )
    def test_wrong_parameters_are_refused(self, mirrored: Api, query: str) -> None:
        """422 naming the parameter, from both databases."""
        answer = mirrored.get(f"{URL}?{query}")

        assert answer.status_code == 422, answer.text
        assert f"`{query.partition('=')[0]}`" in answer.json()["detail"]

    def test_a_cursor_of_another_sort_is_refused(self, mirrored: Api) -> None:
        """`next` of a list by name does not fit one by length."""
        cursor = mirrored.get(f"{URL}?limit=1").json()["next"]

        assert_refused(
            mirrored.get(f"{URL}?limit=1&sort=length&next={cursor}"), 422, "invalid_argument", "`next`"
        )

    def test_many_writers_and_readers_at_once(self, mirrored: Api) -> None:
        """Six threads append, make versions, list and scan; every step is there once, nothing fails."""
        for number in range(6):
            make(mirrored, f"busy-{number}")
        failures: list[str] = []

        def work(number: int) -> None:
            url = f"{URL}/busy-{number}/run1"
            for turn in range(5):
                answers = [
                    send(mirrored, f"{url}/experience", steps(2, 2, start=2 * turn)),
                    mirrored.post(f"{url}/versions", json={"tags": ["newest"]}),
                    mirrored.get(f"{URL}?sort=-length"),
                    mirrored.post("/api/v1/scan"),
                    mirrored.get(url),
                ]
                failures.extend(answer.text for answer in answers if answer.status_code >= 400)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]

        assert failures == []
        for number in range(6):
            read = arrays_of(mirrored.get(f"{URL}/busy-{number}/run1/slice?ref=newest"))
            np.testing.assert_array_equal(read["action"], steps(2, 10)["action"])


@pytest.mark.parametrize("writer", ["buffer", "vault"])
def test_lists_follow_what_is_recorded(tmp_path: Path, writer: str) -> None:
    """Without anybody opening the vault, its bytes, generation and time in the list grow with it."""
    with serve(tmp_path, mirror_interval_s=0.05) as api:
        if writer == "buffer":
            api.post("/api/v1/buffers", json=buffer_body("walk", persist_to="walk/run1"))
        else:
            make(api, "walk")
        before = api.get(URL).json()["items"][0]
        url = "/api/v1/buffers/walk" if writer == "buffer" else f"{URL}/walk/run1"
        send(api, f"{url}/experience", steps(2, 1024))
        deadline = time.monotonic() + 10
        while (now := api.get(URL).json()["items"][0])["live_bytes"] == before["live_bytes"] or now[
            "pending"
        ]:
            assert time.monotonic() < deadline, now
            time.sleep(0.02)

        assert now["length"] == 1024
        assert now["disk_bytes"] > before["disk_bytes"] and now["live_bytes"] > before["live_bytes"]
        assert now["updated_at"] > before["updated_at"]
