"""Vault: what a write costs in time, bytes written, bytes on disk and files, against real Flashbax.

Writes of 1 to 10,000 steps at a vault that holds one step and behind 60,000, each into a copy of its own
that has been written to once since it was opened. Bytes written are those the process passed to the system
(`wchar` of Linux): what is compressed and written anew counts each time. Then single steps through the
log, as the service takes them: each is durable before it is acknowledged, and whole chunks go to the vault.
A segment of the log, 64 MiB, goes once it is full and all of it is in the vault.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.vault_pairs import (
    Leaves,
    copied,
    dropped,
    frames,
    pair,
    path_of,
    records,
    state,
    step_bytes,
    working_directory,
)
from fbxcore.live.live_vault import LiveVault
from fbxcore.spec import spec_of
from fbxcore.vault import VaultWriter
from fbxcore.vault.files import disk_bytes

LENGTHS = (1, 10, 100, 1000, 10_000)
BEHIND = 60_000
KINDS: dict[str, Leaves] = {"MuJoCo": records, "84x84": frames}


@dataclass(frozen=True)
class Cost:
    """Of one write; bytes for each byte of payload."""

    seconds: float
    written: float
    on_disk: float
    files: int


@dataclass(frozen=True)
class Written:
    """One line: the same write into our vault and into Flashbax's."""

    work: str
    ours: Cost
    theirs: Cost
    ratio: float  # the median over repeats of their seconds / ours
    low: float
    high: float


def write_rows(quick: bool = True) -> list[Written]:
    """Measure each length of a write, records and frames, at an almost empty vault and behind a full one."""
    rows = []
    for kind, leaves in KINDS.items():
        for behind in (0, 2000 if quick else BEHIND):
            with working_directory():
                pair("full", leaves, behind)
                for steps in LENGTHS[:3:2] if quick else LENGTHS:
                    rows.append(_row(kind, leaves, behind, steps, repeats=1 if quick else 3))
    return rows


def _row(kind: str, leaves: Leaves, behind: int, steps: int, repeats: int) -> Written:
    held, payload = state(steps, leaves), steps * step_bytes(leaves)
    costs = []
    for repeat in range(repeats):
        vaults = copied("full", "copy", leaves)
        for vault in vaults:
            vault.write(held, (0, 1))
        turns = vaults if repeat % 2 == 0 else vaults[::-1]
        taken = {id(vault): _cost(vault, held, steps, payload) for vault in turns}
        costs.append(tuple(taken[id(vault)] for vault in vaults))
        dropped("copy")
    ratios = sorted(theirs.seconds / ours.seconds for ours, theirs in costs)
    work = f"{kind}, {steps:,} behind {max(behind, 1):,}"
    ours, theirs = (_middle([cost[side] for cost in costs]) for side in (0, 1))
    return Written(work, ours, theirs, statistics.median(ratios), ratios[0], ratios[-1])


def _cost(vault: Any, held: Any, steps: int, payload: int) -> Cost:
    path = path_of(vault)
    return _measured(lambda: vault.write(held, (0, steps)), path, payload)


def _measured(call: Callable[[], Any], path: Path, payload: int) -> Cost:
    before, written = _held(path), _written()
    start = perf_counter()
    call()
    seconds, written = perf_counter() - start, _written() - written
    on_disk, files = (b - a for a, b in zip(before, _held(path), strict=True))
    return Cost(seconds, written / payload, on_disk / payload, files)


def _held(path: Path) -> tuple[int, int]:
    """Return bytes and number of the files there."""
    return disk_bytes(path), sum(file.is_file() for file in path.rglob("*"))


def _written() -> int:
    """Return how many bytes this process has passed to the system to write."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def _middle(costs: list[Cost]) -> Cost:
    return sorted(costs, key=lambda cost: cost.seconds)[len(costs) // 2]


@dataclass(frozen=True)
class Logged:
    """Single steps, one write each; seconds are of one step."""

    work: str
    ours: Cost
    in_log: float  # bytes for each byte of payload that the log holds besides the vault
    theirs: Cost


def log_rows(quick: bool = True) -> list[Logged]:
    """Measure single steps one after the other: ours through the log into chunks, Flashbax's by `write`.

    Ours ends when the vault is closed, with every step in it.
    """
    rows = []
    for kind, leaves in KINDS.items():
        steps, their_steps = (64, 2) if quick else (2048, 50)
        with working_directory() as place:
            ours = _through_the_log(place, leaves, steps)
            in_log = disk_bytes(place / "log") / (steps * step_bytes(leaves))
            theirs = _one_by_one(leaves, their_steps)
        work = f"{kind}, {steps:,} ours, {their_steps} Flashbax's"
        rows.append(Logged(work, _each(ours, steps), in_log, _each(theirs, their_steps)))
    return rows


def _one_by_one(leaves: Leaves, steps: int) -> Cost:
    _, vault = pair("single", leaves)
    held = state(1, leaves)

    def write() -> None:
        for _ in range(steps):
            vault.write(held, (0, 1))

    return _measured(write, path_of(vault), step_bytes(leaves) * steps)


def _each(cost: Cost, steps: int) -> Cost:
    return replace(cost, seconds=cost.seconds / steps)


def _through_the_log(place: Path, leaves: Leaves, steps: int) -> Cost:
    held = {name: np.asarray(leaf) for name, leaf in leaves(steps).items()}
    path, log = place / "vault" / "1", place / "log"
    log.mkdir()
    VaultWriter.create(path, spec_of(held, leading=2)).close()

    async def add_all() -> None:
        vault = await LiveVault.open(path, log)
        for at in range(steps):
            await vault.add({name: leaf[:, at : at + 1] for name, leaf in held.items()})
        await vault.close()

    return _measured(lambda: asyncio.run(add_all()), path, steps * step_bytes(leaves))


def print_writes(rows: list[Written]) -> None:
    """Print writes as a Markdown table."""
    print("\n### Vault, what a write costs\n")
    print(
        "| steps a write | ours, ms | Flashbax, ms | ratio [min–max] "
        "| written per byte: ours | Flashbax | on disk per byte: ours | Flashbax | files: ours | Flashbax |"
    )
    print("|---|" + "--:|" * 9)
    for row in rows:
        a, b = row.ours, row.theirs
        print(
            f"| {row.work} | {a.seconds * 1e3:.1f} | {b.seconds * 1e3:.1f} "
            f"| **{row.ratio:.1f}** [{row.low:.1f}–{row.high:.1f}] "
            f"| {a.written:.3g} | {b.written:.3g} | {a.on_disk:.3g} | {b.on_disk:.3g} "
            f"| {a.files} | {b.files} |"
        )


def print_logged(rows: list[Logged]) -> None:
    """Print single steps as a Markdown table."""
    print("\n### Vault, single steps through the log\n")
    print(
        "| single steps | ours, ms a step | Flashbax, ms a step | written per byte: ours | Flashbax "
        "| on disk per byte: ours | in the log | Flashbax |"
    )
    print("|---|" + "--:|" * 7)
    for row in rows:
        a, b = row.ours, row.theirs
        print(
            f"| {row.work} | {a.seconds * 1e3:.2f} | {b.seconds * 1e3:.1f} "
            f"| {a.written:.3g} | {b.written:.3g} "
            f"| **{a.on_disk:.3g}** | {row.in_log:.3g} | {b.on_disk:.3g} |"
        )


if __name__ == "__main__":
    print_writes(write_rows(quick=False))
    print_logged(log_rows(quick=False))
