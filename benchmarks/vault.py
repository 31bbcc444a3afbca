"""Vault: appending and reading against real Flashbax's vault, on the same experience and the same disk.

Records of MuJoCo size (97 B a step, one row), and frames. Both sides are used through the class `Vault`, so
ours takes its lock, looks for foreign commits and syncs to disk in each write, as it always does. Appends go
behind 20,000 steps; Flashbax rewrites a whole chunk of 61,680 steps each time, so the ratio grows with
what already lies there. Reads are of a vault written in one go, which ours keeps decoded from read to read,
while Flashbax's decodes anew, 61,680 records or 148 frames at a time. `vault_writes` counts what a write
costs besides time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from benchmarks.report import Ratio, interleaved, print_table
from benchmarks.vault_pairs import PEER, frames, pair, records, state, step_bytes, working_directory
from benchmarks.vault_writes import log_rows, print_logged, print_writes, write_rows

LENGTH = 20_000
APPENDS = (1, 100, 1000)
WINDOWS = {"window of 32": 32, "slice of 1,000": 1000}
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
        for kind, leaves, length in (("MuJoCo", records, LENGTH), ("84x84", frames, 4000)):
            vaults = pair(kind, leaves, 400 if quick else length)
            for work, steps in {**WINDOWS, "whole": 0}.items():
                ours, theirs = (_reader(vault, steps) for vault in vaults)
                many, target = (calls * 10 if steps else calls), (TARGET if kind == "MuJoCo" else None)
                work = f"{kind}, {work}"
                rows.append(interleaved(work, PEER, ours, theirs, calls=many, repeats=repeats, target=target))
    return rows


def _writer(vault: Any, held: Any, steps: int) -> Callable[[], int]:
    return lambda: vault.write(held, (0, steps))


def _reader(vault: Any, steps: int) -> Callable[[], Any]:
    """Read that many steps anywhere, or all, and wait for all leaves; both sides draw the same windows.

    Percentiles are all that Flashbax takes besides the last steps.
    """
    draw, length = random.Random(1), vault.vault_index

    def read() -> None:
        start = draw.randrange(0, length - min(steps, length // 2), 10)
        window = (start * 100 / length, (start + min(steps, length // 2)) * 100 / length)
        for leaf in vault.read(percentiles=window if steps else None).experience.values():
            leaf.block_until_ready()

    return read


if __name__ == "__main__":
    print_table("Vault", vault_ratios(quick=False))
    print_writes(write_rows(quick=False))
    print_logged(log_rows(quick=False))
