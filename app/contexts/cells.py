"""Arrays as table cells: scalars, short vectors, and small pictures for image leaves."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.contexts import units
from app.contexts.snippets import spec_of

SHOWN = 4  # entries of a vector before it is cut
SIDE = 96  # pixels of a picture's longer side


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    text: str
    title: str = ""
    image: str = ""  # a data: address
    is_number: bool = False


@dataclass(frozen=True)
class Column:
    """A leaf as a column."""

    name: str
    dtype: str
    shape: str
    is_number: bool
    role: str = ""


def shape_text(shape: tuple[int, ...]) -> str:
    """A timestep's own axes: `[]` for a scalar."""
    return "[" + ", ".join(map(str, shape)) + "]"


def cell(array: np.ndarray) -> Cell:
    """One timestep's value of a leaf."""
    if array.ndim == 0:
        return Cell(units.value(array.item()), title=str(array.item()), is_number=True)
    if (pixels := picture(array)) is not None:
        text = f"image {shape_text(array.shape)}"
        return Cell(text, title=f"{text} {array.dtype.name}", image=png(pixels))
    flat = array.reshape(-1)
    shown = [units.value(x.item(), digits=3) for x in flat[:SHOWN]]
    cut = "" if flat.size <= SHOWN else f" … +{flat.size - SHOWN}"
    title = ", ".join(units.value(x.item()) for x in flat[:64]) + (" …" if flat.size > 64 else "")
    return Cell(f"[{', '.join(shown)}{cut}]", title=title)


def picture(array: np.ndarray) -> np.ndarray | None:
    """Pixels `[H, W]` or `[H, W, 3]` of a uint8 array that looks like an image, else None.

    A stack of frames shows its newest, the last of the first or last axis.
    """
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        return None
    if array.ndim == 3:
        if array.shape[0] == 3 and min(array.shape[1:]) >= 8:
            array = np.moveaxis(array, 0, -1)
        elif array.shape[0] <= 4 and min(array.shape[1:]) >= 8:
            array = array[-1]
        elif array.shape[-1] != 3:
            array = array[..., -1] if array.shape[-1] <= 4 else array[..., :0]
    if min(array.shape[:2]) < 8:
        return None
    step = max(1, -(-max(array.shape[:2]) // SIDE))
    return np.ascontiguousarray(array[::step, ::step])


def png(pixels: np.ndarray) -> str:
    """A PNG as a data: address."""
    height, width = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b"")]
    body = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)
    return "data:image/png;base64," + base64.b64encode(body).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def schema_columns(spec: Mapping[str, Any]) -> list[Column]:
    """The leaves of a spec as lines of a table."""
    return [
        Column(name, leaf.dtype, shape_text(leaf.shape), not leaf.shape, leaf.role or "")
        for name, leaf in spec_of(spec).items()
    ]
