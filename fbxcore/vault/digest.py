"""The digest of a vault's data: equal for equal timesteps, however they are chunked or compressed.

SHA-256 over a line of JSON (rows, length, and each leaf's name, shape and dtype) and then, leaf by leaf
in sorted order, over the SHA-256 of each block of 1,024 timesteps `[B, ≤1024, ...]`, little-endian and
in C order; the last block of a leaf may be shorter. Where the oldest blocks were given back, the line says
which timestep is the `first`, and they are left out.

Finished blocks are kept in the catalog under stamps of the chunks they were read from. A stamp says in
which file and where a chunk's bytes lie, and such bytes never change, so a block that was overwritten is
hashed again, and a digest reads only what is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fbxcore.spec import leaf_bytes
from fbxcore.vault.files import write_atomic
from fbxcore.vault.store_reader import VaultReader

BLOCK = 1024
_CACHE = "blocks.json"
_READ_BYTES = 64 << 20
_MAX_KEYS = 4096
"""Chunks of one block above which its hash is not kept."""


def digest(reader: VaultReader, catalog: Path | None = None) -> str:
    """Return `sha256-<hex>` of what a reader shows.

    Args:
        catalog: the directory for hashes of finished blocks; None reads everything.
    """
    known = _load(catalog)
    leaves = [[name, list(leaf.shape), leaf.dtype] for name, leaf in sorted(reader.spec.items())]
    head: dict[str, Any] = {"leaves": leaves, "length": reader.length, "rows": reader.rows}
    if reader.first:
        head["first"] = reader.first
    whole = hashlib.sha256(json.dumps(head, separators=(",", ":"), sort_keys=True).encode())
    fresh: dict[str, dict[str, str]] = {}
    for name, *_ in leaves:
        blocks, fresh[name] = _blocks(reader, name, known.get(name, {}))
        for block in blocks:
            whole.update(bytes.fromhex(block))
    if catalog is not None and fresh != known:
        catalog.mkdir(parents=True, exist_ok=True)
        write_atomic(catalog / _CACHE, json.dumps(fresh, separators=(",", ":")).encode())
    return f"sha256-{whole.hexdigest()}"


def _blocks(reader: VaultReader, name: str, known: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the hash of each block of a leaf, and the finished ones by stamp."""
    first, finished = reader.first // BLOCK, reader.length // BLOCK
    stamps = block_stamps(reader, name, range(first, finished))
    hashes: list[str | None] = [known.get(stamp) if stamp else None for stamp in stamps]
    hashes += [None] * (-(-reader.length // BLOCK) - finished)
    for start, stop in _gaps(hashes, _blocks_at_once(reader, name)):
        array = reader.read((first + start) * BLOCK, (first + stop) * BLOCK, leaves=[name])[name]
        for at in range(start, stop):
            hashes[at] = _hash(array[:, (at - start) * BLOCK : (at - start + 1) * BLOCK])
    kept = {stamp: hashes[at] for at, stamp in enumerate(stamps) if stamp}
    return hashes, kept


def _gaps(hashes: list[str | None], most: int) -> list[tuple[int, int]]:
    """Return the runs of unknown blocks, each at most so long."""
    runs: list[tuple[int, int]] = []
    for at, found in enumerate(hashes):
        if found is not None:
            continue
        if runs and runs[-1][1] == at and at - runs[-1][0] < most:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    return runs


def _blocks_at_once(reader: VaultReader, name: str) -> int:
    return max(1, _READ_BYTES // (BLOCK * reader.rows * max(leaf_bytes(reader.spec[name]), 1)))


def block_stamps(reader: VaultReader, name: str, blocks: range) -> list[str | None]:
    """Return for each of some blocks what identifies the bytes of its chunks, None where it has too many."""
    chunk = reader.chunks(name)
    leaf = next(leaf for leaf in reader.structure.leaves if leaf.name == name)
    shape = (reader.rows, BLOCK, *leaf.spec.shape)
    others = [range(-(-length // size)) for length, size in zip(shape, chunk, strict=True)]
    per_block: list[list[str]] = []
    for at in blocks:
        others[1] = range(at * BLOCK // chunk[1], ((at + 1) * BLOCK - 1) // chunk[1] + 1)
        if np.prod([len(other) for other in others]) > _MAX_KEYS:
            return [None] * len(blocks)
        per_block.append([f"{leaf.path}/{'.'.join(map(str, ids))}" for ids in itertools.product(*others)])
    if leaf.path == "":  # a bare array lies at the root
        per_block = [[key[1:] for key in keys] for keys in per_block]
    found = iter(reader.stamps(list(itertools.chain.from_iterable(per_block))))
    return [_stamp(at, [next(found) for _ in keys]) for at, keys in zip(blocks, per_block, strict=True)]


def _stamp(at: int, stamps: list[bytes]) -> str:
    """A chunk may span several blocks, so the block's place is part of it."""
    mixed = hashlib.blake2b(b"%d" % at, digest_size=16)
    for stamp in stamps:
        mixed.update(b"%d:" % len(stamp) + stamp)
    return mixed.hexdigest()


def _hash(array: np.ndarray) -> str:
    array = np.ascontiguousarray(array)
    if sys.byteorder == "big":
        array = array.byteswap()
    return hashlib.sha256(array.reshape(-1).view(np.uint8)).hexdigest()


def _load(catalog: Path | None) -> dict[str, Any]:
    """Return the known hashes; a cache that cannot be read is no cache."""
    if catalog is not None:
        with contextlib.suppress(OSError, ValueError):
            known = json.loads((catalog / _CACHE).read_bytes())
            if isinstance(known, dict) and all(isinstance(blocks, dict) for blocks in known.values()):
                return known
    return {}
