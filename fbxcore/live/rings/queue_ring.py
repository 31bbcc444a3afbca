"""The ring of a queue: what is added is handed out once, in the order it came.

Positions count timesteps per row of the log, as in `Counters`:

    oldest ≤ taken ≤ position        (position − taken) + reserved ≤ T

What lies from `taken` to `position` waits. What was taken under a key is reserved, so that a repeat of the
request gets it again, and its slots are not written to; all others are free for what comes next, however
old a reservation is. `oldest` is where the first reservation begins: from there on the log is needed.

A reservation ends with a frame of the log: a take by the same client, or a release. No clock is asked here,
and a replay ends where the first run did.

A batch of k·B sequences is what k single takes would give, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from fbxcore.buffers.layout import Layout
from fbxcore.errors import ConflictError, DamagedError, NotEnoughDataError
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.rings.ring import Room
from fbxcore.spec import dtype_of
from fbxcore.types import Leaves, Spec


@dataclass(frozen=True)
class Reservation:
    """Taken timesteps that are kept for a repeat of the request that took them."""

    sequence: int  # of the take in the log
    start: int  # a position
    steps: int  # of each row
    client: str | None


class QueueRing:
    """A queue's arrays and counters in host memory; not thread-safe, see `Engine`."""

    def __init__(self, layout: Layout, spec: Spec):
        self.layout = layout
        self.spec = spec
        self.counters = Counters()
        self.reservations: dict[int, Reservation] = {}
        shape = (layout.rows, layout.time_axis)
        self._arrays = {name: np.zeros((*shape, *x.shape), dtype_of(x.dtype)) for name, x in spec.items()}
        self._clear()

    def _clear(self) -> None:
        """Let every slot be free."""
        self.reservations = {}
        self._slots: dict[int, np.ndarray] = {}  # of each reservation
        self._waiting = _Line(self.layout.time_axis)
        self._free = _Line(self.layout.time_axis)
        self._free.push(np.arange(self.layout.time_axis, dtype=np.int32))

    # Counts, per row unless said otherwise

    @property
    def position(self) -> int:
        """Timesteps added since the last reset."""
        return self.counters.position - self.counters.ring_start

    @property
    def held(self) -> int:
        """Timesteps that wait to be taken."""
        return self.counters.position - self.counters.taken

    @property
    def size(self) -> int:
        """Timesteps that wait, over all rows."""
        return self.held * self.layout.rows

    def size_at(self, position: int) -> int:
        """Timesteps that wait over all rows, once a row was given so many since the last reset."""
        return (self.counters.ring_start + position - self.counters.taken) * self.layout.rows

    def oldest_of(self, counters: Counters) -> int:
        """Return the position of the oldest timestep that must be held where counters stand."""
        return counters.oldest

    # Changes

    def add(self, blocks: list[Leaves]) -> None:
        """Append blocks of leaves `[B, K, ...]`, for which there must be room."""
        for block in blocks:
            steps = next(iter(block.values())).shape[1]
            if (over := steps - len(self._free)) > 0:
                raise DamagedError(f"The queue must have room for what its log adds, got {over} too many.")
            slots = self._free.pop(steps)
            for name, leaf in block.items():
                self._arrays[name][:, slots] = leaf
            self._waiting.push(slots)
            self.counters = replace(self.counters, position=self.counters.position + steps)

    def take(
        self,
        steps: int,
        sequence: int,
        key: str | None,
        client: str | None,
        read: Callable[[QueueRing, np.ndarray], None] | None = None,
    ) -> dict[str, Any]:
        """Hand out the oldest timesteps that wait, and end what was reserved for the client before.

        Args:
            steps: how many of each row.
            sequence: the take's number in the log, by which `read_again` finds a reservation.
            key: reserves what is taken.
            read: called with the ring and the slots that were taken.

        Raises:
            NotEnoughDataError: if fewer wait; then nothing changes.
        """
        if self.held < steps:
            raise not_enough(steps, self.held)
        start = self.counters.taken
        ended = [r.sequence for r in self.reservations.values() if client is not None and r.client == client]
        slots = self._waiting.pop(steps)
        if read is not None:
            read(self, slots)
        if key is not None:
            self.reservations = self.reservations | {sequence: Reservation(sequence, start, steps, client)}
            self._slots[sequence] = slots
        else:
            self._free.push(slots)
        items = steps // self.layout.sequence_length * self.layout.rows
        self.counters = replace(self.counters, taken=start + steps, sampled=self.counters.sampled + items)
        return self.release(ended) | {"position": start - self.counters.ring_start, "steps": steps}

    def release(self, sequences: Sequence[int]) -> dict[str, Any]:
        """End reservations; those that ended before are passed over."""
        ended = [sequence for sequence in sequences if sequence in self.reservations]
        self.reservations = {n: r for n, r in self.reservations.items() if n not in ended}
        for sequence in ended:
            self._free.push(self._slots.pop(sequence))
        kept = self.reservations.values()
        self.counters = replace(
            self.counters,
            oldest=min((r.start for r in kept), default=self.counters.taken),
            reserved=sum(r.steps for r in kept),
        )
        return {"reserved": self.counters.reserved, "released": ended}

    def skip_to(self, position: int) -> None:
        """Go on at a later position, as after a reset there: what lies between was never seen."""
        if position > self.counters.position:
            self.counters = replace(self.counters, position=position)
            self.reset()

    def reset(self) -> None:
        """Forget what waits and what is reserved; positions go on."""
        here = self.counters.position
        self._clear()
        self.counters = replace(self.counters.after_reset(), taken=here, oldest=here, reserved=0)

    # Reading

    def next_in_line(self, steps: int) -> np.ndarray:
        """Return the slots of the oldest timesteps that wait."""
        return self._waiting.all()[:steps]

    def read(self, slots: np.ndarray, room: Room) -> dict[str, np.ndarray]:
        """Return the timesteps in some slots as sequences, `[k·B, L, ...]`.

        Args:
            room: gives the arrays to fill.
        """
        rows, length = self.layout.rows, self.layout.sequence_length
        number = len(slots) // length
        shapes = {
            f"experience/{name}": ((number * rows, length, *leaf.shape), dtype_of(leaf.dtype))
            for name, leaf in self.spec.items()
        }
        arrays = room(shapes)
        for name, leaf in self._arrays.items():
            taken = leaf[:, slots].reshape(rows, number, length, *leaf.shape[2:])
            into = arrays[f"experience/{name}"].reshape(number, rows, length, *leaf.shape[2:])
            into[...] = taken.swapaxes(0, 1)
        return arrays

    def read_again(self, sequence: int, room: Room) -> dict[str, np.ndarray]:
        """Return what the take of that number gave.

        Raises:
            ConflictError: if it is no longer reserved.
        """
        if sequence not in self.reservations:
            raise ConflictError(
                "`Idempotency-Key` must be repeated before its client takes again and within "
                "a minute, got one whose items are no longer kept. Use a fresh key to take others.",
                code="reservation_ended",
                loc=("header", "idempotency-key"),
            )
        return self.read(self._slots[sequence], room)

    # Whole state

    def bookkeeping(self) -> dict[str, np.ndarray]:
        """Return what is neither experience nor a counter: the reservations, as JSON in bytes."""
        kept = msgspec.json.encode(list(self.reservations.values()))
        return {"reservations": np.frombuffer(kept, np.uint8)}

    def begin_restore(self, bookkeeping: Leaves, counters: Counters) -> None:
        """Take over everything but the timesteps themselves, which `place` brings."""
        kept = _reservations(bookkeeping)
        self._clear()
        self.counters = counters
        self.reservations = {reservation.sequence: reservation for reservation in kept}
        self._slots = {r.sequence: self._free.pop(r.steps) for r in kept}
        self._waiting.push(self._free.pop(self.held))

    def whole(self) -> tuple[Counters, dict[str, np.ndarray]]:
        """Return counters and all else that is needed beside the timesteps by slot: which lies in which."""
        slots = np.concatenate([slots for _, slots in self._spans()])
        return self.counters, self.bookkeeping() | {"slots": slots}

    def place_whole(self, counters: Counters, bookkeeping: Leaves, experience: Leaves) -> None:
        """Write what is held of another ring's whole, its experience `[B, T, ...]` by slot."""
        kept, slots, at = _reservations(bookkeeping), bookkeeping["slots"], 0
        spans = [*((r.start, r.steps) for r in kept), (counters.taken, counters.position - counters.taken)]
        for start, steps in spans:
            places = slots[at : at + steps]
            self.place(start, {name: leaf[:, places] for name, leaf in experience.items()})
            at += steps

    def step_shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Return shape `[B * T, ...]` and dtype of all timesteps, by leaf."""
        steps = self.layout.rows * self.layout.time_axis
        return {name: ((steps, *leaf.shape), dtype_of(leaf.dtype)) for name, leaf in self.spec.items()}

    def copy_steps(self, name: str, start: int, stop: int, into: np.ndarray) -> None:
        """Copy a leaf's timesteps `[start, stop)`, counted by slot over all rows, into an array."""
        leaf = self._arrays[name]
        into[...] = leaf.reshape(-1, *leaf.shape[2:])[start:stop]

    def mark(self) -> tuple[int, int]:
        """Return what tells later which timesteps were written since: epoch and position."""
        return self.counters.epoch, self.counters.position

    def changed_since(self, mark: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the slots, as ranges counted over all rows, of what is held and was written since."""
        epoch, before = mark
        before = before if epoch == self.counters.epoch else self.counters.ring_start
        new = [slots[max(0, before - start) :] for start, slots in self._spans()]
        slots = np.sort(np.concatenate(new))
        runs = np.split(slots, np.flatnonzero(np.diff(slots) > 1) + 1) if len(slots) else []
        length = self.layout.time_axis
        return [
            (row * length + int(run[0]), row * length + int(run[-1]) + 1)
            for row in range(self.layout.rows)
            for run in runs
        ]

    def place(self, position: int, leaves: Leaves) -> None:
        """Write those timesteps of leaves `[B, K, ...]`, the first at a position, that are held."""
        end = position + next(iter(leaves.values())).shape[1]
        for start, slots in self._spans():
            low, high = max(start, position), min(start + len(slots), end)
            if low < high:
                for name, leaf in leaves.items():
                    part = leaf[:, low - position : high - position]
                    self._arrays[name][:, slots[low - start : high - start]] = part

    def holds(self, start: int, stop: int) -> bool:
        """Whether a timestep from `start` to `stop` waits or is reserved."""
        return any(begin < stop and start < begin + len(slots) for begin, slots in self._spans())

    def _spans(self) -> list[tuple[int, np.ndarray]]:
        """Return first position and slots of each reservation and of what waits."""
        reserved = [(r.start, self._slots[r.sequence]) for r in self.reservations.values()]
        return [*reserved, (self.counters.taken, self._waiting.all())]

    def warm_ups(self) -> list[Callable[[Any], None]]:
        """Return nothing: nothing is compiled."""
        return []


def _reservations(bookkeeping: Leaves) -> list[Reservation]:
    return msgspec.json.decode(bookkeeping["reservations"].tobytes(), type=list[Reservation])


class _Line:
    """Slot numbers in the order they came, at most as many as there are slots."""

    def __init__(self, capacity: int):
        self._numbers = np.empty(capacity, np.int32)
        self._first = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, numbers: np.ndarray) -> None:
        """Put numbers behind the others."""
        self._numbers[self._places(self._count, len(numbers))] = numbers
        self._count += len(numbers)

    def pop(self, count: int) -> np.ndarray:
        """Take the first so many."""
        numbers = self._numbers[self._places(0, count)]
        self._first, self._count = (self._first + count) % len(self._numbers), self._count - count
        return numbers

    def all(self) -> np.ndarray:
        """Return all of them, in order."""
        return self._numbers[self._places(0, self._count)]

    def _places(self, start: int, count: int) -> np.ndarray:
        return (self._first + start + np.arange(count)) % len(self._numbers)


def not_enough(steps: int, waiting: int) -> NotEnoughDataError:
    """Return the refusal of a take of more than waits."""
    return NotEnoughDataError(
        f"The queue must hold {steps} timesteps a row for a take of that many, got {waiting} that wait. "
        f"Add {steps - waiting} more to each row, or pass a longer `timeout_ms`.",
        needed=steps - waiting,
    )
