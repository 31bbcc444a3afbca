"""Snapshots over HTTP: a whole buffer, kept, and begun again exactly as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.app.support import Api, arrays_of, assert_refused, buffer_body, send, serve, steps

URL = "/api/v1/buffers"
LIMITER = {"samples_per_insert": 4.0, "min_size": 8, "error_buffer": 1e6}


def live(api: Api, name: str) -> None:
    """Give a buffer a life: adds under keys, samples, priorities, stale ones, a reset."""
    body = buffer_body(name, rate_limiter=LIMITER, max_length=32)
    assert api.post(URL, json=body).status_code == 201
    for turn, length in enumerate((10, 30, 7)):
        key = {"idempotency-key": f"k{turn}"}
        assert send(api, f"{URL}/{name}/experience", steps(2, length), headers=key).status_code == 201
        drawn = arrays_of(api.get(f"{URL}/{name}/sample?seed={turn}&format=npz"))
        updates = {
            "indices": drawn["indices"],
            "priorities": np.linspace(1, 5, 4, dtype=np.float32),
            "generations": drawn["generations"] - (turn == 1),
        }
        send(api, f"{URL}/{name}/priorities", updates, method="PATCH")
        if turn == 0:
            api.post(f"{URL}/{name}/reset?discard=true")


def seen(api: Api, name: str) -> dict:
    """Return what the service says of a buffer that does not belong to its name."""
    left_out = ("name", "created_at", "config", "rates", "log", "persisted", "persist_to")
    stats = api.get(f"{URL}/{name}/stats").json()
    histogram = api.get(f"{URL}/{name}/histogram?field=priority").json()
    samples = [api.get(f"{URL}/{name}/sample?seed={seed}&peek=true").content for seed in range(20)]
    known = {n: v for n, v in api.get(f"{URL}/{name}").json().items() if n not in left_out}
    return known | {"stats": {n: v for n, v in stats.items() if n not in left_out}} | {
        "histogram": histogram, "samples": samples,
    }  # fmt: skip


def test_a_buffer_is_back_exactly_under_another_name_and_its_own(tmp_path: Path) -> None:
    """Size, position, priorities, generations, counters, limiter, keys; also after restarts."""
    with serve(tmp_path / "data") as api:
        live(api, "first")
        before = seen(api, "first")
        answer = api.post(f"{URL}/first/snapshot")
        made = answer.json()
        assert answer.status_code == 201
        assert answer.headers["location"] == f"{URL}/first/snapshots/{made['id']}"
        assert (made["size"], made["position"], made["state"]) == (32, 37, "ready")
        send(api, f"{URL}/first/experience", steps(2, 3, start=50))
        restored = api.post(URL, json={"name": "second", "from": {"snapshot": made["id"]}})
        assert restored.status_code == 201, restored.text
        assert seen(api, "second") == before
        repeat = send(api, f"{URL}/second/experience", steps(2, 7), headers={"idempotency-key": "k2"})
        assert repeat.json()["duplicate"] is True
        api.delete(f"{URL}/first?discard=true")
    with serve(tmp_path / "data") as api:
        assert seen(api, "second") == before
        assert api.get(f"{URL}/first/snapshots").json()["items"] == [made]
        again = api.put(f"{URL}/first", json=buffer_body(
            "first", rate_limiter=LIMITER, max_length=32, **{"from": {"snapshot": made["id"]}}
        ))  # fmt: skip
        assert again.status_code == 201, again.text
        assert seen(api, "first") == before


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory):
    """A service with a buffer and a snapshot of it, and the snapshot."""
    with serve(tmp_path_factory.mktemp("kept") / "data") as api:
        live(api, "b")
        yield api, api.post(f"{URL}/b/snapshot").json()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_length": 64}, "max_length"),
        ({"spec": {"x": {"shape": [], "dtype": "int32"}}}, "spec"),
        ({"sample_batch_size": 8}, "sample_batch_size"),
        ({"priority_exponent": 0.1}, "priority_exponent"),
    ],
)
def test_another_buffer_is_not_made_of_a_snapshot(kept, given: dict, field: str) -> None:
    """409 with the difference, for a dry run too, and nothing is made."""
    api, made = kept
    for query in ("?dry_run=true", ""):
        answer = api.post(f"{URL}{query}", json={"name": "other", "from": {"snapshot": made["id"]}, **given})
        problem = assert_refused(answer, 409, "snapshot_differs", f"`{field}`")
        assert list(problem["difference"]) == [field]
    assert_refused(api.get(f"{URL}/other"), 404, "not_found")


def test_another_kind_is_not_made_of_a_snapshot(kept) -> None:
    """Another kind has arguments of its own: what is wrong with them, or the difference, is told."""
    api, made = kept
    flat = {n: v for n, v in buffer_body("other", max_length=32).items()} | {"kind": "flat"}
    problem = assert_refused(
        api.post(URL, json=flat | {"from": {"snapshot": made["id"]}}), 409, "snapshot_differs", "`kind`"
    )
    assert problem["difference"]["kind"] == {"is": "prioritised_flat", "given": "flat"}
    assert_refused(
        api.post(URL, json={"name": "bare", "kind": "item", "from": {"snapshot": made["id"]}}),
        409, "snapshot_differs", "`kind`",
    )  # fmt: skip


@pytest.mark.parametrize("snapshot", ["0123456789abcdef", "../../x", "", "*", "x" * 300])
def test_an_unknown_snapshot_is_not_found(kept, snapshot: str) -> None:
    """404 and never an empty buffer."""
    api, _ = kept
    answer = api.post(URL, json=buffer_body("none", **{"from": {"snapshot": snapshot}}))
    problem = assert_refused(answer, 404, "not_found")
    assert problem["errors"][0]["loc"] == ["from", "snapshot"]
    assert_refused(api.get(f"{URL}/none"), 404, "not_found")


def test_snapshots_are_listed_newest_first_by_page_and_deleted(tmp_path: Path) -> None:
    """Each is shown by its id under its buffer; a deleted one is gone, a buffer made of it stays."""
    with serve(tmp_path / "data") as api:
        live(api, "b")
        made = [api.post(f"{URL}/b/snapshot").json() for _ in range(3)]
        first = api.get(f"{URL}/b/snapshots?limit=2").json()
        second = api.get(f"{URL}/b/snapshots?limit=2&next={first['next']}").json()
        listed = first["items"] + second["items"]
        assert sorted(one["id"] for one in listed) == sorted(one["id"] for one in made)
        assert [one["created_at"] for one in listed] == sorted((o["created_at"] for o in made), reverse=True)
        assert (first["total"]["value"], second["next"]) == (3, None)
        one = made[1]
        assert api.get(f"{URL}/b/snapshots/{one['id']}").json() == one
        assert_refused(api.get(f"{URL}/c/snapshots/{one['id']}"), 404, "not_found")
        api.post(URL, json={"name": "c", "from": {"snapshot": one["id"]}})
        assert api.delete(f"{URL}/b/snapshots/{one['id']}").status_code == 204
        assert_refused(api.get(f"{URL}/b/snapshots/{one['id']}"), 404, "not_found")
        assert_refused(api.get(f"{URL}/nobody/snapshots"), 404, "not_found")
        assert_refused(api.post(f"{URL}/nobody/snapshot"), 404, "not_found")
        state = seen(api, "c")
    with serve(tmp_path / "data") as api:
        assert seen(api, "c") == state
        assert api.get(f"{URL}/b/snapshots").json()["total"]["value"] == 2


def test_all_snapshots_together_are_bounded(tmp_path: Path) -> None:
    """One that would go over FLASHDECK_MAX_SNAPSHOT_BYTES is refused with the numbers."""
    with serve(tmp_path / "data", max_snapshot_bytes=3000) as api:
        live(api, "b")
        assert api.post(f"{URL}/b/snapshot").status_code == 201
        problem = assert_refused(api.post(f"{URL}/b/snapshot"), 409, "limit_exceeded", "3000 bytes")
        assert problem["limit"] == 3000 and 0 < problem["bytes"] < 3000


def test_a_half_made_snapshot_is_gone_after_a_restart(tmp_path: Path) -> None:
    """What a kill left is removed, and is in no list."""
    with serve(tmp_path / "data") as api:
        live(api, "b")
    half = tmp_path / "data/snapshots/b/.0123456789abcdef.tmp"
    half.mkdir(parents=True)
    (half / "base-1.bin").write_bytes(b"x")

    with serve(tmp_path / "data") as api:
        assert api.get(f"{URL}/b/snapshots").json()["items"] == []
    assert not half.exists()


def test_a_snapshot_being_written_says_how_far_it_is(kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the list and under its id, with progress in bytes."""
    api, made = kept
    monkeypatch.setitem(api.app.state.deck.snapshots_begun, "f" * 16, ("b", 10, 100))
    shown = api.get(f"{URL}/b/snapshots/{'f' * 16}").json()

    assert shown["state"] == "writing"
    assert shown["progress"] == {"done": 10, "total": 100, "unit": "bytes"}
    assert [one["id"] for one in api.get(f"{URL}/b/snapshots").json()["items"]] == ["f" * 16, made["id"]]
