"""Vault: reading windows, slices and everything, against other stores of arrays with the same data.

MuJoCo records (97 B a step, 60,000 steps) and 84x84 frames (4,000 steps, 7 KB each), one row, all as NumPy
arrays. Each peer is given the layout that suits it: HDF5 in chunks of 1,024 (frames 64) steps without
compression, which is its fastest; zarr 3 in chunks as long with lz4, which is what our vault chooses for
both, through tensorstore and through zarr-python; Parquet with row groups of 1,024 (64) steps, each leaf a
column of fixed-size lists, zstd. Everything is in the page cache, and of decoded data a peer may keep as much
as we do; tensorstore, as it opens, keeps nothing, which is a line of its own. So two kinds of lines go
without: those of 128 MiB, twice what is kept, in which most windows are decoded anew by a reader that has
read 250 others before, and those that open the files for each read.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorstore as ts
import zarr

from benchmarks.report import Ratio, interleaved, print_table
from fbxcore.spec import parse_spec
from fbxcore.vault import VaultReader, VaultWriter, WindowStream

Arrays = dict[str, np.ndarray]
Read = Callable[[int, int], Arrays]
TARGETS = {
    "HDF5 (h5py)": 0.5,
    "zarr 3 (tensorstore)": 1.0,
    "zarr 3 (tensorstore, as it opens)": 1.0,
    "zarr 3 (zarr-python)": 1.0,
    "Parquet (pyarrow)": 1.0,
}
WINDOWS = {"window of 32": 32, "slice of 1,000": 1000}
_KEPT = 64 << 20
"""Bytes of decoded chunks, ours and zarr's."""


def peer_ratios(quick: bool = True) -> list[Ratio]:
    """Measure reads in turns with each peer; the ratio is the peer's time over ours."""
    rows = []
    for name, data, group in _data(quick):
        with tempfile.TemporaryDirectory() as directory, _vault(Path(directory), data) as reader:
            for peer, theirs in _peers(Path(directory), data, group).items():
                _check_equal(reader.read, theirs, data)
                rows += _ratios(f"{name}, ", peer, reader.read, theirs, data, quick)
            rows += _opened_anew(name, Path(directory), data, group, quick)
    if not quick:
        rows += _beyond_the_cache()
    return rows


def _ratios(name: str, peer: str, ours: Read, theirs: Read, data: Arrays, quick: bool) -> Iterator[Ratio]:
    """Yield a line for each length of a read."""
    length = next(iter(data.values())).shape[1]
    slow = peer in ("zarr 3 (zarr-python)", "Parquet (pyarrow)")
    for work, steps in {**WINDOWS, "whole": length}.items():
        start = _starts(length, min(steps, length if work == "whole" else length // 2))
        many = 5 if slow else 20 if quick else 40
        yield interleaved(
            name + work,
            peer,
            _calls(ours, start),
            _calls(theirs, start),
            calls=1 if work == "whole" else many,
            repeats=5 if quick else 9,
            target=TARGETS[peer],
        )


def _beyond_the_cache() -> Iterator[Ratio]:
    """Yield lines of short windows in twice the decoded data that a reader keeps."""
    for kind, data, group in _data(quick=False):
        times = -(-(128 << 20) // sum(x.nbytes for x in data.values()))
        data = {name: np.tile(x, (1, times, *(1,) * (x.ndim - 2))) for name, x in data.items()}
        start = _starts(next(iter(data.values())).shape[1], 32)
        with tempfile.TemporaryDirectory() as directory, _vault(Path(directory), data) as reader:
            place = Path(directory)
            for _ in range(250):
                reader.read(*start())
            peers = _hdf5(place / "data.h5", data, group), _zarr3(place / "zarr", data, group)
            for peer, theirs in zip(TARGETS, peers, strict=False):
                work = f"{kind}, window of 32, mostly not kept"
                ours, theirs = _calls(reader.read, start), _calls(theirs, start)
                yield interleaved(work, peer, ours, theirs, calls=40, repeats=9, target=TARGETS[peer])


def _opened_anew(name: str, place: Path, data: Arrays, group: int, quick: bool) -> Iterator[Ratio]:
    """Yield lines of reads that find nothing decoded: both sides open their files for each."""
    length = next(iter(data.values())).shape[1]
    hdf5, zarr3 = place / "anew.h5", place / "anew"
    _hdf5(hdf5, data, group), _zarr3(zarr3, data, group)

    def ours(start: int, stop: int) -> Arrays:
        with VaultReader.open(place / "vault" / "1") as reader:
            return reader.read(start, stop)

    def theirs_hdf5(start: int, stop: int) -> Arrays:
        with h5py.File(hdf5, "r") as file:
            return {name: file[name][:, start:stop] for name in data}

    def theirs_zarr3(start: int, stop: int) -> Arrays:
        return _zarr3_read(_zarr3_opened(zarr3, data))(start, stop)

    for work, steps in {"window of 32": 32, "whole": length}.items():
        start = _starts(length, steps)
        for peer, theirs in {"HDF5 (h5py)": theirs_hdf5, "zarr 3 (tensorstore)": theirs_zarr3}.items():
            calls, repeats = (5, 3) if quick else (10, 9)
            work_name = f"{name}, {work}, opened anew"
            yield interleaved(
                work_name, peer, _calls(ours, start), _calls(theirs, start), calls=calls, repeats=repeats
            )


def _data(quick: bool) -> Iterator[tuple[str, Arrays, int]]:
    """Yield name, leaves `[1, T, ...]` and the steps a chunk of a peer has."""
    draw = np.random.default_rng(0)
    steps, frames = (8_000, 400) if quick else (60_000, 4_000)
    yield "MuJoCo", {
        "action": draw.standard_normal((1, steps, 6), np.float32),
        "done": np.zeros((1, steps), bool),
        "obs": draw.standard_normal((1, steps, 17), np.float32),
        "reward": draw.standard_normal((1, steps), np.float32),
    }, 1024  # fmt: skip
    yield "84x84", {"image": _frames(frames)}, 64


def _frames(steps: int) -> np.ndarray:
    coarse = np.random.default_rng(0).integers(0, 256, (1, steps, 12, 12), np.uint8)
    return coarse.repeat(7, 2).repeat(7, 3)  # as compressible as drawn frames are


def _starts(length: int, steps: int) -> Callable[[], tuple[int, int]]:
    """Return a function that draws windows; two of them draw the same ones."""
    draw = random.Random(1)

    def window() -> tuple[int, int]:
        start = draw.randrange(length - steps + 1)
        return start, start + steps

    return window


def _calls(read: Read, window: Callable[[], tuple[int, int]]) -> Callable[[], Arrays]:
    return lambda: read(*window())


def _vault(place: Path, data: Arrays, times: int = 1) -> VaultReader:
    spec = parse_spec({name: {"shape": list(x.shape[2:]), "dtype": x.dtype.name} for name, x in data.items()})
    with VaultWriter.create(place / "vault" / "1", spec) as writer:
        for _ in range(times):
            writer.append(data)
    return VaultReader.open(writer.path)


def _peers(place: Path, data: Arrays, group: int) -> dict[str, Read]:
    return {
        "HDF5 (h5py)": _hdf5(place / "data.h5", data, group),
        "zarr 3 (tensorstore)": _zarr3(place / "zarr", data, group),
        "zarr 3 (tensorstore, as it opens)": _zarr3_read(_zarr3_opened(place / "zarr", data, kept=0)),
        "zarr 3 (zarr-python)": _zarr_python(place / "zarr"),
        "Parquet (pyarrow)": _parquet(place / "data.parquet", data, group),
    }


def _hdf5(path: Path, data: Arrays, group: int) -> Read:
    with h5py.File(path, "w") as file:
        for name, x in data.items():
            file.create_dataset(name, data=x, chunks=(1, min(group, x.shape[1]), *x.shape[2:]))
    leaves = dict(h5py.File(path, "r").items())
    return lambda start, stop: {name: leaf[:, start:stop] for name, leaf in leaves.items()}


def _zarr3(path: Path, data: Arrays, group: int) -> Read:
    for name, x in data.items():
        metadata = {
            "shape": list(x.shape),
            "data_type": x.dtype.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [1, min(group, x.shape[1]), *x.shape[2:]]},
            },
            "codecs": [
                {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}}
            ],
        }
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/{name}/"}}
        ts.open(spec | {"metadata": metadata}, create=True).result().write(x).result()
    return _zarr3_read(_zarr3_opened(path, data))


def _zarr3_opened(path: Path, names: Iterable[str], *, kept: int = _KEPT) -> dict[str, ts.TensorStore]:
    context = ts.Context({"cache_pool": {"total_bytes_limit": kept}})
    opening = {}
    for name in names:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/{name}/"}}
        opening[name] = ts.open(spec | {"recheck_cached_data": False}, context=context)
    return {name: future.result() for name, future in opening.items()}


def _zarr3_read(leaves: dict[str, ts.TensorStore]) -> Read:
    def read(start: int, stop: int) -> Arrays:
        reads = {name: leaf[:, start:stop].read() for name, leaf in leaves.items()}
        return {name: future.result() for name, future in reads.items()}

    return read


def _zarr_python(path: Path) -> Read:
    """Read what tensorstore wrote."""
    leaves = {leaf.name: zarr.open_array(str(leaf), mode="r") for leaf in sorted(path.iterdir())}
    return lambda start, stop: {name: leaf[:, start:stop] for name, leaf in leaves.items()}


def _parquet(path: Path, data: Arrays, group: int) -> Read:
    shapes = {name: (x.shape[2:], x.dtype) for name, x in data.items()}
    columns = {}
    for name, x in data.items():
        flat, width = pa.array(x.reshape(-1)), int(np.prod(x.shape[2:], dtype=int))
        columns[name] = flat if x.ndim == 2 else pa.FixedSizeListArray.from_arrays(flat, width)
    pq.write_table(pa.table(columns), path, row_group_size=group, compression="zstd", use_dictionary=False)
    file = pq.ParquetFile(path, memory_map=True)

    def read(start: int, stop: int) -> Arrays:
        groups = range(start // group, (stop - 1) // group + 1)
        table = file.read_row_groups(list(groups)).slice(start - groups[0] * group, stop - start)
        return {name: _dense(table[name].combine_chunks(), *shapes[name]) for name in shapes}

    return read


def _dense(column: pa.Array, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    flat = column.flatten() if shape else column
    return flat.to_numpy(zero_copy_only=dtype.kind != "b").reshape(1, -1, *shape)


def _check_equal(ours: Read, theirs: Read, data: Arrays) -> None:
    for name, x in data.items():
        for read in (ours, theirs):
            if not np.array_equal(read(3, 300)[name], x[:, 3:300]):
                raise ValueError(f"`{name}` must be read as it was written.")


def stream_ratios(quick: bool = True) -> list[Ratio]:
    """An epoch of shuffled windows of a vault three times the memory, against reading the vault in order.

    Each opens the vault anew, so nothing is decoded before; in order is read in pieces of half the memory,
    as much as a group of the stream takes.
    """
    rows = []
    for name, data, times in _stream_data(quick):
        size = times * sum(x.nbytes for x in data.values())
        memory = size // 3
        with tempfile.TemporaryDirectory() as directory:
            with _vault(Path(directory), data, times) as reader:
                path, piece = reader.path, reader.length * memory // (2 * size)
            for sequence, period in ((16, 16), (16, 4)):
                rows.append(
                    interleaved(
                        f"{name}: windows of 16 every {period}, {size >> 20} MiB in {memory >> 20} MiB",
                        "our own read in order",
                        partial(_shuffled, path, sequence, period, memory),
                        partial(_in_order, path, piece),
                        calls=1,
                        repeats=3 if quick else 7,
                        target=0.4 if period == sequence else None,
                    )  # fmt: skip
                )
    return rows


def _stream_data(quick: bool) -> Iterator[tuple[str, Arrays, int]]:
    draw, steps = np.random.default_rng(0), 32_768
    yield "MuJoCo", {
        "obs": draw.standard_normal((1, steps, 23), np.float32), "done": np.zeros((1, steps), bool)
    }, 4 if quick else 64  # fmt: skip
    coarse = draw.integers(0, 256, (1, 2048, 12, 12), np.uint8)
    yield "84x84", {"image": coarse.repeat(7, 2).repeat(7, 3)}, 1 if quick else 13


def _shuffled(path: Path, sequence: int, period: int, memory: int) -> None:
    with VaultReader.open(path) as reader:
        stream = WindowStream(
            reader, sequence_length=sequence, batch_size=64, period=period, max_bytes=memory
        )
        for _ in stream.epoch(0):
            pass


def _in_order(path: Path, piece: int) -> None:
    with VaultReader.open(path) as reader:
        for start in range(0, reader.length, piece):
            reader.read(start, start + piece)


if __name__ == "__main__":
    print_table("Vault against other stores", peer_ratios(quick=False))
    print_table("Vault, shuffled", stream_ratios(quick=False))
