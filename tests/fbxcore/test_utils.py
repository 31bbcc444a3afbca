"""Helpers for pytrees beside real Flashbax's."""

import warnings

import jax.numpy as jnp
import pytest

import fbxcore as fbx
from fbxcore import utils
from fbxcore.errors import StructureError


@pytest.fixture(scope="module")
def flashbax():
    """Real Flashbax, the peer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("flashbax")


def test_the_shared_leading_axes_are_returned_or_refused():
    """Leaves [2, 3] and [2, 3, 4] share [2, 3]; [2] and [3] share nothing."""
    assert utils.get_tree_shape_prefix({"a": jnp.ones((2, 3)), "b": jnp.ones((2, 3, 4))}, 2) == (2, 3)
    with pytest.raises(StructureError, match=r"`tree` must have the leading axes \[2\]"):
        utils.get_tree_shape_prefix({"a": jnp.ones(2), "b": jnp.ones(3)})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"axis": 0, "starting_arg_index": 0, "ending_arg_index": 1},
        {"kwargs_on_device_keys": ["y"]},
        {"kwargs_on_device_keys": []},
    ],
)
def test_axes_are_added_where_flashbax_adds_them(flashbax, options):
    """The shapes a wrapped function sees are those that Flashbax's wrapper gives it."""

    def shapes(a, b, *, y, z):
        return a.shape, b.shape, y.shape, z.shape

    given = (jnp.ones((2, 3)), jnp.ones((4, 5)))
    named = {"y": jnp.ones((6, 7)), "z": jnp.ones((8, 9))}
    ours = utils.add_dim_to_args(shapes, **options)(*given, **named)

    assert ours == flashbax.utils.add_dim_to_args(shapes, **options)(*given, **named)


def test_timesteps_are_counted_over_rows():
    """Two rows of five slots hold 6 after an add of three each and 10 when they have wrapped."""
    buffer = fbx.make_trajectory_buffer(
        add_batch_size=2,
        sample_batch_size=1,
        sample_sequence_length=1,
        period=1,
        min_length_time_axis=1,
        max_length_time_axis=5,
    )
    state = buffer.add(buffer.init(jnp.zeros(())), jnp.ones((2, 3)))
    assert utils.get_timestep_count(state) == 6
    assert utils.get_timestep_count(buffer.add(state, jnp.ones((2, 3)))) == 10
    with pytest.raises(AssertionError, match="must have a field `experience`"):
        utils.get_timestep_count(1)
