"""Arguments of a buffer, each checked by itself, and what of them may surprise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fbxcore.errors import InvalidArgumentError

DEVICES: Final = ("cpu", "gpu", "tpu")


def cut_by_rows(name: str, asked: int, rows: int, word: str = "rows", unit: str = "timesteps") -> list[str]:
    """Return what to say about a length that does not divide into so many rows."""
    cut = asked % rows
    if not cut:
        return []
    return [
        f"`{name}` {asked} over {rows} {word} leaves {asked // rows} {unit} each, {asked - cut} in all: "
        f"{cut} cut."
    ]


def sequence_warnings(length: int, period: int, min_time_axis: int) -> list[str]:
    """Return what of lengths and period may surprise."""
    warnings = []
    if length > min_time_axis:
        warnings.append(
            f"`min_length_time_axis` {min_time_axis} is raised to `sample_sequence_length` {length}: "
            "a row must hold one whole sequence."
        )
    if period > length:
        warnings.append(
            f"`period` {period} is greater than `sample_sequence_length` {length}: {period - length} of "
            f"every {period} timesteps are never sampled. Use {length} to sample each once, or "
            f"{max(length - 1, 1)} to share first and last ones."
        )
    return warnings


def batch_size_of(given: dict[str, Any], max_length: int) -> int:
    """Return the number of items of a sample."""
    size = integer_of(given, "sample_batch_size", at_least=1)
    if size > max_length:
        raise InvalidArgumentError(
            f"`sample_batch_size` must be at most `max_length` ({max_length}), got {size}.",
            loc=("sample_batch_size",),
        )
    return size


def priority_exponent(given: dict[str, Any]) -> float | None:
    """Return the exponent of a prioritised kind, None of a uniform one."""
    if "priority_exponent" not in given:
        return None
    value = given["priority_exponent"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidArgumentError(
            f"`priority_exponent` must be a number from 0 to 1, got {value!r}.", loc=("priority_exponent",)
        )
    return float(value)


def device_warnings(given: dict[str, Any]) -> list[str]:
    """Return what of a device may surprise."""
    device = given.get("device", "cpu")
    if device in DEVICES:
        return []
    return [f"`device` must be one of {', '.join(DEVICES)}, got {device!r}; 'cpu' is used."]


def integer_of(given: Mapping[str, Any], name: str, *, at_least: int) -> int:
    """Return an argument that must be an integer of at least so much."""
    value = given[name]
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < at_least:
        raise InvalidArgumentError(
            f"`{name}` must be an integer of at least {at_least}, got {value!r}.", loc=(name,)
        )
    return value.__index__()


def check_boolean(given: dict[str, Any], name: str) -> None:
    """Refuse an argument that must be true or false and is neither."""
    if not isinstance(given[name], bool):
        raise InvalidArgumentError(f"`{name}` must be true or false, got {given[name]!r}.", loc=(name,))

def too_long(length: int, time_axis: int, typed: str, given: dict[str, Any]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"`sample_sequence_length` must be at most the time axis ({time_axis}, from `{typed}` "
        f"{given[typed]}), got {length}.",
        loc=("sample_sequence_length",),
    )


def time_axis_of(given: dict[str, Any], rows: int) -> tuple[str, int, list[str]]:
    """Return which argument sets the time axis, what it comes to, and what to say about it."""
    max_size, max_time = given["max_size"], given["max_length_time_axis"]
    if max_size is not None and max_time is not None:
        raise InvalidArgumentError(
            f"`max_size` must not be given together with `max_length_time_axis`, got {max_size!r} and "
            f"{max_time!r}. Leave one out.",
            loc=("max_size",),
        )
    if max_size is None and max_time is None:
        raise InvalidArgumentError(
            "`max_length_time_axis` must be given, or `max_size` instead of it.",
            loc=("max_length_time_axis",),
        )
    if max_size is None:
        return "max_length_time_axis", integer_of(given, "max_length_time_axis", at_least=1), []
    time_axis = integer_of(given, "max_size", at_least=rows) // rows
    set_by = f"`max_size` {max_size} sets the time axis of each of {rows} rows to {time_axis}."
    return "max_size", time_axis, [set_by, *cut_by_rows("max_size", max_size, rows)]


def missing_axes_of(given: dict[str, Any]) -> tuple[int, ...]:
    is_given = (given["add_batch_size"] is not None, given["add_sequences"])
    return tuple(axis for axis, has_it in enumerate(is_given) if not has_it)
