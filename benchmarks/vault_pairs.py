"""Our vault and Flashbax's with the same timesteps, to be measured side by side."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fbxcore.buffers.trajectory_buffer import TrajectoryBufferState
from fbxcore.vault import Vault

PEER = "Flashbax Vault"
Leaves = Callable[[int], dict[str, Any]]
_PIECE = 10_000


def records(steps: int) -> dict[str, Any]:
    """MuJoCo's sizes: 97 B a step, noise that compresses hardly."""
    draw = np.random.default_rng(0)
    return {
        "obs": jnp.asarray(draw.standard_normal((1, steps, 17), np.float32)),
        "action": jnp.asarray(draw.standard_normal((1, steps, 6), np.float32)),
        "reward": jnp.asarray(draw.standard_normal((1, steps), np.float32)),
        "done": jnp.zeros((1, steps), bool),
    }


def frames(steps: int) -> dict[str, Any]:
    """Frames of 84 by 84, drawn in blocks of seven."""
    coarse = np.random.default_rng(0).integers(0, 256, (1, steps, 12, 12), np.uint8)
    return {"image": jnp.asarray(coarse.repeat(7, 2).repeat(7, 3))}


def step_bytes(leaves: Leaves) -> int:
    """Return the payload of one timestep."""
    return sum(leaf.nbytes for leaf in leaves(1).values())


def state(steps: int, leaves: Leaves = records) -> TrajectoryBufferState:
    """Return a buffer of so many timesteps, all of them new."""
    return TrajectoryBufferState(leaves(steps), jnp.int32(0), jnp.bool_(True))


def pair(name: str, leaves: Leaves = records, length: int = 0) -> tuple[Vault, Any]:
    """Return our vault and Flashbax's below the working directory, with the same timesteps."""
    held = state(max(1, min(length, _PIECE)), leaves)
    opened = Vault(name, held.experience, "ours", "1"), flashbax_vault(name, held.experience)
    for vault in opened:
        for start in range(0, length, _PIECE):
            vault.write(held, (0, min(_PIECE, length - start)))
    return opened


def copied(name: str, to: str, leaves: Leaves) -> tuple[Vault, Any]:
    """Return a pair of vaults that are copies of another pair, opened anew."""
    for root in ("ours", "theirs"):
        shutil.copytree(f"{root}/{name}", f"{root}/{to}")
    structure = leaves(1)
    return Vault(to, structure, "ours", "1"), flashbax_vault(to, structure)


def dropped(name: str) -> None:
    """Delete a pair."""
    for root in ("ours", "theirs"):
        shutil.rmtree(f"{root}/{name}")


def flashbax_vault(name: str, structure: Any) -> Any:
    """Return Flashbax's vault; what it prints is not shown."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        from flashbax.vault import Vault as FlashbaxVault  # a peer, not a dependency

        return FlashbaxVault(name, structure, rel_dir="theirs", vault_uid="1")


def path_of(vault: Any) -> Path:
    """Return a vault's directory."""
    return vault.path if isinstance(vault, Vault) else Path(vault._base_path)


@contextlib.contextmanager
def working_directory() -> Iterator[Path]:
    """Work in a directory of its own: Flashbax's vaults lie below the working directory."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            yield Path(directory)
        finally:
            os.chdir(before)
