"""Giving back the oldest timesteps of a vault, for one that is to keep only so many.

Timesteps keep their numbers: of a vault of length 10,000 that has freed 4,096, timestep 4,096 is the
oldest one there, and reading an older one is an error. What is freed are whole blocks of 1,024 timesteps,
so that digests go on; a chunk goes when all of it is freed. Versions made before still show everything,
and a sweep keeps the bytes they need.
"""

from __future__ import annotations

from collections.abc import Iterator

from fbxcore.vault.digest import BLOCK
from fbxcore.vault.store import VaultWriter
from fbxcore.vault.store_reader import FREED_KEY, first_of

_PER_COMMIT = 4096


def freeable(writer: VaultWriter, retain_steps: int) -> int:
    """Return which timestep would be the oldest if the newest `retain_steps` are to stay."""
    return max(first_of(writer), (writer.length - retain_steps) // BLOCK * BLOCK)


def free(writer: VaultWriter, retain_steps: int, *, dry_run: bool = False) -> int:
    """Give back whole blocks of timesteps older than the newest `retain_steps`; returns how many went.

    From the first commit on the timesteps are gone as a whole. What a kill leaves of their chunks goes the
    next time.
    """
    before, first = first_of(writer), freeable(writer, retain_steps)
    if dry_run or not first:
        return first - before
    chunks = list(_chunks_below(writer, first))
    note: dict[str, bytes | None] = {FREED_KEY: b"%d" % first} if first > before else {}
    for at in range(0, max(len(chunks), 1), _PER_COMMIT):
        writer.put(note | dict.fromkeys(chunks[at : at + _PER_COMMIT]))
    return first - before


def _chunks_below(writer: VaultWriter, first: int) -> Iterator[str]:
    """Yield the keys of chunks that hold nothing but timesteps below `first`."""
    for leaf in writer.structure.leaves:
        prefix = f"{leaf.path}/".lstrip("/")
        steps = writer.chunks(leaf.name)[1]
        for key in writer.keys(prefix):
            place = key.removeprefix(prefix).split(".")
            if len(place) < 2 or not place[1].isdecimal():  # `.zarray`, or a key of our own
                continue
            if (int(place[1]) + 1) * steps <= first:
                yield key
