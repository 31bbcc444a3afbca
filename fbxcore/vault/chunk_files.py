"""Chunks of one generation read straight from its data files, past the threads of the array store.

The store tells, node by node, where the bytes of each chunk lie. That is learnt once, and a chunk is then
one read of a file and one decoding. Only what is certain is read so. `read` returns None for a chunk that
was never written, whose file is gone or cut short, or that does not decode, and the caller asks the
store, which fills it in or says what is wrong. Files are opened anew for each chunk, so what a sweep has
deleted is missed here as it is there.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import blosc

blosc.use_threads = False  # as zarr-python does: threads cost more than chunks of this size, and hold the GIL

Node = Callable[[str], Mapping[str, Any]]
"""Tells what lies in the node at a location."""

_PLACE = re.compile(r"value::(d/[0-9a-f]{32}):(\d+):(\d+)")
_NUMBER = re.compile(rb"(?:/|^)0\.(\d{1,18})(?:\.0)*$")
_BLOSC_HEADER = 16
_NOWHERE = -1, 0, 0


@dataclass(frozen=True)
class ChunkForm:
    """What the chunks of a leaf look like, and whether blosc or nothing has compressed them."""

    path: str
    shape: tuple[int, ...]  # [B, t, ...]
    dtype: np.dtype
    is_blosc: bool

    def key(self, at: int) -> bytes:
        """Return the key of a chunk, counted along the time axis."""
        place = ["0"] * len(self.shape)
        place[1] = str(at)
        return f"{self.path}/{'.'.join(place)}".lstrip("/").encode()

    def decode(self, encoded: bytes) -> np.ndarray | None:
        """Return a chunk, or None if these bytes are none."""
        chunk = np.empty(self.shape, self.dtype)
        content = chunk.reshape(-1).view(np.uint8)
        if not (_decompress(encoded, content) if self.is_blosc else _copy(encoded, content)):
            return None
        if self.dtype == np.bool_ and (content > 1).any():
            return None  # neither true nor false, which the store refuses
        return chunk


def form_of(
    path: str, metadata: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype
) -> ChunkForm | None:
    """Return the form of an array's chunks, or None if it is another one than is decoded here.

    Args:
        metadata: what its `.zarray` says.
        shape: of the array, `[B, T, ...]`; a chunk has to be whole on all axes but the second.
    """
    chunk, compressor = tuple(metadata["chunks"]), metadata["compressor"]
    is_plain = (
        metadata["order"] == "C"
        and not metadata["filters"]
        and metadata["dimension_separator"] == "."
        and isinstance(metadata["dtype"], str)
        and not metadata["dtype"].startswith(">")
    )
    is_known = compressor is None or compressor["id"] == "blosc"
    if not (is_plain and is_known and (chunk[0], *chunk[2:]) == (shape[0], *shape[2:])):
        return None
    return ChunkForm(path, chunk, dtype, compressor is not None)


class ChunkFiles:
    """Where the chunks of some leaves lie; any thread may read."""

    def __init__(self, directory: Path, forms: Mapping[str, ChunkForm], length: int, root: str, node: Node):
        """Learn it from the tree of keys of a generation, as far as its first `length` timesteps."""
        self._directory = directory
        self._forms = forms
        self._files: dict[str, int] = {}
        self._inline: dict[tuple[str, int], bytes] = {}
        self._places = {
            name: np.full((-(-length // form.shape[1]), 3), _NOWHERE) for name, form in forms.items()
        }
        names = {form.path.encode(): name for name, form in forms.items()}
        for key, entry in _entries(root, node):
            name = names.get(key.rpartition(b"/")[0])
            if name is not None:
                self._note(name, key, entry)
        self._names = list(self._files)

    def read(self, name: str, at: int) -> np.ndarray | None:
        """Return a chunk `[B, t, ...]`, counted along the time axis, or None if the store must read it."""
        if name not in self._forms:
            return None
        encoded = self._inline.get((name, at)) or self._encoded(*self._places[name][at].tolist())
        return None if encoded is None else self._forms[name].decode(encoded)

    def _note(self, name: str, key: bytes, entry: Mapping[str, Any]) -> None:
        found = _NUMBER.search(key)
        at = int(found[1]) if found else -1
        if not 0 <= at < len(self._places[name]) or key != self._forms[name].key(at):
            return  # another key beside the chunks, or a chunk behind the length
        if "inline_value" in entry:
            self._inline[name, at] = entry["inline_value"]
        elif (place := _PLACE.fullmatch(entry["indirect_value"])) is not None:
            file = self._files.setdefault(place[1], len(self._files))
            self._places[name][at] = file, int(place[2]), int(place[3])

    def _encoded(self, file: int, offset: int, length: int) -> bytes | None:
        if file < 0:
            return None
        try:
            descriptor = os.open(f"{self._directory}/{self._names[file]}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the store says which
            return None
        try:
            return os.pread(descriptor, length, offset)
        except OSError:
            return None
        finally:
            os.close(descriptor)


def _entries(location: str, node: Node, prefix: bytes = b"") -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """Yield the keys below a node, and what it says of their values."""
    for entry in node(location)["entries"]:
        key = prefix + entry["key"]
        if "location" in entry:
            yield from _entries(entry["location"], node, prefix + entry["subtree_common_prefix"])
        else:
            yield key, entry


def _copy(encoded: bytes, content: np.ndarray) -> bool:
    """Fill an array with these bytes, unless they are fewer or more."""
    if len(encoded) != content.nbytes:
        return False
    content[:] = np.frombuffer(encoded, np.uint8)
    return True


def _decompress(encoded: bytes, content: np.ndarray) -> bool:
    """Fill an array with what blosc compressed, unless these bytes are no such thing."""
    if len(encoded) < _BLOSC_HEADER:
        return False
    if struct.unpack_from("<4xI4xI", encoded) != (content.nbytes, len(encoded)):
        return False  # it would be read, or written, behind its end
    try:
        blosc.decompress(encoded, content)
    except RuntimeError:  # all that it raises for damaged bytes
        return False
    return True
