"""A mixer through the client: made like a buffer, sampled like one."""

import numpy as np
import pytest

from fbxcore.client import Client, errors
from tests.served import serve

SPEC = {"x": {"shape": [], "dtype": "float32"}}
SIZES = {"max_length": 64, "min_length": 4, "sample_batch_size": 8}


def test_a_mixer_is_made_and_sampled_like_a_buffer(tmp_path):
    """Six of eight items are of the first; what only a buffer does is refused with the status 405."""
    with serve(tmp_path) as server, Client(server.url) as client:
        for name, value in (("offline", 1.0), ("online", 2.0)):
            buffer = client.create_buffer(name, "item", SPEC, **SIZES)
            buffer.add({"x": np.full(10, value, np.float32)})
        mixing = {"buffers": ["offline", "online"], "proportions": [0.75, 0.25], "sample_batch_size": 8}
        mixer = client.create_buffer("both", "mixer", **mixing)

        with mixer.samples(seed=3) as batches:
            first = next(batches)
        assert first.experience["x"].tolist() == [1.0] * 6 + [2.0] * 2
        assert np.array_equal(first.experience["x"], mixer.sample(seed=3).experience["x"])
        assert [m["name"] for m in mixer.describe()["members"]] == ["offline", "online"]
        with pytest.raises(errors.ClientError) as caught:
            mixer.add({"x": np.zeros(1, np.float32)})
        assert caught.value.status == 405
        with pytest.raises(errors.ConflictError) as caught:
            client.buffer("online").delete(discard=True)
        assert caught.value.code == "in_use"
