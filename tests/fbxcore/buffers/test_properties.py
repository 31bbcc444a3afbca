"""Every kind against a slow model (`buffer_model`), through any order of adds, draws, updates and restarts.

Shapes come from a small fixed grid, since compiling is what costs time; hypothesis chooses order, lengths and
priorities within it. What must hold after each operation is in `check`.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np
import pytest
from buffer_model import ROW, SPEC, Model, leaves_of
from hypothesis import given, settings
from hypothesis import strategies as st

import fbxcore as fbx
from fbxcore.buffers.core import make_core, unpack
from fbxcore.buffers.layout import layout_of
from fbxcore.types import LeafSpec

BATCH = 8  # items in a draw and in an update
DRAWS = 40  # of a batch each, at the end of an example, for the frequencies


class Case(NamedTuple):
    """A kind, its arguments, and the lengths added in one piece."""

    kind: str
    arguments: dict
    lengths: tuple[int, ...]


def trajectory(rows: int, time_axis: int, length: int, period: int, lengths: tuple[int, ...], **more) -> Case:
    """Return a case of a trajectory buffer, with priorities where an exponent is given."""
    arguments = {
        "add_batch_size": rows,
        "sample_batch_size": BATCH,
        "sample_sequence_length": length,
        "period": period,
        "min_length_time_axis": length,
        "max_length_time_axis": time_axis,
        **more,
    }
    return Case("prioritised_trajectory" if more else "trajectory", arguments, lengths)


def flat(kind: str, max_length: int, rows: int, lengths: tuple[int, ...], **more) -> Case:
    """Return a case of a buffer of transitions."""
    sizes = {"max_length": max_length, "min_length": 2, "sample_batch_size": BATCH, "add_batch_size": rows}
    return Case(kind, {**sizes, "add_sequences": True, **more}, lengths)


def item(kind: str, max_length: int, lengths: tuple[int, ...], **more) -> Case:
    """Return a case of a buffer of items."""
    sizes = {"max_length": max_length, "min_length": 1, "sample_batch_size": BATCH}
    return Case(kind, {**sizes, "add_batches": True, **more}, lengths)


CASES = [
    trajectory(2, 9, 3, 2, (1, 4, 9)),
    trajectory(1, 5, 5, 1, (2, 5)),
    flat("flat", 12, 2, (1, 4)),
    item("item", 8, (1, 3, 8)),
    trajectory(2, 10, 3, 2, (1, 4, 10), priority_exponent=0.6),
    trajectory(1, 6, 2, 3, (1, 5), priority_exponent=1.0),
    flat("prioritised_flat", 12, 2, (1, 6), priority_exponent=0.6),
    item("prioritised_item", 9, (2, 9), priority_exponent=0.4),
]
MORE_CASES = [
    trajectory(rows, time_axis, length, period, (1, 3, time_axis - time_axis % period), **priorities)
    for priorities in ({}, {"priority_exponent": 0.6})
    for rows, time_axis, length, period in (
        (3, 13, 4, 1),
        (1, 12, 12, 4),
        (2, 16, 5, 5),
        (4, 11, 1, 2),
        (1, 33, 9, 8),
        (2, 8, 6, 2),
    )
]

priorities = st.one_of(
    st.sampled_from([0.0, 1.0, 2.7, 100.0, 1e-6, 1e6, float("nan"), float("inf"), -float("inf"), -1.0]),
    st.floats(2**-10, 2**10, width=32),
)
add = st.tuples(st.just("add"), st.integers(0, 7))
draw = st.tuples(st.just("draw"), st.integers(0, 2**31 - 1))
update = st.tuples(
    st.just("update"),
    st.lists(priorities, min_size=BATCH, max_size=BATCH),
    st.integers(0, 2),  # how many draws ago
    st.booleans(),  # with generations
)
restart = st.just(("restart",))
programs = st.lists(st.one_of(add, add, draw, update, restart), min_size=16, max_size=24)


class Face:
    """A buffer as users hold it: all rows advance together."""

    def __init__(self, case: Case):
        self.case, self.layout = case, layout_of(case.kind, case.arguments)
        buffer = getattr(fbx, f"make_{case.kind}_buffer")(**case.arguments)
        self.can_sample, self.init = buffer.can_sample, buffer.init
        self.jitted_add, self.draw = jax.jit(buffer.add, donate_argnums=0), jax.jit(buffer.sample)
        if self.layout.priority_exponent is not None:
            self.set_priorities = jax.jit(buffer.set_priorities)

    def empty(self):
        """Return an empty state."""
        return self.init({name: np.zeros(shape, dtype) for name, (shape, dtype) in SPEC.items()})

    def add(self, state, model: Model, choice: int):
        """Add a batch of one of the case's lengths."""
        length = self.case.lengths[choice % len(self.case.lengths)]
        batch = model.add([length] * self.layout.rows, length)
        if self.layout.items:
            batch = {name: leaf[0] for name, leaf in batch.items()}
        return self.jitted_add(state, batch)

    def held(self, state) -> dict[str, np.ndarray]:
        """Return what the ring holds, `[B, T, ...]`."""
        return {name: np.asarray(leaf) for name, leaf in state.experience.items()}

    def counters(self, state) -> tuple[list[int], list[int]]:
        """Return write index and size of each row."""
        size = self.layout.time_axis if bool(state.is_full) else int(state.current_index)
        return [int(state.current_index)] * self.layout.rows, [size] * self.layout.rows

    def weights(self, state) -> np.ndarray:
        """Return the weight of every item."""
        return np.asarray(fbx.sum_tree.leaves(state.sum_tree_state))

    def sample(self, state, seed: int):
        """Return sequences `[N, L, ...]`, and indices, probabilities and generations where there are any."""
        drawn = self.draw(state, jax.random.key(seed))
        experience = {name: np.asarray(leaf) for name, leaf in self._sequences(drawn).items()}
        if self.layout.priority_exponent is None:
            return experience, None, None, None
        return experience, *(np.asarray(drawn[name]) for name in ("indices", "probabilities", "generations"))

    def _sequences(self, drawn):
        if self.layout.flat:
            first, second = drawn.experience
            return {name: np.stack([first[name], second[name]], 1) for name in first}
        if self.layout.items:
            return {name: leaf[:, None] for name, leaf in drawn.experience.items()}
        return drawn.experience

    def update(self, state, indices, new, generations):
        """Set priorities."""
        return self.set_priorities(state, indices, new, generations)

    def restart(self, state):
        """Return the state as it is."""
        return state


class Rows(Face):
    """The core behind a live buffer: rows advance on their own, and a state can be taken apart."""

    WIDTH = 4

    def __init__(self, case: Case):
        self.case, self.layout = case, layout_of(case.kind, case.arguments)
        self.core = make_core(self.layout)
        self.spec = {name: LeafSpec(shape, np.dtype(dtype).name) for name, (shape, dtype) in SPEC.items()}
        self.can_sample = self.core.can_sample

    def empty(self):
        """Return an empty state."""
        return self.core.init(self.spec)

    def add(self, state, model: Model, choice: int):
        """Add 0 to 4 timesteps to each row, most often another number to each."""
        width = min(self.WIDTH, self.layout.time_axis)
        lengths = [(choice + 3 * row * (choice % 3)) % (width + 1) for row in range(self.layout.rows)]
        return self.core.add_rows(state, model.add(lengths, width), lengths)

    def held(self, state) -> dict[str, np.ndarray]:
        """Return what the ring holds, `[B, T, ...]`."""
        return unpack(state.experience, self.spec)

    def counters(self, state) -> tuple[list[int], list[int]]:
        """Return write index and size of each row."""
        return state.write_index.tolist(), state.size.tolist()

    def weights(self, state) -> np.ndarray:
        """Return the weight of every item."""
        return np.asarray(self.core.weights(state))

    def sample(self, state, seed: int):
        """Return sequences `[N, L, ...]`, indices, probabilities and generations."""
        drawn = self.core.sample(state, jax.random.key(seed), BATCH)
        generations = self.core.generations(drawn.indices, drawn.laps)
        assert self.core.is_live(state, drawn.indices).all()
        experience, probabilities = unpack(drawn.experience, self.spec), np.asarray(drawn.probabilities)
        return experience, drawn.indices, probabilities, generations

    def update(self, state, indices, new, generations):
        """Set priorities of items that are still what was sampled, as a live buffer does."""
        keep = np.ones(BATCH, bool)
        if generations is not None:
            keep = self.core.generations(indices, self.core.laps(state, indices)) == generations
        return self.core.set_priorities(state, indices, new, keep)

    def restart(self, state):
        """Return the state put together again from what is kept of it."""
        experience = jax.tree.map(np.array, self.held(state))
        return self.core.import_state(experience, self.core.export_state(state))


@functools.cache
def subject_of(subject: type[Face], number: int) -> Face:
    """Return the subject of a case, compiled once."""
    return subject([*CASES, *MORE_CASES][number])


def check(subject: Face, state, model: Model) -> None:
    """Compare contents, counters, weights and whether there is something to draw."""
    layout, ring = subject.layout, model.ring()
    held, written = subject.held(state), ring >= 0
    for name, leaf in leaves_of(ring).items():
        np.testing.assert_array_equal(held[name][written], leaf[written])
    assert subject.counters(state) == (
        [added % layout.time_axis for added in model.added],
        [min(added, layout.time_axis) for added in model.added],
    )
    if layout.priority_exponent is not None:
        expected = np.zeros(layout.num_items)
        for row, start in model.whole():
            index = row * layout.items_per_row + start % layout.time_axis // layout.stride
            expected[index] = model.weights[row, start]
        np.testing.assert_allclose(subject.weights(state), expected, rtol=2e-6)
    assert bool(subject.can_sample(state)) == model.can_sample()


def check_draw(subject: Face, state, model: Model, seed: int):
    """Draw and look at each sequence; return the items drawn, their indices and generations."""
    layout, chances = subject.layout, model.chances()
    experience, indices, probabilities, generations = subject.sample(state, seed)
    count = experience["count"]
    for name, leaf in leaves_of(count).items():
        np.testing.assert_array_equal(experience[name], leaf)
    assert count.shape == (BATCH, layout.sequence_length) and (np.diff(count, axis=1) == 1).all()
    items = [(first // ROW, first % ROW) for first in count[:, 0].tolist()]
    assert set(items) <= set(chances)
    if indices is not None:
        np.testing.assert_allclose(probabilities, [chances[item] for item in items], rtol=1e-5)
        np.testing.assert_array_equal(generations, [start for _, start in items])
    if layout.priority_exponent is not None:
        assert [model.item_at(index) for index in indices.tolist()] == items
        check_shares(items, chances)
    return items, indices, generations


def check_shares(items: list[tuple[int, int]], chances: dict[tuple[int, int], float]) -> None:
    """Look at how often each item was drawn: one from each of N equal shares leaves little to chance."""
    for item, chance in chances.items():
        often = items.count(item)
        assert np.floor(BATCH * chance - 1e-4) - 1 <= often <= np.ceil(BATCH * chance + 1e-4) + 1


def check_frequencies(subject: Face, state, model: Model) -> None:
    """Compare how often each item comes in many draws with its probability: five deviations at most."""
    chances, counts = model.chances(), dict.fromkeys(model.chances(), 0)
    for seed in range(DRAWS):
        for first in subject.sample(state, seed)[0]["count"][:, 0].tolist():
            counts[first // ROW, first % ROW] += 1
    for item, chance in chances.items():
        expected = DRAWS * BATCH * chance
        assert abs(counts[item] - expected) <= 5 * np.sqrt(expected) + 3


def run(subject: Face, program: list[tuple], *, frequencies: bool) -> None:
    """Do what a program says to a buffer and to the model, and compare them after each step."""
    model, state, draws = Model(subject.layout), subject.empty(), []
    for name, *arguments in program:
        if name == "add":
            state = subject.add(state, model, *arguments)
        elif name == "draw" and model.can_sample():
            draws.append(check_draw(subject, state, model, *arguments))
        elif name == "restart":
            state = subject.restart(state)
        elif name == "update" and draws and subject.layout.priority_exponent is not None:
            new, ago, with_generations = arguments
            items, indices, generations = draws[max(-1 - ago, -len(draws))]
            given = generations if with_generations else None
            now = items if with_generations else [model.item_at(index) for index in indices.tolist()]
            state = subject.update(state, indices, np.float32(new), given)
            model.set_priorities(now, new)
        check(subject, state, model)
    if frequencies and model.can_sample():
        check_frequencies(subject, state, model)


def explore(subject: Face, examples: int, *, frequencies: bool) -> None:
    """Run so many programs."""

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(programs)
    def explored(program):
        run(subject, program, frequencies=frequencies)

    explored()


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("subject", [Face, Rows])
def test_any_order_of_operations_gives_what_the_model_holds(subject, number):
    """After each add, draw, update and restart, contents, weights, draws and counters are the model's."""
    explore(subject_of(subject, number), 5, frequencies=True)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(CASES) + len(MORE_CASES)))
@pytest.mark.parametrize("subject", [Face, Rows])
def test_many_orders_of_operations_give_what_the_model_holds(subject, number):
    """The same for 80 programs of every case, and of twelve cases more."""
    explore(subject_of(subject, number), 80, frequencies=number < len(CASES))
