"""Forking a vault: a new vault that starts with the timesteps of a generation of another one.

The copy is in the chunks a new vault gets, and says under a key of its own where it comes from. It is made
under a hidden name and renamed when it is whole, so that nobody ever sees half of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fbxcore.spec import timestep_bytes
from fbxcore.vault.files import appearing, label_of
from fbxcore.vault.keys import json_value
from fbxcore.vault.segments import clipped, encode_segments, segments_key
from fbxcore.vault.store import VaultReader, VaultWriter

LINEAGE_KEY = "_flashdeck/lineage"
_PIECE_BYTES = 64 << 20
_BLOCK = 1024


def fork(
    reader: VaultReader,
    path: Path,
    *,
    steps: range | None = None,
    lineage: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> VaultWriter:
    """Create a vault with the timesteps a reader shows and return its writer.

    Args:
        steps: which timesteps, ascending; None means all there are.
        lineage: what is noted besides the source's name, generation, start and stop: its version, digest.
        progress: called with how many timesteps of how many are copied.

    Raises:
        ConflictError: if there is a vault already.
    """
    steps = range(reader.first, reader.length) if steps is None else steps
    path = Path(path).absolute()
    with appearing(path) as hidden, VaultWriter.create(hidden, reader.structure) as writer:
        _copy(reader, writer, steps, progress)
        keys = {LINEAGE_KEY: json.dumps(_origin(reader, steps) | (lineage or {})).encode()}
        if steps.step == 1 and (segments := clipped(reader.segments(), steps.start, steps.stop)):
            keys[segments_key(0)] = encode_segments(segments)
        writer.put(keys)
    return VaultWriter.open(path)


def lineage_of(vault: VaultReader | VaultWriter) -> dict[str, Any] | None:
    """Return where a vault comes from, or None where it was not forked."""
    return json_value(vault, LINEAGE_KEY)


def _copy(
    reader: VaultReader, writer: VaultWriter, steps: range, progress: Callable[[int, int], None]
) -> None:
    """Copy in pieces of whole blocks, so that no chunk is written twice."""
    blocks = max(1, _PIECE_BYTES // max(1, timestep_bytes(reader.spec) * reader.rows * _BLOCK))
    for at in range(0, len(steps), blocks * _BLOCK):
        piece = steps[at : at + blocks * _BLOCK]
        writer.append(reader.read(piece.start, piece.stop, step=piece.step))
        progress(min(at + len(piece), len(steps)), len(steps))


def _origin(reader: VaultReader, steps: range) -> dict[str, Any]:
    source = {"vault": label_of(reader.path), "generation": reader.generation}
    return source | {"start": steps.start, "stop": steps.stop, "step": steps.step}
