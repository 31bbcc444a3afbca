"""Live buffers and vaults: a log, and everything else as a view of it.

`LiveBuffer` takes experience and gives samples; `LiveVault` is appended to. Both belong to an event loop,
acknowledge only what is durable, and come back after a crash as acknowledged calls left them.

Four rooms lie below them: `durable` is what lies on disk, `rings` what is sampled from, `calls` what
callers ask, `restart` the way from disk to ring and back. Each knows only those before it, and `restart`
no `calls`.
"""

from fbxcore.live.answers import Added, RunAdded, Sample, Taken, Updated, WriterState
from fbxcore.live.config import DURABILITIES, WRITERS, BufferConfig, check_name, load_config, save_config
from fbxcore.live.describe import describe_buffer, iso_time
from fbxcore.live.durable.applied import adopt
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.durable.files import seal, sync_directory, unseal
from fbxcore.live.durable.log import Log
from fbxcore.live.durable.rows import ENDS
from fbxcore.live.housekeeping import METRICS
from fbxcore.live.live_buffer import LiveBuffer
from fbxcore.live.live_mixer import LiveMixer
from fbxcore.live.live_vault import Appended, LiveVault
from fbxcore.live.mixer_config import MIXER, MIXER_FIELDS, MixerConfig, load_any_config
from fbxcore.live.restart.whole import adopt_whole
from fbxcore.live.rings.ring import new_room
from fbxcore.live.vaults import check_source, load, load_runs, rows_for

__all__ = [
    "DURABILITIES",
    "ENDS",
    "METRICS",
    "MIXER",
    "MIXER_FIELDS",
    "WRITERS",
    "Added",
    "Appended",
    "BufferConfig",
    "Counters",
    "LiveBuffer",
    "LiveMixer",
    "LiveVault",
    "Log",
    "MixerConfig",
    "RunAdded",
    "Sample",
    "Taken",
    "Updated",
    "WriterState",
    "adopt",
    "adopt_whole",
    "check_name",
    "check_source",
    "describe_buffer",
    "iso_time",
    "load",
    "load_any_config",
    "load_config",
    "load_runs",
    "new_room",
    "rows_for",
    "save_config",
    "seal",
    "sync_directory",
    "unseal",
]
