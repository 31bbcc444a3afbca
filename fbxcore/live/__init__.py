"""Live buffers and vaults: a log, and everything else as a view of it.

`LiveBuffer` takes experience and gives samples; `LiveVault` is appended to. Both belong to an event loop,
acknowledge only what is durable, and come back after a crash as acknowledged calls left them.
"""

from fbxcore.live.answers import Added, Sample, Taken, Updated
from fbxcore.live.checkpoint import Counters
from fbxcore.live.config import DURABILITIES, BufferConfig, check_name, load_config
from fbxcore.live.describe import describe_buffer
from fbxcore.live.housekeeping import METRICS
from fbxcore.live.live_buffer import LiveBuffer
from fbxcore.live.live_vault import Appended, LiveVault
from fbxcore.live.ring import new_room
from fbxcore.live.vaults import check_source, load
from fbxcore.live.whole import adopt_whole

__all__ = [
    "DURABILITIES",
    "METRICS",
    "Added",
    "Appended",
    "BufferConfig",
    "Counters",
    "LiveBuffer",
    "LiveVault",
    "Sample",
    "Taken",
    "Updated",
    "adopt_whole",
    "check_name",
    "check_source",
    "describe_buffer",
    "load",
    "load_config",
    "new_room",
]
