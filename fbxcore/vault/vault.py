"""Flashbax's `Vault`: write the new part of a buffer to disk, read a dataset back as a buffer state.

Same arguments and meaning, over the store of this package: one commit is atomic, several objects may
write the same vault in turn, and it may be used inside a running event loop. What differs:

- The first write stores every timestep that the buffer holds, the oldest first, also when it is exactly
  full or has wrapped around.
- When more than a lap was added between two writes, what survives is stored in order and the rest is
  reported: a `UserWarning`, and `lost` counts. A buffer state does not say how often it went round, so
  `lost` is the least it can be.
- `dest_start` overwrites; the length grows only as far as what was written.
- A write that would pass 2^31 - 1 timesteps goes, whole, to the next uid (`run1`, `run1-2`, …): a
  `UserWarning` says so, and the object is that vault's from then on.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from fbxcore.buffers.trajectory_buffer import TrajectoryBufferState
from fbxcore.errors import ConflictError, InvalidArgumentError, StructureError
from fbxcore.types import Array, Experience
from fbxcore.vault.chunks import ChunkSteps, Compression
from fbxcore.vault.files import label_of, read_manifest
from fbxcore.vault.rollover import go_on_in, newest_of, planned_path
from fbxcore.vault.slices import resolve_slice
from fbxcore.vault.spec import Structure, structure_of_paths
from fbxcore.vault.store import VaultReader, VaultWriter

__all__ = ["Vault"]


class Vault:
    """A dataset on disk at `<rel_dir>/<vault_name>/<vault_uid>`."""

    def __init__(
        self,
        vault_name: str,
        experience_structure: Experience | None = None,
        rel_dir: str | os.PathLike[str] = "vaults",
        vault_uid: str | None = None,
        compression: Compression = None,
        metadata: Any = None,
        *,
        chunk_steps: ChunkSteps = None,
    ):
        """Open a vault, or create it.

        Args:
            vault_name: the dataset's name; may be nested (`smac/3m`).
            experience_structure: experience `[B, T, ...]`, as of the buffer's state. Needed to create a
                vault; on opening one, what `read` returns has this structure instead of dicts.
            rel_dir: the directory of vaults, below the working directory.
            vault_uid: the second name; the present time where it is None.
            compression: of a new vault: `zstd`, `lz4`, `none` or a zarr compressor, of all leaves or of
                some by name; else zstd or lz4 by what the leaf holds.
            metadata: kept with a new vault; values that are not JSON become their `str`.
            chunk_steps: timesteps a chunk of a new vault, of all leaves or of some by name; else by size.

        Raises:
            InvalidArgumentError: if there is no such vault and no structure, or one no vault can hold.
            StructureError: if the structure is not the vault's.
            DamagedError: if the vault is damaged or half made.
        """
        uid = vault_uid or datetime.now().strftime("%Y%m%d%H%M%S")
        self.path = Path(os.path.normpath(Path.cwd() / rel_dir / vault_name / uid))
        self.lost = 0
        self._received: _Received | None = None
        self._paths, self._treedef = _paths_of(experience_structure)
        if self.path.exists():
            self._writer: VaultWriter | None = None
        elif experience_structure is None:
            raise InvalidArgumentError(
                f"`experience_structure` must be given to create a vault, got None, and there is no vault "
                f"'{label_of(self.path)}'.",
                loc=("experience_structure",),
            )
        else:
            structure = structure_of_paths(_shapes_of(experience_structure, self._paths))
            self._writer = VaultWriter.create(
                self.path,
                structure,
                metadata=_plain(metadata),
                chunk_steps=chunk_steps,
                compression=compression,
                hold=False,
            )
        self._reader = VaultReader.open(self.path)
        if experience_structure is not None:
            _check_same(self._reader.structure, _shapes_of(experience_structure, self._paths))

    @property
    def vault_index(self) -> int:
        """How many timesteps the vault holds now."""
        return self._newest().length

    def write(
        self,
        fbx_state: Any,
        source_interval: tuple[int, int] = (0, 0),
        dest_start: int | None = None,
    ) -> int:
        """Write what a buffer holds and the vault does not; returns the number of timesteps.

        Args:
            fbx_state: a buffer's state: experience `[B, T, ...]`, `current_index`, `is_full`.
            source_interval: slots to write instead, `[a, b)`, around the end where `a > b`.
            dest_start: where to write, at most the vault's length; None appends.

        Raises:
            StructureError: if the experience is not the vault's.
            ConflictError: if another program writes (`vault_in_use`, `foreign_writer`) or the vault is full.
        """
        leaves = self._leaves(fbx_state.experience)
        time_axis = next(iter(leaves.values())).shape[1]
        index, is_full = int(fbx_state.current_index), bool(fbx_state.is_full)
        if tuple(source_interval) == (0, 0):
            slots, lost = self._new_slots(leaves, time_axis, index, is_full)
        else:
            slots, lost = _interval_slots(source_interval, time_axis), 0
        if len(slots):
            picked = {name: _take(leaf, slots) for name, leaf in leaves.items()}
            self._append(picked) if dest_start is None else self._open_writer().write_at(
                int(dest_start), picked
            )
        self._received = _Received.of(leaves, time_axis, index, is_full)
        self._report(lost, time_axis)
        return len(slots)

    def read(
        self,
        timesteps: int | None = None,
        percentiles: tuple[float, float] | None = None,
    ) -> TrajectoryBufferState:
        """Return timesteps as the state of a full buffer, time axis = how many were read.

        Args:
            timesteps: the last n; more than there are means all.
            percentiles: `(a, b)` in 0..100 of the length, where `timesteps` is None; neighbouring pairs
                partition the vault exactly.
        """
        reader = self._newest()
        given = {"timesteps": timesteps} if timesteps is not None else {"percentiles": percentiles}
        steps = resolve_slice(reader.length, first=reader.first, **given)
        names = self._names(reader.structure)
        arrays = reader.read(steps.start, steps.stop, leaves=list(names))
        arrays = jax.device_put(arrays, may_alias=True)  # nobody else has them
        return TrajectoryBufferState(self._experience(reader.structure, arrays), *_full())

    def _newest(self) -> VaultReader:
        manifest = read_manifest(self.path)
        if manifest != self._reader.manifest:
            self._reader = VaultReader.open(self.path)
        return self._reader

    def _open_writer(self) -> VaultWriter:
        if self._writer is None:
            self._follow(VaultWriter.open(newest_of(self.path), hold=False))
        return self._writer

    def _append(self, picked: Mapping[str, np.ndarray]) -> None:
        writer = self._open_writer()
        try:
            writer.append(picked)
        except ConflictError as error:
            if error.code != "vault_full" or writer.length == 0:
                raise
            self._follow(go_on_in(writer, planned_path(writer)))
            self._append(picked)

    def _follow(self, writer: VaultWriter) -> None:
        """Be the vault of a writer, which may be the next one."""
        full, self.path, self._writer = self.path, writer.path, writer
        if full != writer.path:
            warnings.warn(
                f"Vault '{label_of(full)}' is full. Writing goes on in '{label_of(writer.path)}'.",
                stacklevel=5,
            )

    def _names(self, structure: Structure) -> list[str]:
        """Return the leaf names in the order of the experience's structure."""
        by_parts = {leaf.parts: leaf.name for leaf in structure.leaves}
        return [by_parts[parts] for parts in self._paths] if self._paths is not None else list(structure.spec)

    def _experience(self, structure: Structure, arrays: dict[str, Array]) -> Experience:
        if self._paths is None:
            return jax.tree_util.tree_map(lambda name: arrays[name], structure.tree)
        return self._treedef.unflatten([arrays[name] for name in self._names(structure)])

    def _leaves(self, experience: Experience) -> dict[str, np.ndarray | Array]:
        """Return the experience by leaf name; on the CPU as views that must not be kept."""
        structure = self._reader.structure
        paths, _ = _paths_of(experience)
        _check_same(structure, _shapes_of(experience, paths))
        by_parts = {leaf.parts: leaf.name for leaf in structure.leaves}
        leaves = jax.tree_util.tree_leaves(experience)
        return {by_parts[parts]: _on_host(leaf) for parts, leaf in zip(paths, leaves, strict=True)}

    def _new_slots(
        self, leaves: Mapping[str, Any], time_axis: int, index: int, is_full: bool
    ) -> tuple[np.ndarray, int]:
        """Return the slots not yet written, the oldest first, and how many timesteps were overwritten."""
        received = self._received
        everything = (index + np.arange(time_axis)) % time_axis if is_full else np.arange(index)
        if received is None or received.is_empty or received.time_axis != time_axis:
            return everything, 0
        went_back = not is_full and (received.is_full or index < received.index)
        if went_back:  # another buffer, or one that was reset
            return everything, 0
        new = (index - received.index) % time_axis
        if received.print == _print_of(leaves, received.last_slot):
            return (received.index + np.arange(new)) % time_axis, 0
        return everything, new if is_full else 0

    def _report(self, lost: int, time_axis: int) -> None:
        if lost:
            self.lost += lost
            warnings.warn(
                f"At least {lost} timesteps were overwritten before they were written to vault "
                f"'{label_of(self.path)}'. Write at least every {time_axis} timesteps.",
                stacklevel=3,
            )


@jax.jit
def _full() -> tuple[Array, Array]:
    """Return index and fullness of a full buffer: new arrays each time, sooner than two copied there."""
    return jnp.int32(0), jnp.bool_(True)


class _Received:
    """What was last seen of a buffer: where it stood, and the timestep it had added last.

    Whether a buffer went round since then shows in that timestep alone: it is still there or not.
    """

    def __init__(self, time_axis: int, index: int, is_full: bool, print_: bytes):
        self.time_axis = time_axis
        self.index = index
        self.is_full = is_full
        self.print = print_

    @classmethod
    def of(cls, leaves: Mapping[str, Any], time_axis: int, index: int, is_full: bool) -> _Received:
        received = cls(time_axis, index, is_full, b"")
        if not received.is_empty:
            received.print = _print_of(leaves, received.last_slot)
        return received

    @property
    def is_empty(self) -> bool:
        return self.index == 0 and not self.is_full

    @property
    def last_slot(self) -> int:
        return (self.index - 1) % self.time_axis


def _print_of(leaves: Mapping[str, Any], slot: int) -> bytes:
    mixed = hashlib.blake2b(digest_size=16)
    for leaf in leaves.values():
        mixed.update(np.ascontiguousarray(leaf[:, slot]).tobytes())
    return mixed.digest()


def _interval_slots(interval: tuple[int, int], time_axis: int) -> np.ndarray:
    start, stop = (int(edge) for edge in interval)
    if not (0 <= start <= time_axis and 0 <= stop <= time_axis):
        raise InvalidArgumentError(
            f"`source_interval` must lie in 0..{time_axis}, the buffer's time axis, got {tuple(interval)!r}.",
            loc=("source_interval",),
        )
    if start <= stop:
        return np.arange(start, stop)
    return np.concatenate([np.arange(start, time_axis), np.arange(stop)])


def _on_host(leaf: Array) -> np.ndarray | Array:
    """Return a view on the CPU; elsewhere the array itself, of which only slices are copied over."""
    on_cpu = not isinstance(leaf, jax.Array) or all(d.platform == "cpu" for d in leaf.devices())
    return np.asarray(leaf) if on_cpu else leaf


def _take(leaf: np.ndarray | Array, slots: np.ndarray) -> np.ndarray:
    """Return a copy of slots `[B, len(slots), ...]`, at most two runs of neighbours."""
    cut = int(np.argmin(slots)) if slots[-1] < slots[0] else 0
    runs = [run for run in (slots[:cut], slots[cut:]) if len(run)]
    pieces = [np.asarray(leaf[:, int(run[0]) : int(run[-1]) + 1]) for run in runs]
    return np.concatenate(pieces, axis=1)


def _paths_of(experience: Experience | None) -> tuple[list[tuple[str, ...]] | None, Any]:
    """Return the tree path of each leaf, as Flashbax spells it, and the tree's structure."""
    if experience is None:
        return None, None
    found, treedef = jax.tree_util.tree_flatten_with_path(experience)
    return [tuple(_part(key, path) for key in path) for path, _ in found], treedef


def _part(key: Any, path: tuple) -> str:
    if isinstance(key, DictKey):
        return str(key.key)
    if isinstance(key, GetAttrKey):
        return key.name
    index = key.idx if isinstance(key, SequenceKey) else key.key if isinstance(key, FlattenedIndexKey) else 1
    if index == 0:
        return ""
    raise InvalidArgumentError(
        "`experience_structure` must name its leaves, got a tuple or list at "
        f"`{jax.tree_util.keystr(path)}`. Use a dict or a NamedTuple.",
        loc=("experience_structure",),
    )


def _shapes_of(experience: Experience, paths: list[tuple[str, ...]]) -> dict[tuple, tuple[tuple, str]]:
    leaves = jax.tree_util.tree_leaves(experience)
    found: dict[tuple, tuple[tuple, str]] = {}
    for parts, leaf in zip(paths, leaves, strict=True):
        name = "/".join(parts) or "experience"
        dtype = jnp.result_type(leaf) if not hasattr(leaf, "dtype") else leaf.dtype
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            raise InvalidArgumentError(
                f"Leaf `{name}` must be an array of numbers, got dtype {dtype}. "
                "Store `jax.random.key_data(key)` instead.",
                loc=("experience_structure", name),
            )
        if np.ndim(leaf) < 2 or parts in found:
            rule = "have shape [B, T, ...]" if parts not in found else "have a path of its own"
            raise InvalidArgumentError(
                f"Leaf `{name}` must {rule}, got {list(np.shape(leaf))}.", loc=("experience_structure", name)
            )
        found[parts] = (tuple(np.shape(leaf)), dtype.name)
    return found


def _check_same(structure: Structure, given: Mapping[tuple, tuple[tuple, str]]) -> None:
    """Refuse experience with other leaves than the vault's; fewer are right for reading."""
    stored = {leaf.parts: leaf for leaf in structure.leaves}
    for parts, (shape, dtype) in given.items():
        name = "/".join(parts) or "experience"
        if parts not in stored:
            known = ", ".join(f"`{known}`" for known in structure.spec)
            raise StructureError(f"Leaf `{name}` must be in the vault, which has {known}.", loc=(name,))
        leaf = stored[parts].spec
        if (shape[0], *shape[2:]) != (structure.rows, *leaf.shape) or dtype != leaf.dtype:
            raise StructureError(
                f"Leaf `{name}` must be {leaf.dtype} of shape {[structure.rows, 'T', *leaf.shape]}, "
                f"the vault's, got {dtype} of shape {list(shape)}.",
                loc=(name,),
            )


def _plain(metadata: Any) -> Any:
    """Return metadata with every leaf that is not JSON replaced by its `str`."""
    if metadata is None:
        return None
    kinds = bool | str | int | float | None
    return jax.tree_util.tree_map(lambda leaf: leaf if isinstance(leaf, kinds) else str(leaf), metadata)
