"""Arrays by name to bytes and back, the same code in the client and in the service.

A body holds `Leaves`: names joined with `/` to arrays. Four formats carry them:

- `safetensors` keeps every dtype, and is decoded without copying: the default of our own client.
- `npz` is read by `numpy.load`; it is never pickled.
- `msgpack` is a map from each name to `{shape, dtype, data}`, `data` being the bytes in C order.
- `json` is for people and for small batches: nested lists, NaN and infinities as the texts `"NaN"`,
  `"Infinity"` and `"-Infinity"`, integers exact.

Bytes are deterministic: equal arrays give equal bodies. What a body declares is compared with what it
holds before anything is allocated, and whatever does not agree is refused as `malformed_body`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fbxcore.errors import NotSupportedError
from fbxcore.types import Spec
from fbxcore.wire import _json, _npz, _safetensors
from fbxcore.wire._arrays import canonical
from fbxcore.wire._json import parse_json
from fbxcore.wire._media import FORMATS, format_for, known_format, negotiate
from fbxcore.wire._safetensors import SafetensorsBody

__all__ = [
    "FORMATS", "MAX_BYTES", "SafetensorsBody", "decode", "encode", "format_for", "negotiate", "parse_json",
]  # fmt: skip

MAX_BYTES = 1 << 30
"""The most bytes that the arrays of one body may take, unless the caller says otherwise."""


def encode(arrays: Mapping[str, np.ndarray], format: str) -> tuple[bytes, list[str]]:
    """Return arrays as a body, and what had to be converted for the format.

    Args:
        arrays: arrays of any leading axes by name, in any order.
        format: a name of `FORMATS`.

    Returns:
        The body, and one text such as `obs: bfloat16 -> float32` for each leaf the format cannot hold
        as it is. Nothing is ever converted with a loss.

    Raises:
        NotSupportedError: if the format is known but not served, or its package is not installed.
        InvalidArgumentError: if the format is unknown, or an array has a dtype that no spec may have.
    """
    write = _codec(format)[0]
    return write({name: canonical(name, arrays[name]) for name in sorted(arrays)})


def decode(
    body: bytes | bytearray | memoryview, format: str, *, spec: Spec | None = None, max_bytes: int = MAX_BYTES
) -> dict[str, np.ndarray]:
    """Return the arrays of a body by name, read-only, as views of the body where the format allows it.

    Args:
        body: the whole body.
        format: a name of `FORMATS`.
        spec: gives JSON numbers their dtype; a number that does not fit is an error. Leaves that are
            not in it take NumPy's default dtype.
        max_bytes: the most bytes that the arrays may take together.

    Raises:
        InvalidArgumentError: with the code `malformed_body`, whatever is wrong with the body.
        StructureError: if a JSON number does not fit its leaf's dtype.
        NotSupportedError: if the format is known but not served, or its package is not installed.
    """
    read = _codec(format)[1]
    return read(body, spec, max_bytes)


def _codec(format: str) -> tuple[Callable, Callable]:
    known_format(format, code="unsupported_media_type")
    if format == "msgpack":
        return _msgpack_codec()
    module = {"safetensors": _safetensors, "npz": _npz, "json": _json}[format]
    return module.encode, module.decode


def _msgpack_codec() -> tuple[Callable, Callable]:
    try:
        from fbxcore.wire import _msgpack  # an optional extra: a thin client has NumPy alone
    except ImportError as error:
        raise NotSupportedError(
            "`format` must be one whose package is installed, got 'msgpack'. "
            "Install `msgspec`, or use `safetensors`.",
            loc=("format",),
        ) from error
    return _msgpack.encode, _msgpack.decode
