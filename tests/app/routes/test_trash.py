"""Deleting vaults: preview, trash, restore, reclaim."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from app.schemas.vaults import Deleted, TrashedVault, VaultPublic
from app.services import trash
from app.services.trash_files import list_trash, tidy
from tests.app.support import SPEC, Api, arrays_of, assert_refused, buffer_body, send, serve, steps

URL = "/api/v1/vaults"


@pytest.fixture
def vault(api: Api, request: pytest.FixtureRequest) -> str:
    """A vault of seven steps with a tagged version, two of them acknowledged and perhaps not committed."""
    name = f"t{abs(hash(request.node.nodeid))}"
    url = f"{URL}/{name}/run1"
    api.post(URL, json={"vault_name": name, "vault_uid": "run1", "spec": SPEC, "rows": 2})
    send(api, f"{url}/experience", steps(2, 5))
    api.post(f"{url}/versions", json={"tags": ["first"]})
    send(api, f"{url}/experience", steps(2, 2, start=5), headers={"idempotency-key": name})
    return url


def trash_of(api: Api, url: str) -> list[dict]:
    """Return the entries of the trash for a vault."""
    return [entry for entry in api.get("/api/v1/trash").json() if url.endswith(entry["url"])]


def data_of(api: Api) -> Path:
    """Return the service's data directory."""
    return api.app.state.deck.data


def test_a_preview_changes_nothing(api: Api, vault: str) -> None:
    """It says what would go, with what is acknowledged and not yet committed."""
    planned = api.delete(f"{vault}?dry_run=true")

    found = Deleted.model_validate(planned.json())
    assert (planned.status_code, found.dry_run, found.length, found.versions) == (200, True, 7, 1)
    assert found.disk_bytes > 0
    assert trash_of(api, vault) == []
    assert api.get(vault).json()["length"] == 7


def test_a_deleted_vault_is_nowhere_but_in_the_trash(api: Api, vault: str) -> None:
    """404 for all that was in it, gone from list, folder and scan; the trash has it for a week."""
    deleted = api.delete(vault).json()

    for answer in (api.get(vault), api.get(f"{vault}/slice"), api.get(f"{vault}/versions"),
                   send(api, f"{vault}/experience", steps(2, 1))):  # fmt: skip
        assert_refused(answer, 404, "not_found")
    assert api.get(URL, params={"query": deleted["vault_name"]}).json()["items"] == []
    assert not (data_of(api) / "vaults" / deleted["vault_name"] / "run1").exists()
    api.post("/api/v1/scan")
    assert_refused(api.delete(vault), 404, "not_found")
    (found,) = trash_of(api, vault)
    assert TrashedVault.model_validate(found).length == 7
    assert found["restore_until"][8:10] != found["deleted_at"][8:10]


def test_a_restored_vault_is_as_it_was(api: Api, vault: str) -> None:
    """Steps, versions, tags and digest are there again, a repeated request still counts once, it grows on."""
    version = api.get(f"{vault}/versions/first").json()
    name = api.delete(vault).json()["vault_name"]
    restored = api.post(f"{vault}/restore")

    assert restored.status_code == 200
    assert VaultPublic.model_validate(restored.json()).length == 7
    assert api.get(f"{vault}/versions/first").json() == version
    repeated = send(
        api, f"{vault}/experience", steps(2, 2, start=5), headers={"idempotency-key": name}
    ).json()
    assert (repeated["duplicate"], repeated["length"]) == (True, 7)
    send(api, f"{vault}/experience", steps(2, 1, start=7))
    got = arrays_of(api.get(f"{vault}/slice?format=npz"))
    assert (got["action"] == steps(2, 8)["action"]).all()
    assert trash_of(api, vault) == []
    assert_refused(api.post(f"{vault}/restore"), 404, "not_found", "in the trash")


def test_a_protected_tag_keeps_a_vault(api: Api, vault: str) -> None:
    """409 for preview and deletion, until the tag is gone."""
    api.put(f"{vault}/tags/gold", json={"version": 1, "protected": True})

    for query in ("", "?dry_run=true"):
        assert assert_refused(api.delete(vault + query), 409, "tag_protected", "'gold'")["tags"] == ["gold"]
    api.delete(f"{vault}/tags/gold", headers={"if-match": '"v1"'})
    assert api.delete(vault).status_code == 200


def test_a_buffers_vault_is_not_deleted(api: Api) -> None:
    """409 while the buffer is there; the buffer loses nothing."""
    api.post("/api/v1/buffers", json=buffer_body("owner", persist_to="owned/run1"))
    send(api, "/api/v1/buffers/owner/experience", steps(2, 3))

    problem = assert_refused(api.delete(f"{URL}/owned/run1"), 409, "vault_in_use", "'owner'")
    assert problem["buffer"] == "owner"
    api.delete("/api/v1/buffers/owner")
    assert api.delete(f"{URL}/owned/run1").json()["length"] == 3


def test_a_name_in_use_again_is_not_overwritten(api: Api, vault: str) -> None:
    """A new vault of the name keeps it: 409; of two in the trash the last comes back, or the one of an id."""
    name = api.delete(vault).json()["vault_name"]
    api.post(URL, json={"vault_name": name, "vault_uid": "run1", "spec": SPEC})
    assert_refused(api.post(f"{vault}/restore"), 409, "exists")
    api.delete(vault)

    newest, oldest = trash_of(api, vault)
    assert (newest["length"], oldest["length"]) == (0, 7)
    assert api.post(f"{vault}/restore?id={oldest['id']}").json()["length"] == 7


def test_giving_up_is_for_good(api: Api, vault: str) -> None:
    """204, and no byte is left."""
    api.delete(vault)
    (found,) = trash_of(api, vault)

    assert api.delete(f"/api/v1/trash/{found['id']}").status_code == 204
    assert not (data_of(api) / "trash" / found["id"]).exists()
    assert_refused(api.post(f"{vault}/restore"), 404, "not_found")
    assert_refused(api.delete("/api/v1/trash/..%2f..%2fvaults"), 404, "not_found")


def test_a_page_restores_with_one_button(api: Api, vault: str) -> None:
    """The list shows the trash; sending its form brings the vault back and leads to it."""
    name = api.delete(vault).json()["vault_name"]
    soup = BeautifulSoup(api.get("/vaults", headers={"accept": "text/html"}).text, "html.parser")
    (button,) = [b for b in soup.select("#trash button") if name in b["aria-label"]]

    answer = api.post(button.parent["action"])
    assert (answer.status_code, answer.headers["location"].endswith(f"/vaults/{name}/run1")) == (303, True)
    assert api.get(vault).status_code == 200


def test_the_trash_is_emptied_in_time(tmp_path: Path) -> None:
    """At a start after its days are over a vault is gone for good, before that it is not."""
    with serve(tmp_path) as api:
        api.post(URL, json={"vault_name": "old", "vault_uid": "1", "spec": SPEC})
        api.delete(f"{URL}/old/1")
    with serve(tmp_path) as api:
        assert len(api.get("/api/v1/trash").json()) == 1
    with serve(tmp_path, trash_days=0) as api:
        assert api.get("/api/v1/trash").json() == []
    assert os.listdir(tmp_path / "trash") == []


def test_a_crash_between_two_moves_loses_nothing(tmp_path: Path) -> None:
    """What lay in the catalog follows the vault into the trash at the next start, and comes back with it."""
    with serve(tmp_path) as api:
        api.post(URL, json={"vault_name": "v", "vault_uid": "1", "spec": SPEC, "rows": 2})
        send(api, f"{URL}/v/1/experience", steps(2, 3), headers={"idempotency-key": "k"})
        api.delete(f"{URL}/v/1")
    (found,) = list_trash(tmp_path)
    (tmp_path / "catalog" / "v").mkdir(parents=True, exist_ok=True)
    os.rename(tmp_path / "trash" / found.id / "catalog", tmp_path / "catalog" / "v" / "1")

    assert tidy(tmp_path, 7) == 0
    assert not (tmp_path / "catalog" / "v" / "1").exists()
    with serve(tmp_path) as api:
        api.post(f"{URL}/v/1/restore")
        again = send(api, f"{URL}/v/1/experience", steps(2, 3), headers={"idempotency-key": "k"}).json()
        assert (again["duplicate"], again["length"]) == (True, 3)


def test_a_vault_that_is_being_read_waits(api: Api, vault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """409 while a reader does not end, and nothing is moved; then it goes."""
    monkeypatch.setattr(trash, "READERS_WAIT_S", 0.1)
    entry = api.app.state.deck.vaults[vault.removeprefix(f"{URL}/")]
    entry.reading.append(1)
    assert_refused(api.delete(vault), 409, "vault_in_use", "got 1")
    assert api.get(f"{vault}/slice").status_code == 200

    entry.reading.remove(1)
    assert api.delete(vault).status_code == 200


def test_a_damaged_vault_can_be_deleted(api: Api, vault: str) -> None:
    """Nothing in it can be read, and still it goes to the trash."""
    api.get(f"{vault}/slice")
    place = api.app.state.deck.vaults[vault.removeprefix(f"{URL}/")].place
    (place.path / "manifest.ocdbt").write_bytes(b"no manifest")

    assert_refused(api.get(vault), 409, "damaged")
    assert api.delete(vault).status_code == 200
    assert len(trash_of(api, vault)) == 1


def test_another_site_cannot_restore(api: Api, vault: str) -> None:
    """The page's form works from our own pages alone."""
    api.delete(vault)
    (found,) = trash_of(api, vault)
    url = f"/trash/{found['id']}/restore"

    assert_refused(api.post(url, headers={"sec-fetch-site": "cross-site"}), 403, "cross_site")
    assert api.post(url, headers={"sec-fetch-site": "same-origin"}).status_code == 303
