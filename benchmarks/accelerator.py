"""Engine against Flashbax on the device that JAX has: `python -m benchmarks.accelerator`, under four minutes.

The cases are those of `benchmarks.engine` without the batches that only matter to a CPU, and buffers are
made for the device. Every call is waited for, so that what is measured is how long one takes, not how many
can be under way.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from time import perf_counter

import jax

from benchmarks.engine import CASES, Case, engine_ratios
from benchmarks.report import Ratio, print_table


def accelerator_ratios(cases: Sequence[Case] = tuple(CASES), seconds: float = 60.0) -> list[Ratio]:
    """Measure the adds, the first draw and the updates of each case."""
    once = [dataclasses.replace(case, samples={case.batch: 1.0}) for case in cases]
    return engine_ratios(seconds=seconds, cases=once)


if __name__ == "__main__":
    begin, device = perf_counter(), jax.devices()[0]
    if device.platform == "cpu":
        print("JAX has no accelerator here: these are figures of a CPU.", file=sys.stderr)
    print_table(
        f"Engine on {device.device_kind} ({device.platform}), JAX {jax.__version__}", accelerator_ratios()
    )
    print(f"\n{perf_counter() - begin:.0f} s in all.")
