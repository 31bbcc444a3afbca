"""Mixers: samplers over several buffers. Plain values in, plain values out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from app.services import files
from app.services.deck import Deck
from fbxcore.errors import ConflictError, InvalidArgumentError, NotFoundError
from fbxcore.live import MIXER, LiveBuffer, LiveMixer, MixerConfig, save_config


def parse(given: Mapping[str, Any]) -> MixerConfig | None:
    """Return the mixer that is asked for; None if it is none."""
    return MixerConfig.parse(given) if given.get("kind") == MIXER else None


async def describe(deck: Deck, config: MixerConfig) -> dict[str, Any]:
    """Return what a mixer would be, and make nothing."""
    mixer = LiveMixer(config, _members(deck, config))
    await mixer.close()
    return mixer.describe()


async def create(deck: Deck, config: MixerConfig) -> dict[str, Any]:
    """Make a mixer; from the first moment on no member of it can be deleted."""
    mixer = LiveMixer(config, _members(deck, config))
    deck.mixes[config.name] = config
    try:
        directory = files.inside(deck.data / "buffers", config.name)
        await asyncio.to_thread(_save, directory, config)
    except BaseException:
        del deck.mixes[config.name]
        await mixer.close()
        raise
    deck.mixers[config.name] = mixer
    await deck.attempt(deck.save_buffers)
    return mixer.describe()


def _save(directory: Any, config: MixerConfig) -> None:
    directory.mkdir(exist_ok=True)
    save_config(directory, config)


def _members(deck: Deck, config: MixerConfig) -> list[LiveBuffer]:
    """Return the buffers that are mixed.

    Raises:
        InvalidArgumentError: naming one that is not there, or is a mixer itself.
    """
    found = []
    for index, name in enumerate(config.buffers):
        if name in deck.mixes or name == config.name:
            raise InvalidArgumentError(
                f"`buffers` must be buffers, got {name!r}, a mixer.", loc=("buffers", index)
            )
        try:
            found.append(deck.buffer(name))
        except NotFoundError as error:
            raise InvalidArgumentError(f"`buffers` must exist: {error}", loc=("buffers", index)) from error
    return found


async def delete(deck: Deck, name: str) -> None:
    """Remove a mixer; its members stay."""
    async with deck.name_locks[name]:
        if name not in deck.mixes:
            raise NotFoundError(f"No buffer named {name!r}.", loc=("name",))
        if (mixer := deck.mixers.pop(name, None)) is not None:
            await mixer.close()
        deck.failed.pop(name, None)
        place = files.set_aside_buffer(files.inside(deck.data / "buffers", name), deck.data / "trash")
        del deck.mixes[name]
    await asyncio.to_thread(files.remove_tree, place)
    await deck.attempt(deck.save_buffers)


def check_unused(deck: Deck, name: str) -> None:
    """Refuse to delete a buffer that a mixer draws from.

    Raises:
        ConflictError: naming the mixer.
    """
    for mixer, config in deck.mixes.items():
        if name in config.buffers:
            raise ConflictError(
                f"Buffer {name!r} must be in no mixer to be deleted, got {mixer!r}. Delete that first.",
                code="in_use",
                mixer=mixer,
            )
