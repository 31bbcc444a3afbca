"""The queue against a list, the mixer against its members, through any order of operations."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fbxcore as fbx

QUEUES = [(2, 7, 2, 3), (1, 6, 6, 1), (3, 5, 3, 5)]  # rows, time axis, added, sampled
HELD = [8, 6, 10]  # items in each member of a mixer


class Queue:
    """A queue compiled once, and the list of what waits in it."""

    def __init__(self, rows: int, time_axis: int, added: int, sampled: int):
        self.rows, self.time_axis, self.added, self.sampled = rows, time_axis, added, sampled
        queue = fbx.make_trajectory_queue(
            max_length_time_axis=time_axis,
            add_batch_size=rows,
            add_sequence_length=added,
            sample_sequence_length=sampled,
        )
        self.init, self.can_add, self.can_sample = queue.init, queue.can_add, queue.can_sample
        self.add, self.sample = jax.jit(queue.add), jax.jit(queue.sample)

    def run(self, program: list[bool]) -> None:
        """Add where the program says true and there is room, take where it says false and enough waits."""
        state, waiting, first = self.init({"x": np.zeros((2,), np.int32)}), [], 0
        offsets = 1000 * np.arange(self.rows)[:, None]
        for is_add in program:
            room = self.time_axis - len(waiting)
            assert bool(self.can_add(state)) == (room >= self.added)
            assert bool(self.can_sample(state)) == (len(waiting) >= self.sampled)
            if is_add and room >= self.added:
                x = offsets + np.arange(first, first + self.added)
                state = self.add(state, {"x": np.stack([x, -x], -1).astype(np.int32)})
                waiting += range(first, first + self.added)
                first += self.added
            elif not is_add and len(waiting) >= self.sampled:
                state, taken = self.sample(state)
                x = offsets + np.array(waiting[: self.sampled])
                np.testing.assert_array_equal(taken.experience["x"], np.stack([x, -x], -1))
                del waiting[: self.sampled]


def check_queue(shape: tuple[int, int, int, int], examples: int) -> None:
    """Run programs of up to 40 turns, which go around the ring many times."""
    queue = Queue(*shape)

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.booleans(), min_size=20, max_size=40))
    def explored(program):
        queue.run(program)

    explored()


@pytest.mark.parametrize("shape", QUEUES)
def test_what_is_added_is_taken_once_and_in_order(shape):
    """In any order of adding and taking, each timestep comes out once, in the order it came."""
    check_queue(shape, 10)


@pytest.mark.long
@pytest.mark.parametrize("shape", [*QUEUES, (1, 1, 1, 1), (2, 33, 5, 8), (4, 12, 12, 12)])
def test_what_is_added_is_taken_once_and_in_order_in_many_programs(shape):
    """The same for 200 programs and three shapes more."""
    check_queue(shape, 200)


def check_mixer(kind: str, examples: int) -> None:
    """Compare joined samples with those of the members, for parts of any size."""
    make = getattr(fbx, f"make_{kind}_buffer")
    makers = [make(max_length=held, min_length=1, sample_batch_size=6, add_batches=True) for held in HELD]
    makers = [maker.replace(sample=jax.jit(maker.sample)) for maker in makers]
    states = [
        maker.add(maker.init(np.int32(0)), np.arange(100 * k, 100 * k + held, dtype=np.int32))
        for k, (maker, held) in enumerate(zip(makers, HELD, strict=True))
    ]

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(st.tuples(*[st.integers(0, 9)] * 3).filter(any), st.integers(1, 6), st.integers(0, 2**31 - 1))
    def explored(parts, size, seed):
        key = jax.random.key(seed)
        sizes = [part * size // sum(parts) for part in parts]
        sizes[0] += size - sum(sizes)

        joined = fbx.make_mixer(makers, sample_batch_size=size, proportions=parts).sample(states, key)

        keys = jax.random.split(key, 3)
        drawn = [
            np.asarray(maker.sample(state, key).experience)[:count]
            for maker, state, key, count in zip(makers, states, keys, sizes, strict=True)
        ]
        np.testing.assert_array_equal(joined.experience, np.concatenate(drawn))
        assert (np.asarray(joined.experience) // 100).tolist() == np.repeat([0, 1, 2], sizes).tolist()

    explored()


@pytest.mark.parametrize("kind", ["item", "prioritised_item"])
def test_a_joined_sample_is_the_first_of_each_members_own(kind):
    """For any parts, a sample is what each member draws with its key, as many as its part comes to."""
    check_mixer(kind, 4)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["item", "prioritised_item"])
def test_joined_samples_are_the_first_of_each_members_own_for_many_parts(kind):
    """The same for 60 parts and sizes."""
    check_mixer(kind, 60)
