"""Buffers that begin with timesteps of a vault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.services import loads
from tests.app.support import SPEC, Api, arrays_of, assert_refused, buffer_body, send, serve, steps

URL = "/api/v1/buffers"
VAULT = "/api/v1/vaults/demos/run1"


@pytest.fixture(scope="module")
def demos(api: Api) -> Api:
    """A service with a vault of 40 steps, of which version 1 has 30."""
    body = {"vault_name": "demos", "vault_uid": "run1", "spec": SPEC, "rows": 2}
    api.post("/api/v1/vaults", json=body)
    send(api, f"{VAULT}/experience", steps(2, 30))
    api.post(f"{VAULT}/versions", json={"tags": ["thirty"]})
    send(api, f"{VAULT}/experience", steps(2, 10, start=30))
    return api


def body(name: str, source: Any, **given: Any) -> dict[str, Any]:
    """Return a trajectory buffer of two rows and 32 steps that begins with steps of the vault."""
    return {
        "name": name, "kind": "trajectory", "add_batch_size": 2, "sample_batch_size": 4,
        "sample_sequence_length": 3, "period": 1, "min_length_time_axis": 3, "max_length_time_axis": 32,
        "from": source,
    } | given  # fmt: skip


@pytest.mark.parametrize(
    ("part", "expected"),
    [({"ref": "thirty"}, range(30)), ({"ref": 1, "percentiles": [0, 50]}, range(15)),
     ({"timesteps": 32}, range(8, 40)), ({"ref": "v1", "start": -5}, range(25, 30)),
     ({"ref": 1, "start": 30}, range(0))],
)  # fmt: skip
def test_a_buffer_begins_with_what_is_asked_for(demos: Api, part: dict, expected: range) -> None:
    """Its size is that of the part, samples are consecutive steps of it, and it goes on from there."""
    name = f"b{abs(hash(str(part)))}"
    made = demos.post(URL, json=body(name, {"vault": "demos/run1", **part}))

    assert made.status_code == 201, made.text
    assert (made.json()["size"], made.json()["position"]) == (2 * len(expected), len(expected))
    assert made.json()["config"]["from"] == {"vault": "demos/run1", **part}
    if len(expected) > 2:
        drawn = arrays_of(demos.get(f"{URL}/{name}/sample?batch_size=200&format=npz"))["experience/action"]
        assert set(np.unique(drawn % 1000)) <= set(expected)
        assert (np.diff(drawn, axis=1) == 1).all()
    added = send(demos, f"{URL}/{name}/experience", steps(2, 1, start=40)).json()
    assert added["position"] == len(expected) + 1


def test_it_is_as_it_was_after_a_restart(tmp_path: Path) -> None:
    """Vault gone, buffer there: its steps came through its own log."""
    with serve(tmp_path) as api:
        api.post("/api/v1/vaults", json={"vault_name": "v", "vault_uid": "1", "spec": SPEC, "rows": 2})
        send(api, "/api/v1/vaults/v/1/experience", steps(2, 20))
        made = api.put(f"{URL}/b", json=body("b", {"vault": "v/1"}, persist_to="v/2"))
        assert made.status_code == 201
        api.delete("/api/v1/vaults/v/1")
        before = arrays_of(api.get(f"{URL}/b/sample?seed=5&format=npz"))
    with serve(tmp_path) as api:
        after = arrays_of(api.get(f"{URL}/b/sample?seed=5&format=npz"))
        assert all((before[name] == after[name]).all() for name in before)
        held = arrays_of(api.get("/api/v1/vaults/v/2/slice?format=npz"))
        assert (held["action"] == steps(2, 20)["action"]).all()


def test_putting_twice_loads_once(demos: Api) -> None:
    """201, then 200 with the same size; another source is another configuration."""
    given = body("twice", {"vault": "demos/run1", "ref": 1})
    sizes = [demos.put(f"{URL}/twice", json=given).json()["size"] for _ in range(2)]

    assert sizes == [60, 60]
    given["from"] = {"vault": "demos/run1"}
    assert_refused(demos.put(f"{URL}/twice", json=given), 409, "config_differs", "`from`")


def test_items_come_from_a_vault_of_one_row(api: Api) -> None:
    """Each timestep is an item."""
    api.post("/api/v1/vaults", json={"vault_name": "items", "vault_uid": "1", "spec": SPEC})
    send(api, "/api/v1/vaults/items/1/experience", steps(1, 9))
    sizes = {"max_length": 16, "min_length": 1, "sample_batch_size": 4}
    made = api.post(URL, json={"name": "items", "kind": "item", **sizes, "from": {"vault": "items/1"}})

    assert (made.status_code, made.json()["size"]) == (201, 9)


def test_a_limiter_does_not_hold_the_loading_back(demos: Api) -> None:
    """30 steps are there though the limiter lets only few in before samples are drawn."""
    limiter = {"samples_per_insert": 1.0, "min_size": 6, "error_buffer": 6}
    given = body("limited", {"vault": "demos/run1", "ref": 1}, rate_limiter=limiter)

    assert demos.post(URL, json=given).json()["size"] == 60


@pytest.mark.parametrize(
    ("source", "given", "status", "code", "word"),
    [({"vault": "none/1"}, {}, 404, "not_found", "none/1"),
     ({"vault": "demos/run1", "ref": "nope"}, {}, 404, "not_found", "nope"),
     ({"vault": "demos/run1"}, {}, 422, "invalid_argument", "at most 32 timesteps"),
     ({"vault": "demos/run1", "ref": 1}, {"add_batch_size": 3}, 422, "invalid_argument", "3 rows"),
     ({"vault": "demos/run1", "ref": 1}, {"spec": {"x": {"shape": [], "dtype": "int32"}}}, 422,
      "invalid_argument", "`spec`"),
     ({"vault": "demos/run1", "ref": 1}, {"persist_to": "demos/run1"}, 422, "invalid_argument", "another"),
     ({"vault": "demos/run1", "step": 2}, {"spec": SPEC}, 422, "not_supported", "step"),
     ({"snapshot": "1"}, {"spec": SPEC}, 404, "not_found", "No snapshot '1'"),
     ({"snapshot": "1", "vault": "demos/run1"}, {"spec": SPEC}, 404, "not_found", "No snapshot '1'"),
     ({"ref": "v1"}, {"spec": SPEC}, 422, "invalid_argument", "vault"),
     ({"vault": "demos/run1", "start": True}, {}, 422, "invalid_argument", "start"),
     ("demos/run1", {"spec": SPEC}, 422, "invalid_argument", "object")],
)  # fmt: skip
def test_a_wrong_source_is_refused_and_makes_nothing(
    demos: Api, source: Any, given: dict, status: int, code: str, word: str
) -> None:
    """For POST and for its dry run; the sentence names what is wrong."""
    for query in ("?dry_run=true", ""):
        assert_refused(demos.post(f"{URL}{query}", json=body("wrong", source, **given)), status, code, word)
    assert_refused(demos.get(f"{URL}/wrong"), 404, "not_found")


def test_a_failed_loading_leaves_nothing(demos: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the buffer nor its memory; the name is free again."""

    async def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "no room")

    reserved = demos.app.state.deck.reserved_bytes
    with monkeypatch.context() as patched:
        patched.setattr(loads, "load", fail)
        assert_refused(
            demos.post(URL, json=body("failed", {"vault": "demos/run1", "ref": 1})), 507, "disk_full"
        )
    assert demos.app.state.deck.reserved_bytes == reserved
    assert_refused(demos.get(f"{URL}/failed"), 404, "not_found")
    assert demos.post(URL, json=body("failed", {"vault": "demos/run1", "ref": 1})).status_code == 201


def test_a_flat_buffer_is_filled_too(demos: Api) -> None:
    """With the spec given as well."""
    given = buffer_body("flat-demos", kind="flat", **{"from": {"vault": "demos/run1", "ref": "thirty"}})

    assert demos.post(URL, json=given).json()["size"] == 60
