"""The examples in the docstrings of the engine run and give what they say."""

import doctest

import pytest

import fbxcore as fbx

MODULES = [name for name in fbx.__all__ if not name.startswith("make_")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    """Each example prints what stands below it."""
    tried = doctest.testmod(getattr(fbx, name))

    assert tried.failed == 0
    assert tried.attempted > 0 or name == "sum_tree"
