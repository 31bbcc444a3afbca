"""A T-maze in JAX: what is seen at the start matters at the end, and at no time between.

A light at the start says which way the reward lies; then comes a corridor in which nothing is seen; at its
end, the junction, the agent must turn the way of the light. Nothing that is seen there says which.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Maze(NamedTuple):
    """Where an agent is in a T-maze, and what it must find out."""

    light: jax.Array  # [], 0 for left or 1 for right
    length: jax.Array  # [], of the corridor
    position: jax.Array  # []


def enter(key: jax.Array) -> Maze:
    """Return the start of another maze, with a corridor of three to eight steps."""
    key_light, key_length = jax.random.split(key)
    light = jax.random.randint(key_light, (), 0, 2)
    return Maze(light, jax.random.randint(key_length, (), 3, 9), jnp.int32(0))


def see(maze: Maze) -> jax.Array:
    """Return what is seen, `[3]`: either light at the start, and whether this is the junction."""
    lights = jax.nn.one_hot(maze.light, 2) * (maze.position == 0)
    return jnp.append(lights, maze.position == maze.length)


def move(maze: Maze, action: jax.Array, key: jax.Array) -> tuple[Maze, jax.Array, jax.Array]:
    """Go on, or turn at the junction and enter another maze; return also the reward and whether it ended."""
    is_last = maze.position == maze.length
    reward = jnp.where(is_last, jnp.where(action == maze.light, 1.0, -1.0), 0.0)
    onward = maze._replace(position=maze.position + 1)
    return jax.tree.map(lambda new, old: jnp.where(is_last, new, old), enter(key), onward), reward, is_last
