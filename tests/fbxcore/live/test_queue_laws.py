"""A queue against the plainest one: Python's deque, with a list of what is reserved for whom."""

import asyncio
import shutil
from collections import deque

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_data import leaves, queue_config

from fbxcore.errors import ConflictError, NotEnoughDataError, UnavailableError
from fbxcore.live import LiveBuffer
from fbxcore.live.durable.frames import Frame, Kind

SLOTS, LENGTH, ROWS = 10, 3, 2
CLIENTS = (None, "a", "b")
KINDS = ["add"] * 6 + ["take"] * 8 + ["repeat"] * 5 + ["restart"] * 2 + ["checkpoint", "reset"]


@st.composite
def operations(draw):
    """Return one thing to do; what is done with what waits is likely, so that there is much of it."""
    name = draw(st.sampled_from(KINDS))
    if name == "add":
        return name, draw(st.integers(1, 8))
    if name == "take":
        return (
            name,
            draw(st.sampled_from([1, 1, 1, 2, 3])),
            draw(st.sampled_from(CLIENTS)),
            draw(st.booleans()),
        )
    if name == "repeat":
        return name, draw(st.integers(0, 2))
    return (name, draw(st.booleans())) if name == "restart" else (name,)


class Reference:
    """The timesteps that wait, and those reserved, as numbers."""

    def __init__(self):
        self.waiting = deque()
        self.reserved = {}  # key to client and numbers
        self.keys = []  # every key that took something: key and how many sequences
        self.added = 0

    @property
    def room(self):
        return SLOTS - len(self.waiting) - sum(len(numbers) for _, numbers in self.reserved.values())

    def add(self, count):
        self.waiting.extend(range(self.added, self.added + count))
        self.added += count

    def release(self, client):
        if client is not None:
            self.reserved = {k: kept for k, kept in self.reserved.items() if kept[0] != client}

    def take(self, number, client, key):
        numbers = [self.waiting.popleft() for _ in range(LENGTH * number)]
        self.release(client)
        if key is not None:
            self.reserved[key] = (client, numbers)
            self.keys.append((key, number))
        return numbers


class Play:
    """A queue and its reference, which every operation is done to."""

    def __init__(self, folder, persist_to):
        self.folder = folder
        self.made = queue_config(durability="os", persist_to=persist_to)
        self.reference = Reference()

    async def run(self, operations):
        self.queue = await LiveBuffer.open(self.folder / "q", self.made, vaults=self.folder / "vaults")
        self.queue._journal.log.segment_bytes = 200
        try:
            for name, *given in operations:
                await getattr(self, name)(*given)
                self.check()
        finally:
            await self.queue.close()

    def check(self):
        told, reference = self.queue.describe(), self.reference
        reserved = sum(len(numbers) for _, numbers in reference.reserved.values())
        assert told["waiting"] == ROWS * len(reference.waiting)
        assert told["reserved"] == ROWS * reserved
        assert told["added"] == ROWS * reference.added
        assert told["can_sample"] == (len(reference.waiting) >= LENGTH)
        assert told["can_add"] == (reference.room >= 2)
        assert told["is_full"] == (reference.room == 0)

    async def add(self, count):
        try:
            await self.queue.add(leaves(self.reference.added, count))
        except UnavailableError as error:
            assert error.code == "queue_full" and count > self.reference.room
        else:
            assert count <= self.reference.room
            self.reference.add(count)

    async def take(self, number, client, has_key):
        key = f"k{len(self.reference.keys)}" if has_key else None
        try:
            taken = await self.queue.take(ROWS * number, client=client, idempotency_key=key)
        except NotEnoughDataError as error:
            missing = LENGTH * number - len(self.reference.waiting)
            assert error.details["needed"] == missing > 0
            self.reference.release(client)  # who waits has its last answer
            await self.queue._journal.put(Frame(Kind.TAKE, {"released": []}))  # behind that release
        else:
            assert not taken.duplicate
            self.same(taken, self.reference.take(number, client, key))

    async def repeat(self, back):
        if back >= len(self.reference.keys):
            return
        key, number = self.reference.keys[-1 - back]
        try:
            taken = await self.queue.take(ROWS * number, idempotency_key=key)
        except ConflictError as error:
            assert error.code == "reservation_ended" and key not in self.reference.reserved
        else:
            assert taken.duplicate
            self.same(taken, self.reference.reserved[key][1])

    def same(self, taken, numbers):
        """Sequences alternate between the rows; row 1 counts from 1000."""
        found = taken.arrays["experience/step"]
        for row in range(ROWS):
            assert (found[row::ROWS].reshape(-1) - 1000 * row).tolist() == numbers

    async def reset(self):
        await self.queue.reset()
        self.reference.waiting.clear()
        self.reference.reserved.clear()

    async def checkpoint(self):
        await self.queue._housekeeper.checkpoint()

    async def restart(self, is_kill):
        """Stop and open, or go on with a copy of the files as they lie now, which is what a kill leaves."""
        if is_kill:
            after = self.folder / "after"
            shutil.copytree(self.folder, after, ignore=shutil.ignore_patterns("after"))
        await self.queue.close()
        if is_kill:
            for name in ("q", "vaults"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
                if (after / name).exists():
                    (after / name).rename(self.folder / name)
            shutil.rmtree(after)
        self.queue = await LiveBuffer.open(self.folder / "q", vaults=self.folder / "vaults")
        self.queue._journal.log.segment_bytes = 200


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(operations(), min_size=30, max_size=60), st.sampled_from([None, "runs/1"]))
def test_a_queue_does_what_a_deque_does(tmp_path_factory, todo, persist_to):
    """Whatever is added, taken, repeated, reset, stopped and killed in whatever order."""
    asyncio.run(Play(tmp_path_factory.mktemp("queue"), persist_to).run(todo))
