"""Async tests run on asyncio, as the service does."""

import pytest

from fbxcore.live import LiveBuffer


@pytest.fixture
def anyio_backend():
    """Name the backend for anyio's plugin."""
    return "asyncio"


@pytest.fixture
async def opened(tmp_path):
    """Return a function that opens buffers under the test's folder and closes them at its end."""
    buffers = []

    async def open_buffer(made=None, place="b", **given):
        buffers.append(await LiveBuffer.open(tmp_path / place, made, vaults=tmp_path / "vaults", **given))
        return buffers[-1]

    yield open_buffer
    for buffer in buffers:
        await buffer.close()
