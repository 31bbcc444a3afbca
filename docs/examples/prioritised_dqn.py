"""Prioritised replay: a DQN that learns sooner from one success in thousands than one that replays at random.

    python docs/examples/prioritised_dqn.py

The task is the *blind cliffwalk* of the paper on prioritised experience replay (Schaul et al., 2016,
https://arxiv.org/abs/1511.05952, section 3.1): on each of twelve steps along a cliff one of two actions goes
on and the other falls. Only the last step is rewarded, so a random walker gets there in one of 4,096
episodes, and almost nothing of what is replayed teaches anything. Both agents walk at random and see the
same; what differs is what they replay: what surprised them most (an exponent of 0.6), or anything (of 0).
"""

import argparse
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from networks import init_mlp, mlp

import fbxcore as fbx

LENGTH = 12
PATH = jnp.array([0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1])  # the action that goes on, at each step
NUM_WALKERS = 8
DISCOUNT = 0.99
OPTIMISER = optax.adam(1e-3)
BETA = optax.linear_schedule(0.4, 1.0, 20_000)  # how much of the bias of prioritised draws is undone


class Training(NamedTuple):
    """All that changes while an agent learns."""

    weights: Any
    target: Any  # follows the weights slowly
    optimiser: Any
    buffer: Any
    position: jax.Array  # [NUM_WALKERS], steps gone along the cliff
    steps: jax.Array  # []


@functools.cache
def make_buffer(priority_exponent: float) -> Any:
    """Return a buffer of transitions; with an exponent of 0 all of them are drawn alike."""
    return fbx.make_prioritised_flat_buffer(
        max_length=200_000,
        min_length=2 * NUM_WALKERS,
        sample_batch_size=32,
        add_batch_size=NUM_WALKERS,
        priority_exponent=priority_exponent,
    )


def start(buffer: Any, key: jax.Array) -> Training:
    """Return an agent that knows nothing."""
    weights = init_mlp(key, [LENGTH, 64, 2])
    weights[-1] = jax.tree.map(jnp.zeros_like, weights[-1])  # all values 0: only the reward can teach
    timestep = {
        "position": jnp.int32(0),
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "terminated": jnp.bool_(False),
    }
    return Training(
        weights=weights,
        target=jax.tree.map(jnp.copy, weights),
        optimiser=OPTIMISER.init(weights),
        buffer=buffer.init(timestep),
        position=jnp.zeros(NUM_WALKERS, jnp.int32),
        steps=jnp.int32(0),
    )


def walk(buffer: Any, training: Training, key: jax.Array) -> Training:
    """Let each walker take a random step, and add the steps to the buffer."""
    action = jax.random.randint(key, (NUM_WALKERS,), 0, 2)
    goes_on = action == PATH[training.position]
    arrives = goes_on & (training.position == LENGTH - 1)
    ends = ~goes_on | arrives
    timesteps = {
        "position": training.position,
        "action": action,
        "reward": arrives.astype(jnp.float32),
        "terminated": ends,
    }
    return training._replace(
        buffer=buffer.add(training.buffer, timesteps),
        position=jnp.where(ends, 0, training.position + 1),
    )


def values(weights: Any, position: jax.Array) -> jax.Array:
    """Return what each action is worth at each position, `[..., 2]`."""
    return mlp(weights, jax.nn.one_hot(position, LENGTH))


def errors(weights: Any, target: Any, experience: Any) -> jax.Array:
    """Return the temporal-difference error of each transition, `[N]`."""
    first, second = experience
    value = jnp.take_along_axis(values(weights, first["position"]), first["action"][:, None], axis=1)[:, 0]
    following = jnp.where(first["terminated"], 0, values(target, second["position"]).max(axis=1))
    return jax.lax.stop_gradient(first["reward"] + DISCOUNT * following) - value


def learn(buffer: Any, training: Training, key: jax.Array) -> Training:
    """Improve the weights by a sample, and tell the buffer how far off they were."""
    drawn = buffer.sample(training.buffer, key)
    weight = fbx.replay.importance_weights(drawn.probabilities, BETA(training.steps))

    def loss(weights: Any) -> tuple[jax.Array, jax.Array]:
        error = errors(weights, training.target, drawn.experience)
        return jnp.mean(weight * error**2), error

    gradient, error = jax.grad(loss, has_aux=True)(training.weights)
    priorities = jnp.abs(error) + 1e-4  # what is understood already may still be drawn now and then
    updates, optimiser = OPTIMISER.update(gradient, training.optimiser)
    weights = optax.apply_updates(training.weights, updates)
    return training._replace(
        weights=weights,
        target=optax.incremental_update(weights, training.target, 0.01),
        optimiser=optimiser,
        buffer=buffer.set_priorities(training.buffer, drawn.indices, priorities, drawn.generations),
        steps=training.steps + 1,
    )


@functools.partial(jax.jit, static_argnums=(0, 3), donate_argnums=1)
def improve(buffer: Any, training: Training, key: jax.Array, num_steps: int) -> Training:
    """Walk and learn by turns."""

    def one(training: Training, key: jax.Array) -> tuple[Training, None]:
        key_walk, key_learn = jax.random.split(key)
        return learn(buffer, walk(buffer, training, key_walk), key_learn), None

    return jax.lax.scan(one, training, jax.random.split(key, num_steps))[0]


@jax.jit
def judge(weights: Any) -> tuple[jax.Array, jax.Array]:
    """Return how far the greedy walker gets, and the root mean square error of its values on the way."""
    position = jnp.arange(LENGTH)
    estimate = values(weights, position)
    distance = jnp.sum(jnp.cumprod(jnp.argmax(estimate, axis=1) == PATH))
    worth = DISCOUNT ** (LENGTH - 1.0 - position)  # of going on, for whoever makes no mistake
    error = jnp.take_along_axis(estimate, PATH[:, None], axis=1)[:, 0] - worth
    return distance, jnp.sqrt(jnp.mean(error**2))


def train(
    seed: int, priority_exponent: float, num_rounds: int = 8, steps_per_round: int = 1_000
) -> list[tuple]:
    """Train an agent, and return after each round how far it gets and how wrong its values are."""
    buffer = make_buffer(priority_exponent)
    key_start, key = jax.random.split(jax.random.key(seed))
    training = start(buffer, key_start)
    for key_walk in jax.random.split(key_start, 3):  # a transition needs two timesteps
        training = walk(buffer, training, key_walk)
    judged = []
    for round, key_round in enumerate(jax.random.split(key, num_rounds)):
        training = improve(buffer, training, key_round, steps_per_round)
        judged.append(tuple(float(number) for number in judge(training.weights)))
        distance, error = judged[-1]
        print(
            f"{(round + 1) * steps_per_round:6} learning steps: {distance:2.0f} steps far, error {error:.3f}"
        )
    return judged


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    for name, exponent in (("By priority", 0.6), ("At random", 0.0)):
        print(f"{name}:")
        train(seed, exponent)
