"""Waiting: for data, for the rate limiter, until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fbxcore.errors import FbxError, UnavailableError
from fbxcore.live.calls.rate_limiter import Limiter, LimiterConfig
from fbxcore.live.rings.ring import Ring


class Gate:
    """Lets adds and samples through when the limiter agrees; belongs to one event loop."""

    def __init__(self, ring: Ring, config: LimiterConfig | None):
        self._ring = ring
        self._limiter = Limiter(config) if config is not None else None
        self._changed: asyncio.Event | None = None  # what those who wait now wait for
        self._closed = False

    def wake(self) -> None:
        """Let everybody who waits look again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def change(self, config: LimiterConfig | None) -> None:
        """Go by another limiter from now on, or by none."""
        self._limiter = Limiter(config) if config is not None else None
        self.wake()

    def sampled(self) -> None:
        """Let writers look again whom the limiter held back."""
        if self._limiter is not None:
            self.wake()

    def close(self) -> None:
        """Send everybody away, for good."""
        self._closed = True
        self.wake()

    def check_open(self) -> None:
        """Refuse what comes after the end."""
        if self._closed:
            raise UnavailableError(
                "The buffer must be open, got a closing one.", code="closing", retry_after_s=5
            )

    async def wait(self, deadline: float, error: Callable[[], FbxError]) -> None:
        """Wait until something changed, or raise `error` at the deadline (the loop's clock)."""
        remaining = deadline - asyncio.get_running_loop().time()
        if remaining <= 0:
            raise error()
        changed = self._changed = self._changed or asyncio.Event()
        try:
            await asyncio.wait_for(changed.wait(), remaining)
        except TimeoutError:
            raise error() from None
        self.check_open()

    async def admit_add(self, timesteps: int, deadline: float) -> bool:
        """Wait until that many timesteps, over all rows, may be added; return whether it took waiting."""
        if self._limiter is None:
            return False
        return await self._admit(lambda now: self._limiter.can_insert(timesteps, **now), deadline)

    async def admit_sample(self, items: int, deadline: float) -> bool:
        """Wait until that many items may be handed out; return whether it took waiting."""
        return await self._admit(lambda now: self._limiter.can_sample(items, **now), deadline)

    def describe(self) -> dict[str, Any] | None:
        """Return the limiter's numbers."""
        return self._limiter.describe(**self._now()) if self._limiter is not None else None

    async def _admit(self, may: Callable[[dict[str, int]], bool], deadline: float) -> bool:
        waited = False
        while self._limiter is not None and not may(self._now()):
            await self.wait(deadline, self._refusal)
            waited = True
        return waited

    def _now(self) -> dict[str, int]:
        """Count from the last reset, or an emptied buffer would wait for what it may not be given."""
        counters = self._ring.counters
        return {
            "inserts": (counters.position - counters.ring_start) * self._ring.layout.rows_in_step,
            "samples": counters.sampled - counters.sampled_before,
        }

    def _refusal(self) -> UnavailableError:
        numbers = self.describe()
        return UnavailableError(
            f"The rate limiter must keep its error from {numbers['min_error']:g} to "
            f"{numbers['max_error']:g}, got {numbers['error']:g} with {numbers['inserts']} timesteps added "
            f"and {numbers['samples']} items sampled. Wait for the other side, or pass a longer "
            "`timeout_ms`.",
            code="rate_limited",
            retry_after_s=1,
            limiter=numbers,
        )
