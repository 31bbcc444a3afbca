"""Versions and tags over HTTP."""

from __future__ import annotations

import pytest

from app.schemas.vaults import TagPublic, VersionPublic
from fbxcore.vault.store import VaultReader
from tests.app.support import SPEC, Api, assert_refused, buffer_body, send, steps

URL = "/api/v1/vaults"


@pytest.fixture
def vault(api: Api, request: pytest.FixtureRequest) -> str:
    """A vault of its own with versions 1 (3 steps) and 2 (5 steps)."""
    name = f"v{abs(hash(request.node.nodeid))}"
    url = f"{URL}/{name}/run1"
    body = {"vault_name": name, "vault_uid": "run1", "spec": SPEC, "rows": 2}
    assert api.post(URL, json=body).status_code == 201
    send(api, f"{url}/experience", steps(2, 3))
    api.post(f"{url}/versions", json={"message": "three"})
    send(api, f"{url}/experience", steps(2, 2, start=3))
    api.post(f"{url}/versions")
    return url


def test_versions_are_numbered_and_hold_what_was_acknowledged(api: Api, vault: str) -> None:
    """1, 2 and 3 have the lengths of everything acknowledged before each; equal data have equal digests."""
    made = api.post(f"{vault}/versions", json={"metadata": {"score": 1.5}})

    assert made.status_code == 201
    VersionPublic.model_validate(made.json())
    assert api.get(made.headers["location"]).json() == made.json()
    one, two, three = (api.get(f"{vault}/versions/{n}").json() for n in (1, 2, 3))
    assert [v["length"] for v in (one, two, three)] == [3, 5, 5]
    assert (one["message"], three["metadata"]) == ("three", {"score": 1.5})
    assert two["digest"] == three["digest"] != one["digest"]
    assert one["generation"] < two["generation"]


def test_versions_are_listed_newest_first_in_pages(api: Api, vault: str) -> None:
    """Following `next` with limit 1 gives 2, then 1."""
    first = api.get(f"{vault}/versions?limit=1").json()
    second = api.get(f"{vault}/versions?limit=1&next={first['next']}").json()

    assert [item["version"] for item in first["items"] + second["items"]] == [2, 1]
    assert (first["total"], second["next"]) == ({"value": 2, "exact": True}, None)


def test_a_buffers_vault_has_versions_while_the_buffer_writes(api: Api) -> None:
    """A version taken from under a buffer holds every acknowledged step, and the buffer goes on."""
    api.post("/api/v1/buffers", json=buffer_body("busy", persist_to="busy/run1"))
    send(api, "/api/v1/buffers/busy/experience", steps(2, 7))

    made = api.post(f"{URL}/busy/run1/versions", json={"tags": ["mid"]}).json()
    assert (made["length"], made["tags"]) == (7, ["mid"])
    assert send(api, "/api/v1/buffers/busy/experience", steps(2, 2, start=7)).status_code == 201
    assert api.post(f"{URL}/busy/run1/versions").json()["length"] == 9


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [({"tags": ["3"]}, "invalid_argument", "tag"), ({"tags": ["latest"]}, "invalid_argument", "tag"),
     ({"tags": ["v7"]}, "invalid_argument", "tag"), ({"tags": ["sha256-abc"]}, "invalid_argument", "tag"),
     ({"tags": "best"}, "invalid_argument", "tags"), ({"tags": [1]}, "invalid_argument", "tags"),
     ({"message": 3}, "invalid_argument", "message"), ({"colour": 3}, "not_supported", "colour"),
     ({"metadata": {"x": 10**30}}, "invalid_argument", "metadata"),
     ({"metadata": {"x": "y" * 100_000}}, "invalid_argument", "metadata")],
)  # fmt: skip
def test_a_wrong_version_is_refused_and_none_is_made(
    api: Api, vault: str, body: dict, code: str, field: str
) -> None:
    """Tags that look like other refs, and unknown fields, are 422; the versions stay two."""
    assert field in assert_refused(api.post(f"{vault}/versions", json=body), 422, code)["detail"]
    assert api.get(f"{vault}/versions").json()["total"]["value"] == 2


@pytest.mark.parametrize(
    ("ref", "status"), [("3", 404), ("none", 404), ("head", 404), ("sha256-00000000", 404)]
)
def test_an_unknown_version_is_not_found(api: Api, vault: str, ref: str, status: int) -> None:
    """404 naming the ref."""
    assert_refused(api.get(f"{vault}/versions/{ref}"), status, "not_found", ref)


def test_a_tag_is_made_moved_and_deleted(api: Api, vault: str) -> None:
    """201 makes, 200 moves, 204 deletes; then 404."""
    made = api.put(f"{vault}/tags/best", json={"version": 1})
    moved = api.put(f"{vault}/tags/best", json={"version": "latest"})

    assert (made.status_code, moved.status_code) == (201, 200)
    TagPublic.model_validate(moved.json())
    assert moved.json() == {"tag": "best", "version": 2, "protected": False}
    assert api.get(f"{vault}/tags").json() == [moved.json()]
    assert api.get(f"{vault}/versions/best").json()["version"] == 2
    assert api.delete(f"{vault}/tags/best").status_code == 204
    assert_refused(api.delete(f"{vault}/tags/best"), 404, "not_found", "'best'")


def test_a_tag_that_must_be_new_is_not_moved(api: Api, vault: str) -> None:
    """`If-None-Match: *` makes once; then 412, and the tag stays."""
    url = f"{vault}/tags/first"

    assert api.put(url, json={"version": 1}, headers={"if-none-match": "*"}).status_code == 201
    answer = api.put(url, json={"version": 2}, headers={"if-none-match": "*"})
    assert_refused(answer, 412, "precondition_failed", "`If-None-Match: *`")
    assert api.get(f"{vault}/tags").json()[0]["version"] == 1


def test_a_protected_tag_moves_only_from_where_it_was_seen(api: Api, vault: str) -> None:
    """Without `If-Match` 428, with a stale one 412, with the present one it moves and can be deleted."""
    url = f"{vault}/tags/gold"
    etag = api.put(url, json={"version": 1, "protected": True}).headers["etag"]

    assert_refused(api.put(url, json={"version": 2}), 428, "precondition_required", "`If-Match`")
    assert_refused(api.delete(url), 428, "precondition_required")
    assert_refused(
        api.put(url, json={"version": 2}, headers={"if-match": '"v9"'}), 412, "precondition_failed"
    )
    assert_refused(api.post(f"{vault}/versions", json={"tags": ["gold"]}), 409, "tag_protected", "'gold'")
    moved = api.put(url, json={"version": 2, "protected": True}, headers={"if-match": etag})
    assert (moved.status_code, moved.json()["version"]) == (200, 2)
    assert_refused(api.delete(url, headers={"if-match": etag}), 412, "precondition_failed")
    assert api.delete(url, headers={"if-match": moved.headers["etag"]}).status_code == 204


@pytest.mark.parametrize(
    "tag", ["3", "v3", "latest", "head", "sha256-1", "a%2Fb", "%00", "x" * 300, "-x", "é"]
)
def test_a_tag_that_is_no_tag_is_refused(api: Api, vault: str, tag: str) -> None:
    """Names that look like other refs or are no names are 4xx, and no tag is made."""
    answer = api.put(f"{vault}/tags/{tag}", json={"version": 1})

    assert answer.status_code in (404, 405, 422), answer.text
    assert api.get(f"{vault}/tags").json() == []


def test_a_tag_names_only_versions_there_are(api: Api, vault: str) -> None:
    """404 for version 9 and for the head."""
    for version in (9, "head", "none"):
        assert_refused(api.put(f"{vault}/tags/lost", json={"version": version}), 404, "not_found")


def test_a_version_says_what_made_it(api: Api) -> None:
    """The buffer's configuration, its writers with their last numbers, and packages; lists leave it out."""
    api.post("/api/v1/buffers", json=buffer_body("maker", persist_to="made/run1"))
    send(api, "/api/v1/buffers/maker/experience?writer=w1&sequence=7", steps(2, 3))
    made = api.post(f"{URL}/made/run1/versions").json()

    provenance = made["provenance"]
    assert provenance == api.get(f"{URL}/made/run1/versions/1").json()["provenance"]
    assert provenance["buffer"] == api.get("/api/v1/buffers/maker").json()["config"]
    assert (provenance["writers"], provenance["num_writers"]) == ({"w1": 7}, 1)
    assert {"flashdeck", "jax", "numpy", "python", "tensorstore"} <= set(provenance["packages"])
    assert "provenance" not in api.get(f"{URL}/made/run1/versions").json()["items"][0]


def test_equal_provenance_is_stored_once(api: Api, vault: str) -> None:
    """Three versions of an idle vault share one record."""
    api.post(f"{vault}/versions")
    place = api.app.state.deck.vaults[vault.removeprefix(f"{URL}/")].place

    with VaultReader.open(place.path) as reader:
        assert len(reader.keys("_flashdeck/provenance/")) == 1
