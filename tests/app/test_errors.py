"""Every error is a problem document, whoever raises it."""

from __future__ import annotations

import errno

import orjson
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from app import errors
from app.main import create_app
from fbxcore import errors as fbx
from tests.app.support import BASE, Api, assert_refused, buffer_body, settings_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (fbx.InvalidArgumentError("x"), 422),
        (fbx.StructureError("x"), 422),
        (fbx.NotSupportedError("x"), 422),
        (fbx.NotFoundError("x"), 404),
        (fbx.ReclaimedError("x"), 410),
        (fbx.ConflictError("x"), 409),
        (fbx.NotEnoughDataError("x"), 409),
        (fbx.UnavailableError("x"), 503),
        (fbx.StorageError("x"), 503),
        (fbx.DamagedError("x"), 409),
        (fbx.DiskFullError("x"), 507),
        (fbx.InvalidArgumentError("x", code="not_acceptable"), 406),
        (fbx.InvalidArgumentError("x", code="unsupported_media_type"), 415),
        (fbx.ConflictError("x", code="precondition_failed"), 412),
        (fbx.ConflictError("x", code="precondition_required"), 428),
    ],
)
def test_each_class_has_its_status(error: fbx.FbxError, status: int) -> None:
    """The contract's status for each class and code."""
    assert errors.status_of(error) == status


def test_every_class_of_the_tree_has_a_status() -> None:
    """No error raised on purpose is left without one."""
    classes = [c for c in vars(fbx).values() if isinstance(c, type) and issubclass(c, fbx.FbxError)]

    for kind in classes:
        assert errors.status_of(kind("x")) >= 400


def test_details_hints_and_waiting_are_members() -> None:
    """`details` are members, `retry_after_s` is a header too, `loc` becomes `errors`."""
    error = fbx.UnavailableError(
        "Wait.", code="rate_limited", loc=("a",), hint="Later.", retry_after_s=2.4, limiter={"x": 1}
    )
    answer = errors.problem_of(error, "id")

    assert answer.headers["retry-after"] == "2"
    assert b'"limiter":{"x":1}' in answer.body and b'"hint":"Later."' in answer.body
    assert b'"errors":[{"loc":["a"],"msg":"Wait.","type":"rate_limited"}]' in answer.body


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nothing", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("DELETE", "/api/v1/buffers", 405, "method_not_allowed"),
        ("PUT", "/livez", 405, "method_not_allowed"),
        ("GET", "/api/v1/buffers/x/experience", 405, "method_not_allowed"),
        ("GET", "/static/nothing.js", 404, "not_found"),
        ("POST", "/api/v1/uploads", 422, "not_supported"),
        ("GET", "/api/v1/jobs/1", 422, "not_supported"),
        ("POST", "/api/v1/imports", 422, "not_supported"),
    ],
)
def test_the_frameworks_own_errors_are_problems_too(
    api: Api, method: str, path: str, status: int, code: str
) -> None:
    """404, 405 and later resources have the same form as ours; 405 says what is allowed."""
    answer = api.request(method, path)

    assert_refused(answer, status, code)
    assert ("allow" in answer.headers) == (status == 405)


def test_what_goes_wrong_on_our_side_is_a_problem_without_secrets(tmp_path) -> None:
    """An error nobody foresaw is 500 with the id, not its text; a full disk is 507."""
    app = create_app(settings_of(tmp_path / "data"))

    @app.get("/broken")
    async def broken(request: Request) -> None:
        raise RuntimeError("secret path")

    @app.get("/full")
    async def full(request: Request) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        problem = assert_refused(client.get("/broken"), 500, "internal")
        assert "secret" not in str(problem)
        assert_refused(client.get("/full"), 507, "disk_full")


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/api/v1/vaults?limit=x", "`limit` must be a valid integer, got 'x'."),
        ("/api/v1/vaults?query=" + "a" * 201, "`query` must have at most 200 characters, got"),
        ("/api/v1/vaults?limit=0", "`limit` must be greater than or equal to 1, got '0'."),
    ],
)
def test_pydantics_rules_are_sentences(api: Api, path: str, detail: str) -> None:
    """Field, rule and value, without a second subject in between."""
    assert api.get(path).json()["detail"].startswith(detail)


@pytest.mark.parametrize(
    ("method", "path", "given"),
    [("POST", "buffers", {"NAME": 1}),
     ("POST", "buffers", {"kind": "NAME"}),
     ("POST", "buffers", {"spec": {"NAME": {"shape": [], "dtype": "bool"}}}),
     ("PATCH", "vaults/x/run1", {"NAME": 1}),
     ("GET", "buffers/x/histogram?field=NAME", {}),
     ("GET", "buffers/NAME", {})],
)  # fmt: skip
def test_a_name_of_60_000_characters_is_not_echoed(api: Api, method: str, path: str, given: dict) -> None:
    """The sentence has the beginning of it, and so have the fields at fault."""
    api.put("/api/v1/buffers/x", json=buffer_body("x", persist_to="x/run1"))
    given = buffer_body("y") | given if path == "buffers" else given
    body = orjson.dumps(given).replace(b"NAME", b"n" * 60_000) if given else b""
    headers = {"content-type": "application/json"}
    answer = api.request(
        method, f"/api/v1/{path.replace('NAME', 'n' * 60_000)}", content=body, headers=headers
    )

    assert 400 <= answer.status_code < 500
    assert 100 < len(answer.content) < 3000
    assert "nnnn" in answer.json()["detail"]
