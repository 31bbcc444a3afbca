"""The structure of a vault: what its `metadata.json` says about rows, leaves and their paths.

Flashbax keeps two trees of strings there, `structure_shape` and `structure_dtype`; a shape includes
the buffer's leading axes `(B, T, ...)`, of which only B and the rest matter. A leaf is stored under
the keys of its tree path, each followed by a dot (`agents.agent_0.act.`), and is called here by the
same keys joined with `/`. An experience that is one bare array is called `experience`.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fbxcore.errors import DamagedError, InvalidArgumentError
from fbxcore.spec import dtype_of, nest
from fbxcore.types import LeafSpec, Spec

VERSION = 1.2
OURS = "_flashdeck"
BARE = "experience"
_RESERVED = ("version", "structure", "structure_shape", "structure_dtype", OURS)


@dataclass(frozen=True)
class StoredLeaf:
    """One leaf, its place in the tree and its path in the store."""

    name: str
    parts: tuple[str, ...]
    spec: LeafSpec

    @property
    def path(self) -> str:
        return "".join(f"{part}." for part in self.parts)


@dataclass(frozen=True)
class Structure:
    """What `metadata.json` says. `tree` has the shape of the experience and leaf names as leaves."""

    leaves: tuple[StoredLeaf, ...]  # sorted by name
    rows: int
    time_axis: int = 1
    version: float = VERSION
    tree: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        return {leaf.name: leaf.spec for leaf in self.leaves}


def structure_of(spec: Spec, *, rows: int, time_axis: int = 1) -> Structure:
    """Return the structure of a vault with that spec: one dict per `/` in a leaf name."""
    leaves = tuple(StoredLeaf(name, tuple(name.split("/")), spec[name]) for name in sorted(spec))
    tree = nest({leaf.name: leaf.name for leaf in leaves})
    return checked_structure(Structure(leaves, rows, time_axis, tree=tree))


def structure_of_paths(leaves: Mapping[tuple[str, ...], tuple[tuple[int, ...], str]]) -> Structure:
    """Return the structure for shapes `(B, T, ...)` and dtypes by tree path, as Flashbax writes it."""
    if not leaves:
        raise InvalidArgumentError(
            "`experience_structure` must have at least one leaf, got none.", loc=("experience_structure",)
        )
    pairs = [(parts, shape, dtype) for parts, (shape, dtype) in leaves.items()]
    stored, leading = _parse_leaves(pairs, None, "new")
    tree = _rebuild({leaf.parts: leaf.name for leaf in stored})
    return checked_structure(Structure(stored, *leading, tree=tree))


def checked_structure(structure: Structure) -> Structure:
    """Return the structure, or refuse what no vault can hold."""
    if not structure.leaves:
        raise InvalidArgumentError("`spec` must have at least one leaf, got none.", loc=("spec",))
    if type(structure.rows) is not int or structure.rows < 1:
        raise InvalidArgumentError(
            f"`rows` must be a positive integer, got {structure.rows!r}.", loc=("rows",)
        )
    seen: dict[str, str] = {}
    for leaf in structure.leaves:
        if leaf.path in seen:
            raise InvalidArgumentError(
                f"Leaves `{seen[leaf.path]}` and `{leaf.name}` must not share the path `{leaf.path}`. "
                "Rename one.",
                loc=("spec", leaf.name),
            )
        seen[leaf.path] = leaf.name
    return structure


def with_metadata(structure: Structure, metadata: Mapping[str, Any] | None) -> Structure:
    """Return the structure with the user's metadata, which must be JSON and keep off our keys."""
    given = dict(metadata or {})
    for key in given:
        if not isinstance(key, str) or key in _RESERVED:
            raise InvalidArgumentError(
                f"`metadata` must not have the key {key!r}, which the vault's own format uses. Rename it.",
                loc=("metadata", str(key)),
            )
    try:
        json.dumps(given)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"`metadata` must be JSON values, got {given!r:.80}.", loc=("metadata",)
        ) from error
    return replace(structure, metadata=given)


def metadata_json(structure: Structure) -> bytes:
    """Return the bytes of `metadata.json`, as Flashbax reads it."""
    leading = (structure.rows, structure.time_axis)
    by_name = structure.spec
    options = {name: found for name, leaf in by_name.items() if (found := _options(leaf))}
    content = {
        "version": structure.version,
        "structure_shape": _map(structure.tree, lambda name: str((*leading, *by_name[name].shape))),
        "structure_dtype": _map(structure.tree, lambda name: by_name[name].dtype),
        **structure.metadata,
    }
    if options:
        content[OURS] = {"leaves": options}
    return json.dumps(content).encode()


def parse_structure(content: bytes, *, where: str) -> Structure:
    """Return what the bytes of a `metadata.json` say.

    Args:
        where: the vault's name, for error texts.

    Raises:
        DamagedError: if it is not JSON, or says no structure that can be read.
    """
    found = _parse_object(content, where)
    version = _parse_version(found.get("version"), where)
    try:
        pairs = list(_pairs(found, where))
    except RecursionError as error:
        raise _damaged(where, "must nest its leaves less deeply", "too deep a tree") from error
    if not pairs:
        raise _damaged(where, "must have at least one leaf", found)
    leaves, leading = _parse_leaves(pairs, found.get(OURS), where)
    user = {key: value for key, value in found.items() if key not in (*_RESERVED, "compression")}
    tree = _rebuild({leaf.parts: leaf.name for leaf in leaves})
    return Structure(leaves, *leading, version, tree, user)


def _pairs(found: dict[str, Any], where: str) -> Iterator[tuple[tuple, Any, Any]]:
    """Yield the tree path, shape and dtype of each leaf, in the form of any version."""
    if "structure_shape" in found and "structure_dtype" in found:
        yield from _walk(found["structure_shape"], found["structure_dtype"], (), where)
    elif "structure" in found:  # development versions: a pair [shape, dtype] at each leaf
        yield from _walk_pairs(found["structure"], ())
    else:
        raise _damaged(where, "must say `structure_shape` and `structure_dtype`", list(found))


def _parse_object(content: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, "must be JSON", content[:80]) from error
    if not isinstance(found, dict):
        raise _damaged(where, "must be a JSON object", found)
    return found


def _parse_version(version: Any, where: str) -> float:
    if isinstance(version, bool) or not isinstance(version, int | float) or not 0 <= version < 1000:
        raise _damaged(where, "must say its `version`", version)
    if int(version) not in (0, 1):
        raise DamagedError(
            f"Vault '{where}' must have format version 1, got {version!r}.", code="vault_version"
        )
    return float(version)


def _walk(shape: Any, dtype: Any, parts: tuple, where: str) -> Iterator[tuple[tuple, Any, Any]]:
    """Yield the tree path, shape and dtype of each leaf; a list item has the empty key."""
    if isinstance(shape, Mapping) and isinstance(dtype, Mapping) and set(shape) == set(dtype):
        for key in shape:
            yield from _walk(shape[key], dtype[key], (*parts, key), where)
    elif isinstance(shape, list) and isinstance(dtype, list) and len(shape) == len(dtype) == 1:
        yield from _walk(shape[0], dtype[0], (*parts, ""), where)
    elif isinstance(shape, str) and isinstance(dtype, str):
        yield parts, shape, dtype
    else:
        raise _damaged(where, "must have the same tree as `structure_shape` and `structure_dtype`", shape)


def _walk_pairs(node: Any, parts: tuple) -> Iterator[tuple[tuple, Any, Any]]:
    if isinstance(node, Mapping):
        for key in node:
            yield from _walk_pairs(node[key], (*parts, key))
    elif isinstance(node, list) and len(node) == 2:
        yield parts, node[0], node[1]
    else:
        yield parts, None, None


def _parse_leaves(pairs: list, ours: Any, where: str) -> tuple[tuple[StoredLeaf, ...], tuple[int, int]]:
    options = ours.get("leaves") if isinstance(ours, dict) else None
    names: dict[str, StoredLeaf] = {}
    leading: tuple[int, int] | None = None
    for parts, shape, dtype in sorted(pairs, key=lambda pair: pair[0]):
        lengths = _parse_shape(shape, where)
        if leading is not None and lengths[0] != leading[0]:
            raise _damaged(where, f"must give every leaf the {leading[0]} rows of the first", lengths)
        leading = leading or lengths[:2]
        name = _name_of(parts, names)
        named = options.get(name) if isinstance(options, dict) else None
        leaf = LeafSpec(lengths[2:], _parse_dtype(dtype, where), **_parse_options(named))
        names[name] = StoredLeaf(name, parts, leaf)
    return tuple(names[name] for name in sorted(names)), leading


def _name_of(parts: tuple[str, ...], taken: Mapping[str, Any]) -> str:
    """Keys joined with `/`; a key's own `/` is escaped only where two leaves would meet."""
    if not parts:
        return BARE
    keys = [part or "0" for part in parts]
    name = "/".join(keys)
    if name in taken:
        name = "/".join(key.replace("%", "%25").replace("/", "%2F") for key in keys)
    while name in taken:
        name += "_"
    return name


def _parse_shape(shape: Any, where: str) -> tuple[int, ...]:
    try:
        lengths = literal_eval(shape) if isinstance(shape, str) else tuple(shape)
        ok = isinstance(lengths, tuple) and all(type(n) is int and n >= 0 for n in lengths)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        ok = False
    if not ok or len(lengths) < 2 or lengths[0] < 1:
        raise _damaged(where, "must give each leaf a shape `(B, T, ...)`", shape)
    return lengths


def _parse_dtype(dtype: Any, where: str) -> str:
    try:
        return dtype_of(dtype).name
    except (TypeError, AttributeError, ValueError) as error:
        raise _damaged(where, "must give each leaf a dtype by NumPy's name", dtype) from error


def _parse_options(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        return {}
    names = found.get("names")
    texts = {key: found[key] for key in ("role", "unit") if isinstance(found.get(key), str)}
    return texts | ({"names": tuple(map(str, names))} if isinstance(names, list) else {})


def _options(leaf: LeafSpec) -> dict[str, Any]:
    names = list(leaf.names) if leaf.names else None
    return {k: v for k, v in {"role": leaf.role, "unit": leaf.unit, "names": names}.items() if v}


def _map(tree: Any, function: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _map(tree[key], function) for key in sorted(tree)}
    if isinstance(tree, list):
        return [_map(item, function) for item in tree]
    return function(tree)


def _rebuild(flat: Mapping[tuple[str, ...], str]) -> Any:
    """Return the nested tree of paths; the empty key is the item of a list."""
    if () in flat:
        return flat[()]
    groups: dict[str, dict] = {}
    for parts, name in flat.items():
        groups.setdefault(parts[0], {})[parts[1:]] = name
    if set(groups) == {""}:
        return [_rebuild(groups[""])]
    return {key: _rebuild(group) for key, group in groups.items()}


def _damaged(where: str, rule: str, got: Any) -> DamagedError:
    return DamagedError(
        f"File `metadata.json` of vault '{where}' {rule}, got {got!r:.80}.", file="metadata.json"
    )
