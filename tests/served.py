"""A real server for tests: `flashdeck serve` as a process of its own, on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent


@dataclass
class Served:
    """A running server."""

    url: str
    folder: Path
    process: subprocess.Popen

    @property
    def log(self) -> str:
        """What it has written."""
        return (self.folder / "log").read_text()


def environment(**settings: str) -> dict[str, str]:
    """Return the environment without settings of whoever runs the tests, and with those given."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("FLASHDECK_")}
    return mine | {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"} | settings


@contextmanager
def serve(folder: Path, *arguments: str, **settings: str) -> Iterator[Served]:
    """Serve from a folder, with SQLite and local vaults, until the block ends."""
    command = [str(BIN / "flashdeck"), "serve", "--port", "0", "--data", str(folder / "data"), *arguments]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(**settings), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield Served(_address(process, folder / "log"), folder, process)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def _address(process: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if (found := re.search(r"Flashdeck is at (\S+)", log.read_text())) is not None:
            url = found.group(1)
            wait_ready(url, deadline)
            return url
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"The server did not start:\n{log.read_text()}")


def wait_ready(url: str, deadline: float) -> None:
    """Wait until the server says that it is ready."""
    while True:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
