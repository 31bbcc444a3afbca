"""Engine, in process, against buffers that are not JAX: a ring in NumPy, Stable-Baselines3, cpprb, TorchRL.

They give NumPy arrays or tensors and take them as they come, without a device or a compiled program in
between; ours gives JAX arrays. What is not installed is left out and named: `pip install
stable-baselines3 cpprb torchrl`. Frames are also compared with one copy of the bytes that a sample has.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator

import numpy as np

import fbxcore
from benchmarks.engine import ATARI, FRAMES, MUJOCO, Case, Subject, measured
from benchmarks.report import Ratio, print_table

ADDED, BATCH = 128, 256
CASES = {
    "MuJoCo": Case("MuJoCo", MUJOCO, "item", 100_000, {ADDED: 1.0}, {BATCH: 1.0}),
    "32×32×3": Case("32×32×3", FRAMES, "item", 50_000, {ADDED: 1.0}, {BATCH: 1.0}),
}
SEQUENCES = Case("84×84", ATARI, "trajectory", 24_000, {}, {32: 1.0}, rows=8, length=80)
Calls = tuple[Callable[[], object] | None, Callable[[], object]]


def batch_of(case: Case, steps: int) -> dict[str, np.ndarray]:
    """Return so many timesteps of ones."""
    return {name: np.ones((steps, *shape), np.dtype(dtype)) for name, (shape, dtype) in case.record.items()}


def ring(case: Case) -> Calls:
    """A ring in NumPy, as one writes it by hand."""
    held, batch = batch_of(case, case.capacity), batch_of(case, ADDED)
    rng, place = np.random.default_rng(0), [0]

    def add() -> None:
        slots = (place[0] + np.arange(ADDED)) % case.capacity
        for name, leaf in batch.items():
            held[name][slots] = leaf
        place[0] = (place[0] + ADDED) % case.capacity

    def sample() -> dict[str, np.ndarray]:
        chosen = rng.integers(0, case.capacity, BATCH)
        return {name: np.take(leaf, chosen, axis=0) for name, leaf in held.items()}

    return add, sample


def stable_baselines3(case: Case) -> Calls:
    """`ReplayBuffer`, which adds one transition a call and samples pairs as tensors."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    (shape, dtype), action = case.record["obs"], case.record["action"][0] or (1,)
    observations, actions = spaces.Box(0, 255, shape, np.dtype(dtype).type), spaces.Box(-1, 1, action)
    buffer = ReplayBuffer(case.capacity, observations, actions, device="cpu")
    for name in ("observations", "actions", "rewards", "dones", "next_observations"):
        getattr(buffer, name)[:] = 1
    buffer.full = True
    return None, lambda: buffer.sample(BATCH)


def cpprb(case: Case) -> Calls:
    """`ReplayBuffer`, in C++."""
    from cpprb import ReplayBuffer

    fields = {name: {"shape": shape or 1, "dtype": np.dtype(d)} for name, (shape, d) in case.record.items()}
    buffer = ReplayBuffer(case.capacity, fields)
    batch = batch_of(case, ADDED)
    for _ in range(-(-case.capacity // ADDED)):
        buffer.add(**batch)
    return lambda: buffer.add(**batch), lambda: buffer.sample(BATCH)


def torchrl(case: Case) -> Calls:
    """`TensorDictReplayBuffer` on a `LazyTensorStorage`, on one thread: batches so small are fastest so."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    torch.set_num_threads(1)

    def tensors(steps: int) -> TensorDict:
        return TensorDict({k: torch.from_numpy(x) for k, x in batch_of(case, steps).items()}, [steps])

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(case.capacity), batch_size=BATCH)
    for _ in range(-(-case.capacity // 10_000)):
        buffer.extend(tensors(10_000))
    batch = tensors(ADDED)
    return lambda: buffer.extend(batch), buffer.sample


PEERS = {
    "NumPy ring": (ring, ()),
    "Stable-Baselines3": (stable_baselines3, ("gymnasium", "stable_baselines3.common.buffers")),
    "cpprb": (cpprb, ("cpprb",)),
    "TorchRL": (torchrl, ("torchrl.data", "tensordict")),
}


def missing() -> dict[str, str]:
    """Return the peers that cannot be imported here, and why."""
    reasons = {}
    for peer, (_, modules) in PEERS.items():
        try:
            for module in modules:
                importlib.import_module(module)
        except ImportError as error:
            reasons[peer] = str(error).splitlines()[0]
    return reasons


def peer_ratios(quick: bool = True, seconds: float = 30.0) -> list[Ratio]:
    """Measure adds and samples beside every peer that is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        absent = missing()
        budget = seconds / 16 if quick else 10.0
        rows = [row for case in CASES.values() for row in _rows_of(case, absent, budget)]
        return [*rows, _beside_memory(budget)]


def _rows_of(case: Case, absent: dict[str, str], budget: float) -> Iterator[Ratio]:
    subject = Subject(fbxcore, case)
    ours = subject.adder(ADDED), subject.sampler(BATCH)
    for peer, (make, _) in PEERS.items():
        if peer in absent:
            continue
        works = (f"{case.name}: add {ADDED}", f"{case.name}: sample {BATCH}")
        for work, mine, theirs in zip(works, ours, make(case), strict=True):
            if theirs is not None:
                yield measured(work, peer, mine, theirs, None, budget)


def _beside_memory(budget: float) -> Ratio:
    """Compare a sample of frames with copying as many bytes, sequence by sequence, by one thread."""
    subject, length = Subject(fbxcore, SEQUENCES), SEQUENCES.length
    held = np.asarray(subject.state.experience["obs"])
    out = np.empty((SEQUENCES.batch, length, 84, 84), np.uint8)
    rng = np.random.default_rng(0)

    def copy() -> None:
        rows, starts = rng.integers(0, 8, len(out)), rng.integers(0, held.shape[1] - length, len(out))
        for item, (row, start) in enumerate(zip(rows, starts, strict=True)):
            np.copyto(out[item], held[row, start : start + length])

    work = f"84×84: sample {SEQUENCES.batch} × {length}"
    return measured(work, "one copy of the frames", subject.sampler(SEQUENCES.batch), copy, 0.8, budget)


if __name__ == "__main__":
    print_table("Engine beside others", peer_ratios(quick="--quick" in sys.argv))
    for peer, reason in missing().items():
        print(f"\n{peer} is left out: {reason}")
