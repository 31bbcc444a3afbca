"""What can be changed while a buffer runs, as a form: its choices, its fields, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.contexts import live
from fbxcore.live import DURABILITIES

LIMITER = {  # of each number: what it counts, and its step
    "samples_per_insert": ("", "any"),
    "min_size": ("timesteps", "1"),
    "error_buffer": ("items", "any"),
}


@dataclass(frozen=True)
class Outcome:
    """What a form of a page came to: refused, with what was typed, or done."""

    form: str = ""
    error: str = ""
    note: str = ""
    typed: Mapping[str, str] = field(default_factory=dict)

    def of(self, form: str) -> Outcome:
        """Return this if it is that form's."""
        return self if self.form == form else Outcome()


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    value: str
    text: str
    is_chosen: bool


@dataclass(frozen=True)
class Field:
    """A number to type."""

    name: str
    unit: str
    value: str
    step: str


@dataclass(frozen=True)
class Controls:
    """The form of what `PATCH` changes."""

    durabilities: list[Choice]
    limiter: list[Field]  # none of a queue
    retain: Field | None  # of a buffer with a vault
    idle: Field | None  # of independent writers
    outcome: Outcome


def controls(state: live.State, outcome: Outcome) -> Controls:
    """The form of a buffer as it is, or as it was typed where that was refused."""
    config, typed = state["config"], outcome.typed
    durability = typed.get("durability", config["durability"])
    limits = config["rate_limiter"] or {}
    return Controls(
        [Choice(name, f"{name}: {text}", name == durability) for name, text in DURABILITIES.items()],
        [] if live.is_queue(state) else [
            Field(name, unit, typed.get(name, _number(limits.get(name))), step)
            for name, (unit, step) in LIMITER.items()
        ],
        Field(
            "retain_steps", "timesteps of each row that the vault keeps",
            typed.get("retain_steps", _number(config["retain_steps"])), "1",
        ) if config["persist_to"] else None,
        Field(
            "idle_end_s", "seconds that a writer keeps its row without adding",
            typed.get("idle_end_s", _number(config["idle_end_s"])), "any",
        ) if config["writers"] == "independent" else None,
        outcome,
    )  # fmt: skip


def _number(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)
