"""What the library exports is sorted, complete and documented."""

import importlib
import inspect

import pytest

PACKAGES = [
    "fbxcore",
    "fbxcore.client",
    "fbxcore.client.errors",
    "fbxcore.vault",
    "fbxcore.live",
    "fbxcore.snapshot",
    "fbxcore.wire",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_sorted_and_without_doubles(name):
    """`__all__` reads as an index, constants first."""
    names = importlib.import_module(name).__all__

    assert list(names) == sorted(set(names), key=lambda exported: (not exported.isupper(), exported))


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_are_there(name):
    """Every name of `__all__` can be had, also where it is loaded late, and `dir` lists it."""
    module = importlib.import_module(name)

    assert all(getattr(module, exported) is not None for exported in module.__all__)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("name", PACKAGES)
def test_everything_exported_is_documented(name):
    """Modules, classes and functions say what they are, and so do public methods."""
    module = importlib.import_module(name)
    exported = {n: getattr(module, n) for n in module.__all__}
    things = {n: x for n, x in exported.items() if inspect.ismodule(x) or callable(x)}
    for owner, thing in list(things.items()):
        if inspect.isclass(thing):
            things |= {
                f"{owner}.{member}": value
                for member, value in vars(thing).items()
                if not member.startswith("_") and inspect.isfunction(value)
            }

    assert inspect.getdoc(module)
    assert [n for n, x in things.items() if not inspect.getdoc(x)] == []


@pytest.mark.parametrize("name", ["fbxcore.client", "fbxcore.client.errors", "fbxcore.wire"])
def test_nothing_public_is_left_out(name):
    """A public class or function defined below a package and imported into it is in `__all__`."""
    module = importlib.import_module(name)
    public = {
        n
        for n, x in vars(module).items()
        if not n.startswith("_")
        and (inspect.isclass(x) or inspect.isfunction(x))
        and x.__module__.startswith(name)
    }

    assert public - set(module.__all__) <= {"canonical", "known_format", "error_of"}


def test_an_unknown_name_is_an_attribute_error():
    """Late loading does not hide misspellings."""
    fbxcore = importlib.import_module("fbxcore")

    with pytest.raises(AttributeError, match="make_flat_bufer"):
        fbxcore.make_flat_bufer  # noqa: B018
