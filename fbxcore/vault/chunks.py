"""How a leaf is cut into chunks and compressed: by its bytes a step, so that a commit stays small.

Measured on MuJoCo records and 84x84 frames against Flashbax's chunks of 2^20 elements: an append costs
1/20 to 1/70 of the time and a hundredth of the bytes, a short window a tenth. Flashbax reads and
extends such arrays, whatever chunks and compressor they have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fbxcore.errors import InvalidArgumentError
from fbxcore.spec import dtype_of, leaf_bytes
from fbxcore.types import LeafSpec
from fbxcore.vault.spec import Structure

MAX_TIME = 10_000_000_000_000
"""Length of the time axis of every array, as Flashbax creates it."""

TARGET_BYTES = 256 << 10
LARGEST_BYTES = 256 << 20
"""A chunk never exceeds this (blosc holds 2 GiB); only leaves of over 16 MiB a step come near."""
MOST_STEPS = 1 << 16
"""Of a chunk, when the user says how many."""

ZSTD = {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 1}
LZ4 = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
COMPRESSIONS: dict[str, dict[str, Any] | None] = {"zstd": ZSTD, "lz4": LZ4, "none": None}
_IMAGE_BYTES = 1024

ChunkSteps = int | Mapping[str, int] | None
"""Timesteps a chunk: of all leaves, or of some by name; the others are cut by their size."""
Compression = str | Mapping[str, Any] | None
"""`zstd`, `lz4`, `none` or a zarr compressor (a mapping with an `id`), of all leaves or of some by name."""


@dataclass(frozen=True)
class Layout:
    """How the arrays of a new vault are laid out."""

    metadata: dict[str, dict[str, Any]]  # what each leaf's array says of itself
    by_content: list[str]  # leaves whose compressor the first commit chooses


def layout_of(
    structure: Structure, chunk_steps: ChunkSteps = None, compression: Compression = None
) -> Layout:
    """Return the layout of a new vault.

    Raises:
        InvalidArgumentError: if an argument names a leaf that is not there, or breaks its rule.
    """
    is_one = isinstance(compression, str) or _is_compressor(compression)
    steps = _by_leaf("chunk_steps", chunk_steps, structure.spec, isinstance(chunk_steps, int))
    compressors = _by_leaf("compression", compression, structure.spec, is_one)
    metadata = {}
    for leaf in structure.leaves:
        rows, name = structure.rows, leaf.name
        chunks = chunk_shape(leaf.spec, rows)
        if name in steps:
            chunks = (chunks[0], _checked_steps(name, steps[name], chunks[0], leaf.spec), *chunks[2:])
        chosen = _checked_compressor(compressors[name]) if name in compressors else compressor_of(leaf.spec)
        metadata[name] = {
            "compressor": chosen,
            "chunks": list(chunks),
            "shape": [rows, MAX_TIME, *leaf.spec.shape],
        }
    return Layout(metadata, [name for name in structure.spec if name not in compressors])


def chunk_shape(leaf: LeafSpec, rows: int) -> tuple[int, ...]:
    """Return the chunk shape `[B, t, ...]` of a leaf; t is a power of two, so it divides 1,024."""
    step = max(leaf_bytes(leaf), 1)
    rows = max(1, min(rows, LARGEST_BYTES // step))
    nearest = 2 ** round(math.log2(max(TARGET_BYTES / (step * rows), 1)))
    steps = min(1024, max(16, nearest))
    while steps > 1 and steps * step * rows > LARGEST_BYTES:
        steps //= 2
    return (rows, steps, *(max(n, 1) for n in leaf.shape))


def compressor_of(leaf: LeafSpec) -> dict[str, Any]:
    """Return what a leaf is compressed with before its content is seen: lz4 for images, zstd for the rest."""
    is_image = dtype_of(leaf.dtype).itemsize == 1 and leaf_bytes(leaf) >= _IMAGE_BYTES
    return LZ4 if is_image else ZSTD


def _by_leaf(argument: str, given: Any, names: Iterable[str], is_one: bool) -> dict[str, Any]:
    """Return what was given for each leaf, from one value for all or a mapping of some."""
    if given is None:
        return {}
    if is_one:
        return dict.fromkeys(names, given)
    known = list(names)
    if not isinstance(given, Mapping):
        raise _refused(argument, "be one value or one a leaf", given)
    for name in given:
        if name not in known:
            raise _refused(argument, f"name leaves of {', '.join(map(repr, known))}", name, str(name))
    return dict(given)


def _checked_steps(name: str, steps: Any, rows: int, leaf: LeafSpec) -> int:
    most = max(1, min(MOST_STEPS, LARGEST_BYTES // max(1, rows * leaf_bytes(leaf))))
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= most:
        raise _refused("chunk_steps", f"be an integer in 1..{most} for leaf `{name}`", steps, name)
    return steps


def _checked_compressor(given: Any) -> dict[str, Any] | None:
    if isinstance(given, str) and given in COMPRESSIONS:
        return COMPRESSIONS[given]
    if not _is_compressor(given):
        raise _refused("compression", f"be {', '.join(COMPRESSIONS)} or a zarr compressor", given)
    return dict(given)


def _is_compressor(given: Any) -> bool:
    return isinstance(given, Mapping) and isinstance(given.get("id"), str)


def _refused(argument: str, rule: str, given: Any, *loc: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"`{argument}` must {rule}, got {given!r:.120}.", loc=(argument, *loc))
