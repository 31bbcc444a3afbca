"""What a live buffer answers; plain values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Added:
    """The answer to an add."""

    added: int  # timesteps over all rows
    size: int
    position: int  # timesteps per row since the last reset
    sequence: int | None  # of the log; None for a writer's old repeat
    duplicate: bool
    durable: bool


@dataclass(frozen=True)
class Sample:
    """Arrays named as on the wire, and how to draw them again."""

    arrays: dict[str, np.ndarray]
    seed: int
    position: int


@dataclass(frozen=True)
class Taken:
    """Arrays named as on the wire, handed out once."""

    arrays: dict[str, np.ndarray]
    position: int  # of their first timestep, per row since the last reset
    sequence: int  # of the log
    duplicate: bool  # the key was given the same before


@dataclass(frozen=True)
class Updated:
    """The answer to new priorities."""

    updated: int
    stale: int
