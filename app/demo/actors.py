"""The actors: each a process that plays an environment and POSTs what happens, step by step.

A timestep is what was seen, what was done, and what came of it. Environments restart in the same step
that ends an episode, so that every row of a batch is a step that was played; the first observation of
the next episode is the next timestep of its row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from multiprocessing import parent_process
from typing import Any

import gymnasium
import numpy as np

from app.demo.buffers import CARTPOLE, PONG, ROWS, create_buffer
from fbxcore.client import Client
from fbxcore.errors import FbxError, UnavailableError

STEPS_A_BATCH = {CARTPOLE: 16, PONG: 16}
STEPS_A_SECOND = {CARTPOLE: 320, PONG: 96}  # on each row; what a laptop serves besides everything else
_EXPLORE = 0.5


def act(name: str, url: str, token: str | None, seed: int, stop: Any, count: Any, failure: Any) -> None:
    """Play until told to stop; run in a process of its own.

    Args:
        name: which buffer, and so which environment.
        stop: an event.
        count: a shared number of timesteps stored.
        failure: a queue for the sentence of the error that ended it.
    """
    try:
        with Client(url, token) as client:
            _store(client, name, _PLAYERS[name](seed), stop, count)
    except FbxError as error:
        failure.put(f"{name}: {error}")


def _store(
    client: Client, name: str, batches: Iterator[dict[str, np.ndarray]], stop: Any, count: Any
) -> None:
    buffer = create_buffer(client, name)
    period = STEPS_A_BATCH[name] / STEPS_A_SECOND[name]
    due = time.monotonic()
    for batch in batches:
        if stop.is_set() or not _has_parent():
            return
        rows, steps = batch["reward"].shape
        _add(buffer.add, batch, stop)
        count.value += rows * steps
        due = max(due + period, time.monotonic() - period)
        stop.wait(max(0.0, due - time.monotonic()))


def _add(add: Callable, batch: dict[str, np.ndarray], stop: Any) -> None:
    """Add a batch, waiting for as long as the server asks to."""
    while True:
        try:
            add(batch, timeout_ms=1_000)
            return
        except UnavailableError as error:
            if error.status is None or stop.wait(error.details.get("retry_after_s", 0.5)):
                raise


def _has_parent() -> bool:
    parent = parent_process()
    return parent is None or parent.is_alive()


def play_cartpole(seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches `[8, 16, ...]` of a policy that leans with the pole and explores a little."""
    envs = gymnasium.make_vec(
        "CartPole-v1",
        num_envs=ROWS,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )
    rng = np.random.default_rng(seed)
    obs, _ = envs.reset(seed=seed)
    steps: list[dict[str, np.ndarray]] = []
    while True:
        leans = (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(np.int32)
        action = np.where(rng.random(ROWS) < _EXPLORE, rng.integers(0, 2, ROWS, np.int32), leans)
        seen = obs.astype(np.float32)
        obs, reward, terminated, truncated, _ = envs.step(action)
        steps.append(_timestep(reward, terminated, truncated, obs=seen, action=action))
        if len(steps) == STEPS_A_BATCH[CARTPOLE]:
            yield {name: np.stack([step[name] for step in steps], axis=1) for name in steps[0]}
            steps.clear()


def play_pong(seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches `[1, 16, ...]` of Pong frames under random play."""
    env = _make_pong()
    rng = np.random.default_rng(seed)
    frame, _ = env.reset(seed=seed)
    steps: list[dict[str, np.ndarray]] = []
    while True:
        seen, action = frame, int(rng.integers(env.action_space.n))
        frame, reward, terminated, truncated, _ = env.step(action)
        steps.append(_timestep(reward, terminated, truncated, frame=seen, action=np.int32(action)))
        if terminated or truncated:
            frame, _ = env.reset()
        if len(steps) == STEPS_A_BATCH[PONG]:
            yield {name: np.stack([step[name] for step in steps])[None] for name in steps[0]}
            steps.clear()


def _timestep(reward: Any, terminated: Any, truncated: Any, **seen: np.ndarray) -> dict[str, np.ndarray]:
    ends = {"terminated": np.asarray(terminated, bool), "truncated": np.asarray(truncated, bool)}
    return {**seen, "reward": np.asarray(reward, np.float32), **ends}


def _make_pong() -> gymnasium.Env:
    import ale_py  # brings the games with it

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    return gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1))


_PLAYERS = {CARTPOLE: play_cartpole, PONG: play_pong}
