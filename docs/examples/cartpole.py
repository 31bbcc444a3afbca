"""CartPole in JAX: the physics, limits and rewards of Gymnasium's `CartPole-v1`.

Written for one environment; `jax.vmap` makes it many. An episode *terminates* when the pole falls or the
cart leaves the track, and is *truncated* after 500 steps: the difference matters to whoever learns from it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

NUM_ACTIONS = 2
MAX_STEPS = 500


class State(NamedTuple):
    """One environment."""

    obs: jax.Array  # [4]: position, velocity, angle, angular velocity
    steps: jax.Array  # [], taken in this episode


class Outcome(NamedTuple):
    """What came of an action."""

    reward: jax.Array  # []
    terminated: jax.Array  # []
    truncated: jax.Array  # []


def reset(key: jax.Array) -> State:
    """Start an episode."""
    return State(jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), jnp.int32(0))


def step(state: State, action: jax.Array) -> tuple[State, Outcome]:
    """Push the cart left (0) or right (1) for a fiftieth of a second."""
    gravity, pole_mass, total_mass, half_length, seconds = 9.8, 0.1, 1.1, 0.5, 0.02
    position, velocity, angle, spin = state.obs
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = (jnp.where(action == 1, 10.0, -10.0) + pole_mass * half_length * spin**2 * sin) / total_mass
    turn = (gravity * sin - cos * push) / (half_length * (4 / 3 - pole_mass * cos**2 / total_mass))
    shove = push - pole_mass * half_length * turn * cos / total_mass
    obs = state.obs + seconds * jnp.stack([velocity, shove, spin, turn])
    terminated = (jnp.abs(obs[0]) > 2.4) | (jnp.abs(obs[2]) > 12 * jnp.pi / 180)
    truncated = (state.steps + 1 >= MAX_STEPS) & ~terminated
    return State(obs, state.steps + 1), Outcome(jnp.float32(1), terminated, truncated)


def restart(state: State, outcome: Outcome, key: jax.Array) -> State:
    """Return the state, or a fresh one where its episode ended."""
    ended = outcome.terminated | outcome.truncated
    return jax.tree.map(lambda fresh, old: jnp.where(ended, fresh, old), reset(key), state)
