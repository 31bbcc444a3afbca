"""Argument rules shared by the faces: a batch against what is held, a device, and what to warn about."""

from __future__ import annotations

import warnings

import jax

from fbxcore.errors import StructureError
from fbxcore.types import Array, Experience


def check_batch(held: Experience, batch: Experience) -> None:
    """Refuse a batch `[B, K, ...]` that is not of the structure, shapes and dtypes held as `[B, T, ...]`.

    Raises:
        StructureError: naming the leaf; it is an `AssertionError` too, as Flashbax raises.
    """
    pairs = _named_pairs(held, batch)
    steps = pairs[0][2].shape[1:2]
    for name, leaf, new in pairs:
        _check_leaf(name, leaf, new, steps)


def check_items(held: Experience, batch: Experience, num: int) -> None:
    """Refuse items `[N, ...]` that are not of the structure, shapes and dtypes held as `[B, T, ...]`.

    Raises:
        StructureError: naming the leaf.
    """
    for name, leaf, new in _named_pairs(held, batch):
        if new.shape != (num, *leaf.shape[2:]):
            wanted = ", ".join(map(str, [num, *leaf.shape[2:]]))
            raise StructureError(
                f"Leaf `{name}` must have shape [{wanted}], got {list(new.shape)}.", loc=(name,)
            )
        _check_dtype(name, leaf, new)


def _named_pairs(held: Experience, batch: Experience) -> list[tuple[str, Array, Array]]:
    """Return name, held and given array of each leaf."""
    if jax.tree.structure(held) != jax.tree.structure(batch):
        raise StructureError(
            f"`batch` must have the structure {jax.tree.structure(held)} of the buffer, "
            f"got {jax.tree.structure(batch)}."
        )
    have = jax.tree_util.tree_leaves_with_path(held)
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf, new)
        for (path, leaf), new in zip(have, jax.tree.leaves(batch), strict=True)
    ]


def _check_leaf(name: str, held, new, steps: tuple[int, ...]) -> None:
    rows, time_axis, *rest = held.shape
    if not steps or new.shape != (rows, *steps, *rest):
        wanted = ", ".join(map(str, [rows, *(steps or "K"), *rest]))
        raise StructureError(f"Leaf `{name}` must have shape [{wanted}], got {list(new.shape)}.", loc=(name,))
    if steps[0] > time_axis:
        raise StructureError(
            f"Leaf `{name}` must have at most {time_axis} timesteps, as the time axis does, got {steps[0]}.",
            loc=(name,),
        )
    _check_dtype(name, held, new)


def _check_dtype(name: str, held: Array, new: Array) -> None:
    if new.dtype != held.dtype:
        raise StructureError(f"Leaf `{name}` must have dtype {held.dtype}, got {new.dtype}.", loc=(name,))


def check_device(device: str) -> str:
    """Return "gpu" or "tpu" where there is one, else "cpu", with a warning where it was asked for."""
    if device not in ("gpu", "tpu"):
        return "cpu"
    try:
        jax.devices(device)
    except RuntimeError:
        warnings.warn(f"`device` {device!r} is not available here; 'cpu' is used.", stacklevel=3)
        return "cpu"
    return device


def warn(texts: tuple[str, ...]) -> None:
    """Say to whoever makes a buffer what was cut or raised."""
    for text in texts:
        warnings.warn(text, stacklevel=3)
