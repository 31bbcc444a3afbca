"""What `flashdeck serve` sets once for the whole process, before JAX starts; the app itself sets nothing."""

from __future__ import annotations

import ctypes
import logging
import os
import sys

from app.settings import Settings

SWITCH_INTERVAL_S = 0.00005
_XLA_FLAGS = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES, _TRIM_BYTES = 32 << 20, (1 << 31) - 1

logger = logging.getLogger("flashdeck")


def prepare(settings: Settings) -> None:
    """Set the device, JAX's cache and dispatch, the allocator and the interpreter's switch interval.

    A computation on the CPU is as quick as the hop to another thread that asynchronous dispatch makes,
    so it is off; and the parts of one computation run after one another, since spreading those of a draw
    over threads took three times as long. Compiled functions are kept in the data directory, also the
    quick ones: a restart then serves at full speed. The allocator keeps freed pages, since touching fresh
    ones costs more than the body that is read into them. With the default switch interval of 5 ms, a busy
    event loop would let the engine's thread wait that long for each batch.
    """
    os.environ["XLA_FLAGS"] = f"{_XLA_FLAGS} {os.environ.get('XLA_FLAGS', '')}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu" if settings.device == "cpu" else "cuda,cpu"
    if settings.device == "gpu":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(settings.data.absolute() / "jax-cache"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    import jax  # after the environment it reads when it is imported

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    keep_freed_pages()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def keep_freed_pages() -> bool:
    """Raise glibc's thresholds for giving pages back; say whether there was a glibc to ask."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) & bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
