"""Reading vaults: one generation at a time, without writing anything."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fbxcore.errors import DamagedError, InvalidArgumentError, NotFoundError, ReclaimedError
from fbxcore.types import Spec
from fbxcore.vault.faults import told
from fbxcore.vault.files import METADATA, disk_bytes, label_of, read_manifest
from fbxcore.vault.keys import Keyed, damaged_key, json_value
from fbxcore.vault.segments import Segment, segments_of
from fbxcore.vault.spec import Structure, parse_structure
from fbxcore.vault.store_arrays import Database
from fbxcore.vault.store_dump import latest

SWEEP_KEY = "_flashdeck/sweep"
"""What the last sweep kept: generations up to `generation` are gone, save those in `kept`."""

FREED_KEY = "_flashdeck/freed"
"""How many of the oldest timesteps were given back; there is none where all are there."""


class VaultReader:
    """One generation of a vault, read only: nothing is written, and later commits do not show."""

    def __init__(self, path: Path, structure: Structure, generation: int | None):
        self.path = path
        self.structure = structure
        self.manifest = manifest = read_manifest(path)
        newest = latest(manifest, label_of(path))
        self.is_newest = generation is None or generation == newest["generation_number"]
        self.generation: int = newest["generation_number"] if generation is None else generation
        self._newest = newest
        with _missing_told(self):
            self._database = Database(
                path,
                structure,
                manifest=manifest,
                generation=self.generation,
                num_keys=newest["root"]["statistics"]["num_keys"],
            )
            self.length = self._database.length()

    @classmethod
    def open(cls, path: Path, *, generation: int | None = None) -> VaultReader:
        """Open the newest or an older generation.

        Raises:
            NotFoundError: if there is no such directory or generation.
            ReclaimedError: if the generation's bytes were given back.
            DamagedError: if the vault is damaged or half made; names the file.
        """
        path = Path(path).absolute()
        if not path.is_dir():
            raise NotFoundError(f"No vault named '{label_of(path)}'.")
        if generation is not None and (type(generation) is not int or generation < 1):
            raise InvalidArgumentError(
                f"`generation` must be a positive integer, got {generation!r}.", loc=("generation",)
            )
        return cls(path, read_structure(path), generation)

    @property
    def spec(self) -> Spec:
        return self.structure.spec

    @property
    def rows(self) -> int:
        return self.structure.rows

    @functools.cached_property
    def first(self) -> int:
        """The oldest timestep that is still there; those before it were given back."""
        return first_of(self)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.structure.metadata)

    @property
    def version(self) -> float:
        """The version of the vault's format."""
        return self.structure.version

    @property
    def live_bytes(self) -> int:
        """Bytes of the newest generation alone."""
        statistics = self._newest["root"]["statistics"]
        return statistics["num_indirect_value_bytes"] + statistics["num_tree_bytes"]

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files, with every older generation."""
        return disk_bytes(self.path)

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        step: int = 1,
        rows: slice = slice(None),
        leaves: Sequence[str] | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the timesteps `range(start, stop, step)` of each leaf, `[B, t, ...]`.

        Without `start` it begins with the oldest one there is. What lies behind the length is cut off, as
        with a Python slice. A negative step reads backwards.

        Raises:
            ReclaimedError: if one of them was given back.
        """
        steps = self._steps(start, stop, step)
        spec = self.spec
        names = list(spec) if leaves is None else list(leaves)
        for name in names:
            if name not in spec:
                raise NotFoundError(
                    f"No leaf named {name!r}. Leaves: {', '.join(map(repr, spec))}.",
                    code="leaf_not_found",
                )
        picked = range(self.rows)[rows]
        with _missing_told(self):
            return self._database.read(names, picked, steps)

    def read_blocks(self, out: Mapping[str, np.ndarray], starts: Sequence[int]) -> None:
        """Fill block g of leaves `[G, B, t, ...]` with the timesteps from `starts[g]`, to the end at most.

        Chunks are decoded into `out` itself, without an array between.
        """
        self._check_there(min(starts, default=self.first))
        with _missing_told(self):
            self._database.read_blocks(out, starts, self.length)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key of this generation, or None."""
        with _missing_told(self):
            return self._database.get(key)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys of this generation that start with `prefix`, sorted."""
        with _missing_told(self):
            return self._database.keys(prefix)

    def segments(self) -> list[Segment]:
        """Return which timesteps are consecutive, and whose; empty where no independent writers were."""
        return [s for s in segments_of(self) if s.stop > self.first or s.start >= self.first]

    def stamps(self, keys: Sequence[str]) -> list[bytes]:
        """Return for each key what identifies its value: equal stamps mean equal bytes."""
        with _missing_told(self):
            return self._database.stamps(keys)

    def chunks(self, name: str) -> tuple[int, ...]:
        """Return the chunk shape of a leaf, `(rows, timesteps, ...)`."""
        return self._database.chunks(name)

    def close(self) -> None:
        """Drop the open handles."""
        self._database = None

    def __enter__(self) -> VaultReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _steps(self, start: int | None, stop: int | None, step: int) -> range:
        if step == 0:
            raise InvalidArgumentError("`step` must not be 0, got 0.", loc=("step",))
        if start is None:
            start = self.first if step > 0 else max(self.length - 1, 0)
        if start < 0 or (step < 0 and start >= max(self.length, 1)):
            raise InvalidArgumentError(
                f"`start` must be a timestep of the {self.length} there are, got {start}.", loc=("start",)
            )
        if stop is None:
            stop = self.length if step > 0 else self.first - 1
        steps = range(start, min(stop, self.length) if step > 0 else max(stop, -1), step)
        if steps:
            self._check_there(min(steps[0], steps[-1]))
        return steps

    def _check_there(self, oldest: int) -> None:
        if oldest < self.first:
            raise ReclaimedError(
                f"Timestep {oldest} of vault '{label_of(self.path)}' was given back, by its retention. The "
                f"oldest one there is {self.first}.",
                loc=("start",),
                first=self.first,
            )


def first_of(vault: Keyed) -> int:
    """Return the oldest timestep of a vault that is still there."""
    content = vault.get(FREED_KEY)
    if content is None:
        return 0
    if not content.isdigit():
        raise damaged_key(vault, FREED_KEY, "be a number", content)
    return int(content)


def read_structure(path: Path) -> Structure:
    try:
        content = (path / METADATA).read_bytes()
    except OSError as error:
        raise DamagedError(
            f"File `{METADATA}` of vault '{label_of(path)}' must exist, got: {error.strerror}.", file=METADATA
        ) from error
    return parse_structure(content, where=label_of(path))


@contextlib.contextmanager
def _missing_told(reader: VaultReader) -> Iterator[None]:
    """Say of an older generation whether it never was, was swept, or is damaged."""
    label = label_of(reader.path)
    try:
        with told(label):
            yield
    except DamagedError as error:
        newest = latest(read_manifest(reader.path), label)["generation_number"]  # more may have come since
        if reader.generation > newest:
            raise NotFoundError(
                f"No generation {reader.generation} in vault '{label}', whose newest is {newest}."
            ) from error
        is_gone = "Version where generation_number" in str(error.__cause__)
        if reader.generation < newest and (is_gone or _was_swept(reader)):
            raise ReclaimedError(
                f"Generation {reader.generation} of vault '{label}' must still have its bytes, "
                "but they were given back."
            ) from error
        raise


def _was_swept(reader: VaultReader) -> bool:
    with VaultReader(reader.path, reader.structure, None) as newest:
        return was_swept(newest, reader.generation)


def was_swept(newest: Keyed, generation: int) -> bool:
    """Return whether the bytes of a generation were given back, as the newest one says."""
    sweep = json_value(newest, SWEEP_KEY) or {"generation": 0, "kept": []}
    return generation <= sweep["generation"] and generation not in sweep["kept"]
