"""A snapshot gives back what it was given, or says that it is damaged."""

import numpy as np
import pytest

from fbxcore.errors import DamagedError
from fbxcore.snapshot import dump_snapshot, load_snapshot

ARRAYS = {
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.int32),
    "strided": np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
}


def test_arrays_and_values_come_back_as_they_were(tmp_path):
    """Shapes, scalars included, dtypes, values and JSON are the same."""
    path = tmp_path / "s"
    path.write_bytes(dump_snapshot(ARRAYS, {"at": [1, None, "x"]}))
    arrays, meta = load_snapshot(str(path))

    assert meta == {"at": [1, None, "x"]}
    for name, array in ARRAYS.items():
        assert arrays[name].shape == array.shape and arrays[name].dtype == array.dtype
        assert (arrays[name] == array).all()


def test_equal_states_give_equal_bytes():
    """The order in which arrays are named does not show."""
    assert dump_snapshot(ARRAYS, {}) == dump_snapshot(dict(reversed(ARRAYS.items())), {})


@pytest.mark.parametrize("cut", [0, 7, 20, -1])
def test_a_cut_file_is_damaged(tmp_path, cut):
    """Nothing is read of a file that is not whole."""
    path = tmp_path / "s"
    path.write_bytes(dump_snapshot(ARRAYS, {})[:cut])

    with pytest.raises(DamagedError, match="A snapshot must"):
        load_snapshot(str(path))
