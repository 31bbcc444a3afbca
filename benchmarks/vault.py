"""Vault: appending and reading against real Flashbax's vault, on the same experience and the same disk.

Records of MuJoCo size (97 B a step, one row). Both sides are used through the class `Vault`, so ours
takes its lock, looks for foreign commits and syncs to disk in each write, as it always does. Appends go
behind 20,000 steps; Flashbax rewrites a whole chunk of 61,680 steps each time, so the ratio grows with
what already lies there. Reads are of a vault of 20,000 steps written in one go; ours keeps up to 16 MiB
of decoded chunks from read to read, Flashbax's decodes anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.report import Ratio, interleaved, print_table
from fbxcore.buffers.trajectory_buffer import TrajectoryBufferState
from fbxcore.vault import Vault
from fbxcore.vault.files import disk_bytes

LENGTH = 20_000
STEP_BYTES = 97
PEER = "Flashbax Vault"
APPENDS = {1: 15.0, 100: 15.0, 1000: 15.0}
"""Steps a write and the ratio we want."""


def vault_ratios(quick: bool = True) -> list[Ratio]:
    """Measure appends, slices and whole reads in turns with Flashbax; the ratio is its time over ours."""
    repeats, calls = (5, 3) if quick else (15, 10)
    rows = []
    with _working_directory():
        for steps, target in APPENDS.items():
            ours, theirs = _filled(f"append{steps}")
            held = _state(steps)
            rows.append(
                interleaved(
                    f"append {steps} of {STEP_BYTES} B",
                    PEER,
                    _writer(ours, held, steps),
                    _writer(theirs, held, steps),
                    calls=calls,
                    repeats=repeats,
                    target=target,
                )  # fmt: skip
            )
        calls *= 10
        ours, theirs = _filled("read")
        for work, target, form in _reads():
            rows.append(
                interleaved(
                    work,
                    PEER,
                    _reader(ours, form),
                    _reader(theirs, form),
                    calls=calls,
                    repeats=repeats,
                    target=target,
                )  # fmt: skip
            )
    return rows


def append_ratios() -> list[Ratio]:
    """Measure appends of 1 to 10,000 steps at an empty vault and behind a full one, records and frames."""
    rows = []
    with _working_directory():
        for name, leaves, behind in (("97 B", _records, 60_000), ("84x84", _frames, 4_000)):
            for start in (0, behind):
                for steps in (1, 10, 100, 1000, 10_000):
                    ours, theirs = _filled(f"{name}{start}{steps}", leaves, start)
                    held = _state(steps, leaves)
                    rows.append(
                        interleaved(
                            f"append {steps:,} of {name} behind {start:,}",
                            PEER,
                            _writer(ours, held, steps),
                            _writer(theirs, held, steps),
                            calls=2,
                            repeats=3,
                            target=15.0 if steps in APPENDS and start and leaves is _records else None,
                        )  # fmt: skip
                    )
    return rows


def disk_rows(writes: int = 20) -> list[tuple[int, float, float]]:
    """Return for each length of a write the bytes on disk per byte of payload, ours and Flashbax's."""
    rows = []
    with _working_directory():
        for steps in APPENDS:
            ours, theirs = _filled(f"disk{steps}")
            before = disk_bytes(_path(ours)), disk_bytes(_path(theirs))
            held = _state(steps)
            for _ in range(writes):
                _writer(ours, held, steps)()
                _writer(theirs, held, steps)()
            payload = writes * steps * STEP_BYTES
            rows.append(
                (
                    steps,
                    (disk_bytes(_path(ours)) - before[0]) / payload,
                    (disk_bytes(_path(theirs)) - before[1]) / payload,
                )
            )
    return rows


def _records(steps: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "obs": jnp.asarray(draw.standard_normal((1, steps, 17), np.float32)),
        "action": jnp.asarray(draw.standard_normal((1, steps, 6), np.float32)),
        "reward": jnp.asarray(draw.standard_normal((1, steps), np.float32)),
        "done": jnp.zeros((1, steps), bool),
    }


def _frames(steps: int) -> dict[str, Any]:
    """Frames as compressible as drawn ones are."""
    coarse = np.random.default_rng(0).integers(0, 256, (1, steps, 12, 12), np.uint8)
    return {"image": jnp.asarray(coarse.repeat(7, 2).repeat(7, 3))}


def _state(steps: int, leaves: Callable[[int], dict[str, Any]] = _records) -> TrajectoryBufferState:
    """A buffer of so many timesteps, all of them new."""
    return TrajectoryBufferState(leaves(steps), jnp.int32(0), jnp.bool_(True))


def _filled(
    name: str, leaves: Callable[[int], dict[str, Any]] = _records, length: int = LENGTH
) -> tuple[Vault, Any]:
    """Return our vault and Flashbax's, each with the same timesteps."""
    held = _state(max(length, 1), leaves)
    opened = (
        Vault(f"ours/{name}", held.experience, vault_uid="1"),
        _flashbax(f"theirs/{name}", held.experience),
    )
    for vault in opened:
        if length:
            vault.write(held, (0, length))
    return opened


def _flashbax(name: str, structure: Any) -> Any:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        from flashbax.vault import Vault as FlashbaxVault  # a peer, not a dependency

        return FlashbaxVault(name, structure, rel_dir="vaults", vault_uid="1")


def _writer(vault: Any, held: TrajectoryBufferState, steps: int) -> Callable[[], int]:
    return lambda: vault.write(held, (0, steps))


def _reads() -> list[tuple[str, float | None, Callable[[random.Random], dict[str, Any]]]]:
    def window(draw: random.Random) -> dict[str, Any]:
        start = draw.randrange(95)
        return {"percentiles": (start, start + 5)}

    return [
        ("random slice of 1,000", 15.0, window),
        ("last 32", None, lambda _: {"timesteps": 32}),
        (f"whole read of {LENGTH:,}", None, lambda _: {}),
    ]


def _reader(vault: Any, form: Callable[[random.Random], dict[str, Any]]) -> Callable[[], Any]:
    """Read and wait for all leaves; both sides draw the same windows."""
    draw = random.Random(1)

    def read() -> None:
        for leaf in vault.read(**form(draw)).experience.values():
            leaf.block_until_ready()

    return read


def _path(vault: Any) -> Path:
    return vault.path if isinstance(vault, Vault) else Path(vault._base_path)


@contextlib.contextmanager
def _working_directory() -> Any:
    """Work in a directory of its own: Flashbax's vaults lie below the working directory."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    print_table("Vault", vault_ratios(quick=False))
    print_table("Vault, appends", append_ratios())
    print("\n| steps a write | ours, bytes on disk per byte | Flashbax |\n|--:|--:|--:|")
    for steps, ours, theirs in disk_rows():
        print(f"| {steps} | {ours:.1f} | {theirs:.1f} |")
