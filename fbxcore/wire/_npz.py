"""npz: a zip of npy files, as `numpy.savez` writes it, with fixed time stamps and without pickles.

Written without compression, so that bytes are deterministic and can be read as views; read with or
without it (`numpy.savez_compressed`).
"""

from __future__ import annotations

import ast
import io
import re
import struct
import zipfile
import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from fbxcore.errors import InvalidArgumentError, NotSupportedError
from fbxcore.spec import dtype_of
from fbxcore.types import Spec
from fbxcore.wire._arrays import check_total, declared_bytes, malformed, view, widened

_MAGIC = b"\x93NUMPY"
_MAX_NPY_HEADER = 1 << 14
_DESCR = re.compile(r"[<>|=](b1|[iu][1248]|f[248])")
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_JANUARY_1980 = (0, 33)  # time and date in the words of MS-DOS
_UTF8 = 0x800
_MAX_ZIP = 0xFFFF_0000  # what 32-bit offsets reach, with room for the directory
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, EOFError, OSError, RuntimeError)


def encode(arrays: dict[str, np.ndarray]) -> tuple[bytes, list[str]]:
    """Return canonical arrays as an npz body, bfloat16 widened to float32."""
    arrays, converted = widened(arrays)
    if sum(array.nbytes for array in arrays.values()) > _MAX_ZIP:
        raise NotSupportedError(
            "`format` must be one that holds 4 GiB and more, got 'npz'. Use `safetensors`.", loc=("format",)
        )
    pieces: list[Any] = []
    directory: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        local, central = _member(f"{name}.npy", array, offset, pieces)
        directory.append(central)
        offset += local
    entries = b"".join(directory)
    end = _END.pack(b"PK\5\6", 0, 0, len(directory), len(directory), len(entries), offset, 0)
    return b"".join([*pieces, entries, end]), converted


def _member(filename: str, array: np.ndarray, offset: int, pieces: list[Any]) -> tuple[int, bytes]:
    """Add a stored member to `pieces`; return its length and its directory entry."""
    head = _npy_header(array.dtype.str, array.shape)
    name = filename.encode()
    size = len(head) + array.nbytes
    flat = array.reshape(-1).view(np.uint8)
    common = (20, 0 if filename.isascii() else _UTF8, 0, *_JANUARY_1980, zlib.crc32(flat, zlib.crc32(head)))
    local = _LOCAL.pack(b"PK\3\4", *common, size, size, len(name), 0) + name
    pieces.extend((local, head, flat))
    central = _CENTRAL.pack(b"PK\1\2", 20, *common, size, size, len(name), 0, 0, 0, 0, 0, offset) + name
    return len(local) + size, central


@lru_cache(maxsize=512)
def _npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (-(len(_MAGIC) + 4 + len(text) + 1) % 64) + "\n"
    return _MAGIC + b"\1\0" + struct.pack("<H", len(text)) + text.encode("latin-1")


def decode(body: Any, spec: Spec | None, max_bytes: int) -> dict[str, np.ndarray]:
    """Return the arrays of an npz body by name, sorted; stored members as views."""
    try:
        members = _members(body, max_bytes)
        arrays = {name: _parse_npy(name, raw, spec) for name, raw in members.items()}
    except InvalidArgumentError:
        raise
    except (*_BAD_ZIP, SyntaxError, MemoryError) as error:
        raise malformed("npz", f"it cannot be read ({str(error)[:120]})") from error
    return dict(sorted(arrays.items()))


def _members(body: Any, max_bytes: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        end = len(body) - _END.size - len(archive.comment)
        if bytes(body[end : end + 4]) != b"PK\5\6":
            raise malformed("npz", "it goes on behind its end")
        check_total("npz", sum(entry.file_size for entry in archive.infolist()), max_bytes)
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name == entry.filename or name in found:
                raise malformed(
                    "npz", f"member {entry.filename!r:.80} is no npy file or there twice", leaf=name
                )
            found[name] = _member_bytes(body, archive, entry)
    return found


def _member_bytes(body: Any, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    if entry.flag_bits & 1 or entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise malformed("npz", f"member {entry.filename!r:.80} is encrypted or compressed in another way")
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        raw: Any = archive.read(entry)  # bounded by the declared size, its checksum compared
        if len(raw) != entry.file_size:
            raise malformed("npz", f"member {entry.filename!r:.80} has another size than declared")
        return raw
    raw = _stored(memoryview(body), entry)
    if zlib.crc32(raw) != entry.CRC:
        raise malformed("npz", f"member {entry.filename!r:.80} has another checksum than declared")
    return raw


def _stored(body: memoryview, entry: zipfile.ZipInfo) -> memoryview:
    """Return the bytes of a member without copying them."""
    *head, name_length, extra_length = _LOCAL.unpack_from(body, entry.header_offset)
    start = entry.header_offset + _LOCAL.size
    name = bytes(body[start : start + name_length])
    start += name_length + extra_length
    stop = start + entry.file_size
    same = name.decode("utf-8" if entry.flag_bits & _UTF8 else "cp437") == entry.orig_filename
    if head[0] != b"PK\3\4" or not same or entry.compress_size != entry.file_size or stop > len(body):
        raise malformed("npz", f"member {entry.filename!r:.80} is not where the directory says")
    return body[start:stop]


def _parse_npy(name: str, raw: Any, spec: Spec | None) -> np.ndarray:
    dtype, is_fortran, shape, start = _parse_header(name, raw, spec)
    size = declared_bytes("npz", name, dtype, shape)
    if start + size != len(raw):
        raise malformed(
            "npz", f"leaf `{name}` has {len(raw) - start} bytes where {size} are declared", leaf=name
        )
    array = view("npz", name, dtype, shape[::-1] if is_fortran else shape, raw, start)
    if is_fortran or dtype.byteorder == ">":
        array = np.ascontiguousarray((array.T if is_fortran else array).astype(dtype.newbyteorder("<")))
        array.flags.writeable = False
    return array


def _parse_header(name: str, raw: Any, spec: Spec | None) -> tuple[np.dtype, bool, tuple[int, ...], int]:
    width = 2 if len(raw) > 6 and raw[6] == 1 else 4
    start = len(_MAGIC) + 2 + width
    if bytes(raw[:6]) != _MAGIC or len(raw) < start or raw[6] not in {1, 2, 3}:
        raise malformed("npz", f"leaf `{name}` is no npy file", leaf=name)
    stop = start + int.from_bytes(raw[start - width : start], "little")
    if stop > len(raw) or stop - start > _MAX_NPY_HEADER:
        raise malformed("npz", f"leaf `{name}` has a header that is cut short or too long", leaf=name)
    header = ast.literal_eval(bytes(raw[start:stop]).decode("latin-1").strip())
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise malformed("npz", f"leaf `{name}` has a header of other fields than npy's", leaf=name)
    dtype = _parse_descr(name, header["descr"], spec)
    if not isinstance(header["fortran_order"], bool) or not isinstance(header["shape"], tuple):
        raise malformed("npz", f"leaf `{name}` has a header of other types than npy's", leaf=name)
    return dtype, header["fortran_order"], header["shape"], stop


def _parse_descr(name: str, descr: Any, spec: Spec | None) -> np.dtype:
    if isinstance(descr, str) and _DESCR.fullmatch(descr):
        return np.dtype(descr)
    if descr in ("<V2", "|V2") and spec is not None and name in spec and spec[name].dtype == "bfloat16":
        return dtype_of("bfloat16")  # NumPy forgets the name of what is not its own
    raise malformed(
        "npz", f"leaf `{name}` has the dtype {descr!r:.80}, which is pickled or no number", leaf=name
    )
