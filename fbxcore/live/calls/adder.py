"""Experience in: checked, admitted, logged once. Independent writers have `writers` instead."""

from __future__ import annotations

import asyncio
from typing import Any

from fbxcore.live.calls.checks import check_experience, check_timeout
from fbxcore.live.calls.gate import Gate
from fbxcore.live.calls.takes import Takes
from fbxcore.live.config import BufferConfig
from fbxcore.live.durable.journal import Journal
from fbxcore.live.rings.queue_ring import QueueRing
from fbxcore.live.rings.ring import Ring
from fbxcore.types import Leaves


class Adder:
    """Adds to one ring by way of its journal; belongs to an event loop."""

    def __init__(
        self, config: BufferConfig, ring: Ring | QueueRing, journal: Journal, gate: Gate, takes: Takes | None
    ):
        self._config = config
        self._ring = ring
        self._journal = journal
        self._gate = gate
        self._takes = takes

    async def add(
        self,
        leaves: Leaves,
        *,
        key: str | None,
        writer: str | None,
        sequence: int | None,
        cast: str | None,
        timeout_ms: int,
    ) -> dict[str, Any]:
        """Add leaves, as `LiveBuffer.add` says; return the answer."""
        checked, steps = check_experience(self._config, leaves, cast)
        deadline = asyncio.get_running_loop().time() + check_timeout(timeout_ms)
        answer = await self._journal.add(
            checked,
            steps,
            key=key,
            writer=writer,
            sequence=sequence,
            admit=lambda: self._admit(steps, deadline),
            deadline=deadline,
        )
        if "size" in answer:
            return answer
        now = {"size": self._ring.size, "position": self._ring.position}  # of a writer's old repeat
        return answer | now | {"added": 0, "sequence": None}

    async def fill(self, leaves: Leaves) -> None:
        """Add leaves past the limiter, and wait for the vault."""
        checked, steps = check_experience(self._config, leaves, None)
        await self._journal.add(checked, steps, key=None, writer=None, sequence=None)
        await self._journal.flush()

    async def _admit(self, steps: int, deadline: float) -> bool:
        if self._takes is not None:
            return await self._takes.admit_add(steps, deadline)
        return await self._gate.admit_add(steps * self._config.layout.rows, deadline)
