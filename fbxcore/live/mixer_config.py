"""What a mixer is asked to be: buffers by name, their proportions, and the size of a joined sample."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fbxcore.buffers.layout import Layout, integer_of
from fbxcore.buffers.mixer import sizes_of
from fbxcore.errors import DamagedError, InvalidArgumentError
from fbxcore.live.config import FILE, NAME, BufferConfig, check_name, load_config
from fbxcore.live.durable.files import unseal
from fbxcore.types import Spec

MIXER = "mixer"
MIXER_FIELDS = ("buffers", "proportions", "sample_batch_size")
MAX_MEMBERS = 64


@dataclass(frozen=True)
class MixerConfig:
    """A mixer's configuration, checked as far as that goes without its members."""

    name: str
    buffers: tuple[str, ...]
    proportions: tuple[float, ...]
    sample_batch_size: int
    created_at: float = field(default_factory=time.time, compare=False)
    kind: str = MIXER
    persist_to: None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> MixerConfig:
        """Return the configuration a JSON object asks for.

        Raises:
            InvalidArgumentError: with `loc` naming the field the user typed.
        """
        fields = ("name", "kind", *MIXER_FIELDS)
        for name in given:
            if name not in fields:
                known = ", ".join(f"`{field}`" for field in fields)
                raise InvalidArgumentError(
                    f"`{name}` must be one of {known} for a mixer, got an unknown field.", loc=(name,)
                )
        for name in MIXER_FIELDS:
            if name not in given:
                raise InvalidArgumentError(f"`{name}` must be given for a mixer.", loc=(name,))
        return cls(
            name=check_name(given.get("name")),
            buffers=_buffers(given["buffers"]),
            proportions=_proportions(given["proportions"], given["buffers"]),
            sample_batch_size=integer_of(given, "sample_batch_size", at_least=1),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of its own: none."""
        return 0

    @cached_property
    def sizes(self) -> list[int]:
        """How many items of the default batch each member gives."""
        return sizes_of(self.proportions, self.sample_batch_size)

    def to_json(self) -> dict[str, Any]:
        """Return the object `parse` reads."""
        return {
            "name": self.name,
            "kind": self.kind,
            "buffers": list(self.buffers),
            "proportions": list(self.proportions),
            "sample_batch_size": self.sample_batch_size,
        }

    _comparable = to_json

    def differences(self, other: MixerConfig | BufferConfig) -> dict[str, dict[str, Any]]:
        """Return the fields in which another configuration differs, with both values."""
        mine, theirs = self.to_json(), other.to_json()
        return {
            name: {"is": mine.get(name), "given": theirs.get(name)}
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        }

    def check_members(self, members: list[BufferConfig]) -> None:
        """Refuse members that give samples of different forms, or none.

        Raises:
            InvalidArgumentError: naming the member.
        """
        first = members[0]
        for index, (config, size) in enumerate(zip(members, self.sizes, strict=True)):
            at = {"loc": ("buffers", index)}
            if config.layout.is_queue:
                raise InvalidArgumentError(
                    f"`buffers` must be of kinds that are sampled, got {config.name!r}, a queue.", **at
                )
            if _plain(config.spec) != _plain(first.spec):
                raise InvalidArgumentError(
                    f"`buffers` must have equal specs, got {config.name!r} of another than {first.name!r}.",
                    **at,
                )
            if _form(config.layout) != _form(first.layout):
                raise InvalidArgumentError(
                    f"`buffers` must give samples of one form, got {config.name!r} of kind {config.kind!r} "
                    f"with {config.layout.sequence_length} timesteps an item beside {first.name!r} of kind "
                    f"{first.kind!r} with {first.layout.sequence_length}.",
                    **at,
                )
            if size > config.max_batch_size:
                raise InvalidArgumentError(
                    f"`sample_batch_size` must leave {config.name!r} at most {config.max_batch_size} items, "
                    f"got {size}.",
                    loc=("sample_batch_size",),
                )


def _form(layout: Layout) -> tuple[Any, ...]:
    """Return what says which arrays a sample has, and their axes."""
    clustered = layout.num_clusters > 0
    return layout.items, layout.flat, layout.sequence_length, layout.priority_exponent is None, clustered


def _plain(spec: Spec) -> dict[str, tuple[Any, ...]]:
    return {name: (leaf.shape, leaf.dtype) for name, leaf in spec.items()}


def _buffers(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MEMBERS:
        raise InvalidArgumentError(
            f"`buffers` must be a list of 1 to {MAX_MEMBERS} names, got {given!r:.80}.", loc=("buffers",)
        )
    for index, name in enumerate(given):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"`buffers` must be names that match {NAME.pattern}, got {name!r:.80}.",
                loc=("buffers", index),
            )
        if name in given[:index]:
            raise InvalidArgumentError(
                f"`buffers` must name each buffer once, got {name!r} again.", loc=("buffers", index)
            )
    return tuple(given)


def _proportions(given: Any, buffers: list[str]) -> tuple[float, ...]:
    def is_number(part: Any) -> bool:
        return isinstance(part, int | float) and not isinstance(part, bool)

    if not isinstance(given, list) or not all(map(is_number, given)) or len(given) != len(buffers):
        raise InvalidArgumentError(
            f"`proportions` must be one number for each of {len(buffers)} buffers, got {given!r:.80}.",
            loc=("proportions",),
        )
    try:
        sizes_of(given, 1)
    except (InvalidArgumentError, OverflowError) as error:
        raise InvalidArgumentError(
            f"`proportions` must be numbers from 0 on, not all 0 or huge, got {given!r:.80}.",
            loc=("proportions",),
        ) from error
    return tuple(given)


def load_any_config(directory: Path) -> BufferConfig | MixerConfig:
    """Return the configuration of the buffer or mixer in a directory.

    Raises:
        NotFoundError: if there is none.
        DamagedError: if it cannot be read.
    """
    path = directory / FILE
    saved = unseal(path) if path.exists() else {}
    if saved.get("kind") != MIXER:
        return load_config(directory)
    try:
        created_at = saved.pop("created_at")
        return replace(MixerConfig.parse(saved), created_at=created_at)
    except (KeyError, InvalidArgumentError) as error:
        raise DamagedError(
            f"Mixer `{directory.name}` must have a readable `{FILE}`, got {error}.", file=FILE
        ) from error
