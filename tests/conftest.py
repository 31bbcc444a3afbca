"""Set-up shared by all tests: two CPU devices, CPU JAX, warnings as errors (pyproject.toml)."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
