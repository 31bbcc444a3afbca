"""Async tests run on asyncio, as the service does."""

import pytest


@pytest.fixture
def anyio_backend():
    """Name the backend for anyio's plugin."""
    return "asyncio"
