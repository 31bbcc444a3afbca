"""What all formats share: arrays in canonical order, views of bytes, and the error of a bad body."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fbxcore.errors import InvalidArgumentError
from fbxcore.spec import DTYPES

MAX_RANK = 32

_PLAIN = {np.dtype(name): name for name in DTYPES if name != "bfloat16"}


def malformed(format: str, reason: str, *, leaf: str | None = None) -> InvalidArgumentError:
    """Return the one error for a body that is not what it says it is."""
    return InvalidArgumentError(
        f"`body` must be a well-formed {format} body, but {reason}.",
        code="malformed_body",
        loc=("body",) if leaf is None else ("body", leaf),
    )


def canonical(name: str, array: Any) -> np.ndarray:
    """Return an array C-contiguous and little-endian, of a dtype that a spec may have."""
    array = np.asarray(array)
    if array.dtype not in _PLAIN and array.dtype.name not in DTYPES:
        raise InvalidArgumentError(
            f"Leaf `{name}` must have a dtype of {', '.join(DTYPES)}, got {array.dtype}.", loc=(name,)
        )
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def dtype_name(dtype: np.dtype) -> str:
    """Return NumPy's name of a dtype; looked up, because `dtype.name` is computed at each call."""
    return _PLAIN.get(dtype) or dtype.name


def as_buffer(array: np.ndarray) -> np.ndarray:
    """Return a canonical array as something with the buffer interface, which bfloat16 has not."""
    return array if array.dtype in _PLAIN else array.view(np.uint16)


def widened(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return arrays with bfloat16 widened to float32, and what was."""
    wide = [name for name, array in arrays.items() if array.dtype not in _PLAIN]
    if not wide:
        return arrays, []
    changed = arrays | {name: arrays[name].astype(np.float32) for name in wide}
    return changed, [f"{name}: {arrays[name].dtype.name} -> float32" for name in wide]


def view(
    format: str, name: str, dtype: np.dtype, shape: Sequence[int], buffer: Any, offset: int = 0
) -> np.ndarray:
    """Return a read-only array over bytes whose length was checked by the caller."""
    array = np.ndarray(shape, dtype, buffer, offset)
    array.flags.writeable = False
    if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise malformed(format, f"leaf `{name}` has booleans other than 0 and 1", leaf=name)
    return array


def declared_bytes(format: str, name: str, dtype: np.dtype, shape: Any) -> int:
    """Return the bytes that a declared shape takes, in Python's integers: no shape overflows."""
    ok = isinstance(shape, list | tuple) and len(shape) <= MAX_RANK
    if not ok or not all(type(length) is int and 0 <= length < 1 << 62 for length in shape):
        raise malformed(format, f"leaf `{name}` declares the shape {shape!r:.80}", leaf=name)
    return prod(shape) * dtype.itemsize


def check_total(format: str, total: int, max_bytes: int) -> None:
    """Refuse a body whose arrays would take more than allowed, before they are allocated."""
    if total > max_bytes:
        raise malformed(format, f"its arrays take {total} bytes, which is more than {max_bytes}")
