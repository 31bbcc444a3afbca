"""Drawing items by seed: one batch, or several ahead while the ring does not change.

Calling a compiled function costs more than drawing 256 items in it. A learner that samples several times
between two adds therefore pays once: its seeds are chosen and drawn together. A change throws away what
was drawn ahead, and nothing is drawn ahead before two draws in a row found the ring unchanged.
"""

from __future__ import annotations

import functools
import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbxcore.buffers.core import Core, CoreState
from fbxcore.buffers.layout import bucket_of

AHEAD = 8
MAX_AHEAD_ITEMS = 1024

Drawn = tuple[int, list[np.ndarray]]
"""A seed, and the indices and (for prioritised kinds) probabilities it draws, padded to the bucket."""


class Draws:
    """Draws from the newest state it was told of; used by whoever holds the ring."""

    def __init__(self, core: Core):
        self._core = core
        self._ahead: list[Drawn] = []
        self._ahead_of = 0  # the batch size that was drawn ahead
        self._is_calm = False
        self._compiled: set[tuple[int, int]] = set()

    def changed(self, state: CoreState) -> None:
        """Draw from this state from now on."""
        self._state = state.replace(experience={})  # what a draw needs; each array passed costs time
        self._ahead.clear()
        self._is_calm = False

    def is_compiled(self, num_items: int) -> bool:
        """Whether a draw of that many compiles nothing."""
        return all((bucket_of(num_items), ahead) in self._compiled for ahead in {1, _ahead(num_items)})

    def compile(self, num_items: int) -> None:
        """Compile what draws of that many need."""
        for ahead in {1, _ahead(num_items)}:
            self._draw(num_items, [0] * ahead)

    def by_seed(self, num_items: int, seed: int) -> list[np.ndarray]:
        """Return what a seed draws."""
        return self._draw(num_items, [seed])[0][1]

    def next(self, num_items: int) -> Drawn:
        """Return a seed that was not used, and what it draws."""
        if not self._ahead or self._ahead_of != num_items:
            seeds = [secrets.randbits(63) for _ in range(_ahead(num_items) if self._is_calm else 1)]
            self._ahead, self._ahead_of = self._draw(num_items, seeds), num_items
        self._is_calm = True
        return self._ahead.pop()

    def _draw(self, num_items: int, seeds: list[int]) -> list[Drawn]:
        bucket = bucket_of(num_items)
        asked = np.array([(seed >> 32, seed & 0xFFFFFFFF, num_items) for seed in seeds], np.uint32)
        drawn = [np.asarray(array) for array in _draw(self._core, bucket, self._state, asked)]
        self._compiled.add((bucket, len(seeds)))
        return [(seed, [array[i] for array in drawn]) for i, seed in enumerate(seeds)]


def _ahead(num_items: int) -> int:
    return AHEAD if num_items <= MAX_AHEAD_ITEMS else 1


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draw(core: Core, bucket: int, state: CoreState, asked: Any) -> tuple[Any, ...]:
    """Draw once for each row of `asked`, uint32: two words of the key, and how many of the bucket count."""

    def draw(one: Any) -> tuple[Any, ...]:
        drawn = core.sample_indices(state, one[:2], one[2].astype(jnp.int32), bucket)
        return drawn if core.layout.is_weighted else drawn[:1]

    if asked.shape[0] == 1:
        return tuple(array[None] for array in draw(asked[0]))
    return lax.map(draw, asked)
