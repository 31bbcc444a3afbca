"""One live buffer, as the client sees it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fbxcore.client import _requests as requests
from fbxcore.client._requests import Added, Sample, Taken, Updated
from fbxcore.client._transport import Transport
from fbxcore.client._writer import Writer
from fbxcore.client.errors import NotEnoughDataError, UnavailableError
from fbxcore.errors import InvalidArgumentError

_KEPT_S = 60.0  # how long a server keeps what was taken under a key
_PAUSE_S = 0.1


class Buffer:
    """A live buffer of a running server, by name."""

    def __init__(self, transport: Transport, name: str, format: str):
        self.name = name
        self._transport = transport
        self._format = format

    def __repr__(self) -> str:
        return f"Buffer({self.name!r})"

    def describe(self) -> dict[str, Any]:
        """Return what the server says of the buffer: kind, spec, size, whether it can be sampled, …"""
        return requests.read_json(self._transport.send(requests.get("buffers", self.name)))

    def add(
        self,
        experience: Any,
        *,
        idempotency_key: str | None = None,
        writer: str | None = None,
        sequence: int | None = None,
        cast: str | None = None,
        timeout_ms: int = 0,
        end: str | None = None,
    ) -> Added:
        """Add experience, exactly once: a lost connection is tried again under the same key.

        Args:
            experience: nested or flat, leaves `[B, T, ...]`, `[N, ...]` for item kinds.
            idempotency_key: names this batch; made here where none is given.
            writer: the source of the batch; with it, `sequence` takes the place of the key.
            sequence: grows with each batch of the writer.
            cast: `"same_kind"` lets the server convert float64 to float32 and the like.
            timeout_ms: how long the server may wait until there is room.
            end: how an independent writer's episode ends: `terminated`, `truncated`, `cut`. See `writer`.
        """
        key = idempotency_key or (None if writer is not None else requests.new_key())
        query = {"writer": writer, "sequence": sequence, "cast": cast, "timeout_ms": timeout_ms or None}
        query["end"] = end
        request = requests.send_arrays(
            "POST", "buffers", self.name, "experience",
            arrays=requests.leaves_of(experience), format=self._format, query=query, key=key,
            wait_s=timeout_ms / 1000,
        )  # fmt: skip
        return requests.read_fields(Added, self._transport.send(request))

    def writer(self, name: str, *, batch_steps: int = 16, timeout_ms: int = 10_000) -> Writer:
        """Return an independent writer; use it in a `with` statement.

        Args:
            name: whose steps these are; the same again after a restart.
            batch_steps: steps that are gathered before they are sent.
            timeout_ms: how long the server may wait until a row is free.
        """
        return Writer(self, name, batch_steps=batch_steps, timeout_ms=timeout_ms)

    def writers(self, query: str | None = None) -> list[dict[str, Any]]:
        """Return the writers, as the server describes them, or those whose names have a part."""
        return list(requests.pages(self._transport, "buffers", self.name, "writers", query={"query": query}))

    def end_episode(self, writer: str) -> None:
        """End an independent writer's open episode as a cut, if there is one."""
        request = requests.send_json("DELETE", "buffers", self.name, "writers", writer)
        requests.read_json(self._transport.send(request))

    def describe_episode(self, writer: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set the metadata of an independent writer's open episode, a JSON object."""
        path = ("buffers", self.name, "writers", writer, "episode")
        request = requests.send_json("PUT", *path, content=dict(metadata))
        return requests.read_json(self._transport.send(request))

    def sample(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        beta: float | None = None,
        timeout_ms: int = 0,
        peek: bool = False,
    ) -> Sample:
        """Sample a batch.

        Args:
            batch_size: how many items; by default the buffer's `sample_batch_size`.
            seed: the same seed on the same state gives the same batch.
            beta: asks for importance weights of this exponent.
            timeout_ms: how long the server may wait until there is enough data.
            peek: draw without waiting and without being counted.
        """
        query = {
            "batch_size": batch_size, "seed": seed, "beta": beta, "timeout_ms": timeout_ms or None,
            "peek": peek or None,
        }  # fmt: skip
        request = requests.get_arrays(
            "buffers", self.name, "sample", format=self._format, query=query, wait_s=timeout_ms / 1000
        )
        return requests.read_sample(self._transport.send(request))

    def samples(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        beta: float | None = None,
        timeout_ms: int = 10_000,
        prefetch: int = 2,
    ) -> Samples:
        """Return an endless iterator of batches that fetches the next ones while one is used.

        With `seed`, batch i is drawn with `seed + i`. Close it, or use it in a `with` statement.
        """
        return Samples(self, batch_size, seed=seed, beta=beta, timeout_ms=timeout_ms, prefetch=prefetch)

    def take(
        self, batch_size: int | None = None, *, timeout_ms: int = 0, idempotency_key: str | None = None
    ) -> Taken:
        """Take the oldest sequences of a queue, each once: a lost answer is asked for again under its key.

        What is taken is kept for a repeat until this thread takes again, and no longer than a minute.

        Args:
            batch_size: how many sequences, a multiple of the rows; by default one of each row.
            timeout_ms: how long the server may wait until enough is there.
            idempotency_key: names this take; made here where none is given. An error that leaves open
                whether something was taken has it in `details`: take with it again.

        Raises:
            NotEnoughDataError: if too little waits.
        """
        key = idempotency_key or requests.new_key()
        query = {
            "batch_size": batch_size, "timeout_ms": timeout_ms or None, "client": self._transport.client,
        }  # fmt: skip
        request = requests.take(
            self.name, format=self._format, query=query, key=key, wait_s=timeout_ms / 1000
        )
        try:
            return requests.read_taken(self._transport.send(request))
        except UnavailableError as error:
            error.details["idempotency_key"] = key
            raise

    def takes(self, batch_size: int | None = None, *, timeout_ms: int = 10_000) -> Iterator[Taken]:
        """Yield what is taken from a queue, for ever, waiting for what is not there yet.

        Nothing is fetched ahead, so that nothing is lost when the loop ends. Where a server stops or starts
        anew, the take under way is repeated under its key for as long as a server keeps it, a minute.
        """
        while True:
            yield self._take_patiently(batch_size, timeout_ms)

    def _take_patiently(self, batch_size: int | None, timeout_ms: int) -> Taken:
        key, give_up = requests.new_key(), float("inf")
        while True:
            try:
                return self.take(batch_size, timeout_ms=timeout_ms, idempotency_key=key)
            except NotEnoughDataError:
                give_up = float("inf")
                time.sleep(0 if timeout_ms else _PAUSE_S)
            except UnavailableError:
                give_up = min(give_up, time.monotonic() + _KEPT_S)
                if time.monotonic() >= give_up:
                    raise
                time.sleep(_PAUSE_S)

    def set_priorities(
        self, items: Sample | np.ndarray, priorities: np.ndarray, generations: np.ndarray | None = None
    ) -> Updated:
        """Set the priorities of sampled items; those overwritten meanwhile are left alone.

        Args:
            items: a sample, or the `indices` of one.
            priorities: one for each item, finite and not negative.
            generations: those of the sample; taken from it where a sample is given.
        """
        if isinstance(items, Sample):
            indices, generations = items.indices, items.generations
        else:
            indices = items
        if indices is None or generations is None:
            raise InvalidArgumentError(
                "`items` must be a sample of a prioritised buffer, or indices with their `generations`, got "
                f"{'no indices' if indices is None else 'no generations'}.",
                loc=("items",),
            )
        arrays = {
            "indices": np.asarray(indices, np.int32),
            "priorities": np.asarray(priorities, np.float32),
            "generations": np.asarray(generations, np.int64),
        }
        request = requests.send_arrays(
            "PATCH", "buffers", self.name, "priorities", arrays=arrays, format=self._format
        )
        return requests.read_fields(Updated, self._transport.send(request))

    def stats(self) -> dict[str, Any]:
        """Return the buffer's counters and statistics."""
        return self._get("stats")

    def histogram(self, field: str = "priority", bins: int | None = None) -> dict[str, Any]:
        """Return the histogram of `priority` or `age` over all items."""
        return self._get("histogram", {"field": field, "bins": bins})

    def timeseries(self, metric: str, points: int | None = None) -> dict[str, Any]:
        """Return `size`, `added`, `sampled`, `updated`, or one of them `…_per_s`, over the last hour."""
        return self._get("timeseries", {"metric": metric, "points": points})

    def change(self, **fields: Any) -> dict[str, Any]:
        """Change `rate_limiter`, `durability`, `retain_steps` or `idle_end_s`; None takes the first away."""
        request = requests.send_json("PATCH", "buffers", self.name, content=fields)
        return requests.read_json(self._transport.send(request))

    def snapshot(self) -> dict[str, Any]:
        """Write the whole buffer down as of one moment; `create_buffer` with its `id` goes on there."""
        request = requests.send_json("POST", "buffers", self.name, "snapshot")
        return requests.read_json(self._transport.send(request))

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the buffer's snapshots, the newest first."""
        return list(requests.pages(self._transport, "buffers", self.name, "snapshots"))

    def reset(self, *, discard: bool = False) -> dict[str, Any] | None:
        """Empty the buffer; data that lie nowhere else only go with `discard=True`."""
        return self._end("POST", "buffers", self.name, "reset", discard=discard)

    def delete(self, *, discard: bool = False) -> None:
        """Delete the buffer; data that lie nowhere else only go with `discard=True`."""
        self._end("DELETE", "buffers", self.name, discard=discard)

    def _get(self, part: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        request = requests.get("buffers", self.name, part, query=query)
        return requests.read_json(self._transport.send(request))

    def _end(self, method: str, *path: str, discard: bool) -> Any:
        query: Mapping[str, Any] = {"discard": discard or None}
        return requests.read_json(self._transport.send(requests.send_json(method, *path, query=query)))


class Samples:
    """An endless iterator of batches, fetched ahead by one thread."""

    def __init__(
        self,
        buffer: Buffer,
        batch_size: int | None,
        *,
        seed: int | None,
        beta: float | None,
        timeout_ms: int,
        prefetch: int,
    ):
        if prefetch < 1:
            raise InvalidArgumentError(f"`prefetch` must be at least 1, got {prefetch!r}.", loc=("prefetch",))
        self._buffer = buffer
        self._batch_size, self._seed, self._beta, self._timeout_ms = batch_size, seed, beta, timeout_ms
        self._ready: queue.Queue[Sample | BaseException] = queue.Queue(prefetch)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fetch, name=f"samples-{buffer.name}", daemon=True)
        self._thread.start()

    def __iter__(self) -> Samples:
        return self

    def __next__(self) -> Sample:
        while not self._stop.is_set():
            try:
                found = self._ready.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(found, BaseException):
                self.close()
                raise found
            return found
        raise StopIteration

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop fetching; the iterator ends."""
        self._stop.set()
        self._thread.join(timeout=self._timeout_ms / 1000 + 5)

    def _fetch(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                found: Sample | BaseException | None = self._one(number)
            except BaseException as error:  # handed to whoever iterates
                found = error
            if found is None:
                continue
            self._hand_over(found)
            if isinstance(found, BaseException):
                break
            number += 1
        self._buffer._transport.close_mine()

    def _one(self, number: int) -> Sample | None:
        """Return a batch, or None after a pause where the server asks to come again."""
        seed = None if self._seed is None else self._seed + number
        try:
            return self._buffer.sample(
                self._batch_size, seed=seed, beta=self._beta, timeout_ms=self._timeout_ms
            )
        except UnavailableError as error:
            if error.status is None:
                raise
            self._stop.wait(min(error.details.get("retry_after_s", 0.1), 1.0))
            return None

    def _hand_over(self, found: Sample | BaseException) -> None:
        while not self._stop.is_set():
            try:
                return self._ready.put(found, timeout=0.1)
            except queue.Full:
                time.sleep(0)
