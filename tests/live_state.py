"""Small buffers of every kind, a life for them, and all that they are, field by field."""

import dataclasses
import json

import msgspec
import numpy as np
from live_data import config, steps

LIMITER = {"samples_per_insert": 4.0, "min_size": 8, "error_buffer": 1e6}
SEQUENCES = {
    "max_length": None, "min_length": None, "max_length_time_axis": 16, "min_length_time_axis": 8,
    "sample_sequence_length": 5, "period": 3,
}  # fmt: skip


def made_of(kind, **changes):
    """Return a small buffer of a kind: 16 timesteps a row, two rows where there are rows."""
    changes = {"kind": kind, "rate_limiter": LIMITER, "max_length": 32} | changes
    if "item" in kind:
        changes |= {"add_batch_size": None, "max_length": 16}
    if "trajectory" in kind:
        changes |= SEQUENCES
    if "prioritised" not in kind:
        changes |= {"priority_exponent": None}
    return config(**changes)


def leaves(buffer, at, count):
    """Return timesteps as the buffer's kind takes them."""
    rows = buffer.layout.rows
    given = steps(at, count, rows=rows)
    return {name: leaf[0] for name, leaf in given.items()} if buffer.layout.items else given


async def live_through(buffer, *, checkpoints=True):
    """Wrap twice, set priorities, sample, repeat keys, let a writer come, reset in between."""
    at = 0
    for turn, count in enumerate([10, 17, 3, 22, 5]):
        await buffer.add(leaves(buffer, at, count), idempotency_key=f"k{turn}")
        at += count
        drawn = (await buffer.sample(16, seed=turn)).arrays
        if "indices" in drawn:
            priorities = np.linspace(0.1, 9.0 - turn, 16)
            await buffer.set_priorities(drawn["indices"], priorities, drawn["generations"] - (turn == 3))
        if turn == 0:
            await buffer.reset()
            at = 0
        if turn == 2 and checkpoints:
            await buffer.flush()
            await buffer._housekeeper.checkpoint()
        await buffer.add(leaves(buffer, at, 2), writer="w", sequence=turn + 1)
        at += 2
    await buffer._housekeeper.log_sampled()


def _ring_state(ring):
    state = {f"counters.{name}": value for name, value in dataclasses.asdict(ring.counters).items()}
    state |= {f"bookkeeping.{name}": array for name, array in ring.bookkeeping().items()}
    return state | {f"experience.{name}": np.array(leaf) for name, leaf in ring.state.experience.items()}


async def whole_state(buffer):
    """Return every field of every view by name."""
    state = await buffer._engine.ask(_ring_state)  # which else may be compiling for requests to come
    state |= {f"answer.{name}": value for name, value in buffer.describe().items() if name != "persisted"}
    ledger = json.loads(msgspec.json.encode(buffer._journal.ledger.to_json()))
    state |= {"keys": ledger["keys"], "writers": ledger["writers"], "log": buffer._journal.log.id}
    state |= {"next_sequence": buffer._journal.log.next_sequence, "position": buffer._journal.log.position}
    for seed in (0, 1 << 40):
        drawn = await buffer.sample(16, seed=seed, peek=True)
        state |= {f"sample.{seed}.{name}": array for name, array in drawn.arrays.items()}
    return state


def assert_equal(before, after):
    """Compare two states field by field."""
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = np.array_equal(value, after[name]) if isinstance(value, np.ndarray) else value == after[name]
        assert same, f"{name}: {value} became {after[name]}"
