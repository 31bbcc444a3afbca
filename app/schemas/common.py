"""What every resource's answers share."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")
REFERENCE = "#/components/schemas/{model}"


class Total(BaseModel):
    """How many items there are."""

    value: int
    exact: bool


class ListPage(BaseModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next: str | None
    total: Total


class Progress(BaseModel):
    """How far something is."""

    done: int
    total: int
    unit: str


class Fault(BaseModel):
    """One field at fault."""

    loc: list[str | int]
    msg: str
    type: str


class Problem(BaseModel):
    """An error, after RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str | None
    errors: list[Fault] | None = None
    hint: str | None = None


class Strict(BaseModel):
    """A body in which a field that is not served is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the documentation of a JSON body that a service checks itself; `openapi` adds its schema."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


State = Literal["ok", "damaged"]
