"""Any state as one file: arrays in safetensors, everything else as JSON in its metadata.

The library, the log's checkpoint and the service's snapshots share this one form. The bytes are
deterministic, stamped with a format number and a checksum, and never hold pickled objects.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fbxcore.errors import DamagedError

FORMAT = 2
_UNCHECKED = 1  # the format before there was a checksum
_STAMP = "flashdeck"


def dump_snapshot(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bytes:
    """Return the bytes of a state.

    Args:
        arrays: names to arrays of any shape; empty is fine.
        meta: plain values that JSON can hold.
    """
    plain = {name: np.asarray(array, order="C") for name, array in sorted(arrays.items())}
    checked = {"format": FORMAT, "meta": meta, "crc32": _checksum(plain, meta)}
    stamp = msgspec.json.encode(checked, order="deterministic")
    return save(plain, {_STAMP: stamp.decode()})  # one entry, since several would come in any order


def load_snapshot(path: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and plain values of a file that `dump_snapshot` made.

    Raises:
        DamagedError: if the file is cut short, changed, or of another format.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            stamp = msgspec.json.decode((file.metadata() or {})[_STAMP])
            arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
        if stamp["format"] not in (FORMAT, _UNCHECKED):
            raise DamagedError(f"A snapshot must have format {FORMAT}, got {stamp['format']!r}.")
        if stamp["format"] != _UNCHECKED and stamp["crc32"] != _checksum(arrays, stamp["meta"]):
            raise DamagedError("A snapshot must be as it was written, got another checksum than it states.")
        return arrays, stamp["meta"]
    except (SafetensorError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"A snapshot must be whole, got {error}.") from error


def _checksum(arrays: Mapping[str, np.ndarray], meta: Any) -> int:
    """Return the CRC-32 of names, shapes, dtypes and bytes of arrays in sorted order, and of the meta."""
    crc = zlib.crc32(msgspec.json.encode(meta, order="deterministic"))
    for name, array in arrays.items():
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), crc)
    return crc
