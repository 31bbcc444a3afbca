"""Vaults to test on: one small spec, leaves counted up, a real Flashbax beside us."""

import contextlib
import io

import numpy as np
import pytest

from fbxcore.spec import dtype_of, parse_spec
from fbxcore.vault.store import VaultReader, VaultWriter

NESTED = {
    "obs": {"shape": [3], "dtype": "float32"},
    "agents": {"action": {"shape": [], "dtype": "int32"}, "done": {"shape": [], "dtype": "bool"}},
    "image": {"shape": [4, 4], "dtype": "uint8"},
    "half": {"shape": [2], "dtype": "bfloat16"},
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def spec():
    return parse_spec(NESTED)


@pytest.fixture
def make(spec):
    """Return a function for leaves `[B, stop - start, ...]` whose values follow from the timestep."""

    def leaves(start, stop, rows=1, of=None):
        def leaf(shape, dtype):
            steps = np.arange(start, stop).reshape(1, -1, *[1] * len(shape))
            row = np.arange(rows).reshape(-1, 1, *[1] * len(shape)) * 7
            values = np.broadcast_to((steps + row) % 120, (rows, stop - start, *shape))
            return (values % 2 if dtype == "bool" else values).astype(dtype_of(dtype))

        return {name: leaf(one.shape, one.dtype) for name, one in (of or spec).items()}

    return leaves


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vaults" / "run" / "1"


@pytest.fixture
def writer(path, spec):
    with VaultWriter.create(path, spec, rows=1) as opened:
        yield opened


@pytest.fixture
def read():
    """Return a function that reads a whole vault, or a generation of it."""

    def whole(path, generation=None, **options):
        with VaultReader.open(path, generation=generation) as reader:
            return reader.read(**options)

    return whole


@pytest.fixture
def same():
    """Return a function that says whether two sets of leaves are equal in names, dtypes and values."""

    def equal(given, expected):
        assert list(given) == sorted(expected)
        for name, leaf in expected.items():
            assert given[name].dtype == leaf.dtype, name
            np.testing.assert_array_equal(given[name], leaf, err_msg=name)
        return True

    return equal


@pytest.fixture
def files():
    """Return a function that lists a directory's files with size and time, to see that nothing changed."""

    def listed(path):
        return {
            str(p.relative_to(path)): (p.stat().st_size, p.stat().st_mtime_ns)
            for p in path.rglob("*")
            if p.is_file()
        }

    return listed


@pytest.fixture
def flashbax_vault(tmp_path, monkeypatch):
    """Return a function that opens a real Flashbax vault below `vaults`, without its prints."""
    vault = pytest.importorskip("flashbax.vault")
    monkeypatch.chdir(tmp_path)

    def opened(name="run", structure=None, uid="1", **options):
        with contextlib.redirect_stdout(io.StringIO()):
            return vault.Vault(name, structure, rel_dir="vaults", vault_uid=uid, **options)

    return opened
