"""A mixer: batches joined from the samples of several live buffers, in fixed proportions.

It holds nothing. Every member draws its part by a seed that follows from the mixer's, so that the same
seed on the same states gives the same arrays; the parts stand one behind the other in the members' order.
Indices and generations are those of the member an item came from. What is handed out counts with the
members, and their rate limiters hold the mixer back as they would anybody.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from typing import Any

import numpy as np

from fbxcore.buffers.layout import Layout
from fbxcore.buffers.mixer import sizes_of
from fbxcore.errors import InvalidArgumentError, NotEnoughDataError, NotSupportedError, UnavailableError
from fbxcore.live.answers import Sample
from fbxcore.live.calls.checks import check_beta, check_seed, check_timeout
from fbxcore.live.describe import iso_time
from fbxcore.live.housekeeping import METRICS
from fbxcore.live.live_buffer import LiveBuffer
from fbxcore.live.mixer_config import MixerConfig
from fbxcore.live.rings.ring import Room, new_room
from fbxcore.live.timeseries import Timeseries

_SEED_BITS = 63


class LiveMixer:
    """One mixer of the service; its methods belong to the event loop that made it."""

    def __init__(self, config: MixerConfig, members: list[LiveBuffer]):
        """Join members.

        Raises:
            InvalidArgumentError: if their samples do not fit one another.
        """
        config.check_members([member.config for member in members])
        self.config = config
        self.members = members
        self.timeseries = Timeseries(METRICS)
        self.sampled = 0
        self._closed = False
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    @property
    def layout(self) -> Layout:
        """The form of its samples: that of its members."""
        return replace(
            self.members[0].layout, kind=self.config.kind, sample_batch_size=self.config.sample_batch_size
        )

    @property
    def item_bytes(self) -> int:
        """Bytes of one sampled item."""
        return self.members[0].config.item_bytes

    @property
    def unpersisted(self) -> int:
        """Timesteps of its own that are in no vault: none."""
        return 0

    async def close(self) -> None:
        """Send everybody away; the members stay."""
        self._closed = True
        self._ticker.cancel()

    async def _tick(self) -> None:
        while True:
            told = self.describe()
            counted = {name: told[name] for name in ("size", "added", "sampled")}
            self.timeseries.note(time.time(), updated=told["priorities_updated"], **counted)
            await asyncio.sleep(1)

    def describe(self) -> dict[str, Any]:
        """Return the members of the service's answer about it; no I/O.

        Timesteps and rows are those of all members together, `needed` is the most that one lacks, and
        `sampled` counts what this mixer handed out since the service started.
        """
        told = [member.describe() for member in self.members]
        asked = [t for t, size in zip(told, self.config.sizes, strict=True) if size]
        sums = ("rows", "capacity", "size", "position", "added", "priorities_updated", "priorities_stale")
        return {
            "name": self.config.name,
            "kind": self.config.kind,
            "spec": told[0]["spec"],
            "config": self.config.to_json(),
            **{name: sum(t[name] for t in told) for name in sums},
            "time_axis": max(t["time_axis"] for t in told),
            "is_full": all(t["is_full"] for t in told),
            "can_sample": all(t["can_sample"] for t in asked),
            "needed": max(t["needed"] for t in asked),
            "sampled": self.sampled,
            "bytes": 0,
            "persist_to": None,
            "persisted": None,
            "durability": "fsync",
            "limiter": None,
            "warnings": [],
            "created_at": iso_time(self.config.created_at),
            "members": [
                self._member(*entry)
                for entry in zip(told, self.config.proportions, self.config.sizes, strict=True)
            ],
        }

    def _member(self, told: dict[str, Any], proportion: float, size: int) -> dict[str, Any]:
        names = ("name", "kind", "size", "can_sample", "needed", "sampled")
        return {name: told[name] for name in names} | {"proportion": proportion, "items": size}

    def stats(self) -> dict[str, Any]:
        """Return counters and rates; no I/O."""
        left_out = {"spec", "config", "warnings", "created_at"}
        told = {name: value for name, value in self.describe().items() if name not in left_out}
        rates = {f"{name}_per_s": self.timeseries.rate(name) for name in METRICS if name != "size"}
        return told | {"rates": rates}

    async def histogram(self, field: str, bins: int = 40) -> dict[str, Any]:  # noqa: ARG002
        """Refuse: what it samples is counted with its members."""
        raise InvalidArgumentError(
            f"`field` must be asked of a member of the mixer, {self._names()}, got {field!r:.80}.",
            loc=("query", "field"),
        )

    def refusal(self) -> NotSupportedError:
        """Return the error of what only a buffer with experience of its own can do."""
        return NotSupportedError(
            f"`name` must be a buffer, got {self.config.name!r}, a mixer, which only gives samples. Ask one "
            f"of its members: {self._names()}.",
            code="method_not_allowed",
        )

    def _names(self) -> str:
        return ", ".join(repr(name) for name in self.config.buffers)

    async def sample(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        beta: float | None = None,
        timeout_ms: int = 0,
        peek: bool = False,
        room: Room = new_room,
    ) -> Sample:
        """Draw from every member by its proportion; the same seed on the same states gives the same arrays.

        Args:
            beta: exponent of the importance weights, each among the items of its own member.
            peek: neither wait nor count.
            room: gives the arrays to fill.

        Raises:
            NotEnoughDataError: if a member cannot be sampled after `timeout_ms`; names it.
            UnavailableError: if a member's limiter still blocks after `timeout_ms`.
        """
        if self._closed:
            raise UnavailableError("The mixer must be open, got a closed one.", code="closing")
        parts = self._parts(self.config.sample_batch_size if batch_size is None else batch_size)
        check_beta(self.members[0].config, beta)
        seed = secrets.randbits(_SEED_BITS) if check_seed(seed) is None else seed
        deadline = asyncio.get_running_loop().time() + check_timeout(0 if peek else timeout_ms)
        if not peek:
            for member, size in parts:
                await member.sampler.admit(size, deadline)
        drawn = await self._draw(parts, seed, beta, deadline)
        if not peek:
            self.sampled += sum(size for _, size in parts)
            await asyncio.gather(*(member.sampler.count(size) for member, size in parts))
        return Sample(_joined(drawn, room), seed, sum(member.position for member in self.members))

    def _parts(self, number: int) -> list[tuple[LiveBuffer, int]]:
        """Return how many items each member is to give; one that gives none is left out."""
        if number < 1:
            raise InvalidArgumentError(
                f"`batch_size` must be at least 1, got {number}.", loc=("query", "batch_size")
            )
        sizes = sizes_of(self.config.proportions, number)
        return [(member, size) for member, size in zip(self.members, sizes, strict=True) if size]

    async def _draw(
        self, parts: list[tuple[LiveBuffer, int]], seed: int, beta: float | None, deadline: float
    ) -> list[Sample]:
        """Draw every part, none counted; wait for a member that cannot be sampled yet."""
        seeds = _seeds(seed, len(self.members))
        while True:
            drawn = []
            for member, size in parts:
                chosen = seeds[self.members.index(member)]
                try:
                    drawn.append(await member.sample(size, seed=chosen, beta=beta, peek=True))
                except NotEnoughDataError as error:
                    refusal = _named(member, error)
                    break
            else:
                return drawn
            await member.sampler.until_changed(deadline, lambda refusal=refusal: refusal)


def _named(member: LiveBuffer, error: NotEnoughDataError) -> NotEnoughDataError:
    name = member.config.name
    return NotEnoughDataError(f"Member {name!r}: {error}", buffer=name, **error.details)


def _seeds(seed: int, count: int) -> list[int]:
    """Return a seed for each member."""
    words = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return [int(word) >> 1 for word in words]


def _joined(drawn: list[Sample], room: Room) -> dict[str, np.ndarray]:
    """Join arrays along the batch, in the arrays that `room` gives."""
    first = drawn[0].arrays
    total = sum(len(next(iter(sample.arrays.values()))) for sample in drawn)
    arrays = room({name: ((total, *array.shape[1:]), array.dtype) for name, array in first.items()})
    for name, array in arrays.items():
        np.concatenate([sample.arrays[name] for sample in drawn], out=array)
    return arrays
