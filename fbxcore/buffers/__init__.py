"""Buffers: pure functions over states on the device."""

from fbxcore import _FACTORIES, __all__, __dir__, __getattr__  # noqa: F401
