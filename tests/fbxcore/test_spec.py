"""A spec is parsed, written and compared in one place; nothing is broadcast and nothing is guessed."""

import ml_dtypes
import numpy as np
import pytest

from fbxcore import spec as specs
from fbxcore.errors import InvalidArgumentError, StructureError
from fbxcore.types import LeafSpec

NESTED = {
    "reward": {"shape": [], "dtype": "float32", "role": "reward"},
    "obs": {
        "image": {"shape": [2, 3], "dtype": "uint8"},
        "speed": {"shape": [2], "dtype": "float32", "unit": "m/s", "names": ["x", "y"]},
    },
}


@pytest.fixture
def spec():
    return specs.parse_spec(NESTED)


@pytest.fixture
def leaves():
    return {
        "obs/image": np.zeros((4, 5, 2, 3), np.uint8),
        "obs/speed": np.zeros((4, 5, 2), np.float32),
        "reward": np.zeros((4, 5), np.float32),
    }


def test_a_nested_spec_becomes_flat_and_sorted(spec):
    """Names are joined with slashes, in order; what a leaf says is kept."""
    assert list(spec) == ["obs/image", "obs/speed", "reward"]
    assert spec["obs/speed"] == LeafSpec((2,), "float32", unit="m/s", names=("x", "y"))


def test_a_flat_spec_is_the_nested_one():
    """A slash in a name is a group."""
    flat = {"a/b": {"shape": [], "dtype": "bool"}}

    assert specs.parse_spec(flat) == specs.parse_spec({"a": {"b": {"shape": [], "dtype": "bool"}}})


def test_a_spec_written_is_read_back(spec):
    """`parse_spec` and `spec_to_json` undo each other."""
    assert specs.spec_to_json(spec) == NESTED
    assert specs.parse_spec(specs.spec_to_json(spec)) == spec


def test_leaves_named_like_options_are_groups():
    """A group may have a leaf called `shape` or `dtype`: only plain values make a leaf."""
    nested = {"x": {"dtype": {"shape": [], "dtype": "int8"}, "role": {"shape": [], "dtype": "int8"}}}

    assert list(specs.parse_spec(nested)) == ["x/dtype", "x/role"]


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        ({}, "`spec` must be a non-empty mapping"),
        ([], "`spec` must be a non-empty mapping"),
        (None, "`spec` must be a non-empty mapping"),
        ({"x": 3}, "Leaf `x` must be {shape, dtype}, got 3"),
        ({"x": {}}, "Group `x` must have leaves"),
        ({"x": {"shape": []}}, "Leaf `x` must have a dtype of bool"),
        ({"x": {"dtype": "int8"}}, "Leaf `x` must have a shape"),
        ({"x": {"shape": [], "dtype": "float"}}, "got 'float'"),
        ({"x": {"shape": [], "dtype": "object"}}, "got 'object'"),
        ({"x": {"shape": [0], "dtype": "int8"}}, "positive integers"),
        ({"x": {"shape": [-1], "dtype": "int8"}}, "positive integers"),
        ({"x": {"shape": [2.0], "dtype": "int8"}}, "positive integers"),
        ({"x": {"shape": [True], "dtype": "int8"}}, "positive integers"),
        ({"x": {"shape": 3, "dtype": "int8"}}, "positive integers"),
        ({"x": {"shape": [1] * 9, "dtype": "int8"}}, "at most 8 positive integers"),
        ({"x": {"shape": [2**28 + 1], "dtype": "int8"}}, "must take at most 268435456 bytes a timestep"),
        ({"x": {"shape": [2**31] * 8, "dtype": "int8"}}, "must take at most 268435456 bytes a timestep"),
        ({"x": {"shape": [], "dtype": "int8", "more": 1}}, "got 'more'"),
        ({"x": {"shape": [], "dtype": "int8", "role": 1}}, "a short text as `role`"),
        ({"x": {"shape": [], "dtype": "int8", "unit": "m" * 65}}, "a short text as `unit`"),
        ({"x": {"shape": [2], "dtype": "int8", "names": "ab"}}, "a list of short texts"),
        ({"": {"shape": [], "dtype": "int8"}}, "non-empty leaf names"),
        ({3: {"shape": [], "dtype": "int8"}}, "non-empty leaf names"),
        ({"a\0": {"shape": [], "dtype": "int8"}}, "non-empty leaf names"),
        ({"a" * 513: {"shape": [], "dtype": "int8"}}, "at most 512 characters"),
        ({"..": {"shape": [], "dtype": "int8"}}, "without empty, blank or dotted parts"),
        ({"a//b": {"shape": [], "dtype": "int8"}}, "without empty, blank or dotted parts"),
        ({"a/../b": {"shape": [], "dtype": "int8"}}, "without empty, blank or dotted parts"),
        ({" a": {"shape": [], "dtype": "int8"}}, "without empty, blank or dotted parts"),
        ({f"x{i}": {"shape": [], "dtype": "int8"} for i in range(257)}, "at most 256 leaves, got 257"),
    ],
)
def test_a_wrong_spec_is_refused(nested, message):
    """The error names the leaf and the rule."""
    with pytest.raises(InvalidArgumentError, match=message):
        specs.parse_spec(nested)


@pytest.mark.parametrize(
    "names",
    [("a/b", "a.b"), ("a", "a/b"), ("a", "a.b"), ("a.b/c", "a/b.c"), ("a/b", "a/b/c")],
)
def test_names_that_meet_in_some_format_are_refused(names):
    """Vaults join names with dots, so `a/b` and `a.b` would be the same array."""
    with pytest.raises(InvalidArgumentError, match="Rename one"):
        specs.parse_spec({name: {"shape": [], "dtype": "int8"} for name in names})


def test_the_error_says_where_in_the_spec():
    """`loc` leads to the member that is wrong."""
    with pytest.raises(InvalidArgumentError) as caught:
        specs.parse_spec({"obs": {"image": {"shape": [1], "dtype": "u1"}}})

    assert caught.value.loc == ("spec", "obs", "image", "dtype")


def test_bytes_of_a_timestep_are_summed(spec):
    """6 bytes of image, 8 of speed and 4 of reward."""
    assert specs.timestep_bytes(spec) == 6 + 8 + 4
    assert specs.leaf_bytes(LeafSpec((3,), "bfloat16")) == 6


def test_arrays_that_agree_come_back_in_spec_order(spec, leaves):
    """Equal arrays are handed on without a copy."""
    checked = specs.check_leaves(spec, dict(reversed(leaves.items())), leading=2)

    assert list(checked) == list(spec)
    assert all(checked[name] is leaves[name] for name in leaves)


def test_spec_of_arrays_is_their_spec(spec, leaves):
    """Shapes behind the leading axes, and dtypes."""
    found = specs.spec_of(leaves, leading=2)

    assert {n: (s.shape, s.dtype) for n, s in found.items()} == {
        n: (s.shape, s.dtype) for n, s in spec.items()
    }


@pytest.mark.parametrize(
    ("change", "leaf", "message"),
    [
        ({"reward": None}, "reward", "Leaf `reward` must be given"),
        ({"more": np.zeros((4, 5))}, "more", "Leaf `more` must be in the spec"),
        ({"reward": np.zeros((4, 5))}, "reward", "Leaf `reward` must have dtype float32, got float64"),
        ({"reward": np.zeros((4, 5), np.int32)}, "reward", "must have dtype float32, got int32"),
        ({"reward": np.zeros((4, 5, 1), np.float32)}, "reward", r"must have shape \[B, K\], got \[4, 5, 1\]"),
        ({"reward": np.zeros((4,), np.float32)}, "reward", r"must have shape \[B, K\], got \[4\]"),
        ({"obs/speed": np.zeros((4, 5, 1), np.float32)}, "obs/speed", r"must have shape \[B, K, 2\]"),
        ({"reward": np.zeros((4, 6), np.float32)}, "reward", r"leading axes \[4, 5\] of leaf `obs/image`"),
        ({"reward": np.zeros((1, 5), np.float32)}, "reward", r"got \[1, 5\]"),
    ],
)
def test_arrays_that_do_not_agree_are_refused(spec, leaves, change, leaf, message):
    """Never broadcast, never converted unasked; the error names the leaf, what was expected and got."""
    given = {name: array for name, array in (leaves | change).items() if array is not None}
    with pytest.raises(StructureError, match=message) as caught:
        specs.check_leaves(spec, given, leading=2)

    assert caught.value.loc == (leaf,)


def test_same_kind_casts_floats(spec, leaves):
    """float64 becomes float32 where that is asked for."""
    given = leaves | {"reward": np.full((4, 5), 0.1)}
    checked = specs.check_leaves(spec, given, leading=2, cast="same_kind")

    assert checked["reward"].dtype == np.float32
    assert checked["reward"][0, 0] == np.float32(0.1)


def test_same_kind_casts_integers_that_fit(spec, leaves):
    """int64 pixels become uint8; 256 does not."""
    fits = leaves | {"obs/image": np.full((4, 5, 2, 3), 255)}
    assert specs.check_leaves(spec, fits, leading=2, cast="same_kind")["obs/image"].dtype == np.uint8

    with pytest.raises(StructureError, match=r"Leaf `obs/image` must fit uint8 \(0 to 255\), got 256 to 256"):
        specs.check_leaves(
            spec, leaves | {"obs/image": np.full((4, 5, 2, 3), 256)}, leading=2, cast="same_kind"
        )


@pytest.mark.parametrize("dtype", [np.float32, bool])
def test_same_kind_never_changes_the_kind(spec, leaves, dtype):
    """A float or a bool does not become a pixel."""
    given = leaves | {"obs/image": np.zeros((4, 5, 2, 3), dtype)}
    with pytest.raises(StructureError, match="must have dtype uint8"):
        specs.check_leaves(spec, given, leading=2, cast="same_kind")


def test_memory_and_byte_order_do_not_matter(spec, leaves):
    """Fortran order and big-endian arrays are the same data, and come out canonical."""
    image = np.arange(120, dtype=np.uint8).reshape(4, 5, 2, 3)
    given = leaves | {"obs/image": np.asfortranarray(image), "reward": np.ones((4, 5), ">f4")}
    checked = specs.check_leaves(spec, given, leading=2)

    assert checked["obs/image"].flags.c_contiguous
    assert checked["reward"].dtype == np.dtype("<f4")
    np.testing.assert_array_equal(checked["obs/image"], image)


def test_bfloat16_is_found_by_name():
    """NumPy does not know bfloat16; ml_dtypes does."""
    assert specs.dtype_of("bfloat16") == np.dtype(ml_dtypes.bfloat16)


def test_nest_and_flatten_undo_each_other():
    """Nested mappings and names with slashes hold the same."""
    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}

    assert specs.flatten(nested) == {"a/b": 1, "a/c/d": 2, "e": 3}
    assert specs.nest(specs.flatten(nested)) == nested
