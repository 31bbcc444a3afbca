"""A DQN that learns to balance a pole, compiled whole: environments, buffer and learner in one `lax.scan`.

    python docs/examples/dqn.py

Deep Q-learning (Mnih et al., 2015, https://doi.org/10.1038/nature14236) with double Q targets and returns
over ten steps, which are worked out when sequences are sampled: the buffer holds plain timesteps.
"""

import argparse
import functools
from typing import Any, NamedTuple

import cartpole
import jax
import jax.numpy as jnp
import optax
from networks import init_mlp, mlp

import fbxcore as fbx

NUM_ENVS = 8
NUM_STEPS = 10  # n, over which rewards are summed before the value of what follows
DISCOUNT = 0.99
OPTIMISER = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-3))
EPSILON = optax.linear_schedule(1.0, 0.05, 3_000)
BUFFER = fbx.make_trajectory_buffer(
    add_batch_size=NUM_ENVS,
    sample_batch_size=128,
    sample_sequence_length=NUM_STEPS + 1,
    period=1,
    min_length_time_axis=250,
    max_length_time_axis=5_000,
)


class Training(NamedTuple):
    """All that changes while an agent learns; one pytree, donated from step to step."""

    weights: Any
    target: Any  # follows the weights slowly
    optimiser: Any
    buffer: Any
    envs: cartpole.State  # of NUM_ENVS environments
    steps: jax.Array  # []


def start(key: jax.Array) -> Training:
    """Return an untrained agent with an empty buffer."""
    key_net, key_envs = jax.random.split(key)
    weights = init_mlp(key_net, [4, 64, 64, cartpole.NUM_ACTIONS])
    timestep = {
        "obs": jnp.zeros(4),
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "terminated": jnp.bool_(False),
        "truncated": jnp.bool_(False),
    }
    return Training(
        weights=weights,
        target=jax.tree.map(jnp.copy, weights),  # a copy: two leaves of a donated pytree may not be one array
        optimiser=OPTIMISER.init(weights),
        buffer=BUFFER.init(timestep),
        envs=jax.vmap(cartpole.reset)(jax.random.split(key_envs, NUM_ENVS)),
        steps=jnp.int32(0),
    )


def act(training: Training, key: jax.Array, epsilon: jax.Array) -> Training:
    """Take a step in each environment, at random with probability epsilon, and add it to the buffer."""
    key_which, key_random, key_reset = jax.random.split(key, 3)
    greedy = jnp.argmax(mlp(training.weights, training.envs.obs), axis=-1)
    random = jax.random.randint(key_random, (NUM_ENVS,), 0, cartpole.NUM_ACTIONS)
    action = jnp.where(jax.random.uniform(key_which, (NUM_ENVS,)) < epsilon, random, greedy)
    envs, outcome = jax.vmap(cartpole.step)(training.envs, action)
    timesteps = {"obs": training.envs.obs, "action": action, **outcome._asdict()}
    batch = jax.tree.map(lambda leaf: leaf[:, None], timesteps)  # [B, 1, ...]: one timestep for each row
    envs = jax.vmap(cartpole.restart)(envs, outcome, jax.random.split(key_reset, NUM_ENVS))
    return training._replace(buffer=BUFFER.add(training.buffer, batch), envs=envs)


def errors(weights: Any, target: Any, experience: Any) -> jax.Array:
    """Return how far the values of sampled sequences `[N, n + 1, ...]` are from their returns, `[N]`.

    A termination ends the sum of rewards, and nothing follows. What followed a truncation was not stored, so
    there the sum ends one step earlier, at the last state whose value can be asked for.
    """
    step = fbx.replay.n_step(
        experience,
        experience["reward"],
        discounts=DISCOUNT * (1 - experience["terminated"]),
        n=NUM_STEPS,
        truncated=experience["truncated"],
    )
    best = jnp.argmax(mlp(weights, step.second["obs"]), axis=-1)
    targets = step.returns + step.discounts * pick(mlp(target, step.second["obs"]), best)
    value = pick(mlp(weights, step.first["obs"]), step.first["action"])
    return jnp.where(step.mask, jax.lax.stop_gradient(targets) - value, 0)


def pick(values: jax.Array, action: jax.Array) -> jax.Array:
    """Return the value of an action in each row, `[N]`."""
    return jnp.take_along_axis(values, action[:, None], axis=-1)[:, 0]


def learn(training: Training, key: jax.Array) -> Training:
    """Improve the weights by a sample."""
    experience = BUFFER.sample(training.buffer, key).experience

    def loss(weights: Any) -> jax.Array:
        return jnp.mean(optax.huber_loss(errors(weights, training.target, experience)))

    gradient = jax.grad(loss)(training.weights)
    updates, optimiser = OPTIMISER.update(gradient, training.optimiser)
    weights = optax.apply_updates(training.weights, updates)
    target = optax.incremental_update(weights, training.target, 0.01)
    return training._replace(weights=weights, target=target, optimiser=optimiser, steps=training.steps + 1)


@functools.partial(jax.jit, static_argnums=2, donate_argnums=0)
def fill(training: Training, key: jax.Array, num_steps: int) -> Training:
    """Act at random, so that the buffer may be sampled."""

    def one(training: Training, key: jax.Array) -> tuple[Training, None]:
        return act(training, key, 1.0), None

    return jax.lax.scan(one, training, jax.random.split(key, num_steps))[0]


@functools.partial(jax.jit, static_argnums=2, donate_argnums=0)
def improve(training: Training, key: jax.Array, num_steps: int) -> Training:
    """Act and learn by turns."""

    def one(training: Training, key: jax.Array) -> tuple[Training, None]:
        key_act, key_learn = jax.random.split(key)
        return learn(act(training, key_act, EPSILON(training.steps)), key_learn), None

    return jax.lax.scan(one, training, jax.random.split(key, num_steps))[0]


@jax.jit
def evaluate(weights: Any, key: jax.Array) -> jax.Array:
    """Return the mean return of 64 episodes played without chance, `[]`."""

    def play(key: jax.Array) -> jax.Array:
        def one(carry: tuple, _: None) -> tuple:
            state, total, is_running = carry
            state, outcome = cartpole.step(state, jnp.argmax(mlp(weights, state.obs)))
            total += outcome.reward * is_running
            return (state, total, is_running & ~outcome.terminated), None

        carry = (cartpole.reset(key), jnp.float32(0), jnp.bool_(True))
        return jax.lax.scan(one, carry, length=cartpole.MAX_STEPS)[0][1]

    return jnp.mean(jax.vmap(play)(jax.random.split(key, 64)))


def train(seed: int, num_rounds: int = 15, steps_per_round: int = 1_000) -> list[float]:
    """Train an agent, and return its mean return before the first and after each round."""
    key_start, key_fill, key = jax.random.split(jax.random.key(seed), 3)
    training = fill(start(key_start), key_fill, 250)
    returns = [float(evaluate(training.weights, key))]
    for round, key_round in enumerate(jax.random.split(key, num_rounds)):
        training = improve(training, key_round, steps_per_round)
        returns.append(float(evaluate(training.weights, key_round)))
        print(f"{(round + 1) * steps_per_round:6} learning steps: mean return {returns[-1]:5.1f}")
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    returns = train(parser.parse_args().seed)
    print(f"From {returns[0]:.1f} to {returns[-1]:.1f} of {cartpole.MAX_STEPS}.")
