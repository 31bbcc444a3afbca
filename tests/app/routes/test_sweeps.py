"""Deleting versions and sweeping over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text

from app.schemas.vaults import Swept
from app.services.offline import sweep_all
from app.services.sweeps import Asked
from tests.app.support import SPEC, Api, arrays_of, assert_refused, buffer_body, send, serve, steps

URL = "/api/v1/vaults"


@pytest.fixture
def vault(api: Api, request: pytest.FixtureRequest) -> str:
    """A vault with versions 1 to 4 of 3, 6, 9 and 12 steps."""
    name = f"s{abs(hash(request.node.nodeid))}"
    url = f"{URL}/{name}/run1"
    api.post(URL, json={"vault_name": name, "vault_uid": "run1", "spec": SPEC, "rows": 2})
    for start in range(0, 12, 3):
        send(api, f"{url}/experience", steps(2, 3, start=start))
        api.post(f"{url}/versions")
    return url


def numbers(api: Api, url: str) -> list[int]:
    """Return the numbers of a vault's versions."""
    return [item["version"] for item in api.get(f"{url}/versions").json()["items"]]


@pytest.mark.parametrize("ref", ["4", "v2", "latest", "digest"])
def test_a_deleted_version_is_gone_for_every_ref(api: Api, vault: str, ref: str) -> None:
    """204 once; then its number and digest are 410, and the number is not given again."""
    found = api.get(f"{vault}/versions/{ref if ref != 'digest' else 1}").json()
    ref = found["digest"] if ref == "digest" else ref
    assert api.delete(f"{vault}/versions/{ref}?dry_run=true").json() == found
    assert api.delete(f"{vault}/versions/{ref}").status_code == 204

    number = found["version"]
    for url in (f"versions/{number}", f"versions/v{number}", f"versions/{found['digest']}",
                f"slice?ref={number}"):  # fmt: skip
        assert_refused(api.get(f"{vault}/{url}"), 410, "reclaimed")
    assert_refused(api.delete(f"{vault}/versions/{number}"), 410, "reclaimed")
    assert api.post(f"{vault}/versions").json()["version"] == 5
    assert number not in numbers(api, vault)


def test_a_tagged_version_is_not_deleted(api: Api, vault: str) -> None:
    """409 with the tag's name, protected or not; without the tag it goes."""
    api.put(f"{vault}/tags/gold", json={"version": 2, "protected": True})
    api.put(f"{vault}/tags/seen", json={"version": 3})

    assert_refused(api.delete(f"{vault}/versions/2"), 409, "tag_protected", "'gold'")
    assert_refused(api.delete(f"{vault}/versions/gold?dry_run=true"), 409, "tag_protected", "'gold'")
    assert_refused(api.delete(f"{vault}/versions/seen"), 409, "version_tagged", "'seen'")
    api.delete(f"{vault}/tags/seen")
    assert api.delete(f"{vault}/versions/3").status_code == 204
    assert numbers(api, vault) == [4, 2, 1]


def test_a_sweep_gives_back_what_nothing_needs(api: Api, vault: str) -> None:
    """A dry run only says so; versions and head read as before; the deleted one is 410."""
    kept = [arrays_of(api.get(f"{vault}/slice?ref={ref}&format=npz")) for ref in ("1", "3", "head")]
    api.delete(f"{vault}/versions/2")
    planned = api.post(f"{vault}/gc?dry_run=true", json={"grace_s": 0}).json()
    assert Swept.model_validate(planned).dry_run and planned["bytes"] > 0
    assert planned["disk_bytes"] < api.get(vault).json()["disk_bytes"]

    done = api.post(f"{vault}/gc", json={"grace_s": 0}).json()
    assert done["files"] >= planned["files"] > 0
    assert done["disk_bytes"] == api.get(vault).json()["disk_bytes"]
    for ref, before in zip(("1", "3", "head"), kept, strict=True):
        after = arrays_of(api.get(f"{vault}/slice?ref={ref}&format=npz"))
        assert all((after[name] == before[name]).all() for name in before)
    assert_refused(api.get(f"{vault}/slice?ref=2"), 410, "reclaimed")


def test_what_was_in_use_waits_for_the_grace_time(api: Api, vault: str) -> None:
    """By default nothing of the last quarter of an hour goes; how much waits is told at once."""
    api.delete(f"{vault}/versions/2")
    swept = api.post(f"{vault}/gc").json()

    assert (swept["files"], swept["bytes"]) == (0, 0)
    assert 0 < swept["waiting_bytes"] < swept["disk_bytes"]
    assert 0 < swept["live_bytes"] < swept["disk_bytes"]


def test_retention_deletes_old_versions_that_no_tag_names(api: Api, vault: str) -> None:
    """Of four the newest stays, and the tagged; a dry run says which would go."""
    api.put(f"{vault}/tags/gold", json={"version": 1, "protected": True})
    planned = api.post(f"{vault}/gc?dry_run=true", json={"keep": 1}).json()
    assert (planned["deleted_versions"], numbers(api, vault)) == ([2, 3], [4, 3, 2, 1])

    assert api.post(f"{vault}/gc", json={"keep": 1}).json()["deleted_versions"] == [2, 3]
    assert numbers(api, vault) == [4, 1]
    assert api.post(f"{vault}/gc", json={"older_than_days": 1}).json()["deleted_versions"] == []


def test_a_buffers_vault_is_swept_while_the_buffer_writes(api: Api) -> None:
    """Nothing acknowledged goes, and the buffer goes on."""
    api.post("/api/v1/buffers", json=buffer_body("sweeping", persist_to="sweeping/run1"))
    for start in range(0, 20, 2):
        send(api, "/api/v1/buffers/sweeping/experience", steps(2, 2, start=start))
        api.get(f"{URL}/sweeping/run1/slice")  # commits
    assert api.post(f"{URL}/sweeping/run1/gc", json={"grace_s": 0}).json()["files"] > 0

    assert send(api, "/api/v1/buffers/sweeping/experience", steps(2, 2, start=20)).status_code == 201
    got = arrays_of(api.get(f"{URL}/sweeping/run1/slice?format=npz"))
    assert (got["action"] == steps(2, 22)["action"]).all()


@pytest.mark.parametrize(
    ("body", "code"),
    [({"keep": 0}, "invalid_argument"), ({"older_than_days": -1}, "invalid_argument"),
     ({"grace_s": -1}, "invalid_argument"), ({"keep": True}, "invalid_argument"),
     ({"dry_run": True}, "not_supported")],
)  # fmt: skip
def test_a_wrong_sweep_is_refused(api: Api, vault: str, body: dict, code: str) -> None:
    """Nothing is deleted."""
    assert_refused(api.post(f"{vault}/gc", json=body), 422, code, next(iter(body)))
    assert len(numbers(api, vault)) == 4


def test_a_sweep_stops_where_records_and_database_disagree(tmp_path) -> None:
    """A version that only the database knows: 409; a new version takes the vault's word."""
    with serve(tmp_path) as api:
        api.post(URL, json={"vault_name": "v", "vault_uid": "1", "spec": SPEC})
        api.portal.call(_add_version, api.app.state.deck.database)

        assert_refused(api.post(f"{URL}/v/1/gc"), 409, "records_differ", "[7]")
        api.post(f"{URL}/v/1/versions")
        assert api.post(f"{URL}/v/1/gc").status_code == 200


async def _add_version(database) -> None:
    async with database.write() as session:
        await session.execute(
            text(
                "insert into versions (vault_name, vault_uid, number, generation, length, digest, message, "
                "created_at) values ('v', '1', 7, 2, 0, 'sha256-0', '', '2026')"
            )
        )


def test_a_vault_has_a_retention_of_its_own(api: Api, vault: str) -> None:
    """PATCH sets it and null takes it away; a sweep without limits goes by it, one with limits by those."""
    shown = api.patch(vault, json={"retention": {"keep": 2}}).json()
    assert shown["retention"] == {"keep": 2, "older_than_days": None, "retain_steps": None}
    assert api.patch(vault, json={"metadata": {"env": "x"}}).json()["retention"] == shown["retention"]

    assert api.post(f"{vault}/gc?dry_run=true", json={"keep": 3}).json()["deleted_versions"] == [1]
    assert api.post(f"{vault}/gc").json()["deleted_versions"] == [1, 2]
    changed = api.patch(vault, json={"retention": None}).json()
    assert (changed["retention"], changed["metadata"]) == (None, {"env": "x"})
    assert api.post(f"{vault}/gc").json()["deleted_versions"] == []
    assert_refused(api.patch(vault, json={"retention": {"keep": 0}}), 422, "invalid_argument", "keep")


def test_old_versions_go_by_themselves(tmp_path) -> None:
    """Within seconds, where sweeping is that frequent; a vault without a retention keeps all."""
    with serve(tmp_path, sweep_interval_s=0.2) as api:
        for name in ("short", "long"):
            api.post(URL, json={"vault_name": name, "vault_uid": "1", "spec": SPEC})
            for _ in range(3):
                api.post(f"{URL}/{name}/1/versions")
        api.patch(f"{URL}/short/1", json={"retention": {"keep": 1}})
        deadline = time.monotonic() + 20
        while numbers(api, f"{URL}/short/1") != [3] and time.monotonic() < deadline:
            time.sleep(0.1)

        assert numbers(api, f"{URL}/short/1") == [3]
        assert numbers(api, f"{URL}/long/1") == [3, 2, 1]


def long_vault(api: Api, name: str) -> str:
    """A vault of 5,000 numbered steps."""
    url = f"{URL}/{name}/run1"
    spec = {"n": {"shape": [], "dtype": "int32"}}
    api.post(URL, json={"vault_name": name, "vault_uid": "run1", "spec": spec})
    send(api, f"{url}/experience", {"n": np.arange(5000, dtype=np.int32)[None]})
    return url


def held(api: Api, url: str, query: str = "") -> list[int]:
    return arrays_of(api.get(f"{url}/slice?format=npz{query}"))["n"][0].tolist()


def test_the_newest_steps_are_retained(api: Api) -> None:
    """A sweep frees whole blocks; the rest keeps its numbers, what is gone is 410, a version has all."""
    url = long_vault(api, "retain")
    api.post(f"{url}/versions")
    api.patch(url, json={"retention": {"retain_steps": 1500}})
    assert api.post(f"{url}/gc?dry_run=true").json()["freed_steps"] == 3072
    assert api.post(f"{url}/gc", json={"grace_s": 0}).json()["freed_steps"] == 3072

    shown, listed = api.get(url).json(), api.get(f"{URL}?query=retain").json()["items"][0]
    assert [(vault["first"], vault["length"]) for vault in (shown, listed)] == [(3072, 5000)] * 2
    problem = assert_refused(api.get(f"{url}/slice?start=100&stop=200"), 410, "reclaimed", "at least 3072")
    assert problem["first"] == 3072
    assert held(api, url, "&start=3072&stop=3074") == [3072, 3073]
    assert held(api, url) == held(api, url, "&timesteps=100000") == list(range(3072, 5000))
    halves = [held(api, url, f"&percentiles={part}") for part in ("0,50", "50,100")]
    assert halves == [list(range(3072, 4036)), list(range(4036, 5000))]
    assert held(api, url, "&ref=1") == list(range(5000))
    assert api.post(f"{url}/versions").json()["first"] == 3072


def test_the_page_of_a_vault_begins_with_its_oldest_step(api: Api) -> None:
    """The table shows it, and there is no earlier page to go to."""
    url = long_vault(api, "paged")
    api.post(f"{url}/gc", json={"retain_steps": 100})

    page = api.get("/vaults/paged/run1").text
    assert "steps 4,096 to 4,115 of 5,000" in page and "Oldest step" in page
    assert 'rel="prev"' not in page and 'rel="prev"' in api.get("/vaults/paged/run1?start=4100").text


def test_a_buffer_passes_its_retention_to_its_vault(tmp_path: Path) -> None:
    """The vault keeps as much as its ring needs, so that a restart finds all of it."""
    body = buffer_body("kept", persist_to="kept/1", retain_steps=10, max_length=4800)
    with serve(tmp_path) as api:
        assert api.post("/api/v1/buffers", json=body).json()["config"]["retain_steps"] == 10
        for start in range(0, 5000, 1000):
            send(api, "/api/v1/buffers/kept/experience", steps(2, 1000, start=start))
        assert api.get(f"{URL}/kept/1").json()["retention"]["retain_steps"] == 10
        assert api.post(f"{URL}/kept/1/gc").json()["freed_steps"] == 2048  # 2,400 in each row are needed
        drawn = api.get("/api/v1/buffers/kept/sample?seed=1&peek=true").content
    swept = sweep_all(tmp_path, [], Asked(), lambda *_: None)
    assert [found["freed_steps"] for found in swept] == [0]
    with serve(tmp_path) as api:
        assert api.get("/api/v1/buffers/kept/sample?seed=1&peek=true").content == drawn


@pytest.mark.parametrize("given", [{"retain_steps": 0}, {"retain_steps": "1"}, {"retain_steps": 5}])
def test_a_retention_that_is_none_is_refused(api: Api, given: dict) -> None:
    """Of a buffer: no number of steps, or no vault that could keep them."""
    body = buffer_body("none", **given) | ({} if given["retain_steps"] == 5 else {"persist_to": "none/1"})

    answer = api.post("/api/v1/buffers", json=body)
    problem = assert_refused(answer, 422, "invalid_argument", "`retain_steps`")
    assert problem["errors"][0]["loc"][-1] == "retain_steps"
