"""The words of the library as types, and the letters used for shapes.

Letters: B rows, T time axis, N sampled batch, L sequence length, K timesteps given in one call,
I items, `...` the timestep's own axes. Stored experience is `[B, T, ...]`, a sample `[N, L, ...]`,
a sampled transition `[N, ...]`, priorities `[I]`, a scalar `[]`.

Inside the engine, experience is any pytree of arrays. On disk and on the wire it is `Leaves`: a flat
mapping from names joined with `/` (`obs/image`) to NumPy arrays. A `Spec` is the flat mapping from
the same names to shapes and dtypes of one timestep, sorted by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
"""A NumPy or JAX array."""

Experience = Any
"""A pytree of stored or sampled arrays, with leading axes."""

PRNGKey = Any
"""A JAX random key, `uint32[2]` or a typed key."""

Leaves = Mapping[str, np.ndarray]
"""Experience outside the engine: names joined with `/` to arrays."""


@dataclass(frozen=True)
class LeafSpec:
    """Shape and dtype of one leaf of a timestep, without leading axes."""

    shape: tuple[int, ...]
    dtype: str  # NumPy's name, e.g. "float32"; "bfloat16" and the float8 kinds of ml_dtypes too
    role: str | None = None  # "reward", "terminated", "truncated", "discount", "first", …
    unit: str | None = None
    names: tuple[str, ...] | None = None  # of the entries along the last axis


Spec = Mapping[str, LeafSpec]
"""Shapes and dtypes of one timestep, by leaf name, sorted."""
