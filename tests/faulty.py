"""`flashdeck serve` on a machine whose clock jumps and whose disk is slow, as a file says while it runs.

    python tests/faulty.py FAULTS serve …

FAULTS is a JSON file, read again twenty times a second: `clock_s` is added to the time of day, `sync_s` to
each `fdatasync`.
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

faults = {"clock_s": 0.0, "sync_s": 0.0}
_now, _sync = time.time, os.fdatasync


def _follow(path: Path) -> None:
    while True:
        with suppress(OSError, ValueError):  # not written yet, or half
            faults.update(json.loads(path.read_text()))
        time.sleep(0.05)


def _slow_sync(file: int) -> None:
    time.sleep(faults["sync_s"])
    _sync(file)


if __name__ == "__main__":
    threading.Thread(target=_follow, args=(Path(sys.argv.pop(1)),), daemon=True).start()
    time.time = lambda: _now() + faults["clock_s"]
    os.fdatasync = _slow_sync
    from app.cli import main

    main()
