"""Control bodies: what is read as JSON, and what is refused, by every route that takes one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from app.main import create_app
from app.routes._control import MAX_BYTES, MAX_DEPTH
from tests.app.support import Api, assert_refused, buffer_body, settings_of

COMPRESS = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}


def json_routes() -> Iterator[tuple[str, str]]:
    """Yield method and path of every route whose documentation says it takes JSON alone."""
    schema = create_app(settings_of(Path("unused"))).openapi()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            if list(operation.get("requestBody", {}).get("content", ())) == ["application/json"]:
                yield method.upper(), path.replace("{", "").replace("}", "")


ROUTES = list(json_routes())


def ask(api: Api, method: str, path: str, body: bytes, **headers: str) -> Any:
    """Send a body with headers whose names are spelt with `_`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.request(method, path, content=body, headers=named)


def test_all_routes_are_found() -> None:
    """Those that make, change, tag, fork and sweep are among the routes tried here."""
    assert len(ROUTES) >= 10
    assert {"POST", "PUT", "PATCH"} == {method for method, _ in ROUTES}


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_what_says_it_is_not_json_is_415(api: Api, method: str, path: str) -> None:
    """The header is named with what it must be, whatever the body is; so is an encoding nobody undoes."""
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "application/x-npz", "json"):
        answer = ask(api, method, path, b"{}", content_type=media_type)
        assert_refused(answer, 415, "unsupported_media_type", "`Content-Type`", "application/json")
    answer = ask(api, method, path, b"{}", content_type="application/json", content_encoding="br")
    assert_refused(answer, 415, "unsupported_media_type", "`Content-Encoding`", "gzip, zstd")


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_what_is_not_strict_json_is_422(api: Api, method: str, path: str) -> None:
    """Cut, twice named, not a number, too deep, too long: always 422, never 500."""
    bodies = (b"{", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1, "a": 2}', b"\xff", b"nul")
    for body in (*bodies, b'{"a":' * 100_000, b'{"a": %b}' % (b"9" * 5000)):
        answer = ask(api, method, path, body, content_type="application/json")
        assert (answer.status_code, "body" in answer.json()["detail"]) == (422, True), answer.text


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    ("value", "rule"),
    [("1e400", "64 bits"), ("18446744073709551616", "18446744073709551615"),
     ("-9223372036854775809", "from -9"), (r'"\ud800"', "whole characters"),
     (r'{"\udfff": 1}', "whole characters")],
)  # fmt: skip
def test_what_would_not_be_kept_names_its_field(
    api: Api, method: str, path: str, value: str, rule: str
) -> None:
    """An integer beyond 64 bits, an endless number and half a character are refused by their place."""
    body = f'{{"metadata": {{"list": [0, {value}]}}}}'.encode()
    problem = assert_refused(
        ask(api, method, path, body, content_type="application/json"), 422, "invalid_argument",
        "`metadata.list.1`", rule,
    )  # fmt: skip

    assert problem["errors"][0]["loc"] == ["metadata", "list", 1]


@pytest.mark.parametrize("encoding", COMPRESS)
def test_an_encoded_body_is_undone(api: Api, encoding: str) -> None:
    """A gzip or zstd body makes what it says; one that is cut, or too large once undone, is refused."""
    body = COMPRESS[encoding](json.dumps(buffer_body(f"packed-{encoding}")).encode())
    given = {"content_type": "application/json", "content_encoding": encoding}
    bomb = COMPRESS[encoding](b" " * (MAX_BYTES + 1))

    assert ask(api, "POST", "/api/v1/buffers", body, **given).json()["name"] == f"packed-{encoding}"
    assert_refused(ask(api, "POST", "/api/v1/vaults", body[:-9], **given), 422, "malformed_body", encoding)
    assert_refused(ask(api, "POST", "/api/v1/vaults", bomb, **given), 413, "body_too_large", str(MAX_BYTES))


@pytest.mark.parametrize(
    "media_type",
    [None, "application/json; charset=utf-8", "Application/JSON", "application/merge-patch+json"],
)
def test_json_goes_by_several_names(api: Api, media_type: str | None) -> None:
    """With parameters, in any case, of a special kind, or not said at all: nothing else is read here."""
    api.put("/api/v1/buffers/named", json=buffer_body("named"))
    headers = {} if media_type is None else {"content_type": media_type}

    assert ask(api, "PATCH", "/api/v1/buffers/named", b'{"durability": "os"}', **headers).status_code == 200


def test_integers_of_64_bits_and_deep_values_are_kept(api: Api) -> None:
    """The greatest and least integers and the deepest nesting come back as sent; one deeper is 422."""
    deep: Any = 7
    for _ in range(MAX_DEPTH - 2):
        deep = [deep]
    metadata = {"most": 2**64 - 1, "least": -(2**63), "deep": deep, "text": "ü𝄞"}
    body = {"vault_name": "exact", "vault_uid": "run1", "spec": {"x": {"shape": [], "dtype": "bool"}}}

    made = api.post("/api/v1/vaults", json=body | {"metadata": metadata})
    assert made.json()["metadata"] == metadata
    assert api.get("/api/v1/vaults/exact/run1").json()["metadata"] == metadata
    answer = api.patch("/api/v1/vaults/exact/run1", json={"metadata": {"deep": [deep]}})
    assert_refused(answer, 422, "invalid_argument", "`metadata`", f"at most {MAX_DEPTH} deep")
