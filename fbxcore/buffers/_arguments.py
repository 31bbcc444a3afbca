"""Arguments of a buffer, each checked by itself, and what of them may surprise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fbxcore.errors import InvalidArgumentError

DEVICES: Final = ("cpu", "gpu", "tpu")
MAX_COUNT: Final = 2**31 - 1  # slots and items are counted in 32 bits


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
        shared = f", or {length - 1} to share first and last ones" if length > 1 else ""
        warnings.append(
            f"`period` {period} is greater than `sample_sequence_length` {length}: {period - length} of "
            f"every {period} timesteps are never sampled. Use {length} to sample each once{shared}."
        )
    return warnings


def transition_warnings(min_length: int, rows: int, *, independent: bool) -> list[str]:
    """Return what to say about a least length below one transition: of each row, or (independent) in all."""
    if min_length >= (2 if independent else rows):
        return []
    in_rows = "" if independent or rows == 1 else f", two timesteps in each of {rows} rows"
    least = 2 if independent else 2 * rows
    return [f"`min_length` {min_length} is raised to {least}{in_rows}: a transition has two timesteps."]


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
    if value.__index__() > MAX_COUNT:
        raise InvalidArgumentError(
            f"`{name}` must be at most {MAX_COUNT}, got {value}.", code="limit_exceeded", loc=(name,)
        )
    return value.__index__()


def length_argument(given: Mapping[str, Any]) -> str:
    """Return the argument that sets how much a buffer holds."""
    if "max_length" in given:
        return "max_length"
    return "max_length_time_axis" if given.get("max_size") is None else "max_size"


def check_capacity(given: Mapping[str, Any], capacity: int) -> None:
    """Refuse more timesteps over all rows than can be counted."""
    if capacity > MAX_COUNT:
        name = length_argument(given)
        raise InvalidArgumentError(
            f"`{name}` must come to at most {MAX_COUNT} timesteps over all rows, got {capacity}.",
            code="limit_exceeded",
            loc=(name,),
        )


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


def clusters_of(given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of clusters and the length over which they share."""
    clusters = integer_of(given, "num_clusters", at_least=1)
    max_length = integer_of(given, "max_length", at_least=1)
    if clusters > max_length:
        raise InvalidArgumentError(
            f"`num_clusters` must be at most `max_length` ({max_length}), got {clusters}.",
            loc=("num_clusters",),
        )
    return clusters, max_length


def check_period(period: int, time_axis: int, typed: str, given: Mapping[str, Any]) -> None:
    """Refuse a period of which the time axis has not one: it is cut to a multiple of it."""
    if period > time_axis:
        raise InvalidArgumentError(
            f"`period` must be at most the time axis ({time_axis}, from `{typed}` {given[typed]}), "
            f"got {period}.",
            loc=("period",),
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
    if rows == 1:
        return "max_size", time_axis, []
    set_by = f"`max_size` {max_size} sets the time axis of each of {rows} rows to {time_axis}."
    return "max_size", time_axis, [set_by, *cut_by_rows("max_size", max_size, rows)]


def missing_axes_of(given: dict[str, Any]) -> tuple[int, ...]:
    is_given = (given["add_batch_size"] is not None, given["add_sequences"])
    return tuple(axis for axis, has_it in enumerate(is_given) if not has_it)
