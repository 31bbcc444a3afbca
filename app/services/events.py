"""The stream of events: counters once a second, by topic. Nothing is kept for it but who listens.

Topics: `buffers` (all of them), `totals` (only their sums), `buffer:<name>`, `vaults`,
`vault:<vault_name>/<vault_uid>`. An event's id is its time in milliseconds, so a client that comes back
with its last id gets what it missed from the buffers' own timeseries, also after a restart.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app.services import vaults
from app.services.deck import Deck, VaultEntry
from fbxcore.errors import InvalidArgumentError, NotFoundError, UnavailableError
from fbxcore.live import LiveBuffer, LiveMixer

PERIOD_S = 1.0
MAX_STREAMS = 256
MAX_MISSED_S = 900.0
MAX_TOPICS = 200


class Streams:
    """Who listens, and the end of listening."""

    def __init__(self) -> None:
        self.active = 0
        self.closing = asyncio.Event()
        self._watches_signals = False

    @contextmanager
    def listener(self) -> Any:
        """Count a listener for as long as it listens."""
        if self.active >= MAX_STREAMS:
            raise UnavailableError(
                f"`events` must have fewer than {MAX_STREAMS} open streams, got {self.active}. Close some.",
                retry_after_s=5,
            )
        self.active += 1
        try:
            yield self
        finally:
            self.active -= 1

    async def ticks(self) -> AsyncIterator[float]:
        """Yield the time now and then once a second, until the service stops."""
        while not self.closing.is_set():
            yield time.time()
            try:
                await asyncio.wait_for(self.closing.wait(), PERIOD_S)
            except TimeoutError:
                continue

    def close(self) -> None:
        """End every stream."""
        self.closing.set()

    def close_on_signals(self) -> None:
        """End the streams as soon as the server is told to stop.

        A server waits for open connections before it tells the application that it stops, and an event
        stream would keep it waiting for ever. So whoever handles the signal is asked second.
        """
        if self._watches_signals or threading.current_thread() is not threading.main_thread():
            return
        self._watches_signals = True
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            former = signal.getsignal(number)
            if callable(former):
                signal.signal(number, _first(loop, self.close, former))


def _first(loop: asyncio.AbstractEventLoop, close: Any, former: Any) -> Any:
    def handle(number: int, frame: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(close)
        former(number, frame)

    return handle


@dataclass(frozen=True)
class Topics:
    """What a stream is about."""

    all_buffers: bool = False
    totals: bool = False
    buffers: tuple[str, ...] = ()
    all_vaults: bool = False
    vaults: tuple[str, ...] = ()

    @property
    def has_buffers(self) -> bool:
        """Whether `buffers` events are sent."""
        return self.all_buffers or self.totals or bool(self.buffers)

    @property
    def has_vaults(self) -> bool:
        """Whether `vaults` events are sent."""
        return self.all_vaults or bool(self.vaults)


def parse_topics(deck: Deck, names: Sequence[str]) -> Topics:
    """Return the topics of a request; none at all means all buffers and vaults.

    Raises:
        InvalidArgumentError: for a word that is no topic.
        NotFoundError: for a buffer or vault that is not there.
    """
    if len(names) > MAX_TOPICS:
        raise InvalidArgumentError(
            f"`topics` must name at most {MAX_TOPICS}, got {len(names)}.", loc=("query", "topics")
        )
    buffers = tuple(name.removeprefix("buffer:") for name in names if name.startswith("buffer:"))
    keys = tuple(name.removeprefix("vault:") for name in names if name.startswith("vault:"))
    for name in buffers:
        deck.sampler(name)
    for key in keys:
        _vault(deck, key)
    for name in names:
        if not name.startswith(("buffer:", "vault:")) and name not in ("buffers", "totals", "vaults"):
            raise InvalidArgumentError(
                "`topics` must be of buffers, totals, vaults, buffer:<name>, vault:<name>/<uid>, "
                f"got {name!r:.80}.",
                loc=("query", "topics"),
            )
    everything = not names
    return Topics(
        "buffers" in names or everything, "totals" in names, buffers, "vaults" in names or everything, keys
    )


def _vault(deck: Deck, key: str) -> VaultEntry:
    if (entry := deck.vaults.get(key)) is None:
        raise NotFoundError(f"No vault named {key[:300]!r}.", loc=("query", "topics"))
    return entry


def state_of(buffer: LiveBuffer | LiveMixer) -> dict[str, Any]:
    """Return a buffer's answer with its present rates; no I/O."""
    series = buffer.timeseries
    return buffer.describe() | {"add_rate": series.rate("added"), "sample_rate": series.rate("sampled")}


def states(deck: Deck, topics: Topics | None = None) -> list[dict[str, Any]]:
    """Return the buffers of the topics, by name; one that went away is left out."""
    if topics is None or topics.all_buffers:
        return [state_of(buffer) for _, buffer in sorted(deck.samplers.items())]
    return [state_of(deck.sampler(name)) for name in topics.buffers if name in deck.samplers]


def sums(deck: Deck) -> dict[str, float]:
    """Return the sums over all buffers; what mixers hand out counts with their members."""
    found = [state_of(buffer) for buffer in deck.buffers.values()]
    return {name: sum(s[name] for s in found) for name in ("size", "bytes", "add_rate", "sample_rate")}


def recent_rates(buffer: LiveBuffer | LiveMixer, seconds: int) -> dict[str, list[float]]:
    """Return added and sampled a second over the last seconds, oldest first."""
    added, sampled = (buffer.timeseries.read(name, 3600) for name in ("added_per_s", "sampled_per_s"))
    return {
        "times": added["times"][-seconds:],
        "added": added["values"][-seconds:],
        "sampled": sampled["values"][-seconds:],
    }


def points_since(deck: Deck, topics: Topics, since: float) -> dict[str, dict[str, list[float]]]:
    """Return the points of single buffers after a time: the newest ones, or what a client missed."""
    begin, found = max(since, time.time() - MAX_MISSED_S), {}
    for name in topics.buffers:
        if name in deck.samplers:
            rates = recent_rates(deck.sampler(name), int(MAX_MISSED_S))
            skipped = sum(at <= begin for at in rates["times"])
            found[name] = {key: values[skipped:] for key, values in rates.items()}
    return found


def vault_states(deck: Deck, topics: Topics) -> list[dict[str, Any]]:
    """Return length and pending of the vaults of the topics, from memory."""
    keys = sorted(deck.vaults) if topics.all_vaults else topics.vaults
    return [vault_state(deck, deck.vaults[key]) for key in keys[:500] if key in deck.vaults]


def vault_state(deck: Deck, entry: VaultEntry) -> dict[str, Any]:
    """Return what is acknowledged of a vault now, and how much of it is still in a log."""
    length, pending = vaults.growth(deck, entry)
    is_shut = deck.fault(entry) is not None
    return {"name": entry.place.key, "length": length, "pending": pending, "is_shut": is_shut}


def history(deck: Deck, topics: Topics, since: float) -> list[dict[str, Any]]:
    """Return the last events of the topics as a list: per buffer and second what was added and sampled."""
    names = sorted(deck.samplers) if topics.all_buffers else topics.buffers
    begin, items = max(since, time.time() - MAX_MISSED_S), []
    for name in names[:MAX_TOPICS]:
        rates = recent_rates(deck.sampler(name), int(MAX_MISSED_S))
        items += [
            {
                "id": str(int(at * 1000)),
                "topic": f"buffer:{name}",
                "at": at,
                "add_rate": added,
                "sample_rate": drawn,
            }
            for at, added, drawn in zip(rates["times"], rates["added"], rates["sampled"], strict=True)
            if at > begin
        ]
    return sorted(items, key=lambda item: (item["at"], item["topic"]))
