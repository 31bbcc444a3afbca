"""Forks over HTTP."""

from __future__ import annotations

import numpy as np
import pytest

from app.schemas.vaults import VaultPublic
from tests.app.support import SPEC, Api, arrays_of, assert_refused, send, steps

URL = "/api/v1/vaults"


@pytest.fixture(scope="module")
def vault(api: Api) -> str:
    """A vault with version 1 of ten steps, and twelve steps now."""
    body = {"vault_name": "origin", "vault_uid": "run1", "spec": SPEC, "rows": 2, "metadata": {"env": "x"}}
    api.post(URL, json=body)
    send(api, f"{URL}/origin/run1/experience", steps(2, 10))
    api.post(f"{URL}/origin/run1/versions", json={"tags": ["ten"]})
    send(api, f"{URL}/origin/run1/experience", steps(2, 2, start=10))
    return f"{URL}/origin/run1"


def test_a_fork_holds_a_version_and_says_where_it_is_from(api: Api, vault: str) -> None:
    """Ten of twelve steps, equal digest, metadata, lineage; then each grows alone."""
    made = api.post(f"{vault}/fork", json={"vault_name": "forks", "vault_uid": "ten", "ref": "ten"})

    assert made.status_code == 201, made.text
    answer = VaultPublic.model_validate(made.json())
    assert api.get(made.headers["location"]).json() == made.json()
    version = api.get(f"{vault}/versions/1").json()
    assert (answer.length, answer.metadata) == (10, {"env": "x"})
    assert answer.lineage == {
        "vault": "origin/run1", "version": 1, "digest": version["digest"], "start": 0, "stop": 10, "step": 1,
        "generation": version["generation"],
    }  # fmt: skip
    assert api.post(f"{URL}/forks/ten/versions").json()["digest"] == version["digest"]
    assert send(api, f"{URL}/forks/ten/experience", steps(2, 1, start=10)).json()["length"] == 11
    assert api.get(vault).json()["lineage"] is None


@pytest.mark.parametrize(
    ("part", "expected"),
    [({"start": -5, "step": 2}, range(7, 12, 2)), ({"timesteps": 3}, range(9, 12)),
     ({"percentiles": [0, 50]}, range(6)), ({"ref": 1, "start": 8}, range(8, 10)),
     ({"start": 12}, range(0))],
)  # fmt: skip
def test_a_part_is_forked(api: Api, vault: str, part: dict, expected: range) -> None:
    """By the rules of a slice; what is acknowledged now is the default."""
    name = f"part{abs(hash(str(part)))}"
    made = api.post(f"{vault}/fork", json={"vault_name": name, "vault_uid": "1", **part}).json()

    assert made["length"] == len(expected)
    got = arrays_of(api.get(f"{URL}/{name}/1/slice?format=npz"))
    np.testing.assert_array_equal(got["action"], steps(2, 12)["action"][:, list(expected)])


@pytest.mark.parametrize(
    ("given", "status", "code", "word"),
    [({"vault_name": "origin", "vault_uid": "run1"}, 409, "exists", "'origin/run1'"),
     ({"vault_name": "a/b", "vault_uid": "1"}, 422, "invalid_argument", "vault_name"),
     ({"vault_name": "x", "vault_uid": "1", "ref": "nope"}, 404, "not_found", "'nope'"),
     ({"vault_name": "x", "vault_uid": "1", "step": -1}, 422, "invalid_argument", "step"),
     ({"vault_name": "x", "vault_uid": "1", "start": 1, "timesteps": 2}, 422, "invalid_argument", "both"),
     ({"vault_name": "x", "vault_uid": "1", "rows": "0:1"}, 422, "not_supported", "rows"),
     ({"vault_uid": "1"}, 422, "invalid_argument", "vault_name")],
)  # fmt: skip
def test_a_wrong_fork_is_refused_and_makes_nothing(
    api: Api, vault: str, given: dict, status: int, code: str, word: str
) -> None:
    """The sentence names what is wrong, and no vault appears."""
    before = api.get(URL).json()["total"]["value"]

    assert_refused(api.post(f"{vault}/fork", json=given), status, code, word)
    api.post("/api/v1/scan")
    assert api.get(URL).json()["total"]["value"] == before
