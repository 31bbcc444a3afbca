"""How many items may be sampled for each timestep inserted, after Reverb's limiter.

With `inserts` timesteps added and `samples` items handed out, the error `inserts * samples_per_insert -
samples` must stay within `min_size * samples_per_insert ± error_buffer`. Sampling waits at the lower
bound and below `min_size`; adding waits at the upper bound.

Source: Cassirer et al., "Reverb: A Framework for Experience Replay", 2021, section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fbxcore.buffers.layout import Layout
from fbxcore.errors import InvalidArgumentError


@dataclass(frozen=True)
class LimiterConfig:
    """The three numbers of a limiter."""

    samples_per_insert: float
    min_size: int  # timesteps over all rows
    error_buffer: float  # items

    @classmethod
    def parse(cls, given: Any) -> LimiterConfig | None:
        """Return the limiter a JSON object asks for, or None."""
        if given is None:
            return None
        if not isinstance(given, Mapping) or set(given) != {"samples_per_insert", "min_size", "error_buffer"}:
            raise InvalidArgumentError(
                "`rate_limiter` must have exactly `samples_per_insert`, `min_size` and `error_buffer`, "
                f"got {given!r:.120}.",
                loc=("rate_limiter",),
            )
        return cls(
            _number(given, "samples_per_insert"), int(_number(given, "min_size", whole=True)),
            _number(given, "error_buffer"),
        )  # fmt: skip

    @property
    def balance(self) -> float:
        """The error a limiter in balance has."""
        return self.min_size * self.samples_per_insert

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest allowed error."""
        return self.balance - self.error_buffer, self.balance + self.error_buffer

    def check(self, layout: Layout) -> None:
        """Refuse a limiter that would block for ever."""
        least = max(1.0, self.samples_per_insert, layout.sample_batch_size)
        if self.error_buffer < least:
            raise InvalidArgumentError(
                f"`error_buffer` must be at least {least:g}, the greatest of 1, `samples_per_insert` and "
                f"`sample_batch_size`, got {self.error_buffer:g}: around the balance point {self.balance:g} "
                "both sides would block.",
                loc=("rate_limiter", "error_buffer"),
            )
        if self.min_size > layout.capacity:
            raise InvalidArgumentError(
                f"`min_size` must be at most the capacity ({layout.capacity}), got {self.min_size}.",
                loc=("rate_limiter", "min_size"),
            )

    def to_json(self) -> dict[str, float]:
        """Return the object `parse` reads."""
        return asdict(self)


@dataclass(frozen=True)
class Limiter:
    """Says who may go on, given what was inserted and sampled so far."""

    config: LimiterConfig

    def can_insert(self, steps: int, *, inserts: int, samples: int) -> bool:
        """Whether `steps` more timesteps may be added."""
        if inserts + steps <= self.config.min_size:
            return True
        return self.error(inserts + steps, samples) <= self.config.bounds[1]

    def can_sample(self, items: int, *, inserts: int, samples: int) -> bool:
        """Whether `items` more items may be handed out."""
        if inserts < self.config.min_size:
            return False
        return self.error(inserts, samples + items) >= self.config.bounds[0]

    def error(self, inserts: int, samples: int) -> float:
        """Return inserts × samples_per_insert − samples."""
        return inserts * self.config.samples_per_insert - samples

    def describe(self, *, inserts: int, samples: int) -> dict[str, Any]:
        """Return the numbers an answer shows to whoever is blocked."""
        low, high = self.config.bounds
        return self.config.to_json() | {
            "inserts": inserts,
            "samples": samples,
            "error": self.error(inserts, samples),
            "min_error": low,
            "max_error": high,
        }


def _number(given: Mapping[str, Any], name: str, *, whole: bool = False) -> float:
    value = given[name]
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if not ok or (whole and value != int(value)):
        raise InvalidArgumentError(
            f"`{name}` must be a positive {'integer' if whole else 'number'}, got {value!r}.",
            loc=("rate_limiter", name),
        )
    return value
