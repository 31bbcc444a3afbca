"""What XLA is given, and what it makes of it: updates in place, one gather a leaf, nothing leaves the device.

A program can be lowered for an accelerator where there is none; what is looked at is which operations it has.
"""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from fbxcore import _loops
from fbxcore.buffers import prioritised_trajectory_buffer, trajectory_buffer
from fbxcore.buffers.layout import layout_of

LEAVES = {"obs": ((4,), jnp.float32), "reward": ((), jnp.float32), "frame": ((8, 8), jnp.uint8)}
KINDS = ["trajectory", "prioritised_trajectory"]
ELSEWHERE = 1009  # slots; of no other buffer, since JAX keeps what it traced for a CPU
KEY = jax.eval_shape(lambda: jax.random.key(0))


def shaped(*leading: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and dtypes of timesteps."""
    return {name: jax.ShapeDtypeStruct((*leading, *shape), dtype) for name, (shape, dtype) in LEAVES.items()}


def made(kind: str, device: str = "gpu", capacity: int = ELSEWHERE, **others: int):
    """Return a buffer of two rows, if nothing else is said, and the shapes of its state."""
    arguments = {
        "add_batch_size": 2,
        "sample_batch_size": 16,
        "sample_sequence_length": 2,
        "period": 1,
        "min_length_time_axis": 2,
        "max_length_time_axis": capacity,
    } | others
    if kind == "trajectory":
        buffer = trajectory_buffer.make_trajectory_buffer(**arguments)
    else:
        buffer = prioritised_trajectory_buffer.buffer_of(layout_of(kind, arguments), device)
    return buffer, jax.eval_shape(buffer.init, shaped())


@pytest.fixture(params=["cuda", "tpu"])
def operations(request, monkeypatch):
    """Return how often each operation stands in a function lowered for an accelerator."""
    monkeypatch.setattr(_loops, "is_looped", lambda: False)

    def count(function, *arguments) -> Counter:
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=(request.param,))
        return Counter(re.findall(r"(?<!#)stablehlo\.(\w+)", lowered.as_text()))

    return count


def test_one_add_is_one_update_of_each_leaf(operations):
    """One timestep is one contiguous update a leaf; several, which may wrap, are one scatter a leaf."""
    buffer, state = made("trajectory")
    one, several = (operations(buffer.add, state, shaped(2, steps)) for steps in (1, 5))

    assert (one["dynamic_update_slice"], one["scatter"]) == (len(LEAVES), 0)
    assert (several["dynamic_update_slice"], several["scatter"]) == (0, len(LEAVES))
    assert one["while"] == several["while"] == 0


def test_one_sample_is_one_gather_of_each_leaf(operations):
    """Of the ring itself nothing is read but by one gather a leaf; there is no loop."""
    buffer, state = made("trajectory")
    counts = operations(buffer.sample, state, KEY)

    assert (counts["gather"], counts["while"], counts["dynamic_slice"]) == (len(LEAVES), 0, 0)


def test_a_prioritised_sample_walks_all_items_down_together(operations):
    """Beside one gather a leaf there is one loop over the tree's levels, with two gathers, and one for P."""
    buffer, state = made("prioritised_trajectory")
    counts = operations(buffer.sample, state, KEY)

    assert (counts["gather"], counts["while"]) == (len(LEAVES) + 3, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_goes_by_the_host(operations, kind):
    """No call leaves the device, whether adding, sampling or setting priorities."""
    buffer, state = made(kind)
    calls = [(buffer.add, state, shaped(2, 5)), (buffer.sample, state, KEY)]
    if kind == "prioritised_trajectory":
        numbers = jax.ShapeDtypeStruct((16,), jnp.float32)
        calls.append((buffer.set_priorities, state, jax.ShapeDtypeStruct((16,), jnp.int32), numbers))
    for call in calls:
        counts = operations(*call)

        assert not {"custom_call", "infeed", "outfeed", "send", "recv"} & set(counts)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("length", [1, 2, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_on_a_cpu_starts_where_it_is_called(kind, length, rows):
    """XLA counts fewer than 1,000 operations, and each loop is one piece of code and not a kernel a round."""
    sizes = {"sample_sequence_length": length, "min_length_time_axis": length, "add_batch_size": rows}
    buffer, state = made(kind, "cpu", 1000, sample_batch_size=64, **sizes)
    compiled = jax.jit(buffer.sample).lower(state, KEY).compile()

    assert compiled.cost_analysis()["flops"] < 1000
    assert " while(" not in compiled.as_text().partition("ENTRY")[2]


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_donated_add_on_a_cpu_writes_in_place(kind, steps):
    """No scatter, every byte of the state reused, and as little room beside it at 10**6 slots as at 10**3."""
    rooms = []
    for capacity in (10**3, 10**6):
        buffer, state = made(kind, "cpu", capacity)
        compiled = jax.jit(buffer.add, donate_argnums=0).lower(state, shaped(2, steps)).compile()
        memory = compiled.memory_analysis()
        rooms.append(memory.temp_size_in_bytes)

        assert " scatter(" not in compiled.as_text()
        assert memory.alias_size_in_bytes == sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert rooms[1] <= rooms[0] + 64 and rooms[0] < 4096


def test_a_donated_update_on_a_cpu_writes_in_place():
    """Setting 16 priorities reuses the tree; the room beside it does not grow with the capacity."""
    rooms = []
    for capacity in (10**3, 10**6):
        buffer, state = made("prioritised_trajectory", "cpu", capacity)
        update = jax.jit(buffer.set_priorities, donate_argnums=0)
        changes = (jax.ShapeDtypeStruct((16,), jnp.int32), jax.ShapeDtypeStruct((16,), jnp.float32))
        memory = update.lower(state, *changes).compile().memory_analysis()
        rooms.append(memory.temp_size_in_bytes)

        assert memory.alias_size_in_bytes == sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert rooms[1] <= rooms[0] + 64 and rooms[0] < 4096
