"""A recurrent Q-learner that remembers a signal until it matters, beside the same agent without memory.

    python docs/examples/recurrent.py

After R2D2 (Kapturowski et al., 2019, https://openreview.net/forum?id=r1lyTjAqYX): sequences are replayed by
priority, a timestep is stored with the memory that the agent had before it, and the first timesteps of a
sequence only *burn in* that memory, which was made by older weights than those that learn from it.

The task, a T-maze, is in `tmaze.py`. Without memory nobody can do better in it than chance: a mean return
of 0. Its episodes are shorter than a sequence, so sequences run on through several of them, and the memory
is emptied at the end of each.
"""

import argparse
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from networks import gru, init_gru, init_mlp, mlp
from tmaze import Maze, enter, move, see

import fbxcore as fbx

NUM_MAZES = 16
NUM_UNITS = 32  # of memory
BURN_IN, UNROLL = 4, 8  # timesteps of a sequence that make memory, and that are learned from
DISCOUNT = 0.97
BETA = 0.6
OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
EPSILON = optax.linear_schedule(1.0, 0.05, 1_000)
BUFFER = fbx.make_prioritised_trajectory_buffer(
    add_batch_size=NUM_MAZES,
    sample_batch_size=64,
    sample_sequence_length=BURN_IN + UNROLL + 1,  # one more, for the value of what follows
    period=4,
    min_length_time_axis=40,
    max_length_time_axis=2_000,
)


class Training(NamedTuple):
    """All that changes while an agent learns."""

    weights: Any
    target: Any  # follows the weights slowly
    optimiser: Any
    buffer: Any
    mazes: Maze  # NUM_MAZES of them
    memory: jax.Array  # [NUM_MAZES, NUM_UNITS]
    steps: jax.Array  # []


def start(key: jax.Array) -> Training:
    """Return an untrained agent with an empty buffer."""
    key_gru, key_mlp, key_mazes = jax.random.split(key, 3)
    weights = {"gru": init_gru(key_gru, 3, NUM_UNITS), "mlp": init_mlp(key_mlp, [NUM_UNITS, 2])}
    timestep = {
        "seen": jnp.zeros(3),
        "memory": jnp.zeros(NUM_UNITS),
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "is_last": jnp.bool_(False),
    }
    return Training(
        weights=weights,
        target=jax.tree.map(jnp.copy, weights),
        optimiser=OPTIMISER.init(weights),
        buffer=BUFFER.init(timestep),
        mazes=jax.vmap(enter)(jax.random.split(key_mazes, NUM_MAZES)),
        memory=jnp.zeros((NUM_MAZES, NUM_UNITS)),
        steps=jnp.int32(0),
    )


def think(weights: Any, memory: jax.Array, seen: jax.Array, has_memory: bool) -> tuple[jax.Array, jax.Array]:
    """Return the memory after what is seen, and the value of each action."""
    memory = gru(weights["gru"], memory if has_memory else jnp.zeros_like(memory), seen)
    return memory, mlp(weights["mlp"], memory)


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def act(training: Training, key: jax.Array, epsilon: jax.Array, has_memory: bool) -> tuple[Training, Any]:
    """Take a few steps in each maze and add them as one batch; return it too."""

    def one(carry: tuple, key: jax.Array) -> tuple:
        mazes, memory = carry
        key_which, key_random, key_move = jax.random.split(key, 3)
        seen = jax.vmap(see)(mazes)
        following, values = think(training.weights, memory, seen, has_memory)
        random = jax.random.randint(key_random, (NUM_MAZES,), 0, 2)
        is_random = jax.random.uniform(key_which, (NUM_MAZES,)) < epsilon
        action = jnp.where(is_random, random, jnp.argmax(values, axis=-1))
        mazes, reward, is_last = jax.vmap(move)(mazes, action, jax.random.split(key_move, NUM_MAZES))
        timestep = {"seen": seen, "memory": memory, "action": action, "reward": reward, "is_last": is_last}
        return (mazes, jnp.where(is_last[:, None], 0, following)), timestep

    carry = (training.mazes, training.memory)
    (mazes, memory), timesteps = jax.lax.scan(one, carry, jax.random.split(key, UNROLL))
    batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), timesteps)  # [T, B, ...] to [B, T, ...]
    buffer = BUFFER.add(training.buffer, batch)
    return training._replace(buffer=buffer, mazes=mazes, memory=memory), batch


def recall(weights: Any, memory: jax.Array, part: Any, has_memory: bool) -> tuple[jax.Array, jax.Array]:
    """Go through a part of sequences; return the memory after it, and all values `[N, L, 2]`."""

    def one(memory: jax.Array, timestep: tuple) -> tuple:
        seen, is_last = timestep
        memory, values = think(weights, memory, seen, has_memory)
        return jnp.where(is_last[:, None], 0, memory), values  # the next timestep is of another maze

    inputs = (jnp.swapaxes(part["seen"], 0, 1), part["is_last"].T)
    memory, values = jax.lax.scan(one, memory, inputs)
    return memory, jnp.swapaxes(values, 0, 1)


def errors(weights: Any, target: Any, experience: Any, has_memory: bool) -> jax.Array:
    """Return the temporal-difference errors behind the burn-in, `[N, UNROLL]`."""
    early = jax.tree.map(lambda leaf: leaf[:, :BURN_IN], experience)
    late = jax.tree.map(lambda leaf: leaf[:, BURN_IN:], experience)

    def values(weights: Any) -> jax.Array:
        memory, _ = recall(weights, experience["memory"][:, 0], early, has_memory)
        return recall(weights, jax.lax.stop_gradient(memory), late, has_memory)[1]

    online = values(weights)
    following = pick(values(target), jnp.argmax(online, axis=-1))[:, 1:]
    goes_on = ~late["is_last"][:, :-1]
    returns = late["reward"][:, :-1] + DISCOUNT * goes_on * following
    return jax.lax.stop_gradient(returns) - pick(online, late["action"])[:, :-1]


def pick(values: jax.Array, action: jax.Array) -> jax.Array:
    """Return the value of the action at each timestep, `[N, L]`."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


def learn(training: Training, key: jax.Array, has_memory: bool) -> Training:
    """Improve the weights by sequences, and tell the buffer how far off they were."""
    drawn = BUFFER.sample(training.buffer, key)
    weight = fbx.replay.importance_weights(drawn.probabilities, BETA)

    def loss(weights: Any) -> tuple[jax.Array, jax.Array]:
        error = errors(weights, training.target, drawn.experience, has_memory)
        return jnp.mean(weight[:, None] * error**2), jnp.abs(error)

    gradient, error = jax.grad(loss, has_aux=True)(training.weights)
    priorities = 0.9 * jnp.max(error, axis=1) + 0.1 * jnp.mean(error, axis=1) + 1e-4
    updates, optimiser = OPTIMISER.update(gradient, training.optimiser)
    weights = optax.apply_updates(training.weights, updates)
    return training._replace(
        weights=weights,
        target=optax.incremental_update(weights, training.target, 0.02),
        optimiser=optimiser,
        buffer=BUFFER.set_priorities(training.buffer, drawn.indices, priorities, drawn.generations),
        steps=training.steps + 1,
    )


@functools.partial(jax.jit, static_argnums=(2, 3), donate_argnums=0)
def improve(
    training: Training, key: jax.Array, num_steps: int, has_memory: bool
) -> tuple[Training, jax.Array]:
    """Act and learn by turns; return also the mean return of the episodes that ended."""

    def one(training: Training, key: jax.Array) -> tuple[Training, tuple]:
        key_act, key_learn = jax.random.split(key)
        training, batch = act(training, key_act, EPSILON(training.steps), has_memory)
        return learn(training, key_learn, has_memory), (jnp.sum(batch["reward"]), jnp.sum(batch["is_last"]))

    training, (rewards, ends) = jax.lax.scan(one, training, jax.random.split(key, num_steps))
    return training, jnp.sum(rewards) / jnp.sum(ends)


def train(seed: int, has_memory: bool = True, num_rounds: int = 8, steps_per_round: int = 250) -> list[float]:
    """Train an agent, and return its mean return in each round."""
    key_start, key_fill, key = jax.random.split(jax.random.key(seed), 3)
    training = start(key_start)
    for key_act in jax.random.split(key_fill, 5):  # at random, so that the buffer may be sampled
        training, _ = act(training, key_act, 1.0, has_memory)
    returns = []
    for round, key_round in enumerate(jax.random.split(key, num_rounds)):
        training, mean = improve(training, key_round, steps_per_round, has_memory)
        returns.append(float(mean))
        print(f"{(round + 1) * steps_per_round:6} learning steps: mean return {returns[-1]:5.2f}")
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    for name, has_memory in (("With memory", True), ("Without memory", False)):
        print(f"{name}:")
        train(seed, has_memory)
