"""Any state as one file: arrays in safetensors, everything else as JSON in its metadata.

The library, the log's checkpoint and the service's snapshots share this one form. The bytes are
deterministic, stamped with a format number, and never hold pickled objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fbxcore.errors import DamagedError

FORMAT = 1
_STAMP = "flashdeck"


def dump_snapshot(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bytes:
    """Return the bytes of a state.

    Args:
        arrays: names to arrays of any shape; empty is fine.
        meta: plain values that JSON can hold.
    """
    plain = {name: np.asarray(array, order="C") for name, array in sorted(arrays.items())}
    stamp = msgspec.json.encode({"format": FORMAT, "meta": meta}, order="deterministic")
    return save(plain, {_STAMP: stamp.decode()})  # one entry, since several would come in any order


def load_snapshot(path: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and plain values of a file that `dump_snapshot` made.

    Raises:
        DamagedError: if the file is cut short, changed, or of another format.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            stamp = msgspec.json.decode((file.metadata() or {})[_STAMP])
            if stamp["format"] != FORMAT:
                raise DamagedError(f"A snapshot must have format {FORMAT}, got {stamp['format']!r}.")
            arrays = {name: file.get_tensor(name) for name in list(file.keys())}
            return arrays, stamp["meta"]
    except (SafetensorError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise DamagedError(f"A snapshot must be whole, got {error}.") from error
