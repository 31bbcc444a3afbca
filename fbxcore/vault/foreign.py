"""What another program committed to a vault of ours, and going on behind it without losing anything.

Flashbax writes from the length it saw when it opened the vault. If that was long ago, its timesteps lie
over ours, and its length hides what we wrote behind them. Nothing is lost by that: our last commit is a
generation of its own, and it still has every timestep of ours. Such a vault is opened for writing only to
take it over: to leave it as the other program made it, and to append ours again from where the two differ.

Flashbax writes leaf by leaf and the length last. Killed in between it leaves timesteps that are half its own,
and the length as it was: those it never finished, and ours are put back in their place. And a first leaf of
its may come right before our last commit, which then has it in it, somewhere else than where we wrote: what
we had before is in the generation before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from fbxcore.errors import ConflictError
from fbxcore.spec import timestep_bytes
from fbxcore.vault.digest import BLOCK, block_stamps
from fbxcore.vault.faults import FOREIGN_WRITER, foreign_writer
from fbxcore.vault.files import label_of
from fbxcore.vault.keys import json_value
from fbxcore.vault.segments import moved_segments
from fbxcore.vault.store_arrays import COMMIT_KEY
from fbxcore.vault.store_reader import VaultReader

if TYPE_CHECKING:
    from fbxcore.vault.store import VaultWriter

TAKING_OVER_KEY = "_flashdeck/taking_over"
QUIET_S = 0.5
_LONGEST_S = 10.0
_PIECE_BYTES = 32 << 20


@dataclass(frozen=True)
class Foreign:
    """How a vault differs from what our last commit left."""

    generation: int  # our last commit
    start: int  # the first timestep of ours that is not as it was, or `stop`
    stop: int  # our length
    length: int  # the vault's length before anything of ours was appended again
    is_finished: bool = True  # whether what lies over ours is whole
    former: int = 0  # the generation that has our timesteps …
    boundary: int = 0  # … below this one; `generation` has the others

    @property
    def num_hidden(self) -> int:
        """Timesteps of ours that were written over, or lie behind the length."""
        return self.stop - self.start


def foreign_in(vault: VaultReader | VaultWriter) -> Foreign | None:
    """Return what another program did to a vault, or None where the newest commit is one of ours.

    A vault that never had a commit of ours is as its program left it: None too.
    """
    if (begun := json_value(vault, TAKING_OVER_KEY)) is not None:
        return Foreign(**begun)
    commit = vault.get(COMMIT_KEY)
    if commit is None or int(commit) == vault.generation:
        return None
    generation = _commit_of_mark(vault, commit)
    with _at(vault, generation) as ours, _at(vault, vault.generation) as now:
        former, boundary = 0, 0
        if generation != int(commit):
            former = int(commit) - 1
            with _at(vault, former) as before:
                boundary = before.length
                start = _first_difference(before, now)
        if not former or start == boundary:
            start = max(boundary, _first_difference(ours, now))
        is_finished = start == ours.length or now.length != ours.length or _was_finished(now, start)
        return Foreign(generation, start, ours.length, now.length, is_finished, former, boundary)


def _at(vault: VaultReader | VaultWriter, generation: int) -> VaultReader:
    return VaultReader.open(vault.path, generation=generation)


def _commit_of_mark(vault: VaultReader | VaultWriter, mark: bytes) -> int:
    """Return the generation of our last commit: the one it was to be, unless another slipped in before."""
    for generation in range(int(mark), vault.generation):
        with _at(vault, generation) as reader:
            if reader.get(COMMIT_KEY) == mark:
                return generation
    return vault.generation


def check_whole(vault: VaultReader | VaultWriter) -> None:
    """Refuse a vault in which another program has written over timesteps of ours.

    Raises:
        ConflictError: code `foreign_writer`.
    """
    found = foreign_in(vault)
    if found is not None and found.num_hidden:
        raise ConflictError(
            f"Vault '{label_of(vault.path)}' must hold timesteps {found.start} to {found.stop} as we wrote "
            f"them, got those of another program. Generation {found.generation} still has ours: "
            "`flashdeck verify --adopt` appends them again.",
            code=FOREIGN_WRITER,
        )


def take_over(
    writer: VaultWriter, keys_for: Callable[[Foreign], Mapping[str, bytes | None]] = lambda _: {}
) -> Foreign | None:
    """Go on behind what another program committed, appending again what it wrote over.

    Args:
        keys_for: values to store in the commit that ends it.

    Returns:
        What was found; None where the newest commit was ours already.

    Raises:
        ConflictError: if the other program goes on writing (code `foreign_writer`).
    """
    with writer.lock:
        writer.refresh()
        if (found := foreign_in(writer)) is None:
            return None
        _wait_until_quiet(writer)
        found = foreign_in(writer)
        keys = {**keys_for(found), **_moved(writer, found), TAKING_OVER_KEY: None}
        pieces = _pieces(writer, found)
        if len(pieces) > 1:
            writer.put({TAKING_OVER_KEY: json.dumps(asdict(found)).encode()})
        for start, stop in pieces:
            with _at(writer, found.former if start < found.boundary else found.generation) as ours:
                leaves = ours.read(start, stop)
            at = writer.length if found.is_finished else start
            writer.write_at(at, leaves, keys=keys if stop == found.stop else None)
        if not pieces:
            writer.put(keys)
        return found


def _moved(writer: VaultWriter, found: Foreign) -> dict[str, bytes | None]:
    """Return what says of each segment of ours where it lies then."""
    if not (found.num_hidden and found.is_finished):
        return {}
    with _at(writer, found.generation) as ours:
        return moved_segments(ours, found.start, found.length)


def _wait_until_quiet(writer: VaultWriter) -> None:
    """Wait until the other program has written nothing for a while: a write of its takes several commits."""
    deadline = time.monotonic() + _LONGEST_S
    seen, since = writer.generation, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        time.sleep(QUIET_S / 10)
        writer.refresh()
        if writer.generation != seen:
            seen, since = writer.generation, time.monotonic()
        if time.monotonic() > deadline:
            raise foreign_writer(label_of(writer.path))


def _was_finished(now: VaultReader, start: int) -> bool:
    """Return whether the last commit left the leaves alone: it wrote the length, to what it was already."""
    blocks = range(start // BLOCK, -(-now.length // BLOCK))
    with _at(now, now.generation - 1) as before:
        return all(block_stamps(now, name, blocks) == block_stamps(before, name, blocks) for name in now.spec)


def _pieces(writer: VaultWriter, found: Foreign) -> list[tuple[int, int]]:
    """Return what is still to be appended, in parts that fit in memory; a kill may come between two."""
    steps = max(1, _PIECE_BYTES // max(1, timestep_bytes(writer.spec) * writer.rows))
    first = found.start + (writer.length - found.length if found.is_finished else 0)
    pieces = []
    while first < found.stop:
        stop = min(first + steps, found.boundary if first < found.boundary else found.stop)
        pieces.append((first, stop))
        first = stop
    return pieces


def _first_difference(ours: VaultReader, now: VaultReader) -> int:
    """Return the first timestep in which two generations differ, at most the length of the shorter."""
    length = min(ours.length, now.length)
    blocks = range(ours.first // BLOCK, -(-length // BLOCK))
    first = length
    for name in ours.spec:
        stamps = (block_stamps(vault, name, blocks) for vault in (ours, now))
        for block, mine, theirs in zip(blocks, *stamps, strict=True):
            start, stop = block * BLOCK, min((block + 1) * BLOCK, first)
            if start >= stop:
                break
            if mine is not None and mine == theirs:
                continue
            pair = [vault.read(start, stop, leaves=[name])[name] for vault in (ours, now)]
            if (at := _differs_at(*pair)) is not None:
                first = start + at
                break
    return first


def _differs_at(one: np.ndarray, other: np.ndarray) -> int | None:
    """Return the first timestep in which two arrays `[B, t, ...]` differ in any byte."""
    rows, steps = one.shape[:2]
    pair = [np.ascontiguousarray(array).view(np.uint8).reshape(rows, steps, -1) for array in (one, other)]
    found = np.flatnonzero((pair[0] != pair[1]).any(axis=(0, 2)))
    return int(found[0]) if len(found) else None
