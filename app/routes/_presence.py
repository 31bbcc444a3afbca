"""Waiting on behalf of a client only for as long as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def while_there(request: Request, wanted: Coroutine[Any, Any, T]) -> T:
    """Return what is awaited, or cancel it as soon as the client hangs up.

    The body must have been read, or be none: what else arrives is passed over.

    Raises:
        ClientDisconnect: if the client hung up first; nothing was handed out to it.
    """
    work = asyncio.ensure_future(wanted)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return await work
    finally:
        work.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
