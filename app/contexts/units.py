"""Numbers as people read them: grouped, with units, never without the exact value at hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

NONE = "–"
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Quantity:
    """A number with its unit and, as `title`, what exactly it is."""

    text: str
    unit: str = ""
    title: str = ""


def grouped(n: float | None) -> str:
    """12480 → 12,480."""
    return NONE if n is None else f"{n:,.0f}".replace("-", "−")


def count(n: int | None, unit: str = "") -> Quantity:
    """A whole number, grouped; the unit loses its s for exactly one."""
    if n is None:
        return Quantity(NONE, "", "not known")
    word = unit[:-1] if n == 1 and unit.endswith("s") else unit
    return Quantity(grouped(n), word, f"{n} {word}".strip())


def size(n: float | None) -> Quantity:
    """Bytes in powers of 1000, three digits."""
    if n is None:
        return Quantity(NONE, "", "not known")
    value, unit = float(n), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 999.5 or unit == "PB":
            break
        value /= 1000
    text = grouped(value) if unit == "B" else _three_digits(value)
    return Quantity(text, unit, f"{n:,.0f} bytes")


def per_second(value: float | None, unit: str) -> Quantity:
    """A rate, three digits once it has decimals."""
    if value is None or not math.isfinite(value):
        return Quantity(NONE, f"{unit}/s", "no measurement yet")
    text = "0" if value == 0 else grouped(value) if value >= 100 else _three_digits(value)
    return Quantity(text, f"{unit}/s", f"{value:.6g} {unit} per second")


def percent(share: float | None) -> Quantity:
    """A share of one as percent; never 100 % or 0 % unless it is."""
    if share is None or not math.isfinite(share):
        return Quantity(NONE, "%", "not known")
    value = 100 * share
    shown = min(max(value, 0.1), 99.9) if 0 < share < 1 else value
    return Quantity(f"{shown:.0f}" if shown in (0, 100) else f"{shown:.1f}", "%", f"{value:.6g} %")


def ratio(over: float, under: float) -> Quantity:
    """How many of one per one of the other."""
    if not under:
        return Quantity(NONE, "", "nothing added yet")
    return Quantity(_three_digits(over / under), "", f"{over:,.0f} / {under:,.0f}")


def _three_digits(value: float) -> str:
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:,.{digits}f}"


def parse_time(value: Any) -> datetime | None:
    """A moment from ISO text, a datetime or seconds; times without a zone are UTC."""
    if value is None or value == "":
        return None
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return at if at.tzinfo else at.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Moment:
    """A time: how long ago, the minute in UTC, ISO for machines, and the second of its day."""

    ago: str
    text: str
    iso: str
    clock: str = ""


def moment(value: Any, now: datetime | None = None) -> Moment | None:
    """A time as a page shows it."""
    at = parse_time(value)
    if at is None:
        return None
    at = at.astimezone(UTC)
    return Moment(
        _ago(((now or datetime.now(UTC)) - at).total_seconds()),
        at.strftime("%Y-%m-%d %H:%M UTC"),
        at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        at.strftime("%H:%M:%S UTC"),
    )


def _ago(seconds: float) -> str:
    if seconds < 5:
        return "just now"
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "min"), (129600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} days ago"


def duration(seconds: float | None) -> str:
    """Seconds as the largest unit that reads well."""
    if seconds is None:
        return NONE
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "min"), (129600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def value(x: Any, digits: int = 5) -> str:
    """A scalar out of an array: integers exact, floats in a few digits, NaN and infinities named."""
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, int):
        return str(x).replace("-", "−")
    number = float(x)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    return f"{number:.{digits}g}".replace("-", "−")
