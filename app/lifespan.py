"""From start to stop: the deck is opened before the first request and flushed after the last."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from app.services.deck import Deck


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold one deck for as long as the app runs."""
    deck = Deck(app.state.settings)
    app.state.deck = deck
    await deck.open()
    try:
        yield
    finally:
        if (streams := getattr(app.state, "streams", None)) is not None:
            streams.close()
            del app.state.streams
        await deck.close()
