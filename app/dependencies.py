"""What routes ask for by name, and the route class that never ignores a parameter."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, get_args, get_origin

from fastapi import Depends, Query, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from app.routes._body import refuse_body
from app.routes._control import read_control
from app.services.deck import Deck, VaultEntry
from app.settings import Settings
from fbxcore.errors import InvalidArgumentError, NotSupportedError


def deck_of(request: Request) -> Deck:
    """Return the service's buffers and vaults."""
    return request.app.state.deck


def settings_of(request: Request) -> Settings:
    """Return the service's settings."""
    return request.app.state.settings


DeckDep = Annotated[Deck, Depends(deck_of)]
SettingsDep = Annotated[Settings, Depends(settings_of)]
DryRun = Annotated[bool, Query(description="Answer what would be, and change nothing.")]
Limit = Annotated[int, Query(ge=1, le=500, description="How many items at most.")]
Next = Annotated[str | None, Query(max_length=4096, description="`next` of the former page.")]


async def vault_of(deck: DeckDep, vault_name: str, vault_uid: str) -> VaultEntry:
    """Return the vault a path names."""
    return await deck.vault(vault_name, vault_uid)


VaultDep = Annotated[VaultEntry, Depends(vault_of)]


class StrictRoute(APIRoute):
    """A route that refuses parameters and bodies it does not serve, and bodies too large for JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler with the check before it."""
        handle = super().get_route_handler()
        fields = get_flat_params(self.dependant)
        served = {
            field.alias: field.field_info for field in fields if isinstance(field.field_info, params.Query)
        }
        read = self.reader()

        async def checked(request: Request) -> Response:
            names = [name for name, _ in request.query_params.multi_items()]
            for name in names:
                if name not in served:
                    raise NotSupportedError(
                        f"`{name[:200]}` must be left out: this resource serves no such parameter.",
                        loc=("query", name[:200]),
                    )
                if names.count(name) > 1 and not _takes_many(served[name].annotation):
                    raise InvalidArgumentError(
                        f"`{name}` must be given once, got {names.count(name)} times.", loc=("query", name)
                    )
            if request.method not in ("GET", "HEAD"):
                await read(request)
            return await handle(request)

        return checked

    def reader(self) -> Callable[[Request], Coroutine[Any, Any, Any]]:
        """Return what reads the body of a request before its handler."""
        takes_body = self.body_field is not None or "requestBody" in (self.openapi_extra or {})
        return read_control if takes_body else refuse_body


class FormRoute(StrictRoute):
    """A route of a page, whose handler reads the form that is its body."""

    def reader(self) -> Callable[[Request], Coroutine[Any, Any, Any]]:
        """Return what leaves the body to the handler."""

        async def leave(request: Request) -> None:
            pass

        return leave


def _takes_many(annotation: Any) -> bool:
    """Whether a parameter is a list, and so may be given more than once."""
    return get_origin(annotation) is list or any(map(_takes_many, get_args(annotation)))
