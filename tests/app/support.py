"""What the tests of the service share: an app in process, a database of its own, small experience."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from fbxcore import wire

BASE = "http://127.0.0.1:8000"
SERVER = "postgresql://postgres@127.0.0.1:5432/{}"
SPEC = {
    "action": {"shape": [], "dtype": "int32"},
    "obs": {"image": {"shape": [2, 2], "dtype": "uint8"}, "vector": {"shape": [3], "dtype": "float32"}},
    "reward": {"shape": [], "dtype": "float32"},
}


class Api(TestClient):
    """A client of the app in process; an answer of 500 fails the test that got it."""

    def __init__(self, app: Any, **headers: str):
        super().__init__(app, base_url=BASE, raise_server_exceptions=False, headers=headers)

    def request(self, method: str, url: Any, **given: Any) -> Any:
        """Send one request."""
        answer = super().request(
            method, url, follow_redirects=False, **{k: v for k, v in given.items() if k != "follow_redirects"}
        )
        assert answer.status_code != 500, answer.text
        return answer


def settings_of(data: Path, **given: Any) -> Settings:
    """Return settings that read nothing from the environment's own."""
    return Settings(
        data=data, **{"mirror_interval_s": 3600, "scan_interval_s": 3600, "start_wait_s": 30} | given
    )


@contextmanager
def serve(data: Path, *, headers: dict[str, str] | None = None, **given: Any) -> Iterator[Api]:
    """Run an app on a data directory."""
    with Api(create_app(settings_of(data, **given)), **(headers or {})) as api:
        yield api


@contextmanager
def fresh_postgres() -> Iterator[str]:
    """Make a database on the local server, and drop it after.

    Without a server the test is skipped, in CI it fails: there the server must be.
    """
    name = f"flashdeck_{uuid.uuid4().hex[:12]}"
    try:
        admin = psycopg.connect(SERVER.format("postgres"), autocommit=True, connect_timeout=3)
    except psycopg.OperationalError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no PostgreSQL answers on 127.0.0.1:5432: {error}")
        pytest.skip(f"NO POSTGRESQL on 127.0.0.1:5432, its tests are skipped: {error}")
    with admin:
        admin.execute(f"create database {name}")
        try:
            yield SERVER.format(name).replace("postgresql://", "postgresql+psycopg://")
        finally:
            admin.execute(f"drop database if exists {name} with (force)")
    admin.close()


def steps(rows: int, length: int, start: int = 0) -> dict[str, np.ndarray]:
    """Return experience `[B, T, ...]` in which every number tells its row and step."""
    at = start + np.arange(length)[None] + 1000 * np.arange(rows)[:, None]
    return {
        "action": at.astype(np.int32),
        "obs/image": np.broadcast_to((at % 251)[..., None, None], (rows, length, 2, 2)).astype(np.uint8),
        "obs/vector": (at[..., None] + np.array([0, 0.25, 0.5])).astype(np.float32),
        "reward": (at / 2).astype(np.float32),
    }


def send(
    api: Api, url: str, arrays: dict[str, np.ndarray], *, format: str = "safetensors", **given: Any
) -> Any:
    """POST arrays in a format."""
    headers = {"content-type": wire.FORMATS[format]} | given.pop("headers", {})
    method = given.pop("method", "POST")
    return api.request(method, url, content=wire.encode(arrays, format)[0], headers=headers, **given)


def arrays_of(answer: Any) -> dict[str, np.ndarray]:
    """Return the arrays of an answer."""
    assert answer.status_code == 200, answer.text
    return wire.decode(answer.content, wire.format_for(answer.headers["content-type"]))


def assert_refused(answer: Any, status: int, code: str, *words: str) -> dict[str, Any]:
    """Check that an answer is a problem document of a status and code whose sentence has the words."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert {"type", "title", "status", "detail", "code", "request_id"} <= set(problem)
    assert (problem["status"], problem["code"]) == (status, code), problem
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["type"] == f"/problems/{code}"
    for word in words:
        assert word in problem["detail"], problem["detail"]
    return problem


def buffer_body(name: str, **given: Any) -> dict[str, Any]:
    """Return the body of a small prioritised buffer of two rows."""
    return {
        "name": name,
        "kind": "prioritised_flat",
        "spec": SPEC,
        "max_length": 64,
        "min_length": 8,
        "sample_batch_size": 4,
        "add_batch_size": 2,
    } | given
