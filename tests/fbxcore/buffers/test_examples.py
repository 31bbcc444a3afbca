"""The examples in the docstrings of the engine run and give what they say."""

import doctest
import importlib

import pytest

import fbxcore as fbx

BUFFERS = [f"fbxcore.buffers.{name}" for name in fbx.__all__ if not name.startswith("make_")]


@pytest.mark.parametrize("name", [*BUFFERS, "fbxcore.snapshot"])
def test_the_examples_of_a_module_run(name):
    """Each example prints what stands below it."""
    tried = doctest.testmod(importlib.import_module(name))

    assert tried.failed == 0
    assert tried.attempted > 0 or name.endswith("sum_tree")
