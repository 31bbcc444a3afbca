"""The queue beside real Flashbax and a list, through many wraps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.errors import InvalidArgumentError

ARGUMENTS = {
    "max_length_time_axis": 10,
    "add_batch_size": 2,
    "add_sequence_length": 3,
    "sample_sequence_length": 4,
}


def test_it_holds_and_gives_what_flashbax_does(flashbax, same, timestep, steps):
    """In 60 turns of adding when there is room and taking at random, states and samples equal Flashbax's."""
    queues = [library.make_trajectory_queue(**ARGUMENTS) for library in (fbx, flashbax)]
    adds, samples = [jax.jit(q.add) for q in queues], [jax.jit(q.sample) for q in queues]
    states = [q.init(timestep) for q in queues]
    expected: list[int] = []
    rng = np.random.default_rng(0)
    first = 0
    for _ in range(60):
        can_add, can_sample = (
            [bool(getattr(q, name)(s)) for q, s in zip(queues, states, strict=True)]
            for name in ("can_add", "can_sample")
        )
        assert can_add[0] == can_add[1] == (len(expected) + 3 <= 10)
        assert can_sample[0] == can_sample[1] == (len(expected) >= 4)
        if can_sample[0] and (not can_add[0] or rng.integers(2)):
            states, taken = zip(*[f(s) for f, s in zip(samples, states, strict=True)], strict=True)
            assert same(taken[0].experience, taken[1].experience)
            assert taken[0].experience["count"][0].tolist() == expected[:4]
            expected = expected[4:]
        elif can_add[0]:
            states = [f(s, steps(first, (2, 3))) for f, s in zip(adds, states, strict=True)]
            expected += range(first, first + 3)
            first += 3
        for name in ("write_index", "read_index", "is_full"):
            assert states[0][name] == states[1][name]


def test_max_size_sets_the_time_axis():
    """30 timesteps over 4 rows are 7 each, and a warning says so."""
    with pytest.warns(UserWarning, match="`max_size` 30 sets the time axis of each of 4 rows to 7"):
        queue = fbx.make_trajectory_queue(**{**ARGUMENTS, "add_batch_size": 4}, max_size=30)
    assert queue.init(jnp.zeros(())).experience.shape == (4, 7)


@pytest.mark.parametrize("name", ["add_batch_size", "sample_sequence_length", "max_length_time_axis"])
def test_a_wrong_argument_is_named(name):
    """Zero is refused for every length, by its name; so is a sequence longer than the time axis."""
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must"):
        fbx.make_trajectory_queue(**{**ARGUMENTS, name: 0})
    with pytest.raises(ValueError, match="`sample_sequence_length` must be at most the time axis"):
        fbx.make_trajectory_queue(**{**ARGUMENTS, "sample_sequence_length": 11})
