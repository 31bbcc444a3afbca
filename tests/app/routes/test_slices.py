"""Slices of vaults: the right steps, the right headers, the same bytes for ever."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from fbxcore import wire
from tests.app.support import SPEC, Api, arrays_of, assert_refused, send, serve, steps

VAULT = "/api/v1/vaults/cut/run1"
LENGTH = 30


@pytest.fixture(scope="module", autouse=True)
def vault(api: Api) -> None:
    """Version 1 has steps 0 to 19, version 2 (tag `best`) all 30; head has one more, in the log."""
    body = {"vault_name": "cut", "vault_uid": "run1", "spec": SPEC, "rows": 2}
    assert api.post("/api/v1/vaults", json=body).status_code == 201
    send(api, f"{VAULT}/experience", steps(2, 20))
    api.post(f"{VAULT}/versions", json={})
    send(api, f"{VAULT}/experience", steps(2, 10, start=20))
    api.post(f"{VAULT}/versions", json={"tags": ["best"]})
    send(api, f"{VAULT}/experience", steps(2, 1, start=30))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", range(30)),
        ("start=3&stop=7", range(3, 7)),
        ("start=-4", range(26, 30)),
        ("stop=-25", range(5)),
        ("start=2&stop=20&step=5", range(2, 20, 5)),
        ("step=-7", range(30)[::-7]),
        ("start=10&stop=2&step=-3", range(10, 2, -3)),
        ("start=5&stop=5", range(0)),
        ("start=100", range(0)),
        ("stop=1000", range(30)),
        ("timesteps=4", range(26, 30)),
        ("timesteps=0", range(0)),
        ("timesteps=1000", range(30)),
        ("percentiles=0,10", range(3)),
        ("percentiles=10,50", range(3, 15)),
        ("percentiles=33.3,100", range(9, 30)),
    ],
)
def test_a_slice_holds_what_python_would_give(api: Api, query: str, expected: range) -> None:
    """All forms give the steps that Python's slice of the version's length gives, in both rows."""
    answer = api.get(f"{VAULT}/slice?ref=2&{query}")
    read = arrays_of(answer)

    all_steps = steps(2, LENGTH)
    for name, array in read.items():
        np.testing.assert_array_equal(array, all_steps[name][:, list(expected)])
    assert (answer.headers["x-rows"], answer.headers["x-timesteps"]) == ("2", str(len(expected)))


def test_percentiles_partition_the_steps(api: Api) -> None:
    """(0,30), (30,60) and (60,100) of any version hold each step once."""
    parts = [
        arrays_of(api.get(f"{VAULT}/slice?ref=head&percentiles={part}"))["action"]
        for part in ("0,30", "30,60", "60,100")
    ]

    np.testing.assert_array_equal(np.concatenate(parts, axis=1), steps(2, 31)["action"])


def test_rows_and_leaves_choose_arrays(api: Api) -> None:
    """`rows=1:` and `leaves=` give that row of those leaves."""
    read = arrays_of(api.get(f"{VAULT}/slice?ref=2&rows=1:&leaves=reward,obs/vector&stop=3"))

    assert set(read) == {"reward", "obs/vector"}
    np.testing.assert_array_equal(read["reward"], steps(2, 3)["reward"][1:])


@pytest.mark.parametrize(
    ("ref", "length", "version"),
    [
        ("1", 20, "1"),
        ("v1", 20, "1"),
        ("2", 30, "2"),
        ("latest", 30, "2"),
        ("best", 30, "2"),
        ("head", 31, "head"),
        (None, 31, "head"),
    ],
)
def test_every_ref_means_its_version(api: Api, ref: str | None, length: int, version: str) -> None:
    """Numbers, `latest`, tags and `head` (the default, with what is only in the log) have their lengths."""
    answer = api.get(f"{VAULT}/slice", params={"ref": ref} if ref else None)

    assert arrays_of(answer)["action"].shape[1] == length
    assert answer.headers["x-version"] == version


def test_a_digest_names_its_version(api: Api) -> None:
    """`sha256-` with eight digits or all of them is version 1."""
    digest = api.get(f"{VAULT}/versions/1").json()["digest"]

    for ref in (digest, digest[: len("sha256-") + 8]):
        assert api.get(f"{VAULT}/slice?ref={ref}&stop=1").headers["x-version"] == "1"


@pytest.mark.parametrize("format", list(wire.FORMATS))
def test_the_file_is_named_after_what_it_holds(api: Api, format: str) -> None:
    """`cut-run1-v2-0-10.npz`, with the step where it is not 1, and the head's by its name."""

    def name(query: str) -> str:
        return api.get(f"{VAULT}/slice?format={format}&{query}").headers["content-disposition"]

    assert name("ref=best&stop=10") == f'attachment; filename="cut-run1-v2-0-10.{format}"'
    assert name("ref=1&step=5") == f'attachment; filename="cut-run1-v1-0-20-5.{format}"'
    assert name("stop=2") == f'attachment; filename="cut-run1-head-0-2.{format}"'


@pytest.mark.parametrize("format", list(wire.FORMATS))
def test_bytes_and_tag_repeat_and_a_known_tag_is_304(api: Api, format: str) -> None:
    """The same question gives the same bytes and ETag; asking with it gives 304 without a body."""
    url = f"{VAULT}/slice?ref=1&format={format}"
    one, two = api.get(url), api.get(url)

    assert (one.content, one.headers["etag"]) == (two.content, two.headers["etag"])
    assert one.headers["etag"].startswith('"')
    for known in (one.headers["etag"], f'"x", {one.headers["etag"]}'):
        again = api.get(url, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", one.headers["etag"])
    assert api.get(url, headers={"if-none-match": '"other"'}).status_code == 200


def test_other_questions_have_other_tags(api: Api) -> None:
    """Version, slice, rows, leaves, format and encoding all change the ETag."""
    questions = [
        "ref=1",
        "ref=2",
        "ref=1&stop=5",
        "ref=1&rows=0:1",
        "ref=1&leaves=reward",
        "ref=1&format=json",
    ]
    tags = [api.get(f"{VAULT}/slice?{question}").headers["etag"] for question in questions]
    tags.append(api.get(f"{VAULT}/slice?ref=1", headers={"accept-encoding": "zstd"}).headers["etag"])

    assert len(set(tags)) == len(tags)


def test_only_what_cannot_change_is_kept_for_ever(api: Api) -> None:
    """A number or digest is immutable; `latest`, tags and the head are asked for again."""
    control = lambda ref: api.get(f"{VAULT}/slice?ref={ref}&stop=1").headers["cache-control"]  # noqa: E731
    digest = api.get(f"{VAULT}/versions/1").json()["digest"]

    for ref in ("1", "v2", digest):
        assert control(ref) == "public, max-age=31536000, immutable"
    for ref in ("latest", "best", "head"):
        assert control(ref) == "no-cache"


def test_npz_opens_with_numpy_alone(api: Api) -> None:
    """`np.load` without pickle reads every leaf by its name."""
    archive = np.load(io.BytesIO(api.get(f"{VAULT}/slice?ref=1").content), allow_pickle=False)

    assert set(archive.files) == set(steps(2, 1))
    np.testing.assert_array_equal(archive["obs/vector"], steps(2, 20)["obs/vector"])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("start=x", "start"),
        ("step=0", "step"),
        ("timesteps=-1", "timesteps"),
        ("start=1&timesteps=2", "timesteps"),
        ("percentiles=50,10", "percentiles"),
        ("percentiles=0,101", "percentiles"),
        ("percentiles=5", "percentiles"),
        ("percentiles=50,50", "percentiles"),
        ("percentiles=-1,5", "percentiles"),
        ("percentiles=a,b", "percentiles"),
        ("percentiles=0,nan", "percentiles"),
        ("percentiles=0,10&step=2", "percentiles"),
        ("rows=x", "rows"),
        ("rows=2:2", "rows"),
        ("rows=5:9", "rows"),
        ("rows=1", "rows"),
        ("leaves=nope", "leaves"),
        ("leaves=", "leaves"),
        ("colour=1", "colour"),
        ("start=1&start=2", "start"),
    ],
)
def test_wrong_slices_are_refused_with_their_field(api: Api, query: str, field: str) -> None:
    """Each is 422 with the parameter's name and what was given in the sentence."""
    answer = api.get(f"{VAULT}/slice?ref=2&{query}")

    assert answer.status_code == 422, answer.text
    assert f"`{field}`" in answer.json()["detail"]


@pytest.mark.parametrize("ref", ["3", "v9", "nothing", "sha256-00000000", "", "../1", "x" * 300, "a%00"])
def test_a_ref_of_nothing_is_not_found(api: Api, ref: str) -> None:
    """404, or 422 where it could be no ref at all."""
    answer = api.get(f"{VAULT}/slice?ref={ref}")

    assert answer.status_code in (404, 422), answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_slice_over_the_limit_says_how_much_fits(tmp_path) -> None:
    """With 1,000 bytes allowed, 30 steps of 2 rows are 422 with the number of steps that fit, which do."""
    with serve(tmp_path / "data", max_response_bytes=1000) as api:
        api.post("/api/v1/vaults", json={"vault_name": "cut", "vault_uid": "run1", "spec": SPEC, "rows": 2})
        send(api, f"{VAULT}/experience", steps(2, 30))

        problem = assert_refused(api.get(f"{VAULT}/slice"), 422, "limit_exceeded", "`stop`", "1000 bytes")
        fits = int(problem["detail"].rpartition("Ask for ")[2].split()[0])
        assert 2 * fits * 24 <= 1000 < 2 * (fits + 1) * 24
        assert api.get(f"{VAULT}/slice?stop={fits}").status_code == 200
        assert problem["export"]["vault"] == "cut/run1"


def test_not_a_number_in_a_slice_is_valid_json(api: Api) -> None:
    """NaN comes as a word in JSON, and as its bits in safetensors, WB-01."""
    api.post("/api/v1/vaults", json={"vault_name": "nan", "vault_uid": "run1", "spec": {"x": SPEC["reward"]}})
    given = {"x": np.array([[np.nan, np.inf, -np.inf]], np.float32)}
    send(api, "/api/v1/vaults/nan/run1/experience", given)

    text = api.get("/api/v1/vaults/nan/run1/slice?format=json").content
    assert json.loads(text, parse_constant=pytest.fail)["x"] == [["NaN", "Infinity", "-Infinity"]]
    exact = arrays_of(api.get("/api/v1/vaults/nan/run1/slice?format=safetensors"))
    np.testing.assert_array_equal(exact["x"].view(np.uint32), given["x"].view(np.uint32))


def test_what_a_format_cannot_hold_is_widened_and_said(api: Api) -> None:
    """bfloat16 in npz is float32 of equal values, and `X-Converted` names it."""
    import ml_dtypes

    spec = {"x": {"shape": [], "dtype": "bfloat16"}}
    api.post("/api/v1/vaults", json={"vault_name": "bf", "vault_uid": "run1", "spec": spec})
    given = {"x": np.array([[0.5, 3.0]], ml_dtypes.bfloat16)}
    send(api, "/api/v1/vaults/bf/run1/experience", given)

    answer = api.get("/api/v1/vaults/bf/run1/slice?format=npz")
    assert answer.headers["x-converted"] == "x: bfloat16 -> float32"
    np.testing.assert_array_equal(arrays_of(answer)["x"], [[0.5, 3.0]])
