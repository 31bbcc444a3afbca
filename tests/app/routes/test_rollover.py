"""A vault that would pass its limit goes on in the next uid, and every answer says where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fbxcore.vault import store
from tests.app.support import Api, arrays_of, assert_refused, buffer_body, serve

URL, BUFFERS = "/api/v1/vaults", "/api/v1/buffers"
SPEC = {"n": {"shape": [], "dtype": "int32"}}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vaults of ten timesteps."""
    monkeypatch.setattr(store, "MAX_LENGTH", 10)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serve(tmp_path / "data") as api:
        yield api


def add(api: Api, uid: str, start: int, count: int, key: str | None = None) -> dict:
    """Append steps to a vault and return the answer."""
    headers = {"idempotency-key": key or f"{start}"}
    body = {"n": [list(range(start, start + count))]}
    answer = api.post(f"{URL}/walk/{uid}/experience", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


def fill(api: Api) -> None:
    """Eight steps in `a`, six in `a-2`."""
    api.post(URL, json={"vault_name": "walk", "vault_uid": "a", "spec": SPEC})
    assert add(api, "a", 0, 8)["vault_uid"] == "a"
    assert add(api, "a", 8, 4) == {"added": 4, "length": 4, "vault_uid": "a-2", "duplicate": False}
    assert add(api, "a", 12, 2)["length"] == 6


def numbers(api: Api, uid: str) -> list[int]:
    return arrays_of(api.get(f"{URL}/walk/{uid}/slice"))["n"][0].tolist()


def test_both_vaults_name_each_other(api: Api) -> None:
    """Answer, list after a flush, and pages."""
    fill(api)

    assert (numbers(api, "a"), numbers(api, "a-2")) == (list(range(8)), list(range(8, 14)))
    full, following = (api.get(f"{URL}/walk/{uid}").json() for uid in ("a", "a-2"))
    assert (full["continued_in"], full["length"], full["pending"]) == ("walk/a-2", 8, 0)
    assert following["lineage"]["vault"] == "walk/a"
    assert (following["lineage"]["continues"], following["length"]) == ("a", 6)
    listed = {item["vault_uid"]: item["continued_in"] for item in api.get(URL).json()["items"]}
    assert listed == {"a": "walk/a-2", "a-2": None}
    assert 'href="../walk/a-2"' in api.get("/vaults/walk/a").text
    assert 'href="../walk/a"' in api.get("/vaults/walk/a-2").text
    assert api.get("/vaults/walk/a-2").text.count("Continues") == 1


def test_both_names_lead_to_the_one_log(api: Api) -> None:
    """Keys are known under each name; versions belong to each vault; one more vault follows by itself."""
    fill(api)
    again = add(api, "a-2", 8, 4)
    assert (again["duplicate"], again["vault_uid"], again["length"]) == (True, "a-2", 4)
    assert add(api, "a-2", 14, 3)["length"] == 9

    versions = [api.post(f"{URL}/walk/{uid}/versions", json={"tags": ["t"]}).json() for uid in ("a", "a-2")]
    assert [version["length"] for version in versions] == [8, 9]
    assert add(api, "a", 17, 5)["vault_uid"] == "a-3"
    assert numbers(api, "a-3") == list(range(17, 22))


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    """With the log where it began, under every name."""
    with serve(tmp_path / "data") as api:
        fill(api)
    with serve(tmp_path / "data") as api:
        assert add(api, "a", 12, 2)["duplicate"]
        assert add(api, "a-2", 14, 1)["length"] == 7
        assert numbers(api, "a-2") == list(range(8, 15))


@pytest.mark.parametrize("gone", ["a", "a-2"])
def test_one_of_them_can_be_deleted_and_restored(api: Api, gone: str) -> None:
    """The log goes with the vault that is written; keys, steps and neighbours are there after both."""
    fill(api)
    assert api.request("DELETE", f"{URL}/walk/{gone}").status_code == 200
    if gone == "a":
        assert add(api, "a-2", 8, 4)["duplicate"]
        assert add(api, "a-2", 14, 1)["length"] == 7
    assert api.post(f"{URL}/walk/{gone}/restore").json()["length"] == {"a": 8, "a-2": 6}[gone]

    assert add(api, "a", 8, 4)["duplicate"]
    assert numbers(api, "a") == list(range(8))
    assert numbers(api, "a-2") == list(range(8, 15 if gone == "a" else 14))


def test_a_buffer_goes_on_in_the_next_vault(tmp_path: Path) -> None:
    """It owns that one, is refilled from both, and keeps the full one for as long as its ring needs it."""
    made = {"kind": "flat", "max_length": 9, "min_length": 2, "sample_batch_size": 2, "spec": SPEC}
    with serve(tmp_path / "data") as api:
        api.put(f"{BUFFERS}/walk", json=made | {"persist_to": "walk/a"})
        for start, count in ((0, 8), (8, 4)):
            body = {"n": [list(range(start, start + count))]}
            assert api.post(f"{BUFFERS}/walk/experience", json=body).status_code == 201
        assert [numbers(api, uid) for uid in ("a", "a-2")] == [list(range(8)), [8, 9, 10, 11]]
        assert [api.get(f"{URL}/walk/{uid}").json()["buffer"] for uid in ("a", "a-2")] == [None, "walk"]
        assert api.put(f"{BUFFERS}/walk", json=made | {"persist_to": "walk/a"}).status_code == 200
        other = buffer_body("other", persist_to="walk/a")
        assert_refused(api.post(BUFFERS, json=other), 409, "vault_in_use", "walk/a-2")
        drawn = api.get(f"{BUFFERS}/walk/sample?seed=1&peek=true&format=npz").content
    with serve(tmp_path / "data") as api:
        assert api.get(f"{BUFFERS}/walk/sample?seed=1&peek=true&format=npz").content == drawn
        assert_refused(api.request("DELETE", f"{URL}/walk/a"), 409, "vault_in_use", "'walk'")
        assert_refused(api.request("DELETE", f"{URL}/walk/a-2"), 409, "vault_in_use", "'walk'")
        assert api.post(f"{URL}/walk/a/versions").json()["length"] == 8
        api.post(f"{BUFFERS}/walk/experience", json={"n": [[12, 13, 14, 15, 16]]})
        assert numbers(api, "a-2")[-1] == 16
        assert api.request("DELETE", f"{URL}/walk/a").status_code == 200
        assert api.post(f"{URL}/walk/a-2/versions").json()["length"] == 9
