"""Chunks read from their files are what the array store reads, or are left to it."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc

from fbxcore.errors import DamagedError, ReclaimedError
from fbxcore.spec import parse_spec
from fbxcore.vault.chunk_files import ChunkForm, form_of
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.store_dump import Dump
from fbxcore.vault.sweep import sweep

DTYPES = ["bool", "uint8", "int8", "int16", "uint32", "int64", "float16", "bfloat16", "float32", "float64"]
DIRECT = {
    "zstd": "zstd",
    "lz4": "lz4",
    "none": "none",
    "bits": {"id": "blosc", "cname": "blosclz", "clevel": 9, "shuffle": 2},
    "stored": {"id": "blosc", "cname": "lz4", "clevel": 0, "shuffle": 0},
}
INDIRECT = {f"plain {name}": {"id": name} for name in ("zlib", "gzip", "zstd", "bz2")}


def learnt(reader):
    """Return the reader, which knows where its chunks lie as if it had been open for long."""
    short = reader._database._short
    short._enough = -1
    short._consider([], range(0))
    return reader


def never_learning(reader):
    """Return the reader, which asks the store for everything."""
    reader._database._short._enough = math.inf
    return reader


def stored(path, name, generation=None):
    """Return a leaf as the array store reads it, without anything of ours."""
    base = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
    base |= {} if generation is None else {"version": generation}
    spec = {"driver": "zarr", "kvstore": {**base, "path": f"{name}."}}
    with VaultReader.open(path, generation=generation) as reader:
        return ts.open(spec, open=True, read=True).result()[:, : reader.length].read().result()


def outcome(reader):
    """Return what reading everything gives, or which error it raises."""
    try:
        return {name: leaf.tobytes() for name, leaf in reader.read().items()}
    except DamagedError as error:
        return type(error), str(error).split(" (")[0]  # which chunk it met first is chance


@pytest.mark.parametrize("compression", [*DIRECT, *INDIRECT])
@pytest.mark.parametrize("rows, shape", [(1, ()), (3, (2, 5))])
def test_every_dtype_and_compressor_reads_as_the_store_does(path, compression, rows, shape):
    """Byte for byte, whole chunks and the last one; what is not decoded here goes to the store."""
    draw = np.random.default_rng(0)
    spec = parse_spec({dtype: {"shape": list(shape), "dtype": dtype} for dtype in DTYPES})
    leaves = {
        name: draw.integers(0, 2, (rows, 70, *shape), np.uint8).astype(bool).astype(stored_dtype(leaf))
        for name, leaf in spec.items()
    }
    given = {**DIRECT, **INDIRECT}[compression]
    with VaultWriter.create(path, spec, rows=rows, compression=given, chunk_steps=16) as writer:
        writer.append(leaves)
    with VaultReader.open(path) as reader:
        files = learnt(reader)._database._short._files
        found = reader.read(5, 69)
        chunks = {name: files.read(name, 1) for name in DTYPES}

    for name in DTYPES:
        expected = stored(path, name)
        assert found[name].tobytes() == expected[:, 5:69].tobytes()
        if compression in DIRECT:
            assert chunks[name].tobytes() == expected[:, 16:32].tobytes()
        else:
            assert chunks[name] is None


def stored_dtype(leaf):
    return ts.dtype(leaf.dtype).numpy_dtype


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_random_histories_read_as_the_store_reads_them(tmp_path_factory, data):
    """Appends, overwrites and chunks that were never written, in an old generation or the newest one."""
    path = tmp_path_factory.mktemp("vault") / "run" / "1"
    steps = data.draw(st.sampled_from([1, 4, 7]), "chunk")
    spec = parse_spec({"x": {"shape": [3], "dtype": "float32"}, "y": {"shape": [], "dtype": "int64"}})
    with VaultWriter.create(path, spec, chunk_steps=steps) as writer:
        for number in range(data.draw(st.integers(1, 20), "commits")):
            some = data.draw(st.integers(1, 9))
            start = data.draw(st.integers(0, writer.length))
            values = np.full((1, some, 3), number, np.float32), np.full((1, some), number, np.int64)
            writer.write_at(start, dict(zip("xy", values, strict=True)))
        generation = data.draw(st.integers(3, writer.generation), "generation")
    gone = data.draw(st.sampled_from([None, "x./0.0.0", "y./0.1"]), "gone")
    if gone is not None:
        base = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
        ts.KvStore.open(base).result().delete_range(ts.KvStore.KeyRange(gone, gone + "\0")).result()
        generation = None
    with VaultReader.open(path, generation=generation) as reader:
        found = learnt(reader).read()

    for name in "xy":
        assert found[name].tobytes() == stored(path, name, generation).tobytes()


def test_all_chunks_of_a_deep_tree_are_found(path, writer, make, tmp_path):
    """Nodes of a few hundred bytes: keys lie below prefixes that only their parents tell."""
    writer.append(make(0, 3000))
    writer.close()
    files = {"driver": "file", "path": f"{path}/"}
    content = ts.KvStore.open({"driver": "ocdbt", "base": files}).result()
    small = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{tmp_path}/deep/1/"}}
    small["config"] = {"max_decoded_node_bytes": 300}
    target = ts.KvStore.open(small).result()
    for key in content.list().result():
        target.write(key, content.read(key).result().value).result()
    (tmp_path / "deep" / "1" / "metadata.json").write_bytes((path / "metadata.json").read_bytes())
    with VaultReader.open(tmp_path / "deep" / "1") as reader:
        manifest = Dump(reader.path).manifest()
        files = learnt(reader)._database._short._files
        chunks = {name: reader.chunks(name)[1] for name in reader.spec}

        assert manifest["versions"][-1]["root_height"] > 1
        for name, leaf in make(0, 3000).items():
            for at, start in enumerate(range(0, 3000, chunks[name])):
                want = leaf[:, start : start + chunks[name]]
                assert files.read(name, at)[:, : want.shape[1]].tobytes() == want.tobytes()


def test_every_generation_is_found(path, writer, make):
    """Those in the manifest and those that its nodes list, sixteen each."""
    for step in range(40):
        writer.append(make(step, step + 1))
    for generation in range(3, writer.generation + 1):
        with VaultReader.open(path, generation=generation) as reader:
            chunk = learnt(reader)._database._short._files.read("obs", 0)

        assert chunk[:, : generation - 2].tobytes() == make(0, generation - 2)["obs"].tobytes()


@pytest.fixture
def noise(path):
    """A vault whose chunks of 16 timesteps, 60 bytes each, compress hardly; its data file is the largest."""
    spec = parse_spec({"x": {"shape": [60], "dtype": "uint8"}, "y": {"shape": [15], "dtype": "float32"}})
    draw = np.random.default_rng(0)
    with VaultWriter.create(path, spec, chunk_steps=16) as writer:
        x, y = draw.integers(0, 4, (1, 100, 60), np.uint8), draw.standard_normal((1, 100, 15), np.float32)
        writer.append({"x": x, "y": y})
        yield writer


def test_damage_is_told_as_the_store_tells_it(path, noise):
    """A byte anywhere in the chunks: the same values, or the same error, as through the store."""
    file = max((path / "d").iterdir(), key=lambda file: file.stat().st_size)
    content = file.read_bytes()
    outcomes = set()
    for at in np.random.default_rng(0).permutation(len(content))[:200]:
        with VaultReader.open(path) as direct, VaultReader.open(path) as other:
            learnt(direct)
            file.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
            got, expected = outcome(direct), outcome(never_learning(other))
            file.write_bytes(content)
        assert got == expected
        outcomes.add(type(got))

    assert outcomes == {dict, tuple}


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_bool_that_is_neither_is_told_as_the_store_tells_it(path, compression):
    """A byte of a chunk of bools is 0 or 1; another one is damage, with and without compression."""
    draw = np.random.default_rng(0)
    spec = parse_spec({"done": {"shape": [60], "dtype": "bool"}})
    with VaultWriter.create(path, spec, compression=compression, chunk_steps=16) as writer:
        writer.append({"done": draw.integers(0, 2, (1, 16, 60), np.uint8).astype(bool)})
    with VaultReader.open(path) as direct, VaultReader.open(path) as other:
        places = learnt(direct)._database._short._files._places["done"]
        (file,) = [file for file in (path / "d").iterdir() if file.stat().st_size >= places[0, 2] > 0]
        content = bytearray(file.read_bytes())
        content[places[0, 1] + places[0, 2] - 1] ^= 2
        file.write_bytes(content)
        got, expected = outcome(direct), outcome(never_learning(other))

    assert got == expected and got[0] is DamagedError


@pytest.mark.parametrize("damage", [os.unlink, lambda file: os.truncate(file, 10)])
def test_a_file_that_is_gone_is_told_as_the_store_tells_it(path, noise, damage):
    """Nothing of a file is kept open."""
    with VaultReader.open(path) as direct, VaultReader.open(path) as other:
        learnt(direct)
        for file in (path / "d").iterdir():
            damage(file)
        got, expected = outcome(direct), outcome(never_learning(other))

    assert got == expected and got[0] is DamagedError


def test_a_swept_generation_is_told(path, noise, tmp_path, read):
    """A reader that learnt the places of a generation answers 410 once its bytes were given back."""
    with VaultReader.open(path) as reader:
        learnt(reader).read(0, 5)
        noise.write_at(0, {name: leaf[:, ::-1] for name, leaf in read(path).items()})
        sweep(noise, tmp_path / "catalog", grace_s=0)

        with pytest.raises(ReclaimedError, match="given back"):
            reader.read(20, 90)


@pytest.mark.parametrize(
    "change",
    [
        {"order": "F"},
        {"filters": [{"id": "delta"}]},
        {"dtype": ">f4"},
        {"dtype": [["x", "<f4"]]},
        {"dimension_separator": "/"},
        {"compressor": {"id": "gzip"}},
        {"chunks": [1, 16, 2]},
    ],
)
def test_other_arrays_are_left_to_the_store(change):
    """Whatever would need more than one copy of decoded bytes, or more than one chunk for a timestep."""
    told = {"order": "C", "filters": None, "dtype": "<f4", "compressor": None, "chunks": [1, 16, 3]}
    told |= {"dimension_separator": "."}

    assert form_of("x.", told, (1, 100, 3), np.dtype("f4")) is not None
    assert form_of("x.", told | change, (1, 100, 3), np.dtype("f4")) is None


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:10], lambda b: b""])
def test_lengths_that_disagree_are_not_decoded(change):
    """A blosc chunk says how long it is, and the decoder believes it."""
    form = ChunkForm("x.", (1, 16, 3), np.dtype("f4"), is_blosc=True)
    chunk = np.arange(48, dtype="f4").reshape(form.shape)
    encoded = blosc.compress(chunk, b"lz4", 5)
    longer = blosc.compress(np.tile(chunk, 2), b"lz4", 5)

    assert form.decode(encoded).tobytes() == chunk.tobytes()
    assert form.decode(change(encoded)) is None and form.decode(longer) is None
    assert replace(form, is_blosc=False).decode(change(chunk.tobytes())) is None


def test_keys_that_are_no_chunks_are_passed_over(path, writer, make, same):
    """Another program may leave any key beside the chunks, with what could be a chunk's bytes."""
    writer.append(make(0, 3000))
    base = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path}/"}}
    other = ts.KvStore.open(base).result().read("obs./0.1.0").result().value
    ends = ["0.00.0", "0.0.0.0", "0.-1.0", "1.0.0", "0.9.0", "0." + "9" * 5000 + ".0", "x", ""]
    writer.put(dict.fromkeys([*(f"obs./{end}" for end in ends), "/", "obs.", "0.0.0"], other))
    with VaultReader.open(path) as reader:
        assert same(learnt(reader).read(), make(0, 3000))
