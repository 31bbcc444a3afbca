"""What a request to a live buffer must satisfy; each check returns what was given, ready to use."""

from __future__ import annotations

import math

import numpy as np

from fbxcore.errors import InvalidArgumentError, StructureError
from fbxcore.live.config import BufferConfig
from fbxcore.live.durable.rows import ENDS
from fbxcore.spec import check_leaves, dtype_of
from fbxcore.types import Leaves

MAX_TIMEOUT_MS = 30_000
_FINAL = "final/"
LEAST_PRIORITY = float(np.finfo(np.float32).tiny)  # what is smaller would count as 0


def check_experience(
    config: BufferConfig, leaves: Leaves, cast: str | None
) -> tuple[dict[str, np.ndarray], int]:
    """Return leaves `[B, K, ...]` and K; item kinds are given `[I, ...]` and become one row."""
    layout = config.layout
    if layout.items:
        checked = check_leaves(config.spec, leaves, leading=1, cast=cast)
        checked = {name: x[None] for name, x in checked.items()}
    else:
        checked = check_leaves(config.spec, leaves, leading=2, cast=cast)
    name, first = next(iter(checked.items()))
    rows, steps = first.shape[:2]
    if rows != layout.rows:
        raise InvalidArgumentError(
            f"Leaf `{name}` must have {layout.rows} rows on axis 0 (`add_batch_size`), got {rows}.",
            code="structure_mismatch",
            loc=(name,),
        )
    if steps == 0:
        raise InvalidArgumentError(
            f"Leaf `{name}` must hold at least one timestep, got none.",
            code="structure_mismatch",
            loc=(name,),
        )
    if layout.is_queue and steps > layout.time_axis:
        raise InvalidArgumentError(
            f"Leaf `{name}` must have at most {layout.time_axis} timesteps on axis 1, the time axis of the "
            f"queue, got {steps}. Send it in smaller parts.",
            loc=(name,),
        )
    if layout.num_clusters:
        _check_clusters(config, checked)
    return checked, steps


def _check_clusters(config: BufferConfig, leaves: Leaves) -> None:
    name, number = config.layout.cluster_leaf, config.layout.num_clusters
    clusters = leaves[name][0]
    bad = np.flatnonzero((clusters < 0) | (clusters >= number))
    if len(bad):
        raise InvalidArgumentError(
            f"Leaf `{name}` must be clusters from 0 to {number - 1}, got {clusters[bad[0]]} at position "
            f"{bad[0]}. Nothing was added.",
            loc=(name,),
        )


def check_no_end(end: str | None) -> None:
    """Refuse the end of an episode where rows go in lockstep."""
    if end is not None:
        raise InvalidArgumentError(
            f"`end` must be left out where `writers` are 'lockstep', got {end!r:.80}.", loc=("query", "end")
        )


def check_run(
    config: BufferConfig, leaves: Leaves, end: str | None, cast: str | None
) -> tuple[dict[str, np.ndarray], int, bool]:
    """Return a writer's timesteps `[K, ...]`, K, and whether the last is the true last observation.

    Args:
        leaves: `[T, ...]`, and `final/<leaf>` `[...]` of the leaves that are known after the last step; those
            not given are 0 there.
    """
    if end is not None and end not in ENDS:
        raise InvalidArgumentError(
            f"`end` must be one of {', '.join(ENDS)}, got {end!r:.80}.", loc=("query", "end")
        )
    final = {} if end is None and len(leaves) == len(config.spec) else _final_of(leaves)
    rest = {name: x for name, x in leaves.items() if name not in final} if final else leaves
    checked = check_leaves(config.spec, rest, leading=1, cast=cast)
    if final:
        last = _check_final(config, final, end, cast)
        checked = {name: np.concatenate([x, last[name][None]]) for name, x in checked.items()}
    name, first = next(iter(checked.items()))
    if len(first) == 0 and end is None:
        raise InvalidArgumentError(
            f"Leaf `{name}` must hold at least one timestep where `end` is not given, got none.",
            code="structure_mismatch",
            loc=(name,),
        )
    return checked, len(first), bool(final)


def _final_of(leaves: Leaves) -> dict[str, np.ndarray]:
    return {name: x for name, x in leaves.items() if name.startswith(_FINAL)}


def _check_final(
    config: BufferConfig, final: dict[str, np.ndarray], end: str | None, cast: str | None
) -> dict[str, np.ndarray]:
    """Return the timestep `[...]` that holds a true last observation, 0 in leaves it was not given for."""
    name = next(iter(final))
    if end is None:
        raise InvalidArgumentError(
            f"Leaf `{name}` must come with `end`: it is what was observed after the last step.",
            loc=("query", "end"),
        )
    if config.layout.sequence_length == 1:
        raise InvalidArgumentError(
            f"Leaf `{name}` must be left out where sequences are of 1 timestep: a true last observation is "
            "only ever the end of a longer one.",
            loc=(name,),
        )
    spec = {_FINAL + name: leaf for name, leaf in config.spec.items()}
    if unknown := sorted(set(final) - set(spec)):
        known = ", ".join(f"`{known}`" for known in spec)
        raise StructureError(f"Leaf `{unknown[0]}` must be one of {known}.", loc=(unknown[0],))
    asked = {name: leaf for name, leaf in spec.items() if name in final}
    given = check_leaves(asked, final, leading=0, cast=cast)
    blank = {name: np.zeros(leaf.shape, dtype_of(leaf.dtype)) for name, leaf in spec.items()}
    return {name: (blank | given)[_FINAL + name].reshape(leaf.shape) for name, leaf in config.spec.items()}


def check_batch_size(config: BufferConfig, batch_size: int | None) -> int:
    """Return how many items to draw."""
    number = config.layout.sample_batch_size if batch_size is None else batch_size
    if not 1 <= number <= config.max_batch_size:
        raise InvalidArgumentError(
            f"`batch_size` must be from 1 to {config.max_batch_size} (items of {config.item_bytes} bytes "
            f"each), got {number}.",
            loc=("query", "batch_size"),
        )
    return number


def check_beta(config: BufferConfig, beta: float | None) -> float | None:
    """Return the exponent of the importance weights."""
    if beta is None:
        return None
    if config.layout.priority_exponent is None:
        raise InvalidArgumentError(
            f"`beta` must be left out for kind {config.kind!r}, whose items are drawn alike, got {beta!r}.",
            loc=("query", "beta"),
        )
    if not (math.isfinite(beta) and 0 <= beta <= 1):
        raise InvalidArgumentError(f"`beta` must be from 0 to 1, got {beta!r}.", loc=("query", "beta"))
    return beta


def check_seed(seed: int | None) -> int | None:
    """Return a seed that fits a key."""
    if seed is not None and not 0 <= seed < 1 << 63:
        raise InvalidArgumentError(
            f"`seed` must be from 0 to {(1 << 63) - 1}, got {seed}.", loc=("query", "seed")
        )
    return seed


def check_timeout(timeout_ms: int) -> float:
    """Return a timeout in seconds."""
    if not 0 <= timeout_ms <= MAX_TIMEOUT_MS:
        raise InvalidArgumentError(
            f"`timeout_ms` must be from 0 to {MAX_TIMEOUT_MS}, got {timeout_ms}.", loc=("query", "timeout_ms")
        )
    return timeout_ms / 1000


def check_priorities(
    config: BufferConfig, indices: np.ndarray, priorities: np.ndarray, generations: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return indices, float32 priorities and generations, each `[N]`."""
    if config.layout.priority_exponent is None:
        raise InvalidArgumentError(
            f"`priorities` must be set on a prioritised kind, got kind {config.kind!r}.", loc=("priorities",)
        )
    for name, array in (("indices", indices), ("priorities", priorities), ("generations", generations)):
        kinds = "fiu" if name == "priorities" else "iu"
        if array.ndim != 1 or (array.dtype.kind not in kinds and array.size) or len(array) != len(indices):
            what = "numbers" if name == "priorities" else "integers"
            raise InvalidArgumentError(
                f"`{name}` must be a list of {what} as long as `indices`, got shape {list(array.shape)} "
                f"of {array.dtype.name}.",
                loc=(name,),
            )
    _check_indices(config, indices)
    return indices, _finite_priorities(priorities), generations


def _check_indices(config: BufferConfig, indices: np.ndarray) -> None:
    limit = config.layout.num_items
    bad = np.flatnonzero((indices < 0) | (indices >= limit))
    if len(bad):
        raise InvalidArgumentError(
            f"`indices` must be from 0 to {limit - 1}, got {indices[bad[0]]} at position {bad[0]}. "
            "Nothing was applied.",
            loc=("indices", int(bad[0])),
        )


def _finite_priorities(priorities: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = priorities.astype(np.float32)
    bad = np.flatnonzero(~(np.isfinite(narrow) & ((narrow >= LEAST_PRIORITY) | (priorities == 0))))
    if len(bad):
        raise InvalidArgumentError(
            f"`priorities` must be 0 or finite float32 numbers of at least {LEAST_PRIORITY:.3g}, got "
            f"{priorities[bad[0]]} at position {bad[0]}. Nothing was applied.",
            loc=("priorities", int(bad[0])),
        )
    return narrow
