"""What a live buffer is asked to be: parsed once, compared, written down."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fbxcore.buffers._arguments import length_argument
from fbxcore.buffers.layout import ARGUMENTS, KINDS_LATER, Layout, layout_of
from fbxcore.errors import DamagedError, InvalidArgumentError, NotFoundError, NotSupportedError
from fbxcore.live.calls.rate_limiter import LimiterConfig
from fbxcore.live.durable.files import replace_file, seal, unseal
from fbxcore.spec import parse_spec, spec_to_json, timestep_bytes
from fbxcore.types import Spec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DURABILITIES = {
    "fsync": "Acknowledged data survive a power loss.",
    "os": "Acknowledged data survive a crash of the server, not a power loss.",
    "none": "Nothing survives the end of the server but what was committed to a vault.",
}
CHANGEABLE = ("rate_limiter", "durability", "retain_steps", "idle_end_s")
WRITERS = ("lockstep", "independent")
DEFAULT_IDLE_END_S = 60.0
_KINDS = tuple(ARGUMENTS)
_LATER_FIELDS = ("retention", "max_times_sampled")
_FIELDS = (
    "name", "kind", "spec", "writers", "idle_end_s", "persist_to", "durability", "rate_limiter",
    "retain_steps", "from",
)  # fmt: skip
_FROM = {
    "snapshot": str,
    "vault": str,
    "ref": (str, int),
    "start": int,
    "stop": int,
    "timesteps": int,
    "percentiles": list,
}
FILE = "config.json"
MAX_SAMPLE_BYTES = 1 << 30
MAX_SAMPLE_ITEMS = 1 << 20


@dataclass(frozen=True)
class BufferConfig:
    """A live buffer's configuration, checked."""

    name: str
    kind: str
    spec: Spec
    arguments: Mapping[str, Any]
    persist_to: str | None = None
    durability: str = "fsync"
    writers: str = "lockstep"
    idle_end_s: float | None = None  # how long an independent writer keeps its row without adding
    rate_limiter: LimiterConfig | None = None
    retain_steps: int | None = None  # of its vault: the newest so many stay
    source: Mapping[str, Any] | None = None  # `from`: the timesteps of a vault it began with
    created_at: float = field(default_factory=time.time, compare=False)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> BufferConfig:
        """Return the configuration a JSON object asks for.

        Raises:
            InvalidArgumentError: with `loc` naming the field the user typed.
            NotSupportedError: for a known kind, field or value that is not served yet.
        """
        kind = _kind(given.get("kind"))
        for name in given:
            if name in _LATER_FIELDS:
                raise NotSupportedError(f"`{name}` must be left out: it is not served yet.", loc=(name,))
            if name not in _FIELDS and name not in ARGUMENTS[kind]:
                known = ", ".join(f"`{n}`" for n in (*_FIELDS, *ARGUMENTS[kind]))
                raise InvalidArgumentError(
                    f"`{name}` must be one of {known} for kind {kind!r}, got an unknown field.", loc=(name,)
                )
        config = cls(
            name=check_name(given.get("name")),
            kind=kind,
            spec=parse_spec(given.get("spec")),
            arguments={n: given[n] for n in ARGUMENTS[kind] if n in given},
            persist_to=_persist_to(given.get("persist_to")),
            durability=_durability(given.get("durability", "fsync")),
            writers=_writers(given.get("writers", "lockstep")),
            idle_end_s=_idle_end_s(given),
            rate_limiter=LimiterConfig.parse(given.get("rate_limiter")),
            retain_steps=_retain_steps(given.get("retain_steps"), given.get("persist_to")),
            source=_source(given.get("from")),
        )
        return config.checked()

    @cached_property
    def layout(self) -> Layout:
        """The rows, time axis and rules that follow."""
        return layout_of(self.kind, self.arguments, independent=self.writers == "independent")

    @cached_property
    def body_spec(self) -> Spec:
        """The leaves that a request may carry: an independent writer's also `final/<leaf>`."""
        final = {f"final/{name}": leaf for name, leaf in self.spec.items()}
        return self.spec | final if self.layout.independent else self.spec

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the ring, priorities included."""
        weights = (8 if self.layout.is_weighted else 0) + self.layout.independent
        return self.layout.capacity * (timestep_bytes(self.spec) + weights)

    @property
    def length_argument(self) -> str:
        """The argument that sets how much it holds."""
        return length_argument(self.arguments)

    @cached_property
    def item_bytes(self) -> int:
        """Bytes of one sampled item."""
        return self.layout.sequence_length * timestep_bytes(self.spec)

    @cached_property
    def max_batch_size(self) -> int:
        """The most items of one sample."""
        return max(1, min(MAX_SAMPLE_BYTES // max(self.item_bytes, 1), MAX_SAMPLE_ITEMS))

    def checked(self) -> BufferConfig:
        """Return this configuration if its parts agree with one another."""
        if self.layout.sample_batch_size > self.max_batch_size:
            batch = "add_batch_size" if self.layout.is_queue else "sample_batch_size"
            raise InvalidArgumentError(
                f"`{batch}` must be at most {self.max_batch_size} (items of {self.item_bytes} bytes each), "
                f"got {self.layout.sample_batch_size}.",
                loc=(batch,),
            )
        if self.layout.is_queue:
            self._check_queue()
        if self.rate_limiter is not None:
            self.rate_limiter.check(self.layout)
        if self.layout.independent:
            self._check_independent()
        if self.layout.num_clusters:
            self._check_clusters()
        return self

    def _check_clusters(self) -> None:
        leaf = self.spec.get(self.layout.cluster_leaf)
        if leaf is None or leaf.shape or "int" not in leaf.dtype:
            got = "none of that name" if leaf is None else f"shape {list(leaf.shape)} of {leaf.dtype}"
            raise InvalidArgumentError(
                f"`cluster_leaf` must name a leaf of single integers, got "
                f"{self.layout.cluster_leaf!r:.80}: {got}.",
                loc=("cluster_leaf",),
            )

    def _check_queue(self) -> None:
        if self.rate_limiter is not None:
            raise NotSupportedError(
                "`rate_limiter` must be left out for a queue, whose adds wait for its takes as it is.",
                loc=("rate_limiter",),
            )
        if self.layout.add_sequence_length > self.layout.time_axis:
            raise InvalidArgumentError(
                f"`add_sequence_length` must be at most the time axis ({self.layout.time_axis}), got "
                f"{self.layout.add_sequence_length}.",
                loc=("add_sequence_length",),
            )

    def _check_independent(self) -> None:
        if taken := [name for name in self.spec if name.split("/")[0] == "final"]:
            raise InvalidArgumentError(
                f"`spec` must not have a leaf or group `final` where `writers` are 'independent', got "
                f"{taken[0]!r}: `final/…` is the true last observation of an episode.",
                loc=("spec", "final"),
            )

    def changed(self, given: Mapping[str, Any]) -> BufferConfig:
        """Return this configuration with the changes a JSON object asks for, checked as at the creation.

        Raises:
            InvalidArgumentError: for a value that is refused, and a field that a buffer keeps for good.
        """
        for name in given:
            if name not in CHANGEABLE:
                raise NotSupportedError(
                    f"`{name}` must be left as it is: {', '.join(f'`{n}`' for n in CHANGEABLE)} can be "
                    "changed while a buffer runs. Make another buffer for the rest.",
                    loc=(name,),
                )
        changes: dict[str, Any] = {}
        if "rate_limiter" in given:
            changes["rate_limiter"] = LimiterConfig.parse(given["rate_limiter"])
        if "durability" in given:
            changes["durability"] = _durability(given["durability"])
        if "retain_steps" in given:
            changes["retain_steps"] = _retain_steps(given["retain_steps"], self.persist_to)
        if "idle_end_s" in given:
            changes["idle_end_s"] = _idle_end_s({"writers": self.writers, "idle_end_s": given["idle_end_s"]})
        return replace(self, **changes).checked()

    def to_json(self) -> dict[str, Any]:
        """Return the object `parse` reads, with `created_at`."""
        limiter = self.rate_limiter.to_json() if self.rate_limiter else None
        return {
            "name": self.name,
            "kind": self.kind,
            "spec": spec_to_json(self.spec),
            **self.arguments,
            "writers": self.writers,
            **({} if self.idle_end_s is None else {"idle_end_s": self.idle_end_s}),
            "persist_to": self.persist_to,
            "durability": self.durability,
            "rate_limiter": limiter,
            "retain_steps": self.retain_steps,
        } | ({} if self.source is None else {"from": dict(self.source)})

    def differences(self, other: BufferConfig) -> dict[str, dict[str, Any]]:
        """Return the fields in which another configuration differs, with both values."""
        mine, theirs = self._comparable(), other._comparable()
        return {
            name: {"is": mine.get(name), "given": theirs.get(name)}
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        }

    def _comparable(self) -> dict[str, Any]:
        defaults = ARGUMENTS[self.kind].items()
        return self.to_json() | {name: self.arguments.get(name, default) for name, default in defaults}


def check_name(name: Any, *, loc: tuple[str, ...] = ("name",)) -> str:
    """Return a name that is safe as a file name and in a URL."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"`{loc[-1]}` must match {NAME.pattern}, got {str(name)[:200]!r}. "
            "Use letters, digits, dots, dashes and underscores.",
            loc=loc,
        )
    return name


def save_config(directory: Path, config: BufferConfig) -> None:
    """Write a buffer's configuration; with it the buffer exists."""
    replace_file(directory / FILE, seal(config.to_json() | {"created_at": config.created_at}))


def load_config(directory: Path) -> BufferConfig:
    """Return the configuration of the buffer in a directory.

    Raises:
        NotFoundError: if there is none.
        DamagedError: if it cannot be read.
    """
    try:
        saved = unseal(directory / FILE)
        created_at = saved.pop("created_at")
        return replace(BufferConfig.parse(saved), created_at=created_at)
    except FileNotFoundError:
        raise NotFoundError(f"No buffer in `{directory.name}`.") from None
    except (KeyError, InvalidArgumentError) as error:
        raise DamagedError(
            f"Buffer `{directory.name}` must have a readable `{FILE}`, got {error}.", file=FILE
        ) from error


def _kind(kind: Any) -> str:
    if kind in KINDS_LATER:
        raise NotSupportedError(
            f"`kind` must be one of {', '.join(_KINDS)} today, got {kind!r}.", loc=("kind",)
        )
    if kind not in _KINDS:
        raise InvalidArgumentError(f"`kind` must be one of {', '.join(_KINDS)}, got {kind!r}.", loc=("kind",))
    return kind


def _persist_to(path: Any) -> str | None:
    if path is None:
        return None
    parts = path.split("/") if isinstance(path, str) else []
    if len(parts) < 2 or not all(NAME.fullmatch(part) for part in parts):
        raise InvalidArgumentError(
            f"`persist_to` must be `vault_name/vault_uid`, got {str(path)[:200]!r}.", loc=("persist_to",)
        )
    return path


def _retain_steps(steps: Any, persist_to: Any) -> int | None:
    if steps is None:
        return None
    if type(steps) is not int or steps < 1:
        raise InvalidArgumentError(
            f"`retain_steps` must be at least 1, got {steps!r:.80}.", loc=("retain_steps",)
        )
    if persist_to is None:
        raise InvalidArgumentError(
            f"`retain_steps` must come with `persist_to`, the vault that keeps them, got {steps} alone.",
            loc=("retain_steps",),
        )
    return steps


def _source(given: Any) -> Mapping[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(f"`from` must be an object, got {given!r:.80}.", loc=("from",))
    for name, value in given.items():
        if name not in _FROM:
            raise NotSupportedError(
                f"`from` must have only {', '.join(f'`{known}`' for known in _FROM)}, got {name!r:.80}.",
                loc=("from", name),
            )
        if not isinstance(value, _FROM[name]) or isinstance(value, bool):
            raise InvalidArgumentError(
                f"`{name}` must be of another type, got {value!r:.80}.", loc=("from", name)
            )
    if "snapshot" in given and len(given) > 1:
        raise InvalidArgumentError(
            f"`from` must name a `snapshot` alone or a `vault`, got {', '.join(map(repr, given))}.",
            loc=("from",),
        )
    if "vault" not in given and "snapshot" not in given:
        raise InvalidArgumentError(
            "`from` must name a `vault` as `vault_name/vault_uid`, got none.", loc=("from", "vault")
        )
    return dict(given)


def _durability(durability: Any) -> str:
    if not isinstance(durability, str) or durability not in DURABILITIES:
        raise InvalidArgumentError(
            f"`durability` must be one of {', '.join(DURABILITIES)}, got {durability!r:.80}.",
            loc=("durability",),
        )
    return durability


def _writers(writers: Any) -> str:
    if writers not in WRITERS:
        raise InvalidArgumentError(
            f"`writers` must be one of {', '.join(WRITERS)}, got {writers!r:.80}.", loc=("writers",)
        )
    return writers


def _idle_end_s(given: Mapping[str, Any]) -> float | None:
    if given.get("writers") != "independent":
        if given.get("idle_end_s") is not None:
            raise InvalidArgumentError(
                "`idle_end_s` must be left out where `writers` are 'lockstep': they keep no rows.",
                loc=("idle_end_s",),
            )
        return None
    seconds = given.get("idle_end_s", DEFAULT_IDLE_END_S)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 1 <= seconds <= 86400:
        raise InvalidArgumentError(
            f"`idle_end_s` must be a number of seconds from 1 to 86400, got {seconds!r:.80}.",
            loc=("idle_end_s",),
        )
    return float(seconds)
