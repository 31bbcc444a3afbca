"""Buffers that keep to episodes, against a slow reference, at every wrap, period and both crossings."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fbxcore as fbx
from fbxcore.errors import InvalidArgumentError, StructureError

LENGTHS = (1, 2, 5, 9)  # of an add; none is longer than a time axis of the grid
# Prioritised, crossing, which leaves mark episodes, sequence length, period, time axis.
GRID = [
    (False, "avoid", ("end",), 3, 1, 10),
    (False, "avoid", ("start",), 4, 2, 13),
    (True, "avoid", ("start", "end"), 3, 1, 9),
    (True, "avoid", ("end",), 9, 3, 10),
    (False, "mask", ("end",), 4, 1, 11),
    (False, "mask", ("start",), 3, 3, 10),
    (True, "mask", ("end",), 4, 1, 9),
    (True, "avoid", ("end",), 1, 2, 9),
]
ROWS = 2


@functools.cache
def compiled(prioritised, crossing, marks, length, period, time_axis, draws=64):
    """Return a compiled buffer of a row of the grid."""
    make = fbx.make_prioritised_trajectory_buffer if prioritised else fbx.make_trajectory_buffer
    whole = make(
        add_batch_size=ROWS,
        sample_batch_size=draws,
        sample_sequence_length=length,
        period=period,
        min_length_time_axis=length,
        max_length_time_axis=time_axis,
    )
    buffer = fbx.make_episode_buffer(
        whole,
        episode_start=[name for name in marks if name == "start"],
        episode_end=[name for name in marks if name == "end"],
        crossing=crossing,
    )
    return buffer.replace(add=jax.jit(buffer.add), sample=jax.jit(buffer.sample))


class Reference:
    """All timesteps ever added with the episode each is of, in lists; legal starts are looked up in them."""

    def __init__(self, marks, length, period, time_axis):
        self.marks, self.length, self.period, self.time_axis = marks, length, period, time_axis
        self.episodes = [[] for _ in range(ROWS)]  # of each timestep: number of its episode, steps into it
        self.ended = [False] * ROWS

    def batch(self, steps, flags):
        """Append timesteps, where `flags` says before and behind which of them an episode may break."""
        start, end = (np.array(flags[k::2]).reshape(ROWS, steps) for k in (0, 1))
        for row, held in enumerate(self.episodes):
            for k in range(steps):
                number, into = held[-1] if held else (0, -1)
                is_new = ("start" in self.marks and start[row, k]) or self.ended[row]
                held.append((number + 1, 0) if is_new else (number, into + 1))
                self.ended[row] = bool("end" in self.marks and end[row, k])
        count = len(self.episodes[0]) - steps + np.arange(steps)
        step = np.stack([1000 * row + count for row in range(ROWS)]).astype(np.int32)
        return {"step": step, "start": start, "end": end}

    def run(self, row, first):
        """Return how many timesteps from one on are held and of its episode."""
        held = self.episodes[row]
        run = 1
        while first + run < len(held) and held[first + run][0] == held[first][0]:
            run += 1
        return run

    def legal(self, crossing):
        """Return row and first timestep of everything that may be drawn."""
        needed = self.length if crossing == "avoid" else 1
        return {
            (row, first)
            for row, held in enumerate(self.episodes)
            for first in range(max(0, len(held) - self.time_axis), len(held))
            if self.run(row, first) >= needed and held[first][1] % self.period == 0
        }


def batches(data, most):
    """Draw lengths and breaks of some adds."""
    lengths = data.draw(st.lists(st.sampled_from([n for n in LENGTHS if n <= most]), min_size=3, max_size=8))
    often = data.draw(st.sampled_from([0.05, 0.3, 0.7]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    return [(n, rng.random(2 * ROWS * n) < often) for n in lengths]


@pytest.mark.parametrize("number", range(len(GRID)))
def test_exactly_the_legal_starts_are_drawn(number):
    """After each add the drawable items are those of the reference, and so is every timestep drawn."""

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def run(data):
        prioritised, crossing, marks, length, period, time_axis = GRID[number]
        buffer = compiled(*GRID[number])
        state = buffer.init({"step": jnp.int32(0), "start": jnp.array(False), "end": jnp.array(False)})
        reference = Reference(marks, length, period, time_axis - (time_axis % period if prioritised else 0))
        for turn, (steps, flags) in enumerate(batches(data, reference.time_axis)):
            state = buffer.add(state, reference.batch(steps, flags))
            legal = reference.legal(crossing)
            if hasattr(state, "sum_tree_state"):
                assert drawable(state, reference) == legal
            if bool(buffer.can_sample(state)):
                check(buffer.sample(state, jax.random.key(turn)), reference, crossing, legal)
            else:
                assert not legal or len(reference.episodes[0]) < length

    run()


def drawable(state, reference):
    """Return row and first timestep of the items whose weight is not 0."""
    time_axis = reference.time_axis
    weights = np.asarray(fbx.sum_tree.leaves(state.sum_tree_state)).reshape(ROWS, time_axis)
    held = len(reference.episodes[0])
    newest = {t % time_axis: t for t in range(max(0, held - time_axis), held)}
    return {(int(row), newest[int(slot)]) for row, slot in zip(*np.nonzero(weights), strict=True)}


def check(drawn, reference, crossing, legal):
    """Compare a sample with the reference."""
    step = np.asarray(drawn.experience["step"])
    starts = {(int(x) // 1000, int(x) % 1000) for x in step[:, 0]}
    assert starts <= legal
    if len(legal) < 8:  # 64 draws miss one of 7 with a chance of 1e-4
        assert starts == legal
    runs = [min(reference.run(x // 1000, x % 1000), reference.length) for x in step[:, 0].tolist()]
    mask = np.arange(reference.length) < np.array(runs)[:, None]
    expected = step[:, :1] + np.arange(reference.length)
    if crossing == "mask":
        np.testing.assert_array_equal(drawn.mask, mask)
    assert crossing == "mask" or mask.all()
    np.testing.assert_array_equal(step[mask], expected[mask])


def trajectory(time_axis, length, *, draws=256, crossing="avoid", end="end"):
    """Return a compiled buffer of one row and one mark."""
    whole = fbx.make_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=draws,
        sample_sequence_length=length,
        period=1,
        min_length_time_axis=length,
        max_length_time_axis=time_axis,
    )
    buffer = fbx.make_episode_buffer(whole, episode_end=end, crossing=crossing)
    return buffer.replace(add=jax.jit(buffer.add), sample=jax.jit(buffer.sample))


def stream(*lengths):
    """Return one row of episodes of those lengths: number of the episode, step in it, and whether it ends."""
    number = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    step = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    return {"episode": number[None], "step": step[None], "end": (step == np.array(lengths)[number] - 1)[None]}


def test_a_run_that_wraps_is_one_slice():
    """Of ids 3 3 0 1 1 1 2 2 2 3 in a ring of ten, all runs of three come, also round the end (BF-02)."""
    buffer = trajectory(10, 3)
    steps = {"id": np.array([[9, 9, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]])}
    steps["end"] = np.append(np.diff(steps["id"]) != 0, [[False]], axis=1)
    state = buffer.init({"id": jnp.array(0), "end": jnp.array(False)})
    for part in (slice(0, 10), slice(10, 12)):
        state = buffer.add(state, jax.tree.map(lambda x, part=part: x[:, part], steps))
    drawn = np.asarray(buffer.sample(state, jax.random.key(0)).experience["id"])

    assert np.asarray(state.experience["id"])[0].tolist() == [3, 3, 0, 1, 1, 1, 2, 2, 2, 3]
    assert {tuple(row) for row in drawn.tolist()} == {(1, 1, 1), (2, 2, 2), (3, 3, 3)}


def test_every_legal_start_is_reached_with_equal_chances():
    """100 timesteps in episodes of varied length: all legal starts come, by chi-square alike (BF-02)."""
    lengths = (7, 3, 20, 1, 4, 30, 12, 2, 11, 10)
    buffer = trajectory(100, 4, draws=4000)
    steps = stream(*lengths)
    state = buffer.init({"episode": jnp.array(0), "step": jnp.array(0), "end": jnp.array(False)})
    state = buffer.add(state, steps)
    drawn = buffer.sample(state, jax.random.key(3)).experience
    starts = 100 * np.asarray(drawn["episode"])[:, 0] + np.asarray(drawn["step"])[:, 0]
    legal = [100 * k + n for k, length in enumerate(lengths) for n in range(length - 3)]
    found, counts = np.unique(starts, return_counts=True)
    expected = 4000 / len(legal)

    assert found.tolist() == legal  # 73 of them, the last of each episode included
    assert ((counts - expected) ** 2 / expected).sum() < 114.8  # 72 degrees of freedom


def test_draws_of_a_uniform_buffer_are_independent():
    """Equal draws stand next to each other as often as chance has it: they are not sorted by place."""
    buffer = trajectory(100, 4, draws=1000)
    steps = stream(103)
    steps = jax.tree.map(lambda x: x[:, :100], steps)
    state = buffer.init({"episode": jnp.array(0), "step": jnp.array(0), "end": jnp.array(False)})
    starts = np.asarray(buffer.sample(buffer.add(state, steps), jax.random.key(0)).experience["step"])[:, 0]

    assert abs(np.corrcoef(starts[1:], starts[:-1])[0, 1]) < 0.1


def test_short_episodes_are_given_with_a_mask():
    """Of an episode of 100 and one of 4, a hundred rows of 5 come, those of the short one masked (BF-02)."""
    buffer = trajectory(104, 5, draws=100, crossing="mask")
    state = buffer.init({"episode": jnp.array(0), "step": jnp.array(0), "end": jnp.array(False)})
    state = buffer.add(state, stream(100, 4))
    many = jax.vmap(buffer.sample, in_axes=(None, 0))(state, jax.random.split(jax.random.key(1), 40))
    assert many.experience["step"].shape == (40, 100, 5) and many.mask.shape == (40, 100, 5)
    first, mask = np.asarray(many.experience["step"])[..., 0].ravel(), np.asarray(many.mask).reshape(-1, 5)
    short = np.asarray(many.experience["episode"])[..., 0].ravel() == 1

    assert (mask[short].sum(1) == 4 - first[short]).all() and set(first[short]) == {0, 1, 2, 3}
    assert (mask[~short].sum(1) == np.minimum(100 - first[~short], 5)).all()
    assert set(first[~short]) == set(range(100))


def test_pairs_never_join_two_episodes():
    """2 is not followed by 10, the first observation of the next episode (BF-01)."""
    flat = fbx.make_flat_buffer(max_length=64, min_length=2, sample_batch_size=64, add_sequences=True)
    stream = {
        "obs": jnp.array([0, 1, 2, 10, 11, 12]),
        "terminated": jnp.zeros(6, bool),
        "truncated": jnp.arange(6) == 2,
    }
    for crossing in ("avoid", "mask"):
        buffer = fbx.make_episode_buffer(flat, episode_end=("terminated", "truncated"), crossing=crossing)
        state = buffer.add(buffer.init(jax.tree.map(lambda x: x[0], stream)), stream)
        drawn = buffer.sample(state, jax.random.key(0))
        pairs = drawn.experience
        mask = np.asarray(drawn.mask) if crossing == "mask" else np.ones(64, bool)
        found = {
            (int(a), int(b)) for a, b in zip(pairs.first["obs"][mask], pairs.second["obs"][mask], strict=True)
        }
        alone = set(np.asarray(pairs.first["obs"])[~mask].tolist())

        assert found == {(0, 1), (1, 2), (10, 11), (11, 12)}
        assert alone == ({2, 12} if crossing == "mask" else set())


def test_priorities_lead_to_whole_sequences_only():
    """Priorities set under stale indices never make a sequence drawable that crosses an episode (FB-08)."""
    whole = fbx.make_prioritised_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=64,
        sample_sequence_length=3,
        period=1,
        min_length_time_axis=3,
        max_length_time_axis=8,
        priority_exponent=1.0,
    )
    buffer = fbx.make_episode_buffer(whole, episode_end="end")
    state = buffer.init({"episode": jnp.array(0), "step": jnp.array(0), "end": jnp.array(False)})
    state = buffer.add(state, stream(8))
    drawn = buffer.sample(state, jax.random.key(0))
    state = buffer.add(state, stream(2, 2, 4))
    stale = buffer.set_priorities(state, drawn.indices, jnp.full(64, 9.0), drawn.generations)
    blind = buffer.set_priorities(state, jnp.arange(8), jnp.arange(1.0, 9.0))

    assert (stale.sum_tree_state.nodes == state.sum_tree_state.nodes).all()
    assert fbx.sum_tree.leaves(blind.sum_tree_state).tolist() == [0, 0, 0, 0, 5, 6, 0, 0]


def test_priorities_of_drawn_sequences_are_set():
    """Frequencies follow the priorities of the two legal sequences, 1 and 3."""
    flat = fbx.make_prioritised_flat_buffer(
        max_length=6, min_length=2, sample_batch_size=4, add_sequences=True, priority_exponent=1.0
    )
    buffer = fbx.make_episode_buffer(flat, episode_end="end")
    state = buffer.init({"episode": jnp.array(0), "step": jnp.array(0), "end": jnp.array(False)})
    state = buffer.add(state, jax.tree.map(lambda x: x[0], stream(1, 2, 1, 2)))
    drawn = buffer.sample(state, jax.random.key(0))
    priorities = jnp.where(drawn.experience.first["episode"] == 1, 1.0, 3.0)
    state = buffer.set_priorities(state, drawn.indices, priorities, drawn.generations)
    drawn = buffer.sample(state, jax.random.key(1))

    assert drawn.experience.first["episode"].tolist() == [1, 3, 3, 3]
    assert set(drawn.probabilities.tolist()) == {0.25, 0.75}


@pytest.mark.parametrize("crossing", ["avoid", "mask"])
@pytest.mark.parametrize(
    ("add_sequences", "add_batch_size"), [(False, None), (True, None), (False, 3), (True, 3)]
)
def test_flat_batches_keep_their_form(add_sequences, add_batch_size, crossing):
    """A flat buffer that keeps to episodes takes the batches that the flat buffer takes."""
    flat = fbx.make_flat_buffer(
        max_length=12,
        min_length=2,
        sample_batch_size=4,
        add_sequences=add_sequences,
        add_batch_size=add_batch_size,
    )
    buffer = fbx.make_episode_buffer(flat, episode_end="end", crossing=crossing)
    shape = ((add_batch_size,) if add_batch_size else ()) + ((2,) if add_sequences else ())
    state = buffer.init({"x": jnp.zeros(2), "end": jnp.array(False)})
    for turn in range(4):
        state = buffer.add(state, {"x": jnp.full((*shape, 2), float(turn)), "end": jnp.zeros(shape, bool)})
    drawn = buffer.sample(state, jax.random.key(0))

    assert bool(buffer.can_sample(state)) and drawn.experience.second["x"].shape == (4, 2)
    with pytest.raises(StructureError):
        buffer.add(state, {"x": jnp.zeros((7, 7, 7, 2)), "end": jnp.zeros((7, 7, 7), bool)})


def test_nothing_can_be_sampled_before_a_whole_sequence_of_one_episode():
    """Six timesteps in episodes of two hold no sequence of three; three more in one episode do."""
    buffer = trajectory(12, 3)
    state = buffer.init({"episode": jnp.array(0), "step": jnp.array(0), "end": jnp.array(False)})
    state = buffer.add(state, stream(2, 2, 2))
    assert not bool(buffer.can_sample(state))

    assert bool(buffer.can_sample(buffer.add(state, stream(3))))


def test_it_works_inside_scan_and_vmap_and_is_traced_once(same):
    """A scan of adds over two buffers in a vmap gives what adds one by one give; donated adds trace once."""
    buffer = trajectory(10, 3, draws=16)
    plain = fbx.make_episode_buffer(
        fbx.make_trajectory_buffer(
            add_batch_size=1,
            sample_batch_size=16,
            sample_sequence_length=3,
            period=1,
            min_length_time_axis=3,
            max_length_time_axis=10,
        ),
        episode_end="end",
    )
    timestep = {"episode": jnp.array(0), "step": jnp.array(0), "end": jnp.array(False)}
    given = [
        jax.tree.map(lambda x: x.reshape(4, 1, 5), stream(*lengths)) for lengths in ((6, 4, 10), (2, 18))
    ]
    traced = []

    def fill(batches, key):
        def step(state, batch):
            traced.append(1)
            return plain.add(state, batch), None

        state, _ = jax.lax.scan(step, plain.init(timestep), batches)
        return state, plain.sample(state, key)

    keys = jax.random.split(jax.random.key(0))
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *given)
    states, samples = jax.jit(jax.vmap(fill))(stacked, keys)
    add = jax.jit(lambda state, batch: traced.append(1) or plain.add(state, batch), donate_argnums=0)
    for k, batches in enumerate(given):
        state = buffer.init(timestep)
        for turn in range(4):
            state = add(state, jax.tree.map(lambda x, turn=turn: x[turn], batches))
        assert same(state, jax.tree.map(lambda x, k=k: x[k], states))
        assert same(buffer.sample(state, keys[k]), jax.tree.map(lambda x, k=k: x[k], samples))
    assert len(traced) == 2


def test_other_kinds_of_keys_draw_too():
    """A raw key draws what its typed twin draws, and a key of another implementation draws legal ones."""
    buffer = trajectory(10, 3)
    state = buffer.init({"episode": jnp.array(0), "step": jnp.array(0), "end": jnp.array(False)})
    state = buffer.add(state, stream(4, 6))
    typed, raw, rbg = (
        np.asarray(buffer.sample(state, key).experience["episode"])
        for key in (jax.random.key(5), jax.random.PRNGKey(5), jax.random.key(5, impl="rbg"))
    )

    assert (typed == raw).all() and (np.diff(rbg) == 0).all() and set(rbg[:, 0]) == {0, 1}


def test_an_add_and_a_draw_cost_the_same_at_any_capacity():
    """From 10**3 to 10**6 slots, a donated add and a draw take less than three times as long."""
    seconds = {}
    for capacity in (10**3, 10**6):
        buffer = trajectory(capacity, 8, draws=64)
        add = jax.jit(buffer.add, donate_argnums=0)
        batch = {"x": jnp.ones((1, 6, 20)), "end": jnp.array([[False, False, True, False, False, False]])}
        state = buffer.init({"x": jnp.zeros(20), "end": jnp.array(False)})
        for _ in range(20):
            state = add(state, {**batch, "end": jnp.zeros((1, 6), bool)})
        times = []
        for _ in range(15):
            begin = time.perf_counter()
            for turn in range(20):
                state = add(state, batch)
                drawn = buffer.sample(state, jax.random.key(turn))
            jax.block_until_ready((state, drawn))
            times.append(time.perf_counter() - begin)
        seconds[capacity] = min(times)

    assert seconds[10**6] < 3 * seconds[10**3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`episode_end` or `episode_start` must be given"),
        ({"episode_end": "end", "crossing": "cut"}, "`crossing` must be one of avoid, mask, got 'cut'"),
        ({"episode_end": "done"}, "`episode_end` must name a leaf of a timestep, end, x, got 'done'"),
        ({"episode_start": "x"}, "`episode_start` must name a leaf of one boolean a timestep, got 'x'"),
    ],
)
def test_wrong_marks_are_refused(arguments, message):
    """What does not name a boolean leaf is refused with the argument."""
    flat = fbx.make_flat_buffer(max_length=12, min_length=2, sample_batch_size=4)

    with pytest.raises(InvalidArgumentError, match=message):
        fbx.make_episode_buffer(flat, **arguments).init({"x": jnp.zeros(2), "end": jnp.array(False)})


def test_a_buffer_of_items_is_refused():
    """Items are no sequences, and a buffer keeps to episodes once."""
    item = fbx.make_item_buffer(max_length=4, min_length=1, sample_batch_size=1)
    with pytest.raises(InvalidArgumentError, match="`buffer` must be a flat or a trajectory buffer"):
        fbx.make_episode_buffer(item, episode_end="end")
    with pytest.raises(InvalidArgumentError, match="`buffer` must be a flat or a trajectory buffer"):
        fbx.make_episode_buffer(trajectory(10, 3), episode_end="end")
