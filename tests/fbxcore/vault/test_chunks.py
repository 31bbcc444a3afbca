"""How a vault is laid out: by size and content of its leaves, or as the user says; Flashbax reads each."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from fbxcore.buffers.trajectory_buffer import TrajectoryBufferState
from fbxcore.errors import InvalidArgumentError
from fbxcore.spec import parse_spec
from fbxcore.vault import Vault
from fbxcore.vault.store import VaultReader, VaultWriter

SPEC = parse_spec(
    {
        "noise": {"shape": [17], "dtype": "float32"},
        "few": {"shape": [], "dtype": "int32"},
        "image": {"shape": [32, 32], "dtype": "uint8"},
    }
)
BLOSC = {1: "lz4", 4: "zstd"}
"""The codec that a blosc chunk was compressed with, as its third byte says."""


def leaves(steps, rows=1):
    """Numbers that nothing shortens, few kinds of numbers, and images that anything shortens."""
    draw = np.random.default_rng(0)
    image = np.zeros((rows, steps, 32, 32), np.uint8)
    image[:, np.arange(steps), np.arange(steps) % 32] = 255
    return {
        "noise": draw.standard_normal((rows, steps, 17), np.float32),
        "few": draw.integers(0, 6, (rows, steps), np.int32),
        "image": image,
    }


def create(tmp_path, uid="1", **options):
    return VaultWriter.create(tmp_path / "vaults" / "run" / uid, SPEC, **options)


def codecs(path, at=0):
    """Return for each leaf how its chunk is compressed, and what its array says."""
    with VaultReader.open(path) as reader:
        chunks = {name: reader.get(f"{name}./0.{at}" + ".0" * len(SPEC[name].shape)) for name in SPEC}
        said = {name: json.loads(reader.get(f"{name}./.zarray"))["compressor"] for name in SPEC}
    return {name: BLOSC[chunk[2] >> 5] for name, chunk in chunks.items()}, said


def test_chunks_follow_from_the_bytes_of_a_step(tmp_path):
    """The power of two nearest to 256 KiB, within 16 and 1,024."""
    with create(tmp_path) as writer, VaultReader.open(writer.path) as reader:
        assert reader.chunks("noise") == (1, 1024, 17)  # 68 B a step: 3,855 of them
        assert reader.chunks("image") == (1, 256, 32, 32)  # 1 KiB a step


@pytest.mark.parametrize(("given", "steps"), [(64, (64, 64)), ({"image": 5}, (1024, 5))])
def test_chunks_are_as_the_user_says(tmp_path, given, steps):
    """Of all leaves or of some; whatever they are, every step is read."""
    with create(tmp_path, chunk_steps=given) as writer:
        writer.append(leaves(300))
        with VaultReader.open(writer.path) as reader:
            assert (reader.chunks("noise")[1], reader.chunks("image")[1]) == steps
            for name, leaf in leaves(300).items():
                np.testing.assert_array_equal(reader.read()[name], leaf)


def test_the_compressor_follows_from_the_content(tmp_path):
    """zstd where it leaves clearly less than lz4, also for what another session appends."""
    with create(tmp_path) as writer:
        writer.append(leaves(1024))
    expected = {"noise": "lz4", "few": "zstd", "image": "lz4"}
    assert codecs(writer.path)[0] == expected

    with VaultWriter.open(writer.path) as writer:
        writer.append(leaves(1024))
    assert codecs(writer.path, at=1)[0] == expected


def test_a_step_alone_says_nothing_of_the_content(tmp_path):
    """Too few bytes to judge by: what the array says is used, and the next append is looked at."""
    with create(tmp_path) as writer:
        writer.append(leaves(1))
        assert codecs(writer.path)[0]["noise"] == "zstd"
        writer.append(leaves(100))
        assert codecs(writer.path)[0]["noise"] == "lz4"


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_chosen_reads_back(tmp_path, rows):
    """Also where the sample takes a part of the rows."""
    with create(tmp_path, rows=rows) as writer:
        writer.append(leaves(700, rows))
        with VaultReader.open(writer.path) as reader:
            for name, leaf in leaves(700, rows).items():
                np.testing.assert_array_equal(reader.read()[name], leaf)


def test_the_compressor_is_as_the_user_says(tmp_path):
    """Whatever the content; the leaves that are not named are chosen for."""
    with create(tmp_path, compression={"noise": "zstd", "few": "lz4"}) as writer:
        writer.append(leaves(1024))

    assert codecs(writer.path)[0] == {"noise": "zstd", "few": "lz4", "image": "lz4"}


def test_no_compression_stores_the_bytes(tmp_path):
    """A chunk then is the array's own memory."""
    with create(tmp_path, compression="none") as writer:
        writer.append(leaves(1024))
        with VaultReader.open(writer.path) as reader:
            assert reader.get("noise./0.0.0") == leaves(1024)["noise"].tobytes()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"chunk_steps": 0}, r"`chunk_steps` must be an integer in 1\.\.65536 for leaf `few`, got 0"),
        ({"chunk_steps": True}, "`chunk_steps` must be an integer"),
        (
            {"chunk_steps": {"nope": 4}},
            "`chunk_steps` must name leaves of 'few', 'image', 'noise', got 'nope'",
        ),
        ({"chunk_steps": {"noise": 1 << 17}}, "got 131072"),
        ({"chunk_steps": "4"}, "`chunk_steps` must be one value or one a leaf, got '4'"),
        ({"compression": "gzip"}, "`compression` must be zstd, lz4, none or a zarr compressor, got 'gzip'"),
        ({"compression": {"nope": "lz4"}}, "must name leaves of .* got 'nope'"),
        ({"compression": {"noise": 3}}, "`compression` must be zstd, lz4, none or a zarr compressor, got 3"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path, options, match):
    """With the argument's name, and nothing is left behind."""
    with pytest.raises(InvalidArgumentError, match=match) as caught:
        create(tmp_path, **options)

    assert caught.value.loc[0] == next(iter(options))
    assert list(tmp_path.iterdir()) == []


LAYOUTS = [
    {},
    {"compression": "none", "chunk_steps": 16},
    {"compression": {"noise": "lz4", "image": {"id": "zlib", "level": 1}}, "chunk_steps": {"few": 100}},
    {"compression": "zstd", "chunk_steps": 2048},
]


@pytest.mark.parametrize("options", LAYOUTS)
def test_real_flashbax_reads_and_extends_any_layout(flashbax_vault, options):
    """It appends behind us, we append behind it, and both read all of it."""
    experience = {name: jnp.asarray(leaf) for name, leaf in leaves(600).items()}
    state = TrajectoryBufferState(experience, jnp.int32(0), jnp.bool_(True))
    ours = Vault("run", experience, vault_uid="1", **options)
    ours.write(state, (0, 250))
    flashbax_vault(structure=experience).write(state, (250, 400))
    Vault("run", experience, vault_uid="1").write(state, (400, 600))

    for vault in (Vault("run", vault_uid="1"), flashbax_vault()):
        read = vault.read().experience
        for name, leaf in experience.items():
            np.testing.assert_array_equal(read[name], leaf)


def test_flashbax_may_have_the_vault_open_when_we_choose(flashbax_vault):
    """What an array says of itself never changes, so an older handle reads and appends."""
    experience = {name: jnp.asarray(leaf) for name, leaf in leaves(600).items()}
    state = TrajectoryBufferState(experience, jnp.int32(0), jnp.bool_(True))
    ours = Vault("run", experience, vault_uid="1")
    theirs = flashbax_vault(structure=experience)
    ours.write(state, (0, 600))

    assert codecs(ours.path)[0]["noise"] == "lz4" and codecs(ours.path)[1]["noise"]["cname"] == "zstd"
    np.testing.assert_array_equal(
        flashbax_vault(structure=experience).read().experience["noise"], experience["noise"]
    )
    assert theirs.write(state, (0, 10), dest_start=600) == 10
