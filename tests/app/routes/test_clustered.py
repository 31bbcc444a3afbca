"""A clustered buffer over HTTP: made, fed, sampled and shown."""

from __future__ import annotations

import numpy as np
from bs4 import BeautifulSoup

from tests.app.support import arrays_of, assert_refused, send, serve

BUFFERS = "/api/v1/buffers"
BODY = {
    "name": "c",
    "kind": "clustered",
    "spec": {"x": {"shape": [], "dtype": "float32"}, "level": {"shape": [], "dtype": "int64"}},
    "max_length": 20,
    "min_length": 1,
    "sample_batch_size": 64,
    "num_clusters": 3,
    "cluster_leaf": "level",
    "persist_to": "levels/1",
}


def test_a_clustered_buffer_is_served(tmp_path) -> None:
    """Each cluster comes as often as any other; the answer says sizes, the page shows the clusters."""
    with serve(tmp_path) as api:
        made = api.post(BUFFERS, json=BODY).json()
        assert (made["capacity"], made["rows"], made["needed"]) == (18, 1, 1)
        assert "2 cut" in made["warnings"][0]
        levels = np.array([0] * 9 + [2], np.int64)
        added = send(api, f"{BUFFERS}/c/experience", {"x": np.arange(10, dtype=np.float32), "level": levels})
        assert (added.status_code, added.json()["size"]) == (201, 7)

        drawn = arrays_of(api.get(f"{BUFFERS}/c/sample?seed=1&batch_size=400&format=npz"))
        assert sorted(drawn) == ["clusters", "experience/level", "experience/x", "probabilities"]
        assert set(drawn["experience/x"]) == {3, 4, 5, 6, 7, 8, 9}
        assert 150 < (drawn["clusters"] == 2).sum() < 250
        assert_refused(api.get(f"{BUFFERS}/c/sample?beta=1"), 422, "invalid_argument", "`beta`")
        wrong = {"x": np.zeros(1, np.float32), "level": np.array([3], np.int64)}
        problem = assert_refused(send(api, f"{BUFFERS}/c/experience", wrong), 422, "invalid_argument")
        assert problem["errors"][0]["loc"] == ["level"]

        assert api.get(f"{BUFFERS}/c/histogram?field=cluster&bins=3").json()["counts"] == [6, 0, 1]
        soup = BeautifulSoup(api.get("/buffers/c?seed=2").text, "html.parser")
        assert soup.select_one("#distribution svg") and soup.select_one("#sample table")
        assert api.get(f"{BUFFERS}/c").json()["size"] == 7
    with serve(tmp_path) as api:
        again = arrays_of(api.get(f"{BUFFERS}/c/sample?seed=1&batch_size=400&format=npz"))
        assert all((again[name] == drawn[name]).all() for name in drawn)
