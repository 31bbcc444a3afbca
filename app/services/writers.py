"""Writers of a buffer: listed, described, and ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.services.deck import Deck
from app.services.mirror import Listed, read_cursor, write_cursor
from fbxcore.live import WriterState, iso_time


def list_page(deck: Deck, name: str, *, query: str | None, limit: int, next: str | None) -> Listed:
    """Return one page of a buffer's writers by name; from memory, so every number is the present one."""
    found = [state for state in deck.buffer(name).writers() if not query or query in state.writer]
    after = read_cursor(next, [str])[0] if next is not None else None
    page = [state for state in found if after is None or state.writer > after]
    following = write_cursor([page[limit - 1].writer]) if len(page) > limit else None
    return Listed([public(state) for state in page[:limit]], following, len(found))


async def describe_episode(deck: Deck, name: str, writer: str, metadata: Any) -> dict[str, Any]:
    """Set the metadata of a writer's open episode."""
    return public(await deck.buffer(name).independent.describe_episode(writer, metadata))


async def end_episode(deck: Deck, name: str, writer: str) -> None:
    """End a writer's open episode, if there is one, as a cut."""
    await deck.buffer(name).independent.cut(writer)


def public(state: WriterState) -> dict[str, Any]:
    """Return a writer as the service answers, times as ISO 8601."""
    episode = state.episode
    return asdict(state) | {
        "episode": episode if episode is None else episode | {"since": iso_time(episode["since"])},
        "last_seen": None if state.last_seen is None else iso_time(state.last_seen),
        "idle_s": None if state.idle_s is None else round(state.idle_s, 3),
    }
