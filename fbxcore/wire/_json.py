"""JSON: nested lists by name, for people and small batches.

Read nested (`{"obs": {"image": …}}`) or flat (`{"obs/image": …}`), written flat. JSON has no NaN and no
infinities, so they are the texts `"NaN"`, `"Infinity"` and `"-Infinity"`. Numbers take the spec's dtype,
and one that this dtype cannot hold (1.5 or 300 for uint8) is an error that names its leaf.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from fbxcore.errors import InvalidArgumentError, StructureError
from fbxcore.spec import dtype_of
from fbxcore.types import Spec
from fbxcore.wire._arrays import check_total, malformed, widened

try:
    import orjson
except ImportError:  # a thin client has NumPy alone
    orjson = None

MAX_BODY = 1 << 26
_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def encode(arrays: dict[str, np.ndarray]) -> tuple[bytes, list[str]]:
    """Return canonical arrays as a JSON body, bfloat16 widened to float32."""
    arrays, converted = widened(arrays)
    if orjson is None:
        plain = {name: _lists(array) for name, array in arrays.items()}
        return json.dumps(
            plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode(), converted
    return orjson.dumps(
        {name: _for_orjson(array) for name, array in arrays.items()}, option=orjson.OPT_SERIALIZE_NUMPY
    ), converted


def _for_orjson(array: np.ndarray) -> Any:
    """Return what orjson writes exactly: the array itself, or lists where it would write null."""
    if array.ndim == 0 or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        return _lists(array)
    return array


def _lists(array: np.ndarray) -> Any:
    """Return nested lists; float32 by its own shortest digits, 0.1 and not 0.10000000149011612."""
    if array.dtype.kind == "f" and array.dtype.itemsize < 8:
        array = array.astype(str).astype(np.float64)
    return _plain(array.tolist())


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and value - value != 0.0:
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def decode(body: Any, spec: Spec | None, max_bytes: int) -> dict[str, np.ndarray]:
    """Return the arrays of a JSON body by flat name, sorted, in the spec's dtypes."""
    if len(body) > MAX_BODY:
        raise malformed("JSON", f"it has {len(body)} bytes, more than {MAX_BODY}; send them as safetensors")
    found: dict[str, np.ndarray] = {}
    for name, value in _flat(_load(body), ""):
        if name in found:
            raise malformed("JSON", f"leaf `{name}` is there twice", leaf=name)
        found[name] = _parse_leaf(name, value, spec)
    check_total("JSON", sum(array.nbytes for array in found.values()), max_bytes)
    return dict(sorted(found.items()))


def parse_json(body: Any) -> Any:
    """Return what a JSON body says: integers exact, each name once, no bare `NaN` and no infinity.

    Raises:
        InvalidArgumentError: with the code `malformed_body`.
    """
    try:
        return json.loads(str(body, "utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except InvalidArgumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise malformed("JSON", f"it cannot be read ({str(error)[:120]})") from error


def _load(body: Any) -> dict[str, Any]:
    parsed = parse_json(body)
    if not isinstance(parsed, dict):
        raise malformed("JSON", "it is not an object of leaves")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise malformed("JSON", f"`{next(n for n in names if names.count(n) > 1):.80}` is there twice")
    return found


def _refuse_constant(word: str) -> None:
    raise malformed("JSON", f'it has a bare {word}; write it as the text "{word}"')


def _flat(group: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in group.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _parse_leaf(name: str, value: Any, spec: Spec | None) -> np.ndarray:
    want = dtype_of(spec[name].dtype) if spec is not None and name in spec else None
    array = _natural(name, value)
    if want is not None:
        array = _as_dtype(name, array, value, want)
        if array.shape == (0,):  # `[]` says nothing of the axes behind
            array = array.reshape(0, *spec[name].shape)
    elif array.dtype.kind == "O":
        raise malformed("JSON", f"leaf `{name}` has an integer longer than 64 bits", leaf=name)
    array.flags.writeable = False
    return array


def _natural(name: str, value: Any) -> np.ndarray:
    """Return bool, int64, uint64 or float64; objects only where integers are longer than that."""
    try:
        array = np.array(value)
        if array.dtype.kind in "US" or (array.dtype.kind == "f" and np.isinf(array).any()):
            array = np.array(_with_words(name, value))
    except InvalidArgumentError:
        raise
    except (ValueError, OverflowError, TypeError) as error:
        raise malformed(
            "JSON", f"leaf `{name}` is not a regular array ({str(error)[:80]})", leaf=name
        ) from error
    if array.dtype.kind not in "biuf" and not all(type(entry) is int for entry in array.flat):
        raise malformed("JSON", f"leaf `{name}` has entries that are not numbers", leaf=name)
    return array


def _with_words(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_with_words(name, entry) for entry in value]
    if isinstance(value, str):
        if value not in _WORDS:
            raise malformed("JSON", f"leaf `{name}` has the text {value!r:.40}, not a number", leaf=name)
        return _WORDS[value]
    if isinstance(value, float) and value - value != 0.0:
        raise malformed("JSON", f"leaf `{name}` has a number too large for float64", leaf=name)
    return value


def _as_dtype(name: str, array: np.ndarray, value: Any, want: np.dtype) -> np.ndarray:
    if array.size == 0:
        return array.astype(want)
    if want.kind == "b":
        return _as_bool(name, array)
    if (word := _find_bool(value, array.ndim)) is not None:  # among numbers, NumPy takes them for 0 and 1
        raise _misfit(name, f"have numbers for {want.name}", word)
    if want.kind in "iu":
        return _as_integer(name, array, value, want)
    return _as_float(name, array, want)


def _find_bool(value: Any, ndim: int) -> bool | None:
    entries: Iterable[Any] = (value,)
    for _ in range(ndim):  # a regular array: as deep everywhere
        entries = chain.from_iterable(entries)
    return next((entry for entry in entries if type(entry) is bool), None)


def _as_bool(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "b" and not ((array == 0) | (array == 1)).all():
        raise _misfit(name, "be true or false for bool", array.flat[0])
    return array.astype(bool)


def _as_integer(name: str, array: np.ndarray, value: Any, want: np.dtype) -> np.ndarray:
    limits = np.iinfo(want)
    if array.dtype.kind == "f":  # one fraction makes all floats: look at the numbers as they were written
        array = np.array(value, dtype=object)
    if array.dtype.kind in "iu" and limits.min <= array.min() and array.max() <= limits.max:
        return array.astype(want)
    exact = [_exact_integer(name, entry, want) for entry in array.flat]
    return np.array(exact, want).reshape(array.shape)


def _exact_integer(name: str, entry: Any, want: np.dtype) -> int:
    if isinstance(entry, str) or int(entry) != entry:
        raise _misfit(name, f"have integers for {want.name}", entry)
    limits = np.iinfo(want)
    if not limits.min <= int(entry) <= limits.max:
        raise _misfit(name, f"fit {want.name} ({limits.min} to {limits.max})", int(entry))
    return int(entry)


def _as_float(name: str, array: np.ndarray, want: np.dtype) -> np.ndarray:
    try:
        wide = array.astype(np.float64)
    except OverflowError as error:
        raise _misfit(name, f"fit {want.name}", "an integer beyond float64") from error
    with np.errstate(over="ignore"):
        narrow = wide.astype(want)
    lost = np.isfinite(wide) & ~np.isfinite(narrow)
    if lost.any():
        raise _misfit(name, f"fit {want.name}", wide[lost][0])
    return narrow


def _misfit(name: str, rule: str, got: Any) -> StructureError:
    got = got.item() if isinstance(got, np.generic) else got
    return StructureError(f"Leaf `{name}` must {rule}, got {got!r:.40}.", loc=(name,))
