"""The same DQN as `dqn.py`, with its actor in another process and its buffer in Flashdeck.

    make serve                                # in one terminal
    python docs/examples/dqn_over_http.py     # in another

The actor POSTs what it sees, the learner GETs sequences by priority and sets priorities. A rate limiter keeps
them in step: every timestep is sampled sixteen times on average, whichever of the two is the faster. What was
played is also kept, in the vault `balance-dqn/run`: http://127.0.0.1:8000/vaults shows it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cartpole_actor
import dqn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from networks import init_mlp

from fbxcore.client import Buffer, Client

BATCH_SIZE = 128
BETA = 0.4
STEPS_PER_ROUND = 500


def make_buffer(client: Client, name: str) -> Buffer:
    """Return the buffer of that name, empty."""
    buffer = client.create_buffer(
        name,
        "prioritised_trajectory",
        cartpole_actor.SPEC,
        add_batch_size=cartpole_actor.NUM_ENVS,
        sample_batch_size=BATCH_SIZE,
        sample_sequence_length=dqn.NUM_STEPS + 1,
        period=1,
        min_length_time_axis=256,
        max_length_time_axis=5_000,
        rate_limiter={"samples_per_insert": 16.0, "min_size": 2_048, "error_buffer": 16_384},
        persist_to=f"{name}/run",
    )
    buffer.reset(discard=True)  # of what an earlier run left
    return buffer


@jax.jit
def learn(weights: Any, target: Any, optimiser: Any, experience: Any, weight: jax.Array) -> tuple:
    """Return better weights, and the error of each sequence, `[N]`."""

    def loss(weights: Any) -> tuple[jax.Array, jax.Array]:
        error = dqn.errors(weights, target, experience)
        return jnp.mean(weight * optax.huber_loss(error)), error

    gradient, error = jax.grad(loss, has_aux=True)(weights)
    updates, optimiser = dqn.OPTIMISER.update(gradient, optimiser)
    weights = optax.apply_updates(weights, updates)
    return weights, optax.incremental_update(weights, target, 0.01), optimiser, error


def write_weights(path: Path, weights: list[dict]) -> None:
    """Replace the file from which the actor reads; it sees the old one or the new one, never a part."""
    arrays = {f"{name}{i}": np.asarray(layer[name]) for i, layer in enumerate(weights) for name in ("w", "b")}
    with path.with_suffix(".new").open("wb") as file:
        np.savez(file, **arrays)
    os.replace(file.name, path)


def improve(buffer: Buffer, path: Path, seed: int, num_rounds: int, steps_per_round: int) -> list[float]:
    """Learn from samples as they come, and return the mean return after each round."""
    weights = init_mlp(jax.random.key(seed), [4, 64, 64, 2])
    target, optimiser = weights, dqn.OPTIMISER.init(weights)
    returns = []
    with buffer.samples(beta=BETA, timeout_ms=30_000) as samples:  # the next one is fetched meanwhile
        for step in range(1, num_rounds * steps_per_round + 1):
            sample = next(samples)
            weights, target, optimiser, error = learn(
                weights, target, optimiser, sample.experience, sample.weights
            )
            buffer.set_priorities(sample, np.abs(error) + 0.001)
            if step % 10 == 0:
                write_weights(path, weights)
            if step % steps_per_round == 0:
                returns.append(float(dqn.evaluate(weights, jax.random.key(step))))
                print(f"{step:6} learning steps: mean return {returns[-1]:5.1f}")
    return returns


def train(url: str, seed: int, num_rounds: int = 10, steps_per_round: int = STEPS_PER_ROUND) -> list[float]:
    """Train an agent beside an actor of its own, and return its mean return after each round."""
    buffer = make_buffer(Client(url), "balance-dqn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.npz"
        command = [sys.executable, cartpole_actor.__file__, url, buffer.name, str(path), "--seed", str(seed)]
        actor = subprocess.Popen(command)
        try:
            return improve(buffer, path, seed, num_rounds, steps_per_round)
        finally:
            actor.terminate()
            actor.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train(given.url, given.seed)
