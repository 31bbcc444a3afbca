"""An actor for `dqn_over_http.py`: plays Gymnasium's CartPole and adds what it sees to a buffer, for ever.

It needs NumPy, Gymnasium and the client, but no JAX, and may run on another machine than the learner.
Weights come from a file that the learner replaces; until there is one, the actor plays at random.
"""

import argparse
from pathlib import Path

import gymnasium
import numpy as np

from fbxcore.client import Buffer, Client
from fbxcore.client.errors import UnavailableError

NUM_ENVS = 8
STEPS_PER_BATCH = 16
RANDOM_STEPS = 1_500  # until epsilon has come down to its least
SPEC = {
    "obs": {"shape": [4], "dtype": "float32"},
    "action": {"shape": [], "dtype": "int32"},
    "reward": {"shape": [], "dtype": "float32", "role": "reward"},
    "terminated": {"shape": [], "dtype": "bool", "role": "terminated"},
    "truncated": {"shape": [], "dtype": "bool", "role": "truncated"},
}


def make_envs() -> gymnasium.vector.VectorEnv:
    """Return environments that begin an episode in the step that ends one, so that every step is real."""
    same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    return gymnasium.make_vec("CartPole-v1", NUM_ENVS, vectorization_mode="sync", vector_kwargs=same_step)


def read_weights(path: Path) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Return weight and bias of each layer, or None where nothing is written yet."""
    if not path.exists():
        return None
    with np.load(path) as arrays:
        return [(arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(len(arrays.files) // 2)]


def best_action(weights: list[tuple[np.ndarray, np.ndarray]], obs: np.ndarray) -> np.ndarray:
    """Return the action of greatest value for each observation, `[N]`."""
    for w, b in weights[:-1]:
        obs = np.maximum(obs @ w + b, 0)
    w, b = weights[-1]
    return np.argmax(obs @ w + b, axis=-1)


def play(buffer: Buffer, path: Path, seed: int) -> None:
    """Play, and add a batch `[B, T, ...]` every few steps."""
    rng = np.random.default_rng(seed)
    envs = make_envs()
    obs, _ = envs.reset(seed=seed)
    num_steps = 0
    while True:
        weights = read_weights(path)
        timesteps = []
        for _ in range(STEPS_PER_BATCH):
            action = rng.integers(0, 2, NUM_ENVS, np.int32)
            epsilon = max(0.05, 1 - num_steps / RANDOM_STEPS)
            if weights is not None:
                is_greedy = rng.random(NUM_ENVS) >= epsilon
                action = np.where(is_greedy, best_action(weights, obs), action).astype(np.int32)
            following, reward, terminated, truncated, _ = envs.step(action)
            reward = reward.astype(np.float32)  # Gymnasium's rewards are float64
            timesteps.append((obs, action, reward, terminated, truncated))
            obs = following
            num_steps += 1
        leaves = (np.stack(leaf, axis=1) for leaf in zip(*timesteps, strict=True))
        add(buffer, dict(zip(SPEC, leaves, strict=True)))


def add(buffer: Buffer, batch: dict[str, np.ndarray]) -> None:
    """Add a batch as soon as the limiter lets it in: the learner sets the pace."""
    while True:
        try:
            buffer.add(batch, timeout_ms=10_000)
            return
        except UnavailableError:
            continue


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="where Flashdeck is")
    parser.add_argument("buffer", help="the name of a buffer")
    parser.add_argument("weights", type=Path, help="a file that the learner writes")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    play(Client(given.url).buffer(given.buffer), given.weights, given.seed)
