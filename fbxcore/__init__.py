"""Replay buffers for JAX: `import fbxcore as fbx` in place of `import flashbax as fbx`."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = (
    "clustered_buffer",
    "episode_buffer",
    "epoch_sampler",
    "flat_buffer",
    "item_buffer",
    "mixer",
    "prioritised_flat_buffer",
    "prioritised_item_buffer",
    "prioritised_trajectory_buffer",
    "replay",
    "sum_tree",
    "trajectory_buffer",
    "trajectory_queue",
)
_FACTORIES = {f"make_{name}": name for name in _MODULES if name not in ("replay", "sum_tree")}

__all__ = sorted((*_MODULES, *_FACTORIES))


def __getattr__(name: str) -> Any:
    """Import a buffer module when it is first asked for, so that a thin client needs no JAX."""
    if name in _MODULES:
        return importlib.import_module(f"fbxcore.buffers.{name}")
    if name in _FACTORIES:
        return getattr(importlib.import_module(f"fbxcore.buffers.{_FACTORIES[name]}"), name)
    raise AttributeError(f"module 'fbxcore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
