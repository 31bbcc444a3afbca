"""Two small networks as plain functions of their weights: a perceptron and a gated recurrent unit."""

import jax
import jax.numpy as jnp


def init_mlp(key: jax.Array, sizes: list[int]) -> list[dict]:
    """Return the weights of dense layers from each size to the next."""
    pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
    return [
        {"w": jax.random.normal(k, pair) * (2 / pair[0]) ** 0.5, "b": jnp.zeros(pair[1])}
        for k, pair in zip(jax.random.split(key, len(pairs)), pairs, strict=True)
    ]


def mlp(weights: list[dict], x: jax.Array) -> jax.Array:
    """Apply dense layers to `[..., in]`, with a ReLU between each two."""
    for layer in weights[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ weights[-1]["w"] + weights[-1]["b"]


def init_gru(key: jax.Array, num_inputs: int, num_units: int) -> dict:
    """Return the weights of a gated recurrent unit (Cho et al., 2014)."""
    key_x, key_h = jax.random.split(key)
    return {
        "x": jax.random.normal(key_x, (num_inputs, 3 * num_units)) * num_inputs**-0.5,
        "h": jax.random.normal(key_h, (num_units, 3 * num_units)) * num_units**-0.5,
        "b": jnp.zeros(3 * num_units),
    }


def gru(weights: dict, h: jax.Array, x: jax.Array) -> jax.Array:
    """Return the memory `[..., units]` after an input `[..., in]`."""
    from_x = jnp.split(x @ weights["x"] + weights["b"], 3, axis=-1)
    from_h = jnp.split(h @ weights["h"], 3, axis=-1)
    reset, update = (jax.nn.sigmoid(a + b) for a, b in zip(from_x[:2], from_h[:2], strict=True))
    return (1 - update) * jnp.tanh(from_x[2] + reset * from_h[2]) + update * h
