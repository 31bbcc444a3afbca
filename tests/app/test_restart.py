"""A restart finds everything again; what is damaged harms nothing else."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import text

from app.db import upgrade
from app.main import create_app
from app.services.lock import read_holder
from fbxcore.errors import ConflictError
from fbxcore.vault import store
from tests.app.support import (
    SERVER,
    SPEC,
    Api,
    arrays_of,
    assert_refused,
    buffer_body,
    fresh_postgres,
    send,
    serve,
    settings_of,
    steps,
)

BUFFERS, VAULTS = "/api/v1/buffers", "/api/v1/vaults"


def fill(api: Api) -> None:
    """Make a buffer alone, one that persists, and a vault with a version."""
    api.post(BUFFERS, json=buffer_body("alone"))
    api.post(BUFFERS, json=buffer_body("kept", persist_to="kept/run1"))
    api.post(VAULTS, json={"vault_name": "direct", "vault_uid": "run1", "spec": SPEC, "rows": 2})
    for url in (f"{BUFFERS}/alone", f"{BUFFERS}/kept", f"{VAULTS}/direct/run1"):
        answer = send(api, f"{url}/experience", steps(2, 12), headers={"idempotency-key": "first"})
        assert answer.status_code == 201, answer.text
    api.post(f"{VAULTS}/direct/run1/versions", json={"tags": ["best"], "message": "m"})
    send(api, f"{VAULTS}/direct/run1/experience", steps(2, 3, start=12))


def seen(api: Api) -> dict:
    """Return what the service says of everything `fill` made, save what depends on the time."""
    buffers = [
        {k: v for k, v in item.items() if k not in ("persisted", "state")}
        for item in api.get(BUFFERS).json()["items"]
    ]
    vaults = {
        item["url"]: (item["length"], item["versions"], item["tags"], item["spec"], item["state"])
        for item in api.get(VAULTS).json()["items"]
    }
    return {
        "buffers": buffers,
        "vaults": vaults,
        "samples": [api.get(f"{BUFFERS}/{n}/sample?seed=1&peek=true").content for n in ("alone", "kept")],
        "versions": api.get(f"{VAULTS}/direct/run1/versions").json(),
        "slice": api.get(f"{VAULTS}/direct/run1/slice?format=safetensors").content,
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a service that was filled and stopped."""
    data = tmp_path_factory.mktemp("data")
    with serve(data) as api:
        fill(api)
    return data


@pytest.fixture
def copied(data: Path, tmp_path: Path) -> Path:
    """A copy of that directory to do harm to."""
    return Path(shutil.copytree(data, tmp_path / "data", symlinks=True))


def test_a_restart_finds_everything_again(tmp_path: Path) -> None:
    """Buffers, samples of a seed, vaults, versions, tags and slices answer as before the stop."""
    with serve(tmp_path / "data") as api:
        fill(api)
        before = seen(api)
    with serve(tmp_path / "data") as api:
        after = seen(api)
        repeat = send(api, f"{BUFFERS}/alone/experience", steps(2, 12), headers={"idempotency-key": "first"})

    assert after == before
    assert before["vaults"]["direct/run1"][:3] == (15, 1, ["best"])
    assert repeat.json()["duplicate"] is True


def test_a_lost_database_loses_nothing(copied: Path) -> None:
    """Without flashdeck.db every list is as it was, rebuilt from the files."""
    with serve(copied) as api:
        before = seen(api)
    for file in copied.glob("flashdeck.db*"):
        file.unlink()

    with serve(copied) as api:
        assert seen(api) == before


def everything(api: Api) -> dict:
    """Return every list and every member of every answer about buffers, vaults, versions, tags and trash."""
    vaults = api.get(f"{VAULTS}?sort=-updated_at").json()
    answers: dict = {"buffers": api.get(BUFFERS).json(), "vaults": vaults}
    answers["trash"] = api.get("/api/v1/trash").json()
    for url in sorted(item["url"] for item in vaults["items"]):
        for part in ("", "/versions", "/tags"):
            answers[url + part] = api.get(f"{VAULTS}/{url}{part}").json()
    answers["best"] = api.get(f"{VAULTS}/direct/run1/versions/best").json()
    pages = ("/vaults.json", "/vaults/direct/run1.json", "/buffers.json")
    answers |= {page: api.get(page).json() for page in pages}
    assert answers["direct/run1"]["retention"] and answers["copied/run1"]["lineage"] and answers["trash"]
    assert answers["small/run1"]["continued_in"] and answers["direct/run1/tags"]
    return answers


def test_a_thrown_away_database_is_rebuilt_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every member of every answer is as before: lists, versions, tags, trash, lineage, retention, times."""
    with serve(tmp_path) as api:
        fill(api)
        url = f"{VAULTS}/direct/run1"
        api.patch(url, json={"retention": {"keep": 7, "retain_steps": 500}, "metadata": {"env": "x"}})
        api.put(f"{url}/tags/gold", json={"version": 1, "protected": True})
        api.post(f"{url}/versions", json={"message": "two"})
        api.request("DELETE", f"{url}/versions/2")
        api.post(f"{url}/fork", json={"vault_name": "copied", "vault_uid": "run1", "ref": "best"})
        api.post(f"{url}/fork", json={"vault_name": "gone", "vault_uid": "run1"})
        api.request("DELETE", f"{VAULTS}/gone/run1")
        monkeypatch.setattr(store, "MAX_LENGTH", 10)
        api.post(VAULTS, json={"vault_name": "small", "vault_uid": "run1", "spec": SPEC, "rows": 2})
        for start in (0, 7):
            send(api, f"{VAULTS}/small/run1/experience", steps(2, 7, start=start))
        api.get(f"{VAULTS}/small/run1-2/slice")
        monkeypatch.undo()
    with serve(tmp_path) as api:
        before = everything(api), api.portal.call(_rows_of, api.app.state.deck.database)
    for file in tmp_path.glob("flashdeck.db*"):
        file.unlink()

    with serve(tmp_path) as api:
        after = everything(api), api.portal.call(_rows_of, api.app.state.deck.database)
    assert after == before
    assert (len(after[1]["vaults"]), len(after[1]["versions"]), len(after[1]["tags"])) == (5, 1, 2)


async def _rows_of(database: Any) -> dict[str, list]:
    """Return all rows of the mirror that vaults have."""
    async with database.session() as session:
        return {
            name: sorted(map(repr, (await session.execute(text(f"select * from {name}"))).all()))
            for name in ("vaults", "versions", "tags")
        }


def test_a_moved_and_a_copied_vault_keep_their_versions(copied: Path) -> None:
    """A scan finds both under their new names, with versions, tags and what made them."""
    with serve(copied) as api:
        before = [api.get(f"{VAULTS}/direct/run1/versions{part}").json() for part in ("", "/best")]
        vaults = copied / "vaults"
        shutil.copytree(vaults / "direct" / "run1", vaults / "twin" / "elsewhere")
        (vaults / "moved").mkdir()
        (vaults / "kept" / "run1").rename(vaults / "moved" / "run9")
        assert api.post("/api/v1/scan").json() == {
            "vaults": 3, "new": 2, "changed": 2, "gone": 1, "damaged": 0,
        }  # fmt: skip

        twin = f"{VAULTS}/twin/elsewhere"
        assert [api.get(f"{twin}/versions{part}").json() for part in ("", "/best")] == before
        assert api.get(twin).json()["tags"] == {"best": 1}
        assert (arrays_of(api.get(f"{twin}/slice?ref=best"))["action"] == steps(2, 12)["action"]).all()
        assert api.get(f"{VAULTS}/moved/run9").json()["length"] == 12


def test_a_database_that_is_none_is_set_aside(copied: Path) -> None:
    """Junk in place of the database is kept beside it, and the service starts."""
    for file in copied.glob("flashdeck.db-*"):
        file.unlink()
    (copied / "flashdeck.db").write_bytes(b"this is no database, and long enough to be seen" * 100)

    with serve(copied) as api:
        assert api.get(VAULTS).json()["total"]["value"] == 2
    assert (copied / "flashdeck.db.damaged").exists()


def test_the_mirror_holds_buffers_and_versions(copied: Path) -> None:
    """The tables have the counters of every buffer and the versions and tags of every vault."""
    with sqlite3.connect(copied / "flashdeck.db") as connection:
        buffers = connection.execute(
            "select name, size, added, persist_to from buffers order by name"
        ).fetchall()
        versions = connection.execute("select vault_name, number, length, message from versions").fetchall()
        tags = connection.execute("select vault_name, tag, version from tags").fetchall()
    connection.close()

    assert buffers == [("alone", 24, 24, None), ("kept", 24, 24, "kept/run1")]
    assert (versions, tags) == ([("direct", 1, 12, "m")], [("direct", "best", 1)])


def test_a_second_service_on_one_directory_is_refused(copied: Path) -> None:
    """It says who serves it, and the first goes on."""
    with serve(copied, port=8123) as api:
        with (
            pytest.raises(ConflictError, match=r"process \d+ serves at http://127.0.0.1:8123"),
            serve(copied),
        ):
            pass
        assert read_holder(copied)["address"] == "http://127.0.0.1:8123"
        assert api.get(BUFFERS).status_code == 200
    assert read_holder(copied) is None


def test_one_damaged_buffer_leaves_the_others_alone(copied: Path) -> None:
    """It is 409 `damaged` on every path, listed as damaged, and deleted only with `discard=true`."""
    (copied / "buffers/alone/config.json").write_bytes(b"{")

    with serve(copied) as api:
        for path in ("", "/sample", "/stats"):
            assert_refused(api.get(f"{BUFFERS}/alone{path}"), 409, "damaged", "alone")
        assert_refused(send(api, f"{BUFFERS}/alone/experience", steps(2, 1)), 409, "damaged")
        states = {item["name"]: item["state"] for item in api.get(BUFFERS).json()["items"]}
        assert states == {"alone": "damaged", "kept": "open"}
        assert api.get(f"{BUFFERS}/kept/sample").status_code == 200
        assert_refused(api.put(f"{BUFFERS}/alone", json=buffer_body("alone")), 409, "damaged")
        assert_refused(api.delete(f"{BUFFERS}/alone"), 409, "unpersisted_data")
        assert api.delete(f"{BUFFERS}/alone?discard=true").status_code == 204
        assert api.post(BUFFERS, json=buffer_body("alone")).status_code == 201


@pytest.mark.parametrize("file", ["config.json", "checkpoint.safetensors", "log/log.json", "log/*.log"])
def test_a_flipped_bit_in_any_file_of_a_buffer_is_listed_with_its_sentence(tmp_path: Path, file: str) -> None:
    """The service runs, the buffer says which file is not as it was written, and the others go on."""
    data = tmp_path / "data"
    with serve(data) as api:
        for name in ("alone", "other"):
            api.post(BUFFERS, json=buffer_body(name))
            for at in (0, 12):
                send(api, f"{BUFFERS}/{name}/experience", steps(2, 12, start=at))
    (path,) = (data / "buffers/alone").glob(file)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)

    with serve(data) as api:
        problem = assert_refused(api.get(f"{BUFFERS}/alone"), 409, "damaged", path.name)
        listed = {item["name"]: item for item in api.get(BUFFERS).json()["items"]}
        assert (listed["alone"]["state"], listed["other"]["state"]) == ("damaged", "open")
        assert listed["alone"]["error"] == problem["detail"]
        assert path.name in problem["detail"] and problem["file"] == path.name
        assert send(api, f"{BUFFERS}/other/experience", steps(2, 1)).status_code == 201
        assert api.get(f"{BUFFERS}/other/sample").status_code == 200
    assert path.read_bytes() == content


def harm(vault: Path, how: str) -> None:
    """Damage a vault's directory."""
    match how:
        case "no metadata":
            (vault / "metadata.json").unlink()
        case "no manifest":
            (vault / "manifest.ocdbt").unlink()
        case "no data":
            shutil.rmtree(vault / "d")
        case "torn metadata":
            (vault / "metadata.json").write_bytes((vault / "metadata.json").read_bytes()[:40])
        case "metadata of another kind":
            (vault / "metadata.json").write_text("[1, 2]")
        case "another major version":
            (vault / "metadata.json").write_text(
                '{"version": 9.0, "structure_shape": {}, "structure_dtype": {}}'
            )
        case "torn manifest":
            content = (vault / "manifest.ocdbt").read_bytes()
            (vault / "manifest.ocdbt").write_bytes(content[: len(content) // 2])
        case "junk manifest":
            (vault / "manifest.ocdbt").write_bytes(b"\0" * 500)
        case "torn data":
            for file in (vault / "d").iterdir():
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    "how",
    [
        "no metadata",
        "no manifest",
        "no data",
        "torn metadata",
        "metadata of another kind",
        "another major version",
        "torn manifest",
        "junk manifest",
        "torn data",
    ],
)
def test_a_damaged_vault_is_listed_and_refused_and_harms_no_other(copied: Path, how: str) -> None:
    """Every resource of it is 4xx with the reason, never 500, and it stays as it is on the disk."""
    vault = copied / "vaults/direct/run1"
    shutil.rmtree(copied / "catalog/direct")
    harm(vault, how)
    before = {path: path.read_bytes() for path in vault.rglob("*") if path.is_file()}

    with serve(copied) as api:
        listed = {item["url"]: item["state"] for item in api.get(VAULTS).json()["items"]}
        assert listed["kept/run1"] == "ok"
        for method, path, body in [
            ("GET", "/slice", None),
            ("GET", "/slice?ref=best", None),
            ("POST", "/versions", {}),
            ("PATCH", "", {"metadata": {"x": 1}}),
        ]:
            answer = api.request(method, f"{VAULTS}/direct/run1{path}", json=body)
            assert 400 <= answer.status_code < 500, (path, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
        answer = send(api, f"{VAULTS}/direct/run1/experience", steps(2, 1))
        assert 400 <= answer.status_code < 500, answer.text
        assert api.get(f"{VAULTS}/kept/run1/slice").status_code == 200
        assert api.post("/api/v1/scan").status_code == 200
    assert {path: path.read_bytes() for path in vault.rglob("*") if path.is_file()} == before


def test_a_buffer_that_replays_is_starting_until_it_is_there(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile its paths are 503 `starting` with progress, others answer, and /readyz is 503."""
    import asyncio

    from fbxcore.live import LiveBuffer

    opened, gate = LiveBuffer.open.__func__, asyncio.Event()

    async def slow(cls, directory, config=None, *, vaults, progress=None, **_):
        if progress is not None:
            progress(3, 10)
            await gate.wait()
        return await opened(cls, directory, config, vaults=vaults)

    monkeypatch.setattr(LiveBuffer, "open", classmethod(slow))
    with serve(copied, start_wait_s=0) as api:
        problem = assert_refused(api.get(f"{BUFFERS}/alone/sample"), 503, "starting", "3 of 10")
        assert problem["progress"] == {"done": 3, "total": 10, "unit": "bytes"}
        assert api.get(f"{BUFFERS}/alone").headers["retry-after"] == "1"
        assert api.get("/readyz").status_code == 503
        assert api.get("/readyz").json()["progress"]["alone"] == {"done": 3, "total": 10}
        assert api.get("/livez").status_code == 200
        assert api.get(VAULTS).json()["total"]["value"] == 2
        assert_refused(api.post(BUFFERS, json=buffer_body("alone")), 409, "exists")
        assert_refused(
            api.post(BUFFERS, json=buffer_body("new", persist_to="kept/run1")), 409, "vault_in_use"
        )
        api.portal.call(gate.set)
        api.portal.call(api.app.state.deck.wait_ready)
        assert api.get("/readyz").json()["status"] == "ok"
        assert api.get(f"{BUFFERS}/alone/sample").status_code == 200


def test_half_made_things_are_left_alone(copied: Path) -> None:
    """A buffer without its config and a vault without its files are no reason not to start."""
    (copied / "buffers/half").mkdir()
    (copied / "buffers/file").write_text("x")
    (copied / "vaults/half/run1").mkdir(parents=True)

    with serve(copied) as api:
        assert {item["name"] for item in api.get(BUFFERS).json()["items"]} == {"alone", "kept"}
        assert api.post(BUFFERS, json=buffer_body("half")).status_code == 201


def test_settings_are_not_shared_between_two_services(tmp_path: Path) -> None:
    """Two apps in one process have their own data, token and buffers."""
    with serve(tmp_path / "one") as one, serve(tmp_path / "two", token="t") as two:
        one.post(BUFFERS, json=buffer_body("mine"))

        assert_refused(two.get(BUFFERS), 401, "unauthorized")
        answer = two.get(BUFFERS, headers={"authorization": "Bearer t"})
        assert answer.json()["items"] == []
        assert one.get(BUFFERS).json()["total"]["value"] == 1


def test_an_app_can_be_started_again(tmp_path: Path) -> None:
    """The same app object runs twice in a row on its directory."""
    app = create_app(settings_of(tmp_path / "data"))
    with Api(app) as api:
        api.post(BUFFERS, json=buffer_body("again"))
        send(api, f"{BUFFERS}/again/experience", steps(2, 8))
    with Api(app) as api:
        drawn = arrays_of(api.get(f"{BUFFERS}/again/sample?batch_size=64"))

    assert np.isin(drawn["experience/first/action"] % 1000, np.arange(7)).all()


@pytest.mark.postgres
def test_without_its_database_the_service_still_serves_what_lies_in_files(tmp_path: Path) -> None:
    """With the database gone, lists are 503 and /readyz says so; adding, sampling and slicing go on."""
    with fresh_postgres() as url:
        upgrade(url)
        with serve(tmp_path / "data", database_url=url) as api:
            fill(api)
            with psycopg.connect(SERVER.format("postgres"), autocommit=True) as admin:
                admin.execute(f"drop database {url.rpartition('/')[2]} with (force)")

            answer = api.get(VAULTS)
            assert_refused(answer, 503, "database_down")
            assert answer.headers["retry-after"] == "5"
            assert api.get("/readyz").json()["status"] == "down"
            assert api.get("/readyz").status_code == 503
            assert send(api, f"{BUFFERS}/alone/experience", steps(2, 2, start=12)).status_code == 201
            assert api.get(f"{BUFFERS}/alone/sample").status_code == 200
            assert api.get(f"{VAULTS}/direct/run1/slice").headers["x-timesteps"] == "15"
            assert api.post(f"{VAULTS}/direct/run1/versions").status_code == 201
            assert api.post(BUFFERS, json=buffer_body("new", persist_to="new/run1")).status_code == 201
    with serve(tmp_path / "data") as api:
        assert api.get(VAULTS).json()["total"]["value"] == 3
