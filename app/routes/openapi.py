"""The documentation of what is served: FastAPI's own, and the plain routes beside it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.schemas.buffers import Added, BufferChange, BufferCreate, Updated
from app.schemas.common import REFERENCE, Problem
from app.schemas.vaults import Appended
from fbxcore.live import ENDS
from fbxcore.wire import FORMATS

DESCRIPTION = (
    "Replay buffers and datasets for reinforcement learning. Control is JSON; arrays travel as safetensors, "
    "npz, msgpack or JSON. Every error is `application/problem+json`."
)
_BUFFER = "/api/v1/buffers/{name}"
_VAULT = "/api/v1/vaults/{vault_name}/{vault_uid}"


def install(app: FastAPI) -> None:
    """Make `/openapi.json` tell of every route."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _schema(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for model in (BufferCreate, BufferChange, Added, Updated, Appended, Problem):
        described = model.model_json_schema(ref_template=REFERENCE)
        schemas |= described.pop("$defs", {}) | {model.__name__: described}
    for path, operations in _plain_paths().items():
        schema["paths"].setdefault(path, {}).update(operations)
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["4XX"] = _json(
                "A problem: what was asked breaks a rule.", Problem, "problem+json"
            )
    if root_path := app.state.settings.root_path:
        schema["servers"] = [{"url": root_path}]
    return schema


def _plain_paths() -> dict[str, dict[str, Any]]:
    once = [
        _parameter(
            "Idempotency-Key", "A repeat under the same key adds nothing and gets the first answer.", "header"
        ),
        _parameter("writer", "Instead of a key: who sends this …"),
        _parameter("sequence", "… and its number, which must grow.", kind="integer"),
        _parameter("cast", "`same_kind` allows float64 to float32 and the like; `X-Converted` says so."),
        _format("The format of the body, instead of `Content-Type`."),
    ]
    drawn = [
        _parameter("batch_size", "How many items; the buffer's own number by default.", kind="integer"),
        _parameter("seed", "The same seed on the same state gives the same bytes.", kind="integer"),
        _parameter("beta", "Adds `weights`, importance weights of that exponent.", kind="number"),
        _timeout(),
        _parameter("peek", "Draw without waiting or counting.", kind="boolean"),
        _format("The format of the answer, instead of `Accept`."),
    ]
    return {
        f"{_BUFFER}/experience": {
            "post": _operation("add_experience", "Add a batch exactly once", "buffers", [_path("name"), *once,
                               _end(), _timeout()], body=True, answers={"201": _json("Added.", Added)}),
        },
        f"{_BUFFER}/sample": {
            "get": _operation("sample", "Draw a batch", "buffers", [_path("name"), *drawn],
                              answers=_arrays()),
            "post": _operation("sample_once", "Draw a batch once for a key", "buffers",
                               [_path("name"), once[0], *drawn], answers=_arrays()),
        },
        f"{_BUFFER}/take": {
            "post": _operation("take", "Take from a queue, each item once", "buffers",
                               [_path("name"), *_take_parameters()], answers=_arrays()),
        },
        f"{_BUFFER}/priorities": {
            "patch": _operation("set_priorities", "Set priorities of sampled items", "buffers",
                                [_path("name"), once[-1]], body=True,
                                answers={"200": _json("Set.", Updated)}),
        },
        f"{_VAULT}/experience": {
            "post": _operation("append_experience", "Append a batch exactly once", "vaults",
                               [_path("vault_name"), _path("vault_uid"), *once], body=True,
                               answers={"201": _json("Appended.", Appended)}),
        },
        f"{_VAULT}/slice": {
            "get": _operation("read_slice", "Read a slice of a version", "vaults",
                              [_path("vault_name"), _path("vault_uid"), *_slice_parameters()],
                              answers=_arrays()),
        },
    }  # fmt: skip


def _take_parameters() -> list[dict[str, Any]]:
    return [
        _parameter(
            "Idempotency-Key",
            "Keeps what is taken for a repeat, which gets the same, until `client` takes again, or a minute.",
            "header",
        ),
        _parameter("client", "Who takes."),
        _parameter("batch_size", "How many sequences: a multiple of the rows, which it is by default.",
                   kind="integer"),
        _timeout(),
        _format("The format of the answer, instead of `Accept`."),
    ]  # fmt: skip


def _slice_parameters() -> list[dict[str, Any]]:
    return [
        _parameter("ref", "`3` or `v3`, `latest`, `head` (default), a tag, or `sha256-…`."),
        _parameter("start", "The first timestep; Python's slice rules.", kind="integer"),
        _parameter("stop", "The end, not included.", kind="integer"),
        _parameter("step", "Every how many.", kind="integer"),
        _parameter("timesteps", "Instead: the last that many.", kind="integer"),
        _parameter("percentiles", "Instead: `a,b` of 0 to 100, ascending."),
        _parameter("rows", "`a:b` of the rows."),
        _parameter("leaves", "Names, comma-separated."),
        _format("The format of the answer, instead of `Accept`."),
    ]


def _operation(
    name: str, summary: str, tag: str, parameters: list, *, answers: dict, body: bool = False
) -> dict[str, Any]:
    operation = {
        "operationId": name,
        "summary": summary,
        "tags": [tag],
        "parameters": parameters,
        "responses": answers,
    }
    if body:
        operation["requestBody"] = {"required": True, "content": _binary()}
    return operation


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _parameter(name: str, text: str, where: str = "query", *, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": where, "description": text, "schema": {"type": kind}}


def _end() -> dict[str, Any]:
    text = "`final/<leaf>` are then the true last observation, and the row is free."
    ends = {"schema": {"type": "string", "enum": list(ENDS)}}
    return _parameter("end", f"Of an independent writer: how its episode ends. Arrays {text}") | ends


def _timeout() -> dict[str, Any]:
    return _parameter("timeout_ms", "How long to wait before giving up; 0 by default.", kind="integer")


def _format(text: str) -> dict[str, Any]:
    return _parameter("format", text) | {"schema": {"type": "string", "enum": list(FORMATS)}}


def _binary() -> dict[str, Any]:
    return {
        media: {"schema": {"type": "object"} if name == "json" else {"type": "string", "format": "binary"}}
        for name, media in FORMATS.items()
    }


def _arrays() -> dict[str, Any]:
    return {"200": {"description": "Arrays by name.", "content": _binary()}}


def _json(text: str, model: type[BaseModel], subtype: str = "json") -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    return {"description": text, "content": {f"application/{subtype}": {"schema": schema}}}
