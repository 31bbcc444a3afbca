"""Frozen dataclasses that JAX sees as pytrees, with `replace` and mapping access."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


class Fields(Mapping):
    """A record whose fields are also the keys of a mapping; `replace` returns an altered copy."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)

    def __hash__(self) -> int:
        return hash(tuple(self.values()))  # Mapping has none; a buffer may be a static argument of `jax.jit`

    def replace(self: T, **changes: Any) -> T:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class of functions and constants a frozen dataclass."""
    return dataclasses.dataclass(frozen=True, eq=False)(cls)


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree; `static()` fields belong to its structure."""
    cls = record(cls)
    fields = dataclasses.fields(cls)
    fixed = [field.name for field in fields if field.metadata.get("static")]
    data = [field.name for field in fields if field.name not in fixed]
    jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=fixed)
    return cls


def static() -> Any:
    """Declare a field that is part of the structure, not an array."""
    return dataclasses.field(metadata={"static": True})
