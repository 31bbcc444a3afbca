"""msgpack: a map from each name to `{"shape": [...], "dtype": "...", "data": <bytes in C order>}`.

Needs `msgspec`, so it is imported only where this format is used.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from fbxcore.spec import DTYPES, dtype_of
from fbxcore.wire._arrays import as_buffer, check_total, declared_bytes, dtype_name, malformed, view


class _Leaf(msgspec.Struct, forbid_unknown_fields=True):
    shape: list[int]
    dtype: str
    data: memoryview


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(dict[str, _Leaf])


def encode(arrays: dict[str, np.ndarray]) -> tuple[bytes, list[str]]:
    """Return canonical arrays as a msgpack body; every dtype has a place in it."""
    leaves = {
        name: _Leaf(list(array.shape), dtype_name(array.dtype), memoryview(as_buffer(array).reshape(-1)))
        for name, array in arrays.items()
    }
    return _ENCODER.encode(leaves), []


def decode(body: Any, spec: Any, max_bytes: int) -> dict[str, np.ndarray]:  # noqa: ARG001 - one signature
    """Return views of a msgpack body by name, sorted."""
    try:
        leaves = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed("msgpack", f"it cannot be read ({str(error)[:120]})") from error
    if len(leaves) != _declared_length(body):
        raise malformed("msgpack", "it has a name twice")
    check_total("msgpack", sum(leaf.data.nbytes for leaf in leaves.values()), max_bytes)
    return {name: _parse_leaf(name, leaves[name]) for name in sorted(leaves)}


def _declared_length(body: Any) -> int:
    """Return the length in the head of the outer map; the decoder keeps the last of two equal names."""
    first = body[0]
    if first == 0xDE:
        return int.from_bytes(body[1:3], "big")
    if first == 0xDF:
        return int.from_bytes(body[1:5], "big")
    return first & 0x0F


def _parse_leaf(name: str, leaf: _Leaf) -> np.ndarray:
    if leaf.dtype not in DTYPES:
        raise malformed("msgpack", f"leaf `{name}` has the dtype {leaf.dtype!r:.40}", leaf=name)
    dtype = dtype_of(leaf.dtype)
    size = declared_bytes("msgpack", name, dtype, leaf.shape)
    if size != leaf.data.nbytes:
        raise malformed(
            "msgpack", f"leaf `{name}` has {leaf.data.nbytes} bytes where {size} are declared", leaf=name
        )
    return view("msgpack", name, dtype, leaf.shape, leaf.data)
