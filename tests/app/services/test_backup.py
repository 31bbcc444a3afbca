"""A backup made while everything moves gives back everything that was acknowledged before it."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from app.services.backup import backup, restore
from fbxcore.client import Client
from fbxcore.errors import ConflictError, NotFoundError
from fbxcore.vault.verify import verify
from tests.app.support import SPEC, arrays_of, buffer_body, send, steps
from tests.app.support import serve as serve_in_process
from tests.served import serve

BUFFER, VAULT = "/api/v1/buffers", "/api/v1/vaults"


def test_everything_comes_back(tmp_path: Path) -> None:
    """Buffers with and without a vault, priorities, pending steps of a log, versions, tags, keys."""
    data, copy, new = tmp_path / "data", tmp_path / "copy", tmp_path / "new"
    with serve_in_process(data) as api:
        api.post(BUFFER, json=buffer_body("kept", persist_to="kept/1"))
        api.post(BUFFER, json=buffer_body("ring"))
        for name in ("kept", "ring"):
            send(api, f"{BUFFER}/{name}/experience", steps(2, 20), headers={"idempotency-key": "k"})
        api.post(VAULT, json={"vault_name": "own", "vault_uid": "1", "spec": SPEC, "rows": 2})
        send(api, f"{VAULT}/own/1/experience", steps(2, 5))
        version = api.post(f"{VAULT}/own/1/versions", json={"tags": ["five"]}).json()
        send(api, f"{VAULT}/own/1/experience", steps(2, 3, start=5))
        drawn = {
            n: api.get(f"{BUFFER}/{n}/sample?seed=3&format=npz&peek=true").content for n in ("kept", "ring")
        }
        record = backup(data, copy)
        send(api, f"{VAULT}/own/1/experience", steps(2, 9, start=8))
    assert (record["buffers"], record["vaults"]) == (["kept", "ring"], ["kept/1", "own/1"])

    assert restore(copy, new) == record
    with serve_in_process(new) as api:
        for name, content in drawn.items():
            assert api.get(f"{BUFFER}/{name}/sample?seed=3&format=npz&peek=true").content == content
            again = send(api, f"{BUFFER}/{name}/experience", steps(2, 20), headers={"idempotency-key": "k"})
            assert again.json()["duplicate"]
        assert api.get(f"{VAULT}/own/1/versions/five").json() == version
        got = arrays_of(api.get(f"{VAULT}/own/1/slice?format=npz"))
        assert (got["action"] == steps(2, 8)["action"]).all()


def test_backups_of_a_busy_service_are_whole(tmp_path: Path) -> None:
    """Three, while four threads add a MiB at a time: each opens, and holds what was acknowledged before."""
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
        for number in range(3):
            while acknowledged < 2500 * (number + 1):
                time.sleep(0.01)
            held.append(acknowledged)
            backup(tmp_path / "data", tmp_path / f"copy{number}")
        stop.set()
        for thread in threads:
            thread.join()

    assert held[0] > 0 and held[-1] > 64 * 64  # the log has begun another segment
    for number, before in enumerate(held):
        copy = tmp_path / f"copy{number}"
        assert verify(copy / "vaults" / "busy" / "1").findings == ()
        with serve_in_process(copy) as api:
            found = api.get(f"{BUFFER}/busy").json()
            assert found["position"] >= before
            assert api.get(f"{VAULT}/busy/1/slice?timesteps=1").status_code == 200
            assert api.get(f"{VAULT}/busy/1").json()["length"] == found["position"]
        shutil.rmtree(copy)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A target or data directory that holds something is refused, and what is no backup is told."""
    with serve_in_process(tmp_path / "data"):
        pass
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()

    with pytest.raises(ConflictError, match="`target` must be a new or empty directory, got 'full'"):
        backup(tmp_path / "data", tmp_path / "full")
    with pytest.raises(NotFoundError, match="No data directory of ours at 'none'"):
        backup(tmp_path / "none", tmp_path / "copy")
    backup(tmp_path / "data", tmp_path / "copy")
    with pytest.raises(ConflictError, match="`data` must be a new or empty directory, got 'data'"):
        restore(tmp_path / "copy", tmp_path / "data")
    with pytest.raises(NotFoundError, match="No backup at 'full'"):
        restore(tmp_path / "full", tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "data", "full"]
