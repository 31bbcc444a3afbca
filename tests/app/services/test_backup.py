"""A backup made while everything moves is of one moment, and gives back all of it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from app.services import backup as backups
from app.services.backup import copy_out, make, restore
from app.services.offline import made_backup
from fbxcore.client import Client
from fbxcore.errors import ConflictError, NotFoundError
from fbxcore.live.durable.files import replace_file
from fbxcore.vault.verify import verify
from tests.app.support import SPEC, Api, arrays_of, assert_refused, buffer_body, send, steps
from tests.app.support import serve as serve_in_process
from tests.served import serve

BUFFER, VAULT, BACKUPS = "/api/v1/buffers", "/api/v1/vaults", "/api/v1/backups"


def fill(api: Api) -> None:
    """Buffers with and without a vault, priorities, pending steps of a log, versions, tags, keys."""
    api.post(BUFFER, json=buffer_body("kept", persist_to="kept/1"))
    api.post(BUFFER, json=buffer_body("ring"))
    for name in ("kept", "ring"):
        send(api, f"{BUFFER}/{name}/experience", steps(2, 20), headers={"idempotency-key": "k"})
    api.post(VAULT, json={"vault_name": "own", "vault_uid": "1", "spec": SPEC, "rows": 2})
    send(api, f"{VAULT}/own/1/experience", steps(2, 5))
    api.post(f"{VAULT}/own/1/versions", json={"tags": ["five"]})
    send(api, f"{VAULT}/own/1/experience", steps(2, 3, start=5))
    assert api.post(f"{BUFFER}/ring/snapshot").status_code == 201


def seen(api: Api) -> dict:
    """Return samples of a seed, a version and the vault's steps."""
    samples = [
        api.get(f"{BUFFER}/{n}/sample?seed=3&format=npz&peek=true").content for n in ("kept", "ring")
    ]
    version = api.get(f"{VAULT}/own/1/versions/five").json()
    return {"samples": samples, "version": version, "length": api.get(f"{VAULT}/own/1").json()["length"]}


def test_everything_comes_back(tmp_path: Path) -> None:
    """As it was when the backup was made, though the service went on, swept, and changed what it shares."""
    data, new = tmp_path / "data", tmp_path / "new"
    with serve_in_process(data) as api:
        fill(api)
        before = seen(api)
        made = api.post(BACKUPS).json()
        assert (made["buffers"], made["vaults"]) == (["kept", "ring"], ["kept/1", "own/1"])
        send(api, f"{VAULT}/own/1/experience", steps(2, 9, start=8))
        for name in ("kept", "ring"):
            send(api, f"{BUFFER}/{name}/experience", steps(2, 50, start=20))
        for vault in ("own", "kept"):
            api.delete(f"{VAULT}/{vault}/1/tags/five")
            api.post(f"{VAULT}/{vault}/1/gc", json={"keep": 1, "grace_s": 0})
        assert [found["id"] for found in api.get(BACKUPS).json()] == [made["id"]]
        record = copy_out(data / "backups" / made["id"], tmp_path / "copy")
        assert api.request("DELETE", f"{BACKUPS}/{made['id']}").status_code == 204
        assert api.get(BACKUPS).json() == []
        assert_refused(api.request("DELETE", f"{BACKUPS}/{made['id']}"), 404, "not_found")

    assert restore(tmp_path / "copy", new) == record == {k: v for k, v in made.items() if k != "id"}
    kept = [{p.name for p in (root / "snapshots").rglob("*")} for root in (data, new)]
    assert kept[0] == kept[1] != set()
    with serve_in_process(new) as api:
        assert seen(api) == before
        for name in ("kept", "ring"):
            again = send(api, f"{BUFFER}/{name}/experience", steps(2, 20), headers={"idempotency-key": "k"})
            assert again.json()["duplicate"]
        got = arrays_of(api.get(f"{VAULT}/own/1/slice?format=npz"))
        assert (got["action"] == steps(2, 8)["action"]).all()


def test_a_data_directory_that_nobody_serves_is_backed_up_too(tmp_path: Path) -> None:
    """Nothing of the work is left in it; a backup in the directory itself can be restored as well."""
    with serve_in_process(tmp_path / "data") as api:
        fill(api)
        before = seen(api)
    with made_backup(tmp_path / "data") as made:
        restore(made, tmp_path / "new")

    assert list((tmp_path / "data" / "backups").iterdir()) == []
    with serve_in_process(tmp_path / "new") as api:
        assert seen(api) == before


def numbers(api: Api, url: str) -> list[int]:
    """Return the last steps of a vault."""
    return arrays_of(api.get(f"{url}/slice?format=npz&timesteps=10000000"))["n"][0].tolist()


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.long)])
def test_a_backup_is_of_one_moment(tmp_path: Path, rounds: int) -> None:
    """Writers add to a buffer, then to another, then to a vault: none has a step the one before lacks."""
    spec = {"n": {"shape": [], "dtype": "int32"}}
    sizes = {"max_length": 500_000, "min_length": 1, "sample_batch_size": 1}
    with serve(tmp_path) as server, Client(server.url) as client:
        a = client.create_buffer("a", "item", spec, persist_to="a/1", **sizes)
        b = client.create_buffer("b", "item", spec, **sizes)
        vault = client.create_vault("c/1", spec)
        stop, done = threading.Event(), 0

        def play() -> None:
            nonlocal done
            while not stop.is_set():
                one = np.full(1, done, np.int32)
                a.add({"n": one}), b.add({"n": one}), vault.add({"n": one[None]})
                done += 1

        thread = threading.Thread(target=play)
        thread.start()
        made, before = [], []
        for number in range(rounds):
            while done < 20 * (number + 1):
                time.sleep(0.001)
            before.append(done)
            made.append(client.create_backup())
        stop.set()
        thread.join()

    assert max(found["pause_ms"] for found in made) < 2000
    for found, least in zip(made, before, strict=True):
        restore(tmp_path / "data" / "backups" / found["id"], tmp_path / "new")
        with serve_in_process(tmp_path / "new") as api:
            lengths = [api.get(f"{BUFFER}/{name}").json()["added"] for name in ("a", "b")]
            lengths.append(api.get(f"{VAULT}/c/1").json()["length"])
            assert numbers(api, f"{VAULT}/c/1") == list(range(lengths[2]))
            assert numbers(api, f"{VAULT}/a/1") == list(range(lengths[0]))
        assert lengths[0] >= lengths[1] >= lengths[2] >= least and lengths[0] - lengths[2] <= 1, lengths
        shutil.rmtree(tmp_path / "new")


def test_backups_of_a_busy_service_are_whole(tmp_path: Path) -> None:
    """Two, while four threads add a MiB at a time: each opens, and holds what was acknowledged before."""
    acknowledged = 0
    with serve(tmp_path) as server, Client(server.url) as client:
        spec = {"n": {"shape": [4096], "dtype": "int32"}}
        sizes = {"max_length": 500, "min_length": 1, "sample_batch_size": 1}
        buffer = client.create_buffer("busy", "item", spec, persist_to="busy/1", **sizes)
        stop = threading.Event()

        def play() -> None:
            nonlocal acknowledged
            while not stop.is_set():
                acknowledged = max(acknowledged, buffer.add({"n": np.zeros((64, 4096), np.int32)}).position)

        threads = [threading.Thread(target=play) for _ in range(4)]
        for thread in threads:
            thread.start()
        held = []
        for number in range(2):
            while acknowledged < 4200 * (number + 1):
                time.sleep(0.01)
            held.append(acknowledged)
            made = client.create_backup()
            copy_out(tmp_path / "data" / "backups" / made["id"], tmp_path / f"copy{number}")
        stop.set()
        for thread in threads:
            thread.join()

    assert held[-1] > 64 * 64  # the log has begun another segment
    for number, before in enumerate(held):
        copy = tmp_path / f"copy{number}"
        assert verify(copy / "vaults" / "busy" / "1").findings == ()
        with serve_in_process(copy) as api:
            found = api.get(f"{BUFFER}/busy").json()
            assert found["position"] >= before
            assert api.get(f"{VAULT}/busy/1/slice?timesteps=1").status_code == 200
            assert api.get(f"{VAULT}/busy/1").json()["length"] == found["position"]
        shutil.rmtree(copy)


def test_what_belongs_together_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are replaced one after the other, while they are linked: both old or both new."""
    with serve_in_process(tmp_path / "data") as api:
        fill(api)
    here, link, calls = tmp_path / "data" / "buffers" / "ring", os.link, []
    for name in ("one", "two"):
        (here / name).write_text("old")

    def replaces(source: Path, target: Path) -> None:
        link(source, target)
        if source.name == "one" and len(calls) < 2:
            calls.append(1)
            for name in ("one", "two"):
                replace_file(here / name, b"new")

    monkeypatch.setattr(os, "link", replaces)
    make(tmp_path / "data", tmp_path / "made")
    copied = tmp_path / "made" / "buffers" / "ring"
    assert [(copied / name).read_text() for name in ("one", "two")] == ["new", "new"]
    assert len(calls) == 2


def test_a_backup_that_breaks_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service goes on."""
    with serve_in_process(tmp_path / "data") as api:
        fill(api)

        def full(*arguments) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(backups, "_copy_database", full)
            assert_refused(api.post(BACKUPS), 503, "storage", "must be written whole")
        assert list((tmp_path / "data" / "backups").iterdir()) == []
        assert send(api, f"{VAULT}/own/1/experience", steps(2, 1, start=8)).status_code == 201


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A target or data directory that holds something is refused, and what is no backup is told."""
    with serve_in_process(tmp_path / "data"):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    make(tmp_path / "data", tmp_path / "made")

    with pytest.raises(ConflictError, match="`target` must be a new or empty directory, got 'full'"):
        copy_out(tmp_path / "made", tmp_path / "full")
    with pytest.raises(NotFoundError, match="No data directory of ours at 'none'"):
        make(tmp_path / "none", tmp_path / "copy")
    with pytest.raises(ConflictError, match="`data` must be a new or empty directory, got 'data'"):
        restore(tmp_path / "made", tmp_path / "data")
    with pytest.raises(NotFoundError, match="No backup at 'full'"):
        restore(tmp_path / "full", tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "full", "made"]
