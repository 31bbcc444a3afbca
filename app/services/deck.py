"""Everything one service holds: the data directory's lock, its buffers and vaults, and the mirror."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from app.db import Database
from app.services import absence, chains, files, mirror
from app.services.closing import close_all
from app.services.entries import VaultEntry, fault_of, names_of
from app.services.folders import Facts, Place, catalog_of, find_places, fingerprint_of, look_into
from app.services.lock import DataLock
from app.services.replays import Replays
from app.services.trash_files import tidy
from app.settings import Settings
from fbxcore.errors import (
    ConflictError,
    DamagedError,
    FbxError,
    InvalidArgumentError,
    NotFoundError,
)
from fbxcore.live import LiveBuffer, LiveMixer, LiveVault, MixerConfig
from fbxcore.vault.files import remove_half_made

logger = logging.getLogger("flashdeck")
T = TypeVar("T")
_TIDY_S = 3600


class Deck:
    """The buffers and vaults of one data directory; all methods belong to one event loop."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.data = settings.data.absolute()
        self.database = Database(settings.url)
        self.buffers: dict[str, LiveBuffer] = {}
        self.mixers: dict[str, LiveMixer] = {}
        self.mixes: dict[str, MixerConfig] = {}  # of every mixer, open or not
        self.failed: dict[str, FbxError] = {}  # buffers that could not be opened
        self.starting: dict[str, tuple[int, int]] = {}  # being opened: bytes of the log done, of how many
        self.snapshots_begun: dict[str, tuple[str, int, int]] = {}  # by id: buffer, bytes done, of how many
        self.vaults: dict[str, VaultEntry] = {}
        self.owners: dict[str, str] = {}  # vault key to the buffer that persists to it
        self.reserved_bytes = 0
        self.name_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.reads = asyncio.Semaphore(settings.max_concurrent_reads)
        self.replays = Replays()
        self._lock = DataLock(self.data)
        self._tasks: list[asyncio.Task] = []
        self._opening: asyncio.Task | None = None
        self._scanning = asyncio.Lock()
        self._is_stopping = False

    # Opening and closing

    async def open(self) -> None:
        """Take the data directory, find what lies in it, and begin to replay the logs."""
        await asyncio.to_thread(files.make_folders, self.data)
        self._lock.take(self.settings.address)
        try:
            await asyncio.to_thread(remove_half_made, self.data / "vaults")
            await asyncio.to_thread(files.remove_half_snapshots, self.data)
            await self._tidy()
            await self.database.open()
            await self.scan()
            names = await asyncio.to_thread(self._find_buffers)
            self._opening = asyncio.create_task(self._open_all(names))
            await asyncio.wait({self._opening}, timeout=self.settings.start_wait_s)
        except BaseException:
            await self.close()
            raise
        self._tasks = [
            asyncio.create_task(self._every(self.settings.scan_interval_s, self.scan)),
            asyncio.create_task(self._every(self.settings.mirror_interval_s, self.save_growing)),
            asyncio.create_task(self._every(_TIDY_S, self._tidy)),
        ]

    async def close(self) -> None:
        """Stop, flush every buffer and vault, and give the data directory back."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._opening is not None:
            await asyncio.wait({self._opening}, timeout=self.settings.stop_wait_s)
        live = [entry.live for entry in self.vaults.values() if entry.live is not None]
        await close_all([*self.mixers.values(), *self.buffers.values(), *live], self.settings.stop_wait_s)
        if self._tasks:
            await self.attempt(self.save_buffers)
        self.buffers, self.mixers, self.vaults, self._tasks, self._opening = {}, {}, {}, [], None
        await self.database.close()
        self._lock.release()

    async def wait_ready(self) -> None:
        """Wait until every log is replayed."""
        if self._opening is not None:
            await asyncio.shield(self._opening)

    @property
    def progress(self) -> dict[str, Any]:
        """How far the logs of buffers being opened are replayed."""
        return {name: {"done": done, "total": total} for name, (done, total) in self.starting.items()}

    def _find_buffers(self) -> dict[str, int]:
        """Return the buffers on disk with the memory they take, and note which vaults they write.

        Mixers come last, behind their members.
        """
        names = {}
        for name, config in files.find_buffers(self.data):
            if isinstance(config, FbxError):
                self.failed[name] = config
                continue
            names[name] = config.num_bytes
            self.starting[name] = (0, 0)
            if isinstance(config, MixerConfig):
                self.mixes[name] = config
            self.reserved_bytes += config.num_bytes
            if config.persist_to is not None:
                self.owners[chains.newest_key(self, config.persist_to)] = name
        return dict(sorted(names.items(), key=lambda entry: entry[0] in self.mixes))

    async def _open_all(self, names: dict[str, int]) -> None:
        for name, num_bytes in names.items():
            if self._is_stopping:
                return
            await self._open_one(name)
            if name in self.failed:
                self.reserved_bytes -= num_bytes
        for entry in list(self.vaults.values()):
            if (
                not self._is_stopping
                and await asyncio.to_thread(entry.log.is_dir)
                and chains.newest(self, entry).place.key not in self.owners
            ):
                await self.attempt(lambda entry=entry: self._open_log(entry))
        await self.attempt(self.save_buffers)

    async def _open_one(self, name: str) -> None:
        def note(done: int, total: int) -> None:
            self.starting[name] = (done, total)

        try:
            if (mix := self.mixes.get(name)) is not None:
                self.mixers[name] = LiveMixer(mix, [self.buffer(member) for member in mix.buffers])
                return
            self.buffers[name] = await LiveBuffer.open(
                self.data / "buffers" / name,
                vaults=self.data / "vaults",
                progress=note,
                max_log_bytes=self.settings.max_log_bytes,
            )
        except FbxError as error:
            logger.error("buffer %s cannot be opened: %s", name, error)
            self.failed[name] = error
        except Exception:
            logger.exception("buffer %s cannot be opened", name)
            self.failed[name] = DamagedError(f"Buffer {name!r} could not be opened; the log says why.")
        finally:
            self.starting.pop(name, None)

    async def reopen(self, name: str) -> None:
        """Try again to open a buffer that could not be opened."""
        self.failed.pop(name, None)
        self.starting[name] = (0, 0)
        await self._open_one(name)

    async def _every(self, seconds: float, step: Callable[[], Awaitable[Any]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self.attempt(step)

    async def _tidy(self) -> None:
        gone = await asyncio.to_thread(tidy, self.data, self.settings.trash_days)
        if gone:
            logger.info("%d vaults were in the trash for long enough and are gone", gone)

    async def attempt(self, step: Callable[[], Awaitable[Any]]) -> None:
        """Do what must not end the service when it fails: the next turn tries again."""
        try:
            await step()
        except FbxError as error:
            logger.warning("housekeeping failed: %s", error)
        except Exception:
            logger.exception("housekeeping failed; it is tried again")

    # Buffers

    def buffer(self, name: str) -> LiveBuffer:
        """Return an open buffer that has experience of its own; no I/O.

        Raises:
            NotSupportedError: for a mixer.
            NotFoundError: if there is none of that name.
            UnavailableError: while its log is replayed.
            DamagedError: if it could not be opened.
        """
        if (found := self.buffers.get(name)) is not None:
            return found
        if (mixer := self.mixers.get(name)) is not None:
            raise mixer.refusal()
        raise absence.reason(name, starting=self.starting, failed=self.failed, known=self.samplers)

    def sampler(self, name: str) -> LiveBuffer | LiveMixer:
        """Return an open buffer or mixer; no I/O, errors as of `buffer`."""
        mixer = self.mixers.get(name)
        return self.buffer(name) if mixer is None else mixer

    @property
    def samplers(self) -> dict[str, LiveBuffer | LiveMixer]:
        """All open buffers and mixers."""
        return {**self.buffers, **self.mixers}

    async def save_buffers(self) -> None:
        """Copy every buffer's counters into the mirror."""
        rows = [mirror.buffer_row(buffer.describe()) for buffer in self.samplers.values()]
        others = dict.fromkeys(self.starting, "starting") | dict.fromkeys(self.failed, "damaged")
        await mirror.save_buffers(self.database, rows, others=others)

    async def save_growing(self) -> None:
        """Copy the numbers of what is being written into the mirror: buffers, and vaults that changed."""
        await self.save_buffers()
        for entry in self.growing():
            await self.refresh(entry)

    # Vaults

    def growing(self) -> list[VaultEntry]:
        """Return the vaults that somebody appends to."""
        return [e for e in self.vaults.values() if e.live is not None or e.place.key in self.owners]

    async def vault(self, vault_name: str, vault_uid: str) -> VaultEntry:
        """Return a vault by its two names, as a URL spells them, looking on the disk for a new one."""
        names = names_of(vault_name)
        for name in names:
            if (entry := self.vaults.get(f"{name}/{vault_uid}")) is not None:
                return await self.refresh(entry)
        if await asyncio.to_thread(self._is_new, names, vault_uid):
            await self.attempt(self.scan)
            for name in names:
                if (entry := self.vaults.get(f"{name}/{vault_uid}")) is not None:
                    return entry
        known = ", ".join(repr(key) for key in sorted(self.vaults)[:20]) or "none"
        raise NotFoundError(
            f"No vault named {f'{vault_name}/{vault_uid}'[:300]!r}. Existing vaults: {known}.",
            loc=("vault_name",),
        )

    def _is_new(self, names: Iterable[str], vault_uid: str) -> bool:
        """Say whether there may be a vault that no scan has seen yet."""
        roots = [self.data / "vaults", *([self.settings.vaults] if self.settings.vaults else [])]
        try:
            paths = [files.inside(root, *name.split("/"), vault_uid) for root in roots for name in names]
        except InvalidArgumentError:
            return False
        return any(path.is_dir() for path in paths)

    async def refresh(self, entry: VaultEntry, *, anyway: bool = False) -> VaultEntry:
        """Look into a vault again if it changed since."""
        if anyway or await asyncio.to_thread(fingerprint_of, entry.place.path) != entry.facts.fingerprint:
            entry.facts = await asyncio.to_thread(look_into, entry.place)
            self._tell_fault(entry)
            await self.save_vault(entry)
            if entry.facts.continued_in is not None and chains.next_of(self, entry) is None:
                await self.attempt(self.scan)
            chains.follow(self, entry)
        return entry

    def fault(self, entry: VaultEntry) -> FbxError | None:
        """Return what keeps a vault from being read, or from taking what is acknowledged; no I/O."""
        owner = self.owners.get(entry.place.key, "")
        buffer = self.buffers.get(owner)
        return fault_of(entry, buffer.vault_writer if buffer is not None else None, self.failed.get(owner))

    def _tell_fault(self, entry: VaultEntry) -> None:
        fault = self.fault(entry)
        if fault is not None and not entry.is_told:
            logger.warning("%s: %s", fault.code, fault)
        entry.is_told = fault is not None

    async def save_vault(self, entry: VaultEntry) -> None:
        """Copy a vault into the mirror; where that fails, the next scan does it."""
        await self.attempt(lambda: mirror.save_vaults(self.database, [(entry.place, entry.facts)]))

    async def remove_vault(self, entry: VaultEntry, take: Callable[[], T]) -> T:
        """Run what takes a vault away, and forget the vault; no scan finds half of that."""
        async with self._scanning:
            taken = await asyncio.to_thread(take)
            self.vaults.pop(entry.place.key, None)
        place = entry.place
        await self.attempt(lambda: mirror.forget_vault(self.database, place.vault_name, place.vault_uid))
        return taken

    async def scan(self) -> dict[str, int]:
        """Make memory and mirror agree with the folders of vaults."""
        async with self._scanning:
            found = await asyncio.to_thread(self._look_around)
            before = set(self.vaults)
            self._take_over(found)
            stored = await mirror.fingerprints(self.database)
            changed = [
                (place, facts)
                for place, facts in found
                if stored.get((place.vault_name, place.vault_uid)) != facts.fingerprint
            ]
            await mirror.save_vaults(self.database, changed)
            keys = [(e.place.vault_name, e.place.vault_uid) for e in self.vaults.values()]
            gone = await mirror.keep_vaults(self.database, keys)
        return {
            "vaults": len(self.vaults),
            "new": len(set(self.vaults) - before),
            "changed": len(changed),
            "gone": gone,
            "damaged": sum(entry.facts.error is not None for entry in self.vaults.values()),
        }

    def _take_over(self, found: list[tuple[Place, Facts]]) -> None:
        entries: dict[str, VaultEntry] = {}
        for place, facts in found:
            entry = self.vaults.get(place.key)
            if entry is None or entry.place != place:
                entry = VaultEntry(place, facts)
            entry.facts = facts
            self._tell_fault(entry)
            entries[place.key] = entry
        kept = {key: e for key, e in self.vaults.items() if e.live is not None and key not in entries}
        self.vaults = entries | kept
        for entry in entries.values():
            chains.follow(self, entry)

    def _look_around(self) -> list[tuple[Place, Facts]]:
        found = []
        for place in find_places(self.data, self.settings.vaults):
            entry = self.vaults.get(place.key)
            is_known = entry is not None and entry.facts.fingerprint == fingerprint_of(place.path)
            found.append((place, entry.facts if is_known else look_into(place)))
        return found

    def new_place(self, vault_name: str, vault_uid: str) -> Place:
        """Return where a vault of ours will lie."""
        path = files.inside(self.data / "vaults", *vault_name.split("/"), vault_uid)
        return Place(vault_name, vault_uid, path, catalog_of(self.data, vault_name, vault_uid), False)

    async def live_vault(self, entry: VaultEntry) -> LiveVault:
        """Return the open log of a vault, or that in which it goes on: the only way to append to it.

        Raises:
            ConflictError: if the vault is read-only, or another writes to it.
        """
        entry = chains.newest(self, entry)
        self.check_writable(entry)
        async with entry.lock:
            if entry.live is None:
                self.check_writable(entry)
                log = await asyncio.to_thread(chains.find_log, self, entry)
                try:
                    entry.live = await LiveVault.open(
                        entry.place.path, log or entry.log, max_log_bytes=self.settings.max_log_bytes
                    )
                except FbxError as error:
                    entry.shut_out = error
                    raise
                entry.shut_out = None
            return entry.live

    async def _open_log(self, entry: VaultEntry) -> None:
        """Open a log that was left; one that is shut out says so in every answer about its vault."""
        try:
            await self.live_vault(entry)
        except ConflictError:
            self._tell_fault(entry)

    def check_writable(self, entry: VaultEntry) -> None:
        """Refuse to write to a foreign vault, a damaged one, or one that a buffer fills."""
        if entry.place.read_only:
            raise ConflictError(
                f"Vault {entry.place.key!r} must be one of ours to be changed, got one of the other folder.",
                code="read_only",
            )
        if entry.facts.error is not None:
            raise entry.facts.error
        if (owner := self.owners.get(entry.place.key)) is not None:
            raise ConflictError(
                f"Vault {entry.place.key!r} must have one writer, and buffer {owner!r} persists to it.",
                code="vault_in_use",
                buffer=owner,
            )
