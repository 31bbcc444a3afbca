"""Leaves and frames' bodies: the same bytes in one piece, in a view of each leaf, and stacked."""

import ml_dtypes
import numpy as np
import pytest

from fbxcore.live.durable.frames import Frame, Kind, bytes_of, leaves_of, stacked_leaves
from fbxcore.spec import parse_spec

SPEC = parse_spec({
    "a": {"shape": [3], "dtype": "bool"},  # an odd length, so that what follows is not aligned
    "b": {"shape": [2], "dtype": "float32"},
    "c": {"shape": [], "dtype": "int64"},
    "d": {"shape": [], "dtype": "bfloat16"},
})  # fmt: skip


def leaves(first, steps):
    """Return leaves `[1, K, ...]` that count from a number."""
    count = np.arange(first, first + steps)[None]
    return {
        "a": np.stack([count % 2 == 0, count % 3 == 0, count % 5 == 0], axis=-1),
        "b": np.stack([count, -count], axis=-1).astype(np.float32),
        "c": count.astype(np.int64) << 40,
        "d": count.astype(ml_dtypes.bfloat16),
    }


def frame(first, steps):
    """Return an add frame."""
    return Frame(Kind.ADD, {}, bytes_of(SPEC, leaves(first, steps)), steps)


@pytest.mark.parametrize("steps", [1, 5, 2000])
def test_a_body_is_its_leaves_one_after_the_other(steps):
    """Small or large, the bytes are those of the leaves in order, and give the leaves again."""
    given = leaves(7, steps)
    body = bytes_of(SPEC, given)

    assert len(body) == (1 if steps < 1000 else len(SPEC))
    assert b"".join(body) == b"".join(given[name].tobytes() for name in SPEC)
    for name, leaf in leaves_of(SPEC, Frame(Kind.ADD, {}, body, steps), 1).items():
        assert leaf.dtype == given[name].dtype and (leaf == given[name]).all()


@pytest.mark.parametrize("steps", [1, 5, 2000])
def test_frames_of_as_many_steps_are_stacked(steps):
    """Row n of each leaf is frame n's."""
    stacked = stacked_leaves(SPEC, [frame(first, steps) for first in (0, 100, 200)])

    for n, first in enumerate((0, 100, 200)):
        for name, leaf in leaves(first, steps).items():
            assert (stacked[name][n] == leaf[0]).all()


def test_a_body_stays_as_it_was_when_the_caller_goes_on():
    """What was handed in is a copy, where the caller could still write to it."""
    for steps in (5, 2000):
        given = leaves(0, steps)
        body = bytes_of(SPEC, given)
        before = b"".join(body)
        given["b"] += 1

        assert b"".join(body) == before
