"""safetensors: an 8-byte length, a JSON header padded to 8 bytes, then the arrays, wide dtypes first.

The layout is the canonical one of the `safetensors` package, byte for byte, so that every array starts
aligned. Headers are cached both ways: batch after batch has the same names, dtypes and shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from fbxcore.spec import dtype_of
from fbxcore.wire._arrays import as_buffer, check_total, declared_bytes, dtype_name, malformed, view

# In the order in which the canonical layout puts them, last first.
_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "float16": "F16",
    "bfloat16": "BF16", "int32": "I32", "uint32": "U32", "float32": "F32", "float64": "F64", "int64": "I64",
    "uint64": "U64",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
_RANK = {name: rank for rank, name in enumerate(_CODES)}
MAX_HEADER = 1 << 22

Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""Arrays that are to be: their shape and dtype by name."""
_CACHED_HEADER = 1 << 13


def encode(arrays: dict[str, np.ndarray]) -> tuple[bytes, list[str]]:
    """Return canonical arrays as a safetensors body; every dtype has a place in it."""
    key = tuple([(name, dtype_name(array.dtype), array.shape) for name, array in arrays.items()])
    header, order = _layout(key)
    return b"".join([header, *[as_buffer(arrays[name]) for name in order]]), []


class SafetensorsBody:
    """A body whose arrays are filled where they lie, so that nothing is copied afterwards.

    `room` gives the arrays of the asked shapes, not yet set, as views of the body; `whole` is then the body.
    """

    def __init__(self) -> None:
        self.whole = memoryview(b"")

    def room(self, shapes: Shapes) -> dict[str, np.ndarray]:
        """Return writable arrays by name; called once."""
        key = tuple([(name, dtype_name(shapes[name][1]), shapes[name][0]) for name in sorted(shapes)])
        header, order = _layout(key)
        sizes = [prod(shapes[name][0]) * shapes[name][1].itemsize for name in order]
        body = np.empty(len(header) + sum(sizes), np.uint8)
        body[: len(header)] = np.frombuffer(header, np.uint8)
        self.whole = memoryview(body)
        arrays, start = {}, len(header)
        for name, size in zip(order, sizes, strict=True):
            shape, dtype = shapes[name]
            arrays[name] = body[start : start + size].view(dtype).reshape(shape)
            start += size
        return arrays


@lru_cache(maxsize=512)
def _layout(key: tuple) -> tuple[bytes, tuple[str, ...]]:
    entries: dict[str, Any] = {}
    offset = 0
    for name, dtype, shape in sorted(key, key=lambda entry: (-_RANK[entry[1]], entry[0])):
        size = declared_bytes("safetensors", name, dtype_of(dtype), shape)
        entries[name] = {
            "dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [offset, offset + size],
        }  # fmt: skip
        offset += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, tuple(entries)


def decode(body: Any, spec: Any, max_bytes: int) -> dict[str, np.ndarray]:  # noqa: ARG001 - one signature
    """Return views of a safetensors body by name, sorted."""
    if len(body) < 8:
        raise malformed("safetensors", f"it has {len(body)} bytes, fewer than its length field")
    size = int.from_bytes(body[:8], "little")
    if size > MAX_HEADER or 8 + size > len(body):
        raise malformed("safetensors", f"its header is said to take {size} bytes of {len(body)}")
    header = bytes(body[8 : 8 + size])
    leaves, total = (_parse_cached if size <= _CACHED_HEADER else _parse)(header)
    start = 8 + size
    if start + total != len(body):
        raise malformed(
            "safetensors", f"it has {len(body) - start} bytes of arrays where {total} are declared"
        )
    check_total("safetensors", total, max_bytes)
    return {
        name: view("safetensors", name, dtype, shape, body, start + offset)
        for name, dtype, shape, offset in leaves
    }


def _parse(header: bytes) -> tuple[tuple, int]:
    entries = _load(header)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise malformed("safetensors", "its `__metadata__` is not a mapping from texts to texts")
    leaves = [_parse_entry(name, entry) for name, entry in entries.items()]
    return tuple(sorted(leaf[:4] for leaf in leaves)), _check_contiguous(leaves)


_parse_cached = lru_cache(maxsize=512)(_parse)


def _load(header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise malformed("safetensors", f"its header cannot be read ({str(error)[:120]})") from error
    if not isinstance(entries, dict):
        raise malformed("safetensors", "its header is not an object")
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise malformed("safetensors", "its header has a name twice")
    return found


def _parse_entry(name: str, entry: Any) -> tuple[str, np.dtype, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise malformed("safetensors", f"leaf `{name:.80}` is not {{dtype, shape, data_offsets}}", leaf=name)
    code, offsets = entry["dtype"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _NAMES:
        raise malformed("safetensors", f"leaf `{name}` has the dtype {code!r:.40}", leaf=name)
    dtype = dtype_of(_NAMES[code])
    size = declared_bytes("safetensors", name, dtype, entry["shape"])
    ok = isinstance(offsets, list) and len(offsets) == 2 and all(type(n) is int and n >= 0 for n in offsets)
    if not ok or offsets[1] - offsets[0] != size:
        raise malformed(
            "safetensors", f"leaf `{name}` has the offsets {offsets!r:.80} for {size} bytes", leaf=name
        )
    return name, dtype, tuple(entry["shape"]), offsets[0], offsets[1]


def _check_contiguous(leaves: list[tuple]) -> int:
    """Return where the last array ends, having seen that they neither overlap nor leave holes."""
    end = 0
    for name, _, _, start, stop in sorted(leaves, key=lambda leaf: leaf[3:]):
        if start != end:
            raise malformed("safetensors", f"leaf `{name}` starts at {start}, not at {end}", leaf=name)
        end = stop
    return end
