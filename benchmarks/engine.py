"""Engine, in process: add, sample and set priorities against real Flashbax on the same records.

`python -m benchmarks.engine --quick` takes about two minutes, without `--quick` about ten.

Both libraries are jitted the same way, with the state donated to `add` and `set_priorities`, and every
call is waited for. Buffers are full before the clock starts, so that every page has been touched; keys
are split beforehand. A pair of calls is timed in turns (`report.interleaved`), ours first every other
time. `seconds` is the whole table's budget, shared among its lines.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
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
STEPS = {"obs": ((17,), FLOAT), "action": ((6,), FLOAT), "reward": ((), FLOAT), "done": ((), jnp.bool_)}
ATARI = {"obs": ((84, 84), BYTE), "action": ((), jnp.int32), "reward": ((), FLOAT), "done": ((), jnp.bool_)}


@dataclass(frozen=True)
class Case:
    """One buffer, and the ratios wanted of its calls."""

    name: str
    record: dict[str, tuple[tuple[int, ...], Any]]
    kind: str  # of the factory: trajectory, flat, item, prioritised_…
    capacity: int  # timesteps over all rows
    adds: dict[int, float]  # timesteps added to each row, and the ratio wanted
    samples: dict[int, float]  # items in a draw, and the ratio wanted
    update: float | None = None  # the ratio wanted of setting the priorities of one draw
    rows: int = 1
    length: int = 1

    @property
    def batch(self) -> int:
        """Items in the first of the draws."""
        return next(iter(self.samples))

    def make(self, library: Any, batch: int) -> Any:
        """Return the library's buffer; its state does not depend on the batch that it samples."""
        factory = getattr(library, f"make_{self.kind}_buffer")
        if "prioritised" in self.kind:
            factory = functools.partial(factory, device=jax.default_backend())
        if "trajectory" in self.kind:
            return factory(
                add_batch_size=self.rows,
                sample_batch_size=batch,
                sample_sequence_length=self.length,
                period=1,
                min_length_time_axis=self.length,
                max_length_time_axis=self.capacity // self.rows,
            )
        axis = {"add_batches": True} if "item" in self.kind else {"add_batch_size": self.rows}
        sizes = {"max_length": self.capacity, "min_length": 2, "sample_batch_size": batch}
        return factory(**sizes, add_sequences=True, **axis)


ONE = {"x": ((), FLOAT)}
CASES = [
    Case("MuJoCo", MUJOCO, "item", 100_000, {1: 1.0, 128: 1.3}, {256: 1.2, 32: 1.0, 1024: 1.0, 4096: 1.0}),
    Case("MuJoCo pairs", MUJOCO, "flat", 100_000, {1: 1.0}, {256: 1.0}),
    Case("32×32×3", FRAMES, "item", 50_000, {1: 1.0, 128: 2.5}, {256: 1.0, 32: 1.0, 1024: 1.0}),
    Case("MuJoCo steps", STEPS, "trajectory", 500_000, {128: 1.3}, {64: 1.8}, length=64),
    Case("16 rows of steps", STEPS, "trajectory", 80_000, {8: 1.0}, {64: 1.8}, rows=16, length=64),
    Case("84×84", ATARI, "trajectory", 8_000, {8: 5.0}, {32: 1.0}, rows=8, length=20),
    Case("84×84", ATARI, "trajectory", 24_000, {1: 1.0}, {32: 1.3}, rows=8, length=80),
    Case("MuJoCo", MUJOCO, "prioritised_item", 100_000, {1: 1.0, 128: 1.0}, {256: 1.0, 2048: 1.0}, 1.0),
    Case("MuJoCo pairs", MUJOCO, "prioritised_flat", 100_000, {1: 1.0}, {256: 1.0}, 1.0),
    Case("one float", ONE, "prioritised_item", 10**6, {128: 1.0}, {256: 1.0}, 1.0),
    Case(
        "16 rows of steps", STEPS, "prioritised_trajectory", 80_000, {8: 1.0}, {64: 1.0}, rows=16, length=64
    ),
]


class Subject:
    """One library's buffer of a case, filled, and its calls."""

    def __init__(self, library: Any, case: Case):
        self.case = case
        self.buffer = case.make(library, case.batch)
        self.add = jax.jit(self.buffer.add, donate_argnums=0)
        self.draw = jax.jit(self.buffer.sample)
        self.library = library
        self.keys = itertools.cycle(jax.random.split(jax.random.key(0), 64))
        self.state = self.buffer.init({n: jnp.zeros(*leaf) for n, leaf in case.record.items()})
        per_row = case.capacity // case.rows
        most = max(2**24 // (bytes_of(case.record) * case.rows), 1)
        piece = max(k for k in range(1, min(most, 20_000) + 1) if per_row % k == 0)
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

    def sampler(self, batch: int) -> Callable[[], None]:
        """Return a call that draws one batch."""
        draw = jax.jit(self.case.make(self.library, batch).sample)
        return lambda: jax.block_until_ready(draw(self.state, next(self.keys)))

    def updater(self) -> Callable[[], None]:
        """Return a call that sets the priorities of one of eight drawn batches."""
        update = jax.jit(self.buffer.set_priorities, donate_argnums=0)
        drawn = itertools.cycle([self.draw(self.state, next(self.keys)).indices for _ in range(8)])
        priorities = 0.5 + jax.random.uniform(jax.random.key(1), (self.case.batch,))

        def call() -> None:
            self.state = jax.block_until_ready(update(self.state, next(drawn), priorities))

        return call


def bytes_of(record: dict[str, tuple[tuple[int, ...], Any]]) -> int:
    """Return the bytes of one timestep."""
    return sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in record.values())


def engine_ratios(
    quick: bool = True, seconds: float = 90.0, cases: Sequence[Case] = tuple(CASES)
) -> list[Ratio]:
    """Measure every case in turns with Flashbax; the ratio is its time over ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flashbax

        lines = sum(len(case.adds) + len(case.samples) + bool(case.update) for case in cases)
        budget = seconds / lines if quick else 10.0
        return [row for case in cases for row in _rows_of(case, flashbax, budget)]


def _rows_of(case: Case, flashbax: Any, budget: float) -> Iterator[Ratio]:
    ours, theirs = Subject(fbxcore, case), Subject(flashbax, case)
    kind = f"{case.name}, {case.kind}"
    rows = f"{case.rows} rows × " if case.rows > 1 else ""
    for steps, target in case.adds.items():
        calls = ours.adder(steps), theirs.adder(steps)
        yield measured(f"{kind}: add {rows}{steps}", PEER, *calls, target, budget)
    for batch, target in case.samples.items():
        length = f" × {case.length}" if case.length > 1 else ""
        calls = ours.sampler(batch), theirs.sampler(batch)
        yield measured(f"{kind}: sample {batch}{length}", PEER, *calls, target, budget)
    if case.update is not None:
        calls = ours.updater(), theirs.updater()
        work = f"{kind}: set {case.batch} priorities"
        yield measured(work, PEER, *calls, case.update, budget)


def measured(
    work: str,
    peer: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    target: float | None,
    budget: float,
) -> Ratio:
    """Time two calls in turns for about so many seconds."""
    repeats = 15
    ours()
    theirs()
    start = perf_counter()
    for _ in range(5):
        ours()
        theirs()
    pair = (perf_counter() - start) / 5
    calls = max(3, min(300, int(budget / repeats / pair)))
    return interleaved(work, peer, ours, theirs, calls=calls, repeats=repeats, target=target)


if __name__ == "__main__":
    print_table("Engine, in process", engine_ratios(quick="--quick" in sys.argv))
