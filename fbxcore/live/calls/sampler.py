"""Samples out: once there is enough and the limiter agrees, drawn at once where that is quick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fbxcore.errors import FbxError, NotEnoughDataError
from fbxcore.live.answers import Sample
from fbxcore.live.calls.checks import check_batch_size, check_beta, check_seed, check_timeout
from fbxcore.live.calls.gate import Gate
from fbxcore.live.config import BufferConfig
from fbxcore.live.rings.engine import Engine
from fbxcore.live.rings.ring import Ring, Room


class Sampler:
    """Draws from one ring; belongs to an event loop."""

    def __init__(self, config: BufferConfig, ring: Ring, engine: Engine, gate: Gate):
        self._config = config
        self._ring = ring
        self._engine = engine
        self._gate = gate

    async def sample(
        self,
        batch_size: int | None,
        *,
        seed: int | None,
        beta: float | None,
        timeout_ms: int,
        peek: bool,
        room: Room,
    ) -> Sample:
        """Draw a batch, as `LiveBuffer.sample` says."""
        number = check_batch_size(self._config, batch_size)
        check_beta(self._config, beta)
        check_seed(seed)
        wait_s = check_timeout(timeout_ms)
        deadline = asyncio.get_running_loop().time() + (0 if peek else wait_s)
        if not peek:
            await self._gate.admit_sample(number, deadline)
        while True:
            try:
                return await self._draw(number, seed, beta, peek, room)
            except NotEnoughDataError as error:
                refusal = error
            await self._gate.wait(deadline, lambda error=refusal: error)

    async def _draw(
        self, number: int, seed: int | None, beta: float | None, peek: bool, room: Room
    ) -> Sample:
        def draw(ring: Ring) -> Sample:
            arrays, drawn_with = ring.sample(number, seed, beta, room)
            if not peek:
                ring.counters = ring.counters.and_sampled(number)
            return Sample(arrays, drawn_with, ring.position)

        at_once = self._engine.now(draw) if self._ring.is_quick(number) else None
        drawn = at_once[0] if at_once is not None else await self._engine.ask(draw)
        if not peek:
            self._gate.sampled()
        return drawn

    # For a mixer, which draws from several buffers or from none

    async def admit(self, items: int, deadline: float) -> None:
        """Wait until the limiter lets a mixer have so many items."""
        self._gate.check_open()
        await self._gate.admit_sample(items, deadline)

    async def until_changed(self, deadline: float, error: Callable[[], FbxError]) -> None:
        """Wait until something changed, or raise `error` at the deadline (the loop's clock)."""
        await self._gate.wait(deadline, error)

    async def count(self, items: int) -> None:
        """Count items that a mixer handed out."""

        def count(ring: Ring) -> None:
            ring.counters = ring.counters.and_sampled(items)

        await self._engine.ask(count)
        self._gate.sampled()
