"""Which timesteps of a vault are meant: a slice, the last n, or percentiles, as one `range`.

The three forms exclude each other. Percentiles are computed in exact integers, so that neighbouring
pairs (`(0, 30)`, `(30, 60)`, `(60, 100)`) meet without a gap or an overlap at every length. Where the oldest
timesteps were given back, the others keep their numbers; what is left out, counted from the end, or a
percentage, means those that are there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any

from fbxcore.errors import InvalidArgumentError, ReclaimedError


def resolve_slice(
    length: int,
    *,
    first: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
    timesteps: int | None = None,
    percentiles: Sequence[int | float] | str | None = None,
) -> range:
    """Return the timesteps that are meant, all below `length`.

    Args:
        length: how many timesteps there are.
        first: the oldest timestep that is still there.
        start, stop, step: Python's slice rules; negative counts from the end.
        timesteps: the last n; more than there are means all.
        percentiles: two numbers in 0..100, ascending, or the text `"a,b"`.

    Raises:
        InvalidArgumentError: if two forms are given, or one breaks its rule.
        ReclaimedError: if a timestep that is meant was given back.
    """
    forms = {
        "start": (start, stop, step) != (None, None, None),
        "timesteps": timesteps is not None,
        "percentiles": percentiles is not None,
    }
    given = [name for name, is_given in forms.items() if is_given]
    if len(given) > 1:
        raise InvalidArgumentError(
            f"`{given[1]}` must not be given together with `{given[0]}`, got both. Leave one out.",
            loc=(given[1],),
        )
    if timesteps is not None:
        return range(length - min(_natural("timesteps", timesteps), length - first), length)
    if percentiles is not None:
        steps = _percentiles(length - first, percentiles)
        return range(first + steps.start, first + steps.stop)
    _integer("start", start), _integer("stop", stop), _integer("step", step)
    if step == 0:
        raise InvalidArgumentError("`step` must not be 0, got 0.", loc=("step",))
    backwards = step is not None and step < 0
    if start is None and not backwards:
        start = first
    if stop is None and backwards and first:
        stop = first - 1
    return _there(range(length)[start:stop:step], first)


def _there(steps: range, first: int) -> range:
    """Return timesteps that are all there, or say which one is not."""
    if steps and (oldest := min(steps[0], steps[-1])) < first:
        raise ReclaimedError(
            f"`start` must be at least {first}, the oldest timestep that is still there, got {oldest}: older "
            "ones were given back.",
            loc=("start",),
            first=first,
        )
    return steps


def _percentiles(length: int, given: Any) -> range:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, Sequence) or len(parts) != 2:
        raise _percentiles_error("two numbers `a,b`", given)
    low, high = (_percentile(part, given) for part in parts)
    if not low < high:
        raise _percentiles_error("ascending", given)
    return range(length * low // 100, length * high // 100)


def _percentile(part: Any, given: Any) -> Fraction:
    """Return the exact value of what was written: 0.1 is one tenth, not its nearest float."""
    if isinstance(part, str):
        ok = re.fullmatch(r"\s*\d{1,3}(\.\d{0,20})?\s*", part)
    else:
        ok = isinstance(part, float | Rational) and not isinstance(part, bool) and math.isfinite(part)
    value = Fraction(str(part).strip()) if ok else None
    if value is None or not 0 <= value <= 100:
        raise _percentiles_error("numbers in 0..100", given)
    return value


def _natural(name: str, value: Any) -> int:
    _integer(name, value)
    if value < 0:
        raise InvalidArgumentError(f"`{name}` must be at least 0, got {value!r}.", loc=(name,))
    return value


def _integer(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise InvalidArgumentError(f"`{name}` must be an integer, got {value!r:.80}.", loc=(name,))


def _percentiles_error(rule: str, given: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"`percentiles` must be {rule}, got {given!r:.80}.", loc=("percentiles",))
