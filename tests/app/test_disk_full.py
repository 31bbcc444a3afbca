"""A full disk: every write is 507 and changes nothing; with room again all goes on, nothing missing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.support import arrays_of, assert_refused, buffer_body, send, serve, steps

BUFFERS, VAULTS = "/api/v1/buffers", "/api/v1/vaults"
LIMITER = {"samples_per_insert": 4.0, "min_size": 8, "error_buffer": 1e6}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk needs root")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill_up(disk: Path) -> Path:
    """Take all the room there is."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def until_full(ask: Callable[[int], Any]) -> int:
    """Repeat a request until its answer is 507; return how often it was taken before."""
    for number in range(2000):
        answer = ask(number)
        if answer.status_code == 507:
            assert_refused(answer, 507, "disk_full")
            return number
        assert answer.status_code in (200, 201), answer.text
    raise AssertionError("the disk is not full")


def test_every_write_on_a_full_disk_is_refused_and_all_goes_on_after(disk: Path) -> None:
    """Log, vault, version, configuration, snapshot, a new buffer: 507, and each works once there is room."""
    data, position = disk / "data", 40
    with serve(data) as api:
        api.post(BUFFERS, json=buffer_body("b", persist_to="kept/run1"))
        send(api, f"{BUFFERS}/b/experience", steps(2, position))
        drawn = arrays_of(api.get(f"{BUFFERS}/b/sample?seed=1&format=npz"))
        update = {name: drawn[name] for name in ("indices", "generations")}
        update["priorities"] = np.full(4, 2.0, np.float32)
        refused = [
            lambda: api.post(f"{VAULTS}/kept/run1/versions", json={"tags": ["t"]}),
            lambda: api.patch(f"{BUFFERS}/b", json={"rate_limiter": LIMITER}),
            lambda: api.post(f"{BUFFERS}/b/snapshot"),
            lambda: api.post(BUFFERS, json=buffer_body("new")),
        ]
        ballast = fill_up(disk)
        url, begin = f"{BUFFERS}/b/experience", position
        position += until_full(lambda n: send(api, url, steps(2, 1, start=begin + n)))
        until_full(lambda _: send(api, f"{BUFFERS}/b/priorities", update, method="PATCH"))
        before = api.get(f"{BUFFERS}/b").json()
        for ask in refused:
            assert_refused(ask(), 507, "disk_full")
        assert api.get(f"{BUFFERS}/b").json()["config"] == before["config"]
        assert before["position"] == position
        assert_refused(api.get(f"{BUFFERS}/new"), 404, "not_found")
        assert api.get(f"{BUFFERS}/b/snapshots").json()["items"] == []
        assert api.get(f"{BUFFERS}/b/sample").status_code == 200

        ballast.unlink()
        for ask in refused:
            answer = ask()
            assert answer.status_code in (200, 201), answer.text
        assert send(api, f"{BUFFERS}/b/experience", steps(2, 3, start=position)).status_code == 201
        assert send(api, f"{BUFFERS}/b/priorities", update, method="PATCH").status_code == 200
    with serve(data) as api:
        assert api.get(f"{BUFFERS}/b").json()["position"] == position + 3
        kept = arrays_of(api.get(f"{VAULTS}/kept/run1/slice?format=npz"))
        assert (kept["action"][0] == np.arange(position + 3)).all()
