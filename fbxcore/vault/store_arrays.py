"""The open arrays and keys of one vault: with `store_dump` the only module that knows tensorstore.

Three traps rule it. Writes to several arrays are one atomic commit only if all were opened with one
and the same context. A write whose future is dropped is cancelled without a word. And a transaction
sees a foreign commit only if it reads, in itself, what the other one changed (`repeatable_read`).
"""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from fbxcore.errors import DamagedError, InvalidArgumentError
from fbxcore.spec import leaf_bytes
from fbxcore.types import Leaves
from fbxcore.vault.chunk_cache import empty
from fbxcore.vault.chunk_files import ChunkFiles, form_of
from fbxcore.vault.chunks import LZ4, ZSTD, Layout
from fbxcore.vault.faults import fault, foreign_writer, told
from fbxcore.vault.files import METADATA, label_of, write_atomic
from fbxcore.vault.leaks import released
from fbxcore.vault.short_reads import ShortReads
from fbxcore.vault.spec import Structure, metadata_json
from fbxcore.vault.store_dump import Dump, small_json

COMMIT_KEY = "_flashdeck/commit"
"""The generation our last commit made; another number than the newest means a foreign commit since."""

BY_CONTENT_KEY = "_flashdeck/by_content"
"""The leaves for whose chunks a writer chooses the compressor, by what they hold; a list as JSON."""

_WRITER = {
    "file_io_locking": {"mode": "os"},  # `none` loses commits beside another program
    "file_io_sync": True,
    "cache_pool": {"total_bytes_limit": 4 << 20},  # for the chunks that are not full yet
}

_READER = {"cache_pool": {"total_bytes_limit": 16 << 20}}
"""For the nodes of the tree of keys; one generation never changes, so they never go stale."""
_LONG = {"recheck_cached_data": False, "cache_pool": {"total_bytes_limit": 32 << 20}}
"""For chunks of long reads, in a pool of their own: in that one they would drive the nodes out."""
_ONCE = {"recheck_cached_data": False, "cache_pool": {"total_bytes_limit": 0}}
"""For blocks: a stream comes to each once an epoch."""

_SAMPLE_BYTES = 1 << 10, 64 << 10
"""Of a leaf, from and up to which its content is looked at to choose a compressor."""
_WORTH = 0.1
"""Of a leaf's bytes, what zstd must spare beyond lz4: it takes four times as long to undo, and more to do."""

_AHEAD = 1
"""Blocks that are read beside the one waited for; each holds its encoded bytes meanwhile."""


class Database:
    """The open handles of a vault: its leaves, its index and the keys beside them."""

    def __init__(
        self,
        path: Path,
        structure: Structure,
        *,
        manifest: bytes | None = None,
        generation: int = 0,
        num_keys: int = 0,
    ):
        """Open for writing; or, with a `manifest`, one of its generations to read.

        Args:
            num_keys: how many keys there are, more or less.
        """
        context = ts.Context(_WRITER if manifest is None else _READER)
        self.label = label_of(path)
        self._paths = {leaf.name: leaf.path for leaf in structure.leaves}
        files = {"driver": "file", "path": f"{path}/"}
        base = files if manifest is None else _with_manifest(files, manifest, context)
        self._spec = {"driver": "ocdbt", "base": base}
        if manifest is not None:
            self._spec["version"] = generation
        with told(self.label):
            self.kv = ts.KvStore.open(self._spec, context=context).result()
            self._mode = {"read": True, "write": manifest is None}
            self._context = context
            kept = {} if self._mode["write"] else _LONG
            opening = {name: self._open(path, kept) for name, path in self._paths.items()}
            self.index = self._open("vault_index", kept).result()
            self.arrays = {name: future.result() for name, future in opening.items()}
            content = self.get(BY_CONTENT_KEY) if manifest is None else None
        self._check(structure)
        self._by_content = self._paths.keys() & _names(content)
        self._path, self._structure = path, structure
        self._manifest, self._generation, self._num_keys = manifest, generation, num_keys

    def _open(self, path: str, kept: Mapping[str, Any]) -> ts.Future:
        spec = {"driver": "zarr", "kvstore": {**self._spec, "path": path}, **kept}
        return ts.open(spec, context=self._context, open=True, **self._mode)

    @functools.cached_property
    def _unkept(self) -> dict[str, ts.TensorStore]:
        """The arrays, opened so that nothing is kept that was decoded."""
        opening = {name: self._open(path, _ONCE) for name, path in self._paths.items()}
        return {name: future.result() for name, future in opening.items()}

    def _check(self, structure: Structure) -> None:
        """Refuse arrays that are not what `metadata.json` says."""
        if self.index.shape != (1,):
            raise _array_damaged(self.label, "vault_index", "shape (1,)", self.index.shape)
        for leaf in structure.leaves:
            array = self.arrays[leaf.name]
            if array.dtype.name != leaf.spec.dtype:
                raise _array_damaged(self.label, leaf.name, f"dtype {leaf.spec.dtype}", array.dtype.name)
            shape = array.shape
            if len(shape) < 2 or shape[0] != structure.rows or shape[2:] != leaf.spec.shape:
                rule = f"{structure.rows} rows of shape {leaf.spec.shape}"
                raise _array_damaged(self.label, leaf.name, rule, shape)

    def length(self) -> int:
        """Return how many timesteps count."""
        with told(self.label):
            index = int(self.index.read().result()[0])
        longest = min(array.shape[1] for array in self.arrays.values())
        if not 0 <= index <= longest:
            raise _array_damaged(self.label, "vault_index", f"a value in 0..{longest}", index)
        if not self._mode["write"]:
            self._short = self._short_reads(index)
        return index

    def get(self, key: str) -> bytes | None:
        with told(self.label):
            found = self.kv.read(key).result()
        return found.value if found.state == "value" else None

    def keys(self, prefix: str) -> list[str]:
        after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        with told(self.label):
            return sorted(key.decode() for key in self.kv.list(ts.KvStore.KeyRange(prefix, after)).result())

    def stamps(self, keys: Sequence[str]) -> list[bytes]:
        with told(self.label):
            reads = [self.kv.read(key, byte_range=slice(0, 0)) for key in keys]
            return [bytes(read.result().stamp.generation) for read in reads]

    def chunks(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].chunk_layout.read_chunk.shape

    def read(self, names: Sequence[str], rows: range, steps: range) -> dict[str, np.ndarray]:
        if not rows or not steps:
            return {n: self._empty(n, len(rows), len(steps)) for n in names}
        if steps.step == 1:
            across = slice(rows.start, rows.stop if rows.stop >= 0 else None, rows.step)
            if (found := self._short.read(names, across, steps)) is not None:
                return found
        (across, flip_rows), (along, flip_steps) = _ascending(rows), _ascending(steps)
        out = {name: self._empty(name, len(rows), len(steps)) for name in names}
        copies = [_copy(self.arrays[name][across, along], leaf) for name, leaf in out.items()]
        for copy in copies:
            copy.result()
        if not (flip_rows or flip_steps):
            return out
        turn = (slice(None, None, -1 if flip_rows else 1), slice(None, None, -1 if flip_steps else 1))
        return {name: np.ascontiguousarray(leaf[turn]) for name, leaf in out.items()}

    def _short_reads(self, length: int) -> ShortReads:
        chunks = {
            leaf.name: (self.chunks(leaf.name)[1], self._structure.rows * leaf_bytes(leaf.spec))
            for leaf in self._structure.leaves
        }

        def load(name: str, start: int, stop: int, batch: ts.Batch) -> ts.Future:
            return self.arrays[name][:, start:stop].read(order="C", batch=batch)

        learn = functools.partial(self._learn, length)
        return ShortReads(chunks, length, self._num_keys, batch=ts.Batch, load=load, learn=learn)

    def _learn(self, length: int) -> ChunkFiles:
        """Return where the chunks of the leaves lie; of a leaf in another form than ours, nothing."""
        forms = {}
        for name, array in self.arrays.items():
            form = form_of(self._paths[name], _metadata(array), array.shape, array.dtype.numpy_dtype)
            forms |= {name: form} if form is not None else {}
        dump = Dump(self._path)
        root = dump.root(self._manifest, self._generation)
        return ChunkFiles(self._path, forms, length, root, dump.node)

    def read_blocks(self, out: Mapping[str, np.ndarray], starts: Sequence[int], length: int) -> None:
        """Copy `[start, start + t)`, as far as `length`, into each block of leaves `[G, B, t, ...]`."""
        copies: deque[list[ts.Future]] = deque()
        for block, start in enumerate(starts):
            steps = slice(start, min(start + next(iter(out.values())).shape[2], length))
            room = slice(None), slice(steps.stop - start)
            copies.append([_copy(self._unkept[n][:, steps], leaf[block][room]) for n, leaf in out.items()])
            while len(copies) > (_AHEAD if block + 1 < len(starts) else 0):
                for copy in copies.popleft():
                    copy.result()

    def _empty(self, name: str, rows: int, steps: int) -> np.ndarray:
        array = self.arrays[name]
        return empty((rows, steps, *array.shape[2:]), array.dtype.numpy_dtype)

    def commit(
        self,
        leaves: Leaves,
        start: int,
        expected: int,
        length: int,
        keys: Mapping[str, bytes | None],
        check: Callable[[], None],
    ) -> None:
        """Write leaves, index and keys in one transaction, if the index still is `expected`.

        Another program that writes where we do, between `check` and the end, makes the commit fail: what a
        transaction has read must not change, and it reads the index and the chunk each leaf begins in.
        """
        self._choose(leaves)
        transaction = ts.Transaction(atomic=True, repeatable_read=True)
        try:
            with told(self.label):
                index = self.index.with_transaction(transaction)
                kv = self.kv.with_transaction(transaction)
                begun = [kv.read(self._chunk_key(name, start), byte_range=slice(0, 0)) for name in leaves]
                if int(index.read().result()[0]) != expected:
                    raise foreign_writer(self.label)
                for chunk in begun:
                    chunk.result()
                check()
                futures: list[Any] = []  # a dropped future cancels its write
                for name, leaf in leaves.items():
                    array = self.arrays[name].with_transaction(transaction)
                    futures.append(array[:, start : start + leaf.shape[1]].write(leaf))
                futures.append(index.write(np.asarray([length], index.dtype.numpy_dtype)))
                for future in futures:
                    future.copy.result()  # a failed write would not stop the commit of the others
                futures.extend(kv.write(key, value) for key, value in keys.items())
                transaction.commit_sync()
                for future in futures:
                    future.result()
        except BaseException:
            transaction.abort()
            raise

    def _chunk_key(self, name: str, step: int) -> str:
        """Return the key of the chunk in which a timestep's first numbers lie."""
        place = ["0"] * self.arrays[name].rank
        place[1] = str(step // self.chunks(name)[1])
        return f"{self._paths[name]}/{'.'.join(place)}".lstrip("/")

    def _choose(self, leaves: Leaves) -> None:
        """Choose the compressor of leaves whose content is seen for the first time.

        The array goes on saying what it was created with. blosc says in each chunk how that one is
        compressed, so every reader undoes it, and a program that has the array open may go on.
        """
        for name in self._by_content & leaves.keys():
            sample = _sample(leaves[name])
            if sample.nbytes < _SAMPLE_BYTES[0]:
                continue
            self._by_content.remove(name)
            spared = _encoded_bytes(sample, LZ4) - _encoded_bytes(sample, ZSTD)
            compressor = ZSTD if spared > _WORTH * sample.nbytes else LZ4
            spec = {
                "driver": "zarr",
                "kvstore": {**self._spec, "path": self._paths[name]},
                "metadata": _metadata(self.arrays[name]) | {"compressor": compressor},
            }
            with told(self.label):
                opening = ts.open(spec, context=self._context, open=True, assume_metadata=True, **self._mode)
                self.arrays[name] = opening.result()


def _metadata(array: ts.TensorStore) -> dict[str, Any]:
    """Return what an open array says of itself, without reading anything."""
    return released(array.spec().to_json(), small_json)["metadata"]


def _copy(source: ts.TensorStore, out: np.ndarray) -> ts.Future:
    """Begin to decode into an array of NumPy's, whose large ones lie in huge pages, unlike tensorstore's."""
    return ts.array(out, copy=False).write(source.translate_to[(0,) * source.rank])


def _with_manifest(files: dict, manifest: bytes, context: ts.Context) -> dict:
    """Return a store of those files whose manifest is the given one, held in memory."""
    memory = {"driver": "memory", "path": "manifest.ocdbt"}
    ts.KvStore.open({"driver": "memory"}, context=context).result().write("manifest.ocdbt", manifest).result()
    return {"driver": "kvstack", "layers": [{"base": files}, {"exact": "manifest.ocdbt", "base": memory}]}


def create_files(path: Path, structure: Structure, layout: Layout, label: str) -> None:
    """Create the directory of an empty vault: all arrays in one transaction, then `metadata.json`."""
    path.mkdir()
    context = ts.Context(_WRITER)
    base = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
    transaction = ts.Transaction(atomic=True)

    def create(at: str, metadata: Mapping[str, Any] | None = None, **options: Any) -> ts.Future:
        spec = {"driver": "zarr", "kvstore": {**base, "path": at}}
        spec |= {"metadata": metadata} if metadata is not None else {}
        return ts.open(spec, create=True, transaction=transaction, context=context, **options)

    try:
        opening = [
            create(leaf.path, layout.metadata[leaf.name], dtype=leaf.spec.dtype) for leaf in structure.leaves
        ]
        arrays = [future.result() for future in opening]
    except (ValueError, TypeError) as error:
        transaction.abort()
        given = [
            layout.metadata[leaf]["compressor"] for leaf in layout.metadata if leaf not in layout.by_content
        ]
        if given:
            raise InvalidArgumentError(
                f"`compression` must be a zarr compressor, got {given[0]!r:.120}.", loc=("compression",)
            ) from error
        raise fault(label, str(error)) from error
    with told(label):
        index = create("vault_index", dtype="int32", shape=(1,)).result()
        kv = ts.KvStore.open(base, context=context).result().with_transaction(transaction)
        written = [index.write(np.zeros(1, np.int32)), kv.write(COMMIT_KEY, b"2")]  # 1 is the empty database
        written.append(kv.write(BY_CONTENT_KEY, json.dumps(layout.by_content).encode()))
        transaction.commit_sync()
        del written, arrays
    write_atomic(path / METADATA, metadata_json(structure))


def _names(content: bytes | None) -> list[str]:
    """Return the names in a value of ours; what another program left there counts as none."""
    try:
        found = json.loads(content or b"[]")
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _sample(leaf: np.ndarray) -> np.ndarray:
    """Return the first timesteps of a leaf `[B, T, ...]`, of some rows where one timestep is large."""
    steps = max(1, _SAMPLE_BYTES[1] // max(1, leaf[:, :1].nbytes))
    rows = max(1, _SAMPLE_BYTES[1] // max(1, leaf[:1, :1].nbytes))
    return leaf[:rows, :steps]


def _encoded_bytes(sample: np.ndarray, compressor: Mapping[str, Any]) -> int:
    """Return how long a chunk is that holds these timesteps."""
    metadata = {"compressor": compressor, "chunks": sample.shape, "shape": sample.shape}
    spec = {"driver": "zarr", "kvstore": {"driver": "memory"}, "metadata": metadata}
    array = ts.open(spec, create=True, dtype=sample.dtype.name, context=ts.Context()).result()
    array.write(sample).result()
    return len(array.kvstore.read(".".join("0" * sample.ndim)).result().value)


def _ascending(steps: range) -> tuple[slice, bool]:
    """Return the same steps as an ascending slice, and whether they then run backwards."""
    if steps.step == 1:
        return slice(steps.start, steps.stop), False  # without a stride, which the store handles faster
    ordered = steps if steps.step > 0 else steps[::-1]
    return slice(ordered[0], ordered[-1] + 1, ordered.step), steps.step < 0


def _array_damaged(label: str, name: str, rule: str, got: object) -> DamagedError:
    return DamagedError(
        f"Array `{name}` of vault '{label}' must have {rule}, got {got!r}.", file="manifest.ocdbt", leaf=name
    )
