"""Any state as one file: arrays in safetensors, everything else as JSON in its metadata.

The library, the log's checkpoint and the service's snapshots share this one form. The bytes are
deterministic, stamped with a format number and a checksum, and never hold pickled objects.

`save_state` and `load_state` take any pytree of arrays: the state of any buffer, of a queue, a sum tree or
an epoch sampler, several of them in a list, together with parameters and random keys. What is loaded is what
was saved, bit for bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fbxcore._files import replace_file
from fbxcore.errors import DamagedError, NotFoundError, StructureError
from fbxcore.types import Array

__all__ = ["FORMAT", "dump_snapshot", "load_snapshot", "load_state", "save_state"]

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


def save_state(path: str | PathLike[str], state: Any) -> None:
    """Write a state to a file, which is replaced whole or not at all, and synced.

    Args:
        state: any pytree whose leaves are JAX or NumPy arrays; random keys and bfloat16 too.

    Raises:
        StructureError: naming a leaf that is no array; nothing is written.
        OSError: if the file cannot be written; what was there before is still there.

    Example:
        >>> import os, tempfile
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> from fbxcore.snapshot import load_state, save_state
        >>> buffer = fbx.make_item_buffer(max_length=100, min_length=1, sample_batch_size=2)
        >>> state = buffer.add(buffer.init(0), jnp.array(7))
        >>> path = os.path.join(tempfile.mkdtemp(), "buffer.safetensors")
        >>> save_state(path, state)
        >>> again = load_state(path, like=jax.eval_shape(buffer.init, 0))
        >>> int(again.current_index), bool(again.is_full), buffer.sample(again, jax.random.key(0)).experience
        (1, False, Array([7, 7], dtype=int32))
    """
    named, structure = jax.tree_util.tree_flatten_with_path(state)
    arrays, leaves = {}, {}
    for at, leaf in named:
        name = jax.tree_util.keystr(at)
        arrays[name], leaves[name] = _stored(at, leaf)
    meta = {"leaves": leaves, "static": _static_of(structure)}
    replace_file(Path(path), dump_snapshot(arrays, meta))


def load_state(path: str | PathLike[str], like: Any) -> Any:
    """Return the state that `save_state` wrote to a file.

    Args:
        like: a state of the same structure, shapes and dtypes, whose values do not matter:
            `buffer.init(timestep)`, or `jax.eval_shape(buffer.init, timestep)`, which takes no memory.

    Returns:
        The state, of JAX arrays, and of NumPy arrays where `like` has some.

    Raises:
        NotFoundError: if there is no such file.
        DamagedError: if the file is not what was written.
        StructureError: naming the leaf that differs from that of `like`.
    """
    if not Path(path).exists():
        raise NotFoundError(f"No snapshot at {str(path)!r}.")
    arrays, meta = load_snapshot(str(path))
    if not isinstance(meta, dict) or set(meta) != {"leaves", "static"}:
        raise StructureError("`path` must be of a snapshot that `save_state` made, got another kind.")
    named, structure = jax.tree_util.tree_flatten_with_path(like)
    _check_like(named, structure, meta)
    return jax.tree.unflatten(structure, [_restored(arrays, meta["leaves"], at, leaf) for at, leaf in named])


def _stored(at: tuple, leaf: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a leaf as an array that safetensors holds, and what it is."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic) or leaf.dtype == object:
        raise StructureError(
            f"Leaf `{_name(at)}` must be an array of numbers, got {type(leaf).__name__}.", loc=(_name(at),)
        )
    described = {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf)), described | {"key": str(jax.random.key_impl(leaf))}
    array = np.asarray(leaf, order="C")
    return (array if _is_plain(array.dtype) else array.reshape(-1).view(np.uint8)), described


def _is_plain(dtype: np.dtype) -> bool:
    """Return whether NumPy itself has that dtype, in the order of this machine; others go as bytes."""
    return dtype.kind in "biuf" and dtype.isbuiltin == 1 and dtype.isnative and dtype.itemsize <= 8


def _restored(arrays: Mapping[str, np.ndarray], leaves: Mapping[str, Any], at: tuple, like: Array) -> Array:
    """Return a leaf as it was saved."""
    name = jax.tree_util.keystr(at)
    array, described = arrays[name], leaves[name]
    if "key" in described:
        return jax.random.wrap_key_data(jnp.array(array), impl=described["key"])
    dtype = np.dtype(like.dtype)
    if not _is_plain(dtype):
        array = array.view(dtype).reshape(described["shape"])
    return np.array(array) if isinstance(like, np.ndarray | np.generic) else jnp.array(array)


def _check_like(named: list[tuple[tuple, Array]], structure: Any, meta: Mapping[str, Any]) -> None:
    saved = dict(meta["leaves"])
    for at, leaf in named:
        described = saved.pop(jax.tree_util.keystr(at), None)
        if described is None:
            raise StructureError(
                f"Leaf `{_name(at)}` must be in the snapshot as it is in `like`, got none.", loc=(_name(at),)
            )
        for what, given in (("shape", list(np.shape(leaf))), ("dtype", str(getattr(leaf, "dtype", None)))):
            if given != described[what]:
                raise StructureError(
                    f"Leaf `{_name(at)}` has {what} {described[what]} in the snapshot but {given} in `like`.",
                    loc=(_name(at),),
                )
    for name in saved:
        raise StructureError(f"Leaf `{name}` of the snapshot must be in `like` too, got none.", loc=(name,))
    if meta["static"] != _static_of(structure):
        raise StructureError(
            f"`like` must have the sizes {meta['static']} of the snapshot, got {_static_of(structure)}."
        )


def _name(at: tuple) -> str:
    return jax.tree_util.keystr(at, simple=True, separator="/")


def _static_of(structure: Any) -> list[str]:
    """Return what states keep beside their arrays, such as the capacity of a sum tree, in order."""
    found, nodes = [], [structure]
    while nodes:
        node = nodes.pop()
        nodes.extend(reversed(node.children()))
        kind, static = node.node_data() or (None, None)
        if hasattr(kind, "__dataclass_fields__") and static:
            found.append(repr(static))
    return found


def _checksum(arrays: Mapping[str, np.ndarray], meta: Any) -> int:
    """Return the CRC-32 of names, shapes, dtypes and bytes of arrays in sorted order, and of the meta."""
    crc = zlib.crc32(msgspec.json.encode(meta, order="deterministic"))
    for name, array in arrays.items():
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), crc)
    return crc
