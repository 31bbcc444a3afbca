"""Flashbax's `Vault` interface, and what it breaks silently."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.buffers.trajectory_buffer import TrajectoryBufferState
from fbxcore.errors import ConflictError, DamagedError, InvalidArgumentError, StructureError
from fbxcore.vault import Vault

T = 5


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def state(total, rows=1, length=T):
    """The state of a ring of T slots after timesteps 0..total-1 were added, by hand."""
    slots = np.zeros((rows, length), np.float32)
    for step in range(total):
        slots[:, step % length] = step
    experience = {"x": jnp.asarray(slots), "n": {"y": jnp.asarray(slots.astype(np.int32))[..., None]}}
    return TrajectoryBufferState(experience, jnp.int32(total % length), jnp.bool_(total >= length))


def steps(vault, **form):
    experience = vault.read(**form).experience
    np.testing.assert_array_equal(experience["x"], experience["n"]["y"][..., 0])
    return experience["x"][0].astype(int).tolist()


def new(name="run", rows=1, **options):
    return Vault(name, state(0, rows).experience, vault_uid="1", **options)


def test_writes_store_what_is_new():
    """Each write adds the timesteps since the last one, around the end too."""
    vault = new()

    assert [vault.write(state(total)) for total in (2, 2, 4, 7, 9, 13)] == [2, 0, 2, 3, 2, 4]
    assert steps(vault) == list(range(13))
    assert vault.vault_index == 13
    assert vault.lost == 0


@pytest.mark.parametrize(
    ("total", "expected"), [(0, []), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (7, [2, 3, 4, 5, 6])]
)
def test_the_first_write_stores_all_there_is(total, expected):
    """Exactly full (VA-01) and wrapped around (VA-03): everything held, the oldest first."""
    vault = new()

    assert vault.write(state(total)) == len(expected)
    assert steps(vault) == expected


def test_a_full_lap_is_all_new():
    """Added exactly T timesteps: the index stands where it stood, yet everything is new."""
    vault = new()
    vault.write(state(2))

    assert vault.write(state(7)) == 5
    assert steps(vault) == list(range(7))


def test_more_than_a_lap_is_reported():
    """What survives is stored in order, and what was overwritten is counted (VA-02)."""
    vault = new()
    vault.write(state(2))
    with pytest.warns(UserWarning, match="At least 3 timesteps were overwritten"):
        assert vault.write(state(10)) == 5

    assert steps(vault) == [0, 1, 5, 6, 7, 8, 9]
    assert vault.lost == 3


def test_a_reset_buffer_starts_again():
    """A buffer that went back to the start is a new one: all of it is stored."""
    vault = new()
    vault.write(state(4))

    assert vault.write(state(2)) == 2
    assert steps(vault) == [0, 1, 2, 3, 0, 1]


def test_our_own_buffer_writes_through():
    """The trajectory buffer of this library, added to in batches, arrives whole."""
    buffer = fbx.make_trajectory_buffer(
        add_batch_size=2, sample_batch_size=1, sample_sequence_length=2, period=1,
        min_length_time_axis=2, max_length_time_axis=8,
    )  # fmt: skip
    held = buffer.init({"x": jnp.float32(0), "key": jnp.zeros(2, jnp.uint32)})
    vault = Vault("ours", held.experience, vault_uid="1")
    for at in range(0, 18, 3):
        x = jnp.stack([jnp.arange(at, at + 3), jnp.arange(at, at + 3) + 100]).astype(jnp.float32)
        held = buffer.add(held, {"x": x, "key": jnp.stack([x, x], -1).astype(jnp.uint32)})
        vault.write(held)

    read = vault.read()
    assert read.experience["x"].tolist() == [list(range(18)), list(range(100, 118))]
    assert read.experience["key"].dtype == jnp.uint32
    assert (read.current_index.dtype, int(read.current_index), bool(read.is_full)) == (jnp.int32, 0, True)
    np.testing.assert_array_equal(held.experience["x"][0, :2], [16, 17])  # the state is not given away


@pytest.mark.parametrize(
    ("interval", "expected"), [((1, 3), [1, 2]), ((3, 1), [3, 4, 0]), ((0, 5), [0, 1, 2, 3, 4]), ((2, 2), [])]
)
def test_an_interval_of_slots(interval, expected):
    """`source_interval` names slots, around the end where it descends."""
    vault = new()

    assert vault.write(state(5), interval) == len(expected)
    assert steps(vault) == expected


def test_dest_start_overwrites():
    """The length grows only as far as what was written, and no gap can be left."""
    vault = new()
    vault.write(state(5))
    vault.write(state(5), (3, 5), dest_start=0)
    assert steps(vault) == [3, 4, 2, 3, 4]

    vault.write(state(5), (0, 3), dest_start=4)
    assert steps(vault) == [3, 4, 2, 3, 0, 1, 2]
    with pytest.raises(InvalidArgumentError, match="`start` must be in 0..7"):
        vault.write(state(5), (0, 3), dest_start=8)


def test_the_last_timesteps_and_percentiles():
    """`timesteps` counts from the end; neighbouring percentiles meet."""
    vault = new()
    vault.write(state(5))

    assert steps(vault, timesteps=2) == [3, 4]
    assert steps(vault, timesteps=0) == []
    assert steps(vault, timesteps=9) == [0, 1, 2, 3, 4]
    assert [steps(vault, percentiles=p) for p in [(0, 30), (30, 60), (60, 100)]] == [[0], [1, 2], [3, 4]]


@pytest.mark.anyio
async def test_it_works_inside_a_running_loop():
    """Writing and reading need no event loop of their own (VA-05)."""
    vault = new()
    vault.write(state(3))

    assert steps(vault) == [0, 1, 2]


def test_objects_of_one_vault_take_turns():
    """Each continues behind what the other wrote, and readers see it at once."""
    first, reader = new(), Vault("run", vault_uid="1")
    second = Vault("run", vault_uid="1")
    first.write(state(2))
    second.write(state(3))
    first.write(state(4))

    assert steps(reader) == [0, 1, 0, 1, 2, 2, 3]
    assert reader.vault_index == 7


def test_the_structure_given_is_returned():
    """A NamedTuple comes back as one, a dict without."""
    from typing import NamedTuple

    class Step(NamedTuple):
        b: jax.Array
        a: dict

    given = Step(jnp.ones((1, 2)), {"z": jnp.ones((1, 2, 3), jnp.bfloat16)})
    held = TrajectoryBufferState(given, jnp.int32(0), jnp.bool_(True))
    vault = Vault("run", given, vault_uid="1")
    vault.write(held)

    assert isinstance(vault.read().experience, Step)
    assert Vault("run", vault_uid="1").read().experience["a"]["z"].dtype == jnp.bfloat16
    part = Vault("run", {"b": given.b}, vault_uid="1").read().experience
    assert part["b"].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("structure", "match"),
    [
        (lambda: {"k": jax.random.split(jax.random.key(0), (1, 2))}, "Leaf `k` must be an array of numbers"),
        (lambda: {"a": (jnp.zeros((1, 2)), jnp.zeros((1, 2)))}, "must name its leaves, got a tuple or list"),
        (lambda: {"a.b": jnp.zeros((1, 2)), "a": {"b": jnp.zeros((1, 2))}}, "must not share the path `a.b.`"),
        (lambda: {"a": jnp.zeros(2)}, r"Leaf `a` must have shape \[B, T, ...\]"),
        (lambda: {}, "at least one leaf"),
        (lambda: None, "`experience_structure` must be given"),
    ],
)
def test_a_structure_no_vault_can_hold_leaves_nothing(tmp_path, structure, match):
    """A refused create leaves no directory, and the name can be used at once (VA-06)."""
    with pytest.raises(InvalidArgumentError, match=match):
        Vault("run", structure(), vault_uid="1")
    assert list(tmp_path.iterdir()) == []

    new().write(state(1))


@pytest.mark.parametrize(
    ("structure", "match"),
    [
        ({"x": jnp.zeros((2, T))}, r"Leaf `x` must be float32 of shape \[1, 'T'\], the vault's"),
        ({"x": jnp.zeros((1, T), jnp.int32)}, "the vault's, got int32"),
        ({"z": jnp.zeros((1, T))}, "Leaf `z` must be in the vault, which has `n/y`, `x`"),
    ],
)
def test_another_structure_than_the_vaults_is_refused(structure, match):
    """Rows, shapes, dtypes and names are those of the vault, when it is opened and when it is written."""
    vault = new()
    with pytest.raises(StructureError, match=match):
        Vault("run", structure, vault_uid="1")
    with pytest.raises(StructureError, match=match):
        vault.write(TrajectoryBufferState(structure, jnp.int32(2), jnp.bool_(False)))
    assert vault.vault_index == 0


def test_a_missing_leaf_writes_nothing():
    """A write needs every leaf of the vault."""
    vault = new()
    with pytest.raises(StructureError, match="Leaf `n/y` must be given"):
        vault.write(TrajectoryBufferState({"x": jnp.zeros((1, T))}, jnp.int32(2), jnp.bool_(False)))
    assert vault.vault_index == 0


def test_a_half_made_vault_is_damaged(tmp_path):
    """A directory without `metadata.json` is told as such."""
    (tmp_path / "vaults" / "run" / "1").mkdir(parents=True)
    with pytest.raises(DamagedError, match="File `metadata.json` of vault 'run/1'"):
        Vault("run", vault_uid="1")


def test_metadata_and_compression_are_kept():
    """User metadata stands at the top level, what is not JSON as its text."""
    vault = new(metadata={"env": "x", "n": 3, "shape": jnp.float32}, compression={"id": "gzip", "level": 1})
    vault.write(state(5))

    assert steps(vault) == [0, 1, 2, 3, 4]
    assert vault._newest().metadata == {"env": "x", "n": 3, "shape": str(jnp.float32)}


def test_the_uid_is_the_present_time_unless_given():
    """As Flashbax calls it: fourteen digits."""
    assert len(Vault("run", state(0).experience).path.name) == 14


def test_another_writer_is_told():
    """While somebody holds the vault, a write is refused and nothing is written."""
    from fbxcore.vault import VaultWriter

    vault = new()
    with VaultWriter.open(vault.path), pytest.raises(ConflictError, match="one writer"):
        vault.write(state(3))
    assert vault.write(state(3)) == 3


def test_what_was_read_may_be_given_away():
    """Large arrays lie in JAX's hands without a copy; a jitted function may write over them."""
    held = {"x": jnp.arange(30_000, dtype=jnp.float32)[None]}
    vault = Vault("large", held, vault_uid="1")
    vault.write(TrajectoryBufferState(held, jnp.int32(0), jnp.bool_(True)))
    cleared = jax.jit(lambda tree: jax.tree_util.tree_map(lambda leaf: leaf * 0, tree), donate_argnums=0)
    assert not cleared(vault.read()).experience["x"].any()

    again = vault.read()
    np.testing.assert_array_equal(again.experience["x"], held["x"])
    assert (int(again.current_index), bool(again.is_full)) == (0, True)
