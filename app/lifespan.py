"""From start to stop: the deck is opened before the first request and flushed after the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from app.services.deck import Deck
from app.services.sweeps import sweep_by_retention


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold one deck for as long as the app runs."""
    deck = Deck(app.state.settings)
    app.state.deck = deck
    await deck.open()
    sweeping = asyncio.create_task(sweep_by_retention(deck, app.state.settings.sweep_interval_s))
    try:
        yield
    finally:
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        if (streams := getattr(app.state, "streams", None)) is not None:
            streams.close()
            del app.state.streams
        await deck.close()
