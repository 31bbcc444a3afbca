"""Engine, in process: add, sample and set priorities against real Flashbax on the same records.

Both libraries are jitted the same way, with the state donated to `add` and `set_priorities`, and every
call is waited for. Buffers are full before the clock starts, so that every page has been touched; keys
are split beforehand. A pair of calls is timed in turns (`report.interleaved`), ours first every other
time. `seconds` is the whole table's budget, shared among its lines.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

import fbxcore
from benchmarks.report import Ratio, interleaved, print_table

PEER = "Flashbax"
FLOAT, BYTE = jnp.float32, jnp.uint8
MUJOCO = {
    "obs": ((17,), FLOAT),
    "action": ((6,), FLOAT),
    "reward": ((), FLOAT),
    "done": ((), jnp.bool_),
    "next_obs": ((17,), FLOAT),
}
FRAMES = {
    "obs": ((32, 32, 3), BYTE),
    "action": ((), jnp.int32),
    "reward": ((), FLOAT),
    "done": ((), jnp.bool_),
}
VECTORS = {"obs": ((17,), FLOAT), "reward": ((), FLOAT)}
ATARI = {"obs": ((84, 84), BYTE), "action": ((), jnp.int32), "reward": ((), FLOAT), "done": ((), jnp.bool_)}


@dataclass(frozen=True)
class Case:
    """One buffer, and the ratios wanted of its calls."""

    name: str
    record: dict[str, tuple[tuple[int, ...], Any]]
    kind: str  # of the factory: trajectory, flat, item, prioritised_…
    capacity: int  # timesteps over all rows
    adds: dict[int, float]  # timesteps added to each row, and the ratio wanted
    sample: float | None = None
    update: float | None = None
    rows: int = 1
    batch: int = 256
    length: int = 1

    def make(self, library: Any) -> Any:
        """Return the library's buffer."""
        factory = getattr(library, f"make_{self.kind}_buffer")
        if "trajectory" in self.kind:
            return factory(
                add_batch_size=self.rows,
                sample_batch_size=self.batch,
                sample_sequence_length=self.length,
                period=1,
                min_length_time_axis=self.length,
                max_length_time_axis=self.capacity // self.rows,
            )
        axis = {"add_batches": True} if "item" in self.kind else {"add_batch_size": self.rows}
        sizes = {"max_length": self.capacity, "min_length": 2, "sample_batch_size": self.batch}
        return factory(**sizes, add_sequences=True, **axis)


CASES = [
    Case("MuJoCo", MUJOCO, "item", 100_000, {1: 1.0, 128: 1.3}, sample=1.2),
    Case("MuJoCo pairs", MUJOCO, "flat", 100_000, {1: 1.0}, sample=1.0),
    Case("32×32×3", FRAMES, "item", 50_000, {1: 1.0, 128: 2.5}, sample=1.0),
    Case("vectors", VECTORS, "trajectory", 80_000, {8: 1.0}, sample=1.8, rows=16, batch=64, length=64),
    Case("84×84", ATARI, "trajectory", 8_000, {8: 5.0}, sample=1.0, rows=8, batch=32, length=20),
    Case("MuJoCo", MUJOCO, "prioritised_item", 100_000, {1: 1.0, 128: 1.0}, sample=1.0, update=1.0),
    Case("MuJoCo pairs", MUJOCO, "prioritised_flat", 100_000, {1: 1.0}, sample=1.0, update=1.0),
    Case("one float", {"x": ((), FLOAT)}, "prioritised_item", 10**6, {128: 1.0}, sample=1.0, update=1.0),
    Case(
        "vectors",
        VECTORS,
        "prioritised_trajectory",
        80_000,
        {8: 1.0},
        sample=1.0,
        rows=16,
        batch=64,
        length=64,
    ),
]


class Subject:
    """One library's buffer of a case, filled, and its calls."""

    def __init__(self, library: Any, case: Case):
        self.case = case
        self.buffer = case.make(library)
        self.add = jax.jit(self.buffer.add, donate_argnums=0)
        self.draw = jax.jit(self.buffer.sample)
        self.keys = itertools.cycle(jax.random.split(jax.random.key(0), 64))
        self.state = self.buffer.init({n: jnp.zeros(*leaf) for n, leaf in case.record.items()})
        per_row = case.capacity // case.rows
        piece = max(k for k in range(1, 2001) if per_row % k == 0)
        filler = self._batch(piece)
        for _ in range(per_row // piece):
            self.state = self.add(self.state, filler)
        jax.block_until_ready(self.state)

    def _batch(self, steps: int) -> dict[str, jax.Array]:
        shape = (self.case.rows, steps)
        return {n: jnp.ones((*shape, *leaf), dtype) for n, (leaf, dtype) in self.case.record.items()}

    def adder(self, steps: int) -> Callable[[], None]:
        """Return a call that adds so many timesteps to each row."""
        batch = self._batch(steps)

        def call() -> None:
            self.state = jax.block_until_ready(self.add(self.state, batch))

        return call

    def sampler(self) -> Callable[[], None]:
        """Return a call that draws one batch."""
        return lambda: jax.block_until_ready(self.draw(self.state, next(self.keys)))

    def updater(self) -> Callable[[], None]:
        """Return a call that sets the priorities of one of eight drawn batches."""
        update = jax.jit(self.buffer.set_priorities, donate_argnums=0)
        drawn = itertools.cycle([self.draw(self.state, next(self.keys)).indices for _ in range(8)])
        priorities = 0.5 + jax.random.uniform(jax.random.key(1), (self.case.batch,))

        def call() -> None:
            self.state = jax.block_until_ready(update(self.state, next(drawn), priorities))

        return call


def engine_ratios(quick: bool = True, seconds: float = 60.0) -> list[Ratio]:
    """Measure every case in turns with Flashbax; the ratio is its time over ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flashbax

        lines = sum(len(case.adds) + bool(case.sample) + bool(case.update) for case in CASES)
        budget = seconds / lines if quick else 5.0
        return [row for case in CASES for row in _rows_of(case, flashbax, budget)]


def _rows_of(case: Case, flashbax: Any, budget: float) -> Iterator[Ratio]:
    ours, theirs = Subject(fbxcore, case), Subject(flashbax, case)
    kind = f"{case.name}, {case.kind}"
    rows = f"{case.rows} rows × " if case.rows > 1 else ""
    for steps, target in case.adds.items():
        calls = ours.adder(steps), theirs.adder(steps)
        yield _measured(f"{kind}: add {rows}{steps}", *calls, target, budget)
    if case.sample is not None:
        length = f" × {case.length}" if case.length > 1 else ""
        calls = ours.sampler(), theirs.sampler()
        yield _measured(f"{kind}: sample {case.batch}{length}", *calls, case.sample, budget)
    if case.update is not None:
        calls = ours.updater(), theirs.updater()
        yield _measured(f"{kind}: set {case.batch} priorities", *calls, case.update, budget)


def _measured(
    work: str, ours: Callable[[], None], theirs: Callable[[], None], target: float, budget: float
) -> Ratio:
    repeats = 15
    ours()
    theirs()
    start = perf_counter()
    for _ in range(5):
        ours()
        theirs()
    pair = (perf_counter() - start) / 5
    calls = max(3, min(300, int(budget / repeats / pair)))
    return interleaved(work, PEER, ours, theirs, calls=calls, repeats=repeats, target=target)


if __name__ == "__main__":
    print_table("Engine, in process", engine_ratios())
