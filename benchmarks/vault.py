"""Vault: appending and reading against real Flashbax's vault, on the same experience and the same disk.

Records of MuJoCo size (97 B a step, one row). Both sides are used through the class `Vault`, so ours
takes its lock, looks for foreign commits and syncs to disk in each write, as it always does. Appends go
behind 20,000 steps; Flashbax rewrites a whole chunk of 61,680 steps each time, so the ratio grows with
what already lies there. Reads are of a vault of 20,000 steps written in one go, which ours keeps decoded
from read to read, while Flashbax's decodes anew. What a write costs besides time is in `vault_writes`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from benchmarks.report import Ratio, interleaved, print_table
from benchmarks.vault_pairs import PEER, pair, records, state, step_bytes, working_directory
from benchmarks.vault_writes import log_rows, print_logged, print_writes, write_rows

LENGTH = 20_000
APPENDS = (1, 100, 1000)
TARGET = 15.0


def vault_ratios(quick: bool = True) -> list[Ratio]:
    """Measure appends, slices and whole reads in turns with Flashbax; the ratio is its time over ours."""
    repeats, calls = (3, 2) if quick else (9, 4)
    rows = []
    with working_directory():
        for steps in APPENDS:
            held = state(steps)
            ours, theirs = (_writer(vault, held, steps) for vault in pair(f"append{steps}", length=LENGTH))
            work = f"append {steps:,} of {step_bytes(records)} B"
            rows.append(interleaved(work, PEER, ours, theirs, calls=calls, repeats=repeats, target=TARGET))
        vaults = pair("read", length=LENGTH)
        for work, form in _READS.items():
            ours, theirs = (_reader(vault, form) for vault in vaults)
            rows.append(
                interleaved(work, PEER, ours, theirs, calls=calls * 10, repeats=repeats, target=TARGET)
            )
    return rows


def _writer(vault: Any, held: Any, steps: int) -> Callable[[], int]:
    return lambda: vault.write(held, (0, steps))


def _window(steps: int) -> Callable[[random.Random], dict[str, Any]]:
    """Return a window anywhere, as percentiles: all that Flashbax takes besides the last steps."""

    def form(draw: random.Random) -> dict[str, Any]:
        start = draw.randrange(0, LENGTH - steps, 10)
        return {"percentiles": (start * 100 / LENGTH, (start + steps) * 100 / LENGTH)}

    return form


_READS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "random window of 32": _window(32),
    "random slice of 1,000": _window(1000),
    "last 32": lambda _: {"timesteps": 32},
    f"whole read of {LENGTH:,}": lambda _: {},
}


def _reader(vault: Any, form: Callable[[random.Random], dict[str, Any]]) -> Callable[[], Any]:
    """Read and wait for all leaves; both sides draw the same windows."""
    draw = random.Random(1)

    def read() -> None:
        for leaf in vault.read(**form(draw)).experience.values():
            leaf.block_until_ready()

    return read


if __name__ == "__main__":
    print_table("Vault", vault_ratios(quick=False))
    print_writes(write_rows(quick=False))
    print_logged(log_rows(quick=False))
