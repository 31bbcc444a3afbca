"""Vaults that real Flashbax wrote: all shown, all sliced, none touched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import flashbax as fbx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashbax.vault import Vault

from tests.app.support import Api, arrays_of, assert_refused, buffer_body, send, serve

URL = "/api/v1/vaults"
STEPS = 6
STRANGE = "a b%c#ü"


class Step(NamedTuple):
    """A timestep as a NamedTuple."""

    obs: Any
    done: Any


def numbers(dtype: Any, *shape: int) -> np.ndarray:
    """Return `[1, STEPS, ...]` numbers that tell their place, in a dtype."""
    count = STEPS * int(np.prod(shape, dtype=int))
    return (np.arange(count).reshape(1, STEPS, *shape) % 100).astype(dtype)


CASES: dict[str, tuple[str, Any]] = {
    "dict": ("plain", {"a": numbers(np.int32), "b": numbers(np.float16, 3)}),
    "nested dict": (
        "plain",
        {"obs": {"x": numbers(np.uint8, 2, 2), "y": numbers(jnp.bfloat16, 2)}, "r": numbers(bool)},
    ),
    "namedtuple": ("tuples", Step(numbers(np.float32, 4), numbers(bool))),
    "nested name": ("group/sub", {"a": numbers(np.int32)}),
    "strange name": (STRANGE, {"a": numbers(np.uint8)}),
    "tilde": ("a~b", {"a": numbers(np.uint8)}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one vault for each case, written by Flashbax itself."""
    folder = tmp_path_factory.mktemp("foreign")
    for number, (name, experience) in enumerate(CASES.values()):
        state = fbx.trajectory_buffer.TrajectoryBufferState(
            experience=jax.tree.map(jnp.asarray, experience),
            current_index=jnp.int32(0),
            is_full=jnp.bool_(True),
        )
        written = "renamed-later" if name == STRANGE else name
        vault = Vault(written, state.experience, rel_dir=str(folder), vault_uid=f"uid{number}")
        assert vault.write(state, source_interval=(0, STEPS)) == STEPS
    (folder / "renamed-later").rename(folder / STRANGE)  # Flashbax itself cannot write there
    return folder


@pytest.fixture(scope="module")
def shown(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service that shows the folder."""
    before = contents(folder)
    with serve(tmp_path_factory.mktemp("data"), vaults=folder) as api:
        yield api
    assert contents(folder) == before, "something was written into a foreign vault"


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def address(case: str) -> str:
    """Return the URL of a case's vault, as the list spells it."""
    name, number = CASES[case][0], list(CASES).index(case)
    return f"{URL}/{quote(name.replace('~', '%7E').replace('/', '~'), safe='~')}/uid{number}"


def leaves_of(case: str) -> dict[str, np.ndarray]:
    """Return a case's arrays by flat name."""
    flat, _ = jax.tree_util.tree_flatten_with_path(CASES[case][1])
    names = ["/".join(str(getattr(k, "key", getattr(k, "name", k))) for k in path) for path, _ in flat]
    return dict(zip(names, (array for _, array in flat), strict=True))


@pytest.mark.parametrize("case", list(CASES))
def test_every_vault_is_shown_and_sliced(shown: Api, case: str) -> None:
    """Its length, its leaves with their dtypes, and every value, under the address that the list gives."""
    vault = shown.get(address(case)).json()
    read = arrays_of(shown.get(f"{address(case)}/slice?format=safetensors"))

    assert (vault["vault_name"], vault["length"], vault["read_only"]) == (CASES[case][0], STEPS, True)
    expected = leaves_of(case)
    assert set(read) == set(expected)
    for name, array in expected.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_the_list_has_them_all(shown: Api) -> None:
    """Each is there once, with an address that works."""
    items = shown.get(URL).json()["items"]

    assert sorted(item["vault_name"] for item in items) == sorted(name for name, _ in CASES.values())
    for item in items:
        name, _, uid = item["url"].rpartition("/")
        assert shown.get(f"{URL}/{quote(name, safe='~')}/{uid}").json()["vault_uid"] == item["vault_uid"]


def test_nothing_writes_into_them(shown: Api) -> None:
    """Appending and persisting are 409 `read_only`."""
    answer = send(shown, f"{address('dict')}/experience", leaves_of("dict"))
    assert_refused(answer, 409, "read_only", "'plain/uid0'")
    body = buffer_body("x", persist_to="plain/uid0")
    assert_refused(shown.post("/api/v1/buffers", json=body), 409, "read_only", "`persist_to`")


def test_versions_tags_and_notes_lie_beside_them(shown: Api) -> None:
    """A foreign vault has versions, tags and metadata like any other; they are kept in our own folder."""
    url = address("nested dict")
    made = shown.post(f"{url}/versions", json={"message": "seen", "tags": ["best"]}).json()

    assert (made["version"], made["length"], made["tags"]) == (1, STEPS, ["best"])
    assert shown.get(f"{url}/slice?ref=best&stop=2").headers["x-version"] == "1"
    assert shown.patch(url, json={"metadata": {"who": "them"}}).json()["metadata"]["who"] == "them"
    assert shown.get(url).json()["metadata"]["who"] == "them"
    assert shown.delete(f"{url}/tags/best").status_code == 204


def test_a_vault_that_appears_later_is_found_by_scan_and_by_name(folder: Path, tmp_path: Path) -> None:
    """POST /scan counts it as new; asking by name finds it without; removed, it is gone from the list."""
    import shutil

    with serve(tmp_path / "data", vaults=tmp_path / "later") as api:
        assert api.get(URL).json()["items"] == []
        shutil.copytree(folder / "plain/uid0", tmp_path / "later/plain/uid0")
        assert api.get(f"{URL}/plain/uid0").json()["length"] == STEPS
        shutil.copytree(folder / "group", tmp_path / "later/group")
        assert api.post("/api/v1/scan").json() == {
            "vaults": 2,
            "new": 1,
            "changed": 1,
            "gone": 0,
            "damaged": 0,
        }
        shutil.rmtree(tmp_path / "later/group")
        assert api.post("/api/v1/scan").json()["gone"] == 1
        assert [item["url"] for item in api.get(URL).json()["items"]] == ["plain/uid0"]


def test_a_vault_that_flashbax_extends_meanwhile_is_seen_longer(folder: Path, tmp_path: Path) -> None:
    """A commit of another program shows at the next request, without a scan."""
    import shutil

    shutil.copytree(folder / "plain/uid0", tmp_path / "later/plain/uid0")
    with serve(tmp_path / "data", vaults=tmp_path / "later") as api:
        assert api.get(f"{URL}/plain/uid0").json()["length"] == STEPS
        experience = jax.tree.map(jnp.asarray, CASES["dict"][1])
        state = fbx.trajectory_buffer.TrajectoryBufferState(
            experience=experience, current_index=jnp.int32(4), is_full=jnp.bool_(False)
        )
        vault = Vault("plain", experience, rel_dir=str(tmp_path / "later"), vault_uid="uid0")
        vault.write(state)

        assert api.get(f"{URL}/plain/uid0").json()["length"] == STEPS + 4
        assert arrays_of(api.get(f"{URL}/plain/uid0/slice"))["a"].shape == (1, STEPS + 4)


def record(api: Api, writer: str) -> str:
    """Begin a vault with three steps, through a buffer or by itself; return where more are added."""
    spec = {"n": {"shape": [], "dtype": "int32"}}
    if writer == "buffer":
        made = {"kind": "flat", "max_length": 50, "min_length": 2, "sample_batch_size": 2}
        api.put("/api/v1/buffers/walk", json=made | {"spec": spec, "persist_to": "walk/run1"})
    else:
        api.post(URL, json={"vault_name": "walk", "vault_uid": "run1", "spec": spec})
    added = "/api/v1/buffers/walk/experience" if writer == "buffer" else f"{URL}/walk/run1/experience"
    api.post(added, json={"n": [[0, 1, 2]]})
    api.post(f"{URL}/walk/run1/versions", json={"tags": ["before"]})
    return added


def append_by_flashbax(folder: Path) -> None:
    """Let the real Flashbax append four steps to that vault."""
    experience = {"n": jnp.full((1, 10), 9, jnp.int32)}
    state = fbx.trajectory_buffer.TrajectoryBufferState(
        experience=experience, current_index=jnp.int32(4), is_full=jnp.bool_(False)
    )
    Vault("walk", experience, rel_dir=str(folder / "vaults"), vault_uid="run1").write(state)


def interfere(api: Api, writer: str, folder: Path) -> str:
    """Three steps in the vault, two more only in the log, and then four of Flashbax's; where one adds."""
    added = record(api, writer)
    assert api.post(added, json={"n": [[3, 4]]}).status_code == 201
    append_by_flashbax(folder)
    time.sleep(0.02)  # an append looks for another program's commit once in 10 ms
    answer = api.post(added, json={"n": [[5]]})
    assert_refused(answer, 409, "foreign_writer", "walk/run1", "Stop that program")
    return added


@pytest.mark.parametrize("writer", ["buffer", "vault"])
def test_what_a_foreign_writer_shuts_out_is_told_after_a_restart_too(tmp_path: Path, writer: str) -> None:
    """Steps that only the log has are not missing from `head` without a word; a version still reads."""
    with serve(tmp_path) as api:
        interfere(api, writer, tmp_path)
        assert_refused(api.get(f"{URL}/walk/run1/slice"), 409, "foreign_writer", "walk/run1")

    with serve(tmp_path) as api:
        problem = assert_refused(api.get(f"{URL}/walk/run1/slice"), 409, "foreign_writer", "walk/run1")
        assert "/adopt" in problem["hint"] and "/fork" in problem["hint"]
        assert arrays_of(api.get(f"{URL}/walk/run1/slice?ref=before"))["n"].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("writer", ["buffer", "vault"])
def test_a_vault_that_another_program_wrote_to_says_so(
    tmp_path: Path, writer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Vault, list and pages tell it, before and after a restart; the log has one line and no traceback."""
    with serve(tmp_path) as api:
        interfere(api, writer, tmp_path)
        for _ in range(2):
            shown, listed = api.get(f"{URL}/walk/run1").json(), api.get(URL).json()["items"][0]
            for vault in (shown, listed):
                assert (vault["state"], vault["length"], vault["pending"]) == ("foreign_writer", 7, 2)
                assert "another program. Stop that one, then adopt what it wrote" in vault["error"]
        assert "another program" in api.get("/vaults/walk/run1").text
        if writer == "buffer":
            for page in ("/buffers/walk", "/buffers", "/"):
                assert "another program" in api.get(page).text
        told = [record for record in caplog.records if "another program" in record.getMessage()]
        assert [(record.levelname, record.exc_info) for record in told] == [("WARNING", None)]

    with serve(tmp_path) as api:
        shown, listed = api.get(f"{URL}/walk/run1").json(), api.get(URL).json()["items"][0]
        for vault in (shown, listed):
            assert (vault["state"], vault["length"], vault["pending"]) == ("foreign_writer", 7, None)
        assert "could not be opened" in api.get("/vaults/walk/run1").text
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("writer", ["buffer", "vault"])
def test_a_vault_that_another_program_wrote_to_is_forked(tmp_path: Path, writer: str) -> None:
    """The fork has what the files hold, and its lineage says how many steps the log keeps."""
    with serve(tmp_path) as api:
        interfere(api, writer, tmp_path)
        made = api.post(f"{URL}/walk/run1/fork", json={"vault_name": "walk", "vault_uid": "run2"}).json()

        assert (made["state"], made["length"], made["lineage"]["left_in_log"]) == ("ok", 7, 2)
        assert arrays_of(api.get(f"{URL}/walk/run2/slice"))["n"].tolist() == [[0, 1, 2, 9, 9, 9, 9]]
        assert api.post(f"{URL}/walk/run2/experience", json={"n": [[3, 4]]}).json()["length"] == 9


def check_adopted(api: Api, added: str, answer: Any) -> None:
    """Check that theirs stayed, what waited follows, and adding goes on."""
    expected = {"vault": "walk/run1", "adopted": True, "appended_again": 0, "length": 9}
    assert (answer.status_code, answer.json()) == (200, expected)
    assert api.post(added, json={"n": [[5]]}).status_code == 201
    got = arrays_of(api.get(f"{URL}/walk/run1/slice"))["n"].tolist()
    assert got == [[0, 1, 2, 9, 9, 9, 9, 3, 4, 5]]
    assert api.get(f"{URL}/walk/run1").json()["state"] == "ok"


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("writer", ["buffer", "vault"])
def test_what_another_program_wrote_is_adopted(tmp_path: Path, writer: str, is_restarted: bool) -> None:
    """Also where neither log nor buffer could be opened; a second time there is nothing to adopt."""
    with serve(tmp_path) as api:
        added = interfere(api, writer, tmp_path)
        if not is_restarted:
            check_adopted(api, added, api.post(f"{URL}/walk/run1/adopt"))
            assert api.post(f"{URL}/walk/run1/adopt").json()["adopted"] is False
    if is_restarted:
        with serve(tmp_path) as api:
            check_adopted(api, added, api.post(f"{URL}/walk/run1/adopt"))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_vault_that_another_program_wrote_to_is_deleted(tmp_path: Path, is_restarted: bool) -> None:
    """It goes to the trash with its log, comes back with it, and can then be adopted."""
    with serve(tmp_path) as api:
        added = interfere(api, "vault", tmp_path)
        if not is_restarted:
            assert api.request("DELETE", f"{URL}/walk/run1").status_code == 200
    with serve(tmp_path) as api:
        if is_restarted:
            assert api.request("DELETE", f"{URL}/walk/run1").status_code == 200
        assert api.get(f"{URL}/walk/run1").status_code == 404
        assert api.post(f"{URL}/walk/run1/restore").status_code == 200
        check_adopted(api, added, api.post(f"{URL}/walk/run1/adopt"))


def test_a_buffer_whose_vault_another_program_wrote_to_is_deleted(tmp_path: Path) -> None:
    """Not without a word about what waits in its log; with `discard`, and then the vault goes too."""
    with serve(tmp_path) as api:
        interfere(api, "buffer", tmp_path)
        assert_refused(api.request("DELETE", "/api/v1/buffers/walk"), 409, "foreign_writer")
        assert api.request("DELETE", "/api/v1/buffers/walk?discard=true").status_code == 204
        assert api.request("DELETE", f"{URL}/walk/run1").status_code == 200
