"""A spec: which leaves a timestep has, and the one check that given leaves agree with it.

A spec arrives as a nested mapping whose leaves are `{"shape": [...], "dtype": "..."}` and is held flat,
sorted by name, names joined with `/` (`{"obs": {"image": …}}` becomes `obs/image`). Vaults store the
same leaf under a path joined with `.`, so two leaves whose names meet in either spelling are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fbxcore.errors import InvalidArgumentError, StructureError
from fbxcore.types import LeafSpec, Leaves, Spec

DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "bfloat16",
)  # fmt: skip
MAX_LEAVES = 256
MAX_RANK = 8
MAX_LEAF_BYTES = 1 << 28
MAX_NAME = 512
_OPTIONS = {"shape", "dtype", "role", "unit", "names"}


@functools.lru_cache
def dtype_of(name: str) -> np.dtype:
    """Return the NumPy dtype of that name; bfloat16 and its kind come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # an optional extra: a thin client has none

        return np.dtype(getattr(ml_dtypes, name))


def parse_spec(nested: Any, *, loc: tuple[str | int, ...] = ("spec",)) -> Spec:
    """Return the flat spec of a nested one.

    Raises:
        InvalidArgumentError: if a leaf has no or a wrong shape or dtype, or if two names collide.
    """
    if not isinstance(nested, Mapping) or not nested:
        raise InvalidArgumentError(
            f"`spec` must be a non-empty mapping from leaf names to {{shape, dtype}}, got {nested!r:.80}.",
            loc=loc,
        )
    found = sorted(_leaves_of(nested, "", loc))
    if len(found) > MAX_LEAVES:
        raise InvalidArgumentError(
            f"`spec` must have at most {MAX_LEAVES} leaves, got {len(found)}.", loc=loc
        )
    check_names([name for name, _ in found], loc=loc)
    return dict(found)


def check_names(names: list[str], *, loc: tuple[str | int, ...] = ("spec",)) -> None:
    """Refuse names that are the same leaf, or a leaf and a group, in any format."""
    seen: dict[str, str] = {}
    for name in sorted(names):
        spelt = name.replace("/", ".")
        if spelt in seen:
            raise InvalidArgumentError(
                f"Leaves `{seen[spelt]}` and `{name}` must not share the path `{spelt}`. Rename one.", loc=loc
            )
        seen[spelt] = name
    for spelt, name in seen.items():
        parts = spelt.split(".")
        for cut in range(1, len(parts)):
            if (other := seen.get(".".join(parts[:cut]))) is not None:
                raise InvalidArgumentError(
                    f"Leaf `{other}` must not also be a group, got `{name}` below it. Rename one.", loc=loc
                )


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """Return the nested form of a spec, as `parse_spec` reads it."""
    return nest({name: _leaf_to_json(leaf) for name, leaf in spec.items()})


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts for names joined with `/`."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, last = name.split("/")
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return nested


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return names joined with `/` for nested mappings; the inverse of `nest`."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}/"))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def timestep_bytes(spec: Spec) -> int:
    """Return the bytes of one timestep."""
    return sum(leaf_bytes(leaf) for leaf in spec.values())


def leaf_bytes(leaf: LeafSpec) -> int:
    """Return the bytes of one timestep of a leaf."""
    size = dtype_of(leaf.dtype).itemsize
    for length in leaf.shape:
        size *= length
    return size


def spec_of(leaves: Leaves, *, leading: int) -> Spec:
    """Return the spec of arrays with that many leading axes."""
    return {name: LeafSpec(tuple(x.shape[leading:]), x.dtype.name) for name, x in sorted(leaves.items())}


def check_leaves(
    spec: Spec, leaves: Leaves, *, leading: int, cast: str | None = None
) -> dict[str, np.ndarray]:
    """Return the leaves in spec order, C-contiguous and little-endian, or refuse them.

    Nothing is broadcast. A dtype is converted only with `cast="same_kind"` (float64 to float32, int64
    to int32 when every value fits).

    Args:
        leading: how many axes come before a timestep's own: 1 for `[I, ...]`, 2 for `[B, K, ...]`.

    Raises:
        StructureError: naming the leaf, what was expected and what was given.
    """
    _check_same_names(spec, leaves)
    checked = {name: _checked_leaf(name, spec[name], leaves[name], leading, cast) for name in spec}
    first = next(iter(spec))
    head = checked[first].shape[:leading]
    for name, array in checked.items():
        if array.shape[:leading] != head:
            raise StructureError(
                f"Leaf `{name}` must have the leading axes {list(head)} of leaf `{first}`, "
                f"got {list(array.shape[:leading])}.",
                loc=(name,),
                expected={"leading": list(head)},
                got={"leading": list(array.shape[:leading])},
            )
    return checked


def _check_same_names(spec: Spec, leaves: Leaves) -> None:
    if spec.keys() == leaves.keys():
        return
    given = ", ".join(f"`{name}`" for name in sorted(leaves)) or "nothing"
    for name in sorted(set(spec) - set(leaves)):
        raise StructureError(f"Leaf `{name}` must be given, got only {given:.500}.", loc=(name,))
    for name in sorted(set(leaves) - set(spec)):
        raise StructureError(
            f"Leaf `{name}` must be in the spec, which has {', '.join(f'`{n}`' for n in spec)}.", loc=(name,)
        )


def _checked_leaf(name: str, leaf: LeafSpec, array: np.ndarray, leading: int, cast: str | None) -> np.ndarray:
    want = dtype_of(leaf.dtype)
    if array.ndim != leading + len(leaf.shape) or tuple(array.shape[leading:]) != leaf.shape:
        axes = ["B", "K"][-leading:] if leading else []
        raise StructureError(
            f"Leaf `{name}` must have shape [{', '.join([*axes, *map(str, leaf.shape)])}], "
            f"got {list(array.shape)}.",
            loc=(name,),
            expected={"shape": list(leaf.shape), "leading": leading},
            got={"shape": list(array.shape)},
        )
    if array.dtype != want:
        array = _cast_leaf(name, array, want, cast)
    return np.ascontiguousarray(array)  # canonical order; a no-op for what arrives as bytes


def _cast_leaf(name: str, array: np.ndarray, want: np.dtype, cast: str | None) -> np.ndarray:
    little = array.dtype.newbyteorder("<")
    if little == want:
        return array.astype(want)
    allowed = cast == "same_kind" and _is_same_kind(array.dtype, want)
    if not allowed:
        raise StructureError(
            f"Leaf `{name}` must have dtype {want.name}, got {array.dtype.name}. "
            "Convert it, or pass `cast=same_kind` where the kinds agree.",
            loc=(name,),
            expected={"dtype": want.name},
            got={"dtype": array.dtype.name},
        )
    if array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(want)
        if array.min() < limits.min or array.max() > limits.max:
            raise StructureError(
                f"Leaf `{name}` must fit {want.name} ({limits.min} to {limits.max}), "
                f"got {array.min()} to {array.max()}.",
                loc=(name,),
            )
    with np.errstate(over="ignore"):
        narrow = array.astype(want)
    if array.dtype.kind == "f" and (np.isinf(narrow) & np.isfinite(array)).any():
        raise StructureError(f"Leaf `{name}` must fit {want.name}, got a number too large.", loc=(name,))
    return narrow


def _is_same_kind(given: np.dtype, want: np.dtype) -> bool:
    if given.kind in "iu" and want.kind in "iu":
        return True
    floats = {"float16", "float32", "float64", "bfloat16"}
    return given.name in floats and want.name in floats


def _leaves_of(nested: Mapping[str, Any], prefix: str, loc: tuple) -> Iterator[tuple[str, LeafSpec]]:
    for key, value in nested.items():
        here = (*loc, key)
        if not isinstance(key, str) or not key or len(prefix) + len(key) > MAX_NAME or "\0" in key:
            raise InvalidArgumentError(
                f"`spec` must have non-empty leaf names of at most {MAX_NAME} characters, got {key!r:.80}.",
                loc=here,
            )
        if any(not part or part in {".", ".."} or part != part.strip() for part in key.split("/")):
            raise InvalidArgumentError(
                f"`spec` must have leaf names without empty, blank or dotted parts, got {key!r}.", loc=here
            )
        if isinstance(value, Mapping) and not _is_leaf(value):
            if not value:
                raise InvalidArgumentError(f"Group `{prefix}{key}` must have leaves, got none.", loc=here)
            yield from _leaves_of(value, f"{prefix}{key}/", here)
        else:
            yield f"{prefix}{key}", _parse_leaf(f"{prefix}{key}", value, here)


def _is_leaf(value: Mapping[str, Any]) -> bool:
    """A mapping is a leaf if it says its dtype or shape as plain values, a group otherwise."""
    return isinstance(value.get("dtype"), str) or isinstance(value.get("shape"), list | tuple)


def _parse_leaf(name: str, value: Any, loc: tuple) -> LeafSpec:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"Leaf `{name}` must be {{shape, dtype}}, got {value!r:.80}.", loc=loc)
    for option in sorted(set(value) - _OPTIONS):
        raise InvalidArgumentError(
            f"Leaf `{name}` must only say {', '.join(sorted(_OPTIONS))}, got {option!r}.", loc=(*loc, option)
        )
    if value.get("dtype") not in DTYPES:
        raise InvalidArgumentError(
            f"Leaf `{name}` must have a dtype of {', '.join(DTYPES)}, got {value.get('dtype')!r}.",
            loc=(*loc, "dtype"),
        )
    leaf = LeafSpec(
        _parse_shape(name, value.get("shape"), loc),
        value["dtype"],
        _text(name, value, "role", loc),
        _text(name, value, "unit", loc),
        _parse_entry_names(name, value, loc),
    )
    if leaf_bytes(leaf) > MAX_LEAF_BYTES:
        raise InvalidArgumentError(
            f"Leaf `{name}` must take at most {MAX_LEAF_BYTES} bytes a timestep, got {leaf_bytes(leaf)}.",
            loc=(*loc, "shape"),
        )
    return leaf


def _parse_shape(name: str, shape: Any, loc: tuple) -> tuple[int, ...]:
    ok = isinstance(shape, list | tuple) and all(type(n) is int and 0 < n <= 1 << 31 for n in shape)
    if not ok or len(shape) > MAX_RANK:
        raise InvalidArgumentError(
            f"Leaf `{name}` must have a shape of at most {MAX_RANK} positive integers, got {shape!r:.80}.",
            loc=(*loc, "shape"),
        )
    return tuple(shape)


def _text(name: str, value: Mapping, option: str, loc: tuple) -> str | None:
    text = value.get(option)
    if text is not None and (not isinstance(text, str) or len(text) > 64):
        raise InvalidArgumentError(
            f"Leaf `{name}` must have a short text as `{option}`, got {text!r:.80}.", loc=(*loc, option)
        )
    return text


def _parse_entry_names(name: str, value: Mapping, loc: tuple) -> tuple[str, ...] | None:
    names = value.get("names")
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and len(n) <= 64 for n in names):
        raise InvalidArgumentError(
            f"Leaf `{name}` must have a list of short texts as `names`, got {names!r:.80}.",
            loc=(*loc, "names"),
        )
    return tuple(names)


def _leaf_to_json(leaf: LeafSpec) -> dict[str, Any]:
    extra = {"role": leaf.role, "unit": leaf.unit, "names": list(leaf.names) if leaf.names else None}
    return {"shape": list(leaf.shape), "dtype": leaf.dtype} | {k: v for k, v in extra.items() if v}
