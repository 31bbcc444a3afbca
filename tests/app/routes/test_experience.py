"""The hot paths: experience in, samples out, priorities back."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard

from fbxcore import wire
from tests.app.support import Api, arrays_of, assert_refused, buffer_body, send, serve, steps

URL = "/api/v1/buffers"
FORMATS = list(wire.FORMATS)


@pytest.fixture(scope="module")
def filled(api: Api) -> str:
    """A buffer of 2 rows with steps 0 to 19 in each."""
    api.put(f"{URL}/filled", json=buffer_body("filled"))
    send(api, f"{URL}/filled/experience", steps(2, 20))
    return f"{URL}/filled"


@pytest.fixture
def empty(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty buffer of its own; all share one compiled layout."""
    name = f"b{abs(hash(request.node.nodeid))}"
    api.put(f"{URL}/{name}", json=buffer_body(name))
    yield f"{URL}/{name}"
    api.delete(f"{URL}/{name}?discard=true")


def size(api: Api, url: str) -> int:
    """Return how many timesteps a buffer holds."""
    return api.get(url).json()["size"]


@pytest.mark.parametrize("format", FORMATS)
def test_an_add_is_answered_with_what_it_added(api: Api, empty: str, format: str) -> None:
    """2 rows of 5 steps are 10 timesteps at position 5, durable, in every format."""
    answer = send(api, f"{empty}/experience", steps(2, 5), format=format)

    assert answer.status_code == 201, answer.text
    expected = {"added": 10, "size": 10, "position": 5, "duplicate": False, "durable": True}
    assert {k: v for k, v in answer.json().items() if k != "sequence"} == expected
    assert isinstance(answer.json()["sequence"], int)


@pytest.mark.parametrize("format", FORMATS)
def test_a_sample_holds_consecutive_steps_of_what_was_added(api: Api, filled: str, format: str) -> None:
    """Each drawn pair is (t, t + 1) of one row, with all leaves of the same step, in every format."""
    answer = api.get(f"{filled}/sample?batch_size=16&seed=3&beta=0.4&peek=true&format={format}")
    drawn = arrays_of(answer)

    assert answer.headers["content-type"] == wire.FORMATS[format]
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.headers["x-seed"], answer.headers["x-position"]) == ("3", "20")
    first, second = drawn["experience/first/action"], drawn["experience/second/action"]
    assert first.shape == (16,)
    np.testing.assert_array_equal(second, first + 1)
    np.testing.assert_array_equal(drawn["experience/first/reward"], first / 2)
    np.testing.assert_array_equal(drawn["experience/first/obs/image"][:, 1, 1], first % 251)
    assert set(first.tolist()) <= set(range(19)) | set(range(1000, 1019))
    if format != "json":
        dtypes = {
            name: drawn[name].dtype.name for name in ("indices", "generations", "probabilities", "weights")
        }
        assert dtypes == {
            "indices": "int32",
            "generations": "int64",
            "probabilities": "float32",
            "weights": "float32",
        }


def test_the_same_seed_on_the_same_state_gives_the_same_bytes(api: Api, filled: str) -> None:
    """Two peeks with one seed are equal in every byte; another seed is not."""
    one, two, other = (
        api.get(f"{filled}/sample?seed={seed}&peek=true&batch_size=32").content for seed in (5, 5, 6)
    )

    assert one == two
    assert one != other


def test_the_seed_that_was_drawn_repeats_the_sample(api: Api, filled: str) -> None:
    """Without `seed`, `X-Seed` says which one it was."""
    answer = api.get(f"{filled}/sample?peek=true")

    again = api.get(f"{filled}/sample?peek=true&seed={answer.headers['x-seed']}")
    assert again.content == answer.content


def test_peek_does_not_count_and_a_sample_does(api: Api, empty: str) -> None:
    """`sampled` grows by the batch size, and not at all by a peek."""
    send(api, f"{empty}/experience", steps(2, 8))

    api.get(f"{empty}/sample?batch_size=7&peek=true")
    assert api.get(empty).json()["sampled"] == 0
    api.get(f"{empty}/sample?batch_size=7")
    assert api.get(empty).json()["sampled"] == 7


def test_head_does_not_sample(api: Api, filled: str) -> None:
    """HEAD would count what nobody gets: 405."""
    before = api.get(filled).json()["sampled"]

    assert api.head(f"{filled}/sample").status_code == 405
    assert api.get(filled).json()["sampled"] == before


@pytest.mark.parametrize("url", ["/api/v1/buffers/x/sample", "/api/v1/buffers/x", "/api/v1/vaults/x/y/slice"])
def test_allow_names_what_is_served(api: Api, url: str) -> None:
    """Of all methods, exactly those that `Allow` names are not refused as 405."""
    allow = api.options(url).headers["allow"].split(", ")
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

    assert [method for method in methods if api.request(method, url).status_code != 405] == allow


@pytest.mark.parametrize("path", ["experience", "sample"])
def test_two_idempotency_keys_are_refused(api: Api, empty: str, path: str) -> None:
    """Which of them counts nobody could say; the same one twice is one."""
    body = wire.encode(steps(2, 1), "safetensors")[0] if path == "experience" else b""
    kind = ("content-type", wire.FORMATS["safetensors"])
    send(api, f"{empty}/experience", steps(2, 8))
    url = f"{empty}/{path}"
    two = [kind, ("idempotency-key", "a"), ("idempotency-key", "b")]

    assert_refused(api.post(url, content=body, headers=two), 422, "invalid_argument", "'a' and 'b'")
    assert size(api, empty) == 16
    two = [kind, ("idempotency-key", f"{path}-c"), ("idempotency-key", f"{path}-c")]
    assert api.post(url, content=body, headers=two).status_code in (200, 201)


def test_accept_chooses_the_format_and_npz_is_for_everybody_else(api: Api, filled: str) -> None:
    """`Accept` names one; nothing or anything gets npz; what there is none of gets 406 with a list."""
    url = f"{filled}/sample?peek=true"

    for accept, media in [
        ("application/x-safetensors", "application/x-safetensors"),
        ("*/*", "application/x-npz"),
        ("text/html,application/msgpack;q=0.5", "application/msgpack"),
    ]:
        assert api.get(url, headers={"accept": accept}).headers["content-type"] == media
    assert_refused(api.get(url, headers={"accept": "image/png"}), 406, "not_acceptable", "application/x-npz")
    assert_refused(api.get(f"{url}&format=pickle"), 406, "not_acceptable", "safetensors, npz")
    assert_refused(api.get(f"{url}&format=arrow"), 422, "not_supported", "'arrow'")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("batch_size=0", "batch_size"),
        ("batch_size=-1", "batch_size"),
        ("batch_size=x", "batch_size"),
        ("batch_size=1.5", "batch_size"),
        ("batch_size=99999999999999999999", "batch_size"),
        ("batch_size=²", "batch_size"),
        ("batch_size=1&batch_size=2", "batch_size"),
        ("batch_size=", "batch_size"),
        ("seed=-1", "seed"),
        ("seed=9223372036854775808", "seed"),
        ("beta=2", "beta"),
        ("beta=nan", "beta"),
        ("timeout_ms=30001", "timeout_ms"),
        ("timeout_ms=-1", "timeout_ms"),
        ("peek=maybe", "peek"),
        ("colour=red", "colour"),
        ("Seed=1", "Seed"),
    ],
)
def test_wrong_sample_parameters_are_named_and_nothing_is_drawn(
    api: Api, filled: str, query: str, field: str
) -> None:
    """Each is 422 with its name in the sentence, and `sampled` stays."""
    before = api.get(filled).json()["sampled"]

    answer = api.get(f"{filled}/sample?{query}")
    assert answer.status_code == 422, answer.text
    assert f"`{field}`" in answer.json()["detail"]
    assert api.get(filled).json()["sampled"] == before


def test_a_sample_over_the_limit_of_an_answer_is_refused_before_it_is_drawn(tmp_path) -> None:
    """With 4,096 bytes allowed, 1,000 items are 422 naming `batch_size`."""
    with serve(tmp_path / "data", max_response_bytes=4096) as api:
        api.put(f"{URL}/small", json=buffer_body("small"))
        send(api, f"{URL}/small/experience", steps(2, 8))

        assert_refused(
            api.get(f"{URL}/small/sample?batch_size=1000"), 422, "limit_exceeded", "`batch_size`", "4096"
        )
        assert api.get(f"{URL}/small/sample?batch_size=10").status_code == 200


def test_too_little_data_says_how_much_is_missing(api: Api, empty: str) -> None:
    """With 1 of the 5 steps a row that min_length 8 means, `needed` is 4, with and without waiting."""
    send(api, f"{empty}/experience", steps(2, 1))

    for wait in (0, 30):
        problem = assert_refused(api.get(f"{empty}/sample?timeout_ms={wait}"), 409, "not_enough_data")
        assert problem["needed"] == 4


def test_a_waiting_sample_is_woken_by_the_add_it_waits_for(api: Api, empty: str) -> None:
    """`timeout_ms` waits, and is answered as soon as there is enough."""
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(api.get(f"{empty}/sample?timeout_ms=20000")))
    waiting.start()
    send(api, f"{empty}/experience", steps(2, 8))
    waiting.join(timeout=20)

    assert answers[0].status_code == 200


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda e: e.pop("reward"), "structure_mismatch", ["`reward`"]),
        (lambda e: e.update(extra=e["reward"]), "structure_mismatch", ["`extra`"]),
        (
            lambda e: e.update(reward=e["reward"].astype(np.float64)),
            "structure_mismatch",
            ["`reward`", "float32", "float64"],
        ),
        (
            lambda e: e.update(action=e["action"].astype(np.float32)),
            "structure_mismatch",
            ["`action`", "int32"],
        ),
        (
            lambda e: e.update({"obs/vector": e["obs/vector"][..., :2]}),
            "structure_mismatch",
            ["`obs/vector`", "3]", "[2, 3, 2]"],
        ),
        (
            lambda e: e.update({"obs/vector": e["obs/vector"][..., :1]}),
            "structure_mismatch",
            ["`obs/vector`"],
        ),
        (lambda e: e.update(reward=e["reward"][..., None]), "structure_mismatch", ["`reward`", "[2, 3, 1]"]),
        (lambda e: e.update(reward=e["reward"][:, 0]), "structure_mismatch", ["`reward`"]),
        (lambda e: e.update(reward=e["reward"][:, :2]), "structure_mismatch", ["`reward`", "[2, 3]"]),
        (lambda e: e.update({n: x[:1] for n, x in e.items()}), "structure_mismatch", ["rows", "got 1"]),
        (lambda e: e.update({n: x[:, :0] for n, x in e.items()}), "structure_mismatch", ["at least one"]),
        (lambda e: e.clear(), "structure_mismatch", ["`action`"]),
    ],
)
@pytest.mark.parametrize("format", ["safetensors", "npz", "msgpack"])
def test_experience_of_another_structure_names_the_leaf_and_adds_nothing(
    api: Api, filled: str, change, code: str, words: list[str], format: str
) -> None:
    """A missing, unknown, misshaped or mistyped leaf is 422 with expected and got; nothing is broadcast."""
    given = steps(2, 3)
    change(given)

    assert_refused(send(api, f"{filled}/experience", given, format=format), 422, code, *words)
    assert size(api, filled) == 40


@pytest.mark.parametrize(
    ("leaf", "value", "word"),
    [
        ("obs/image", 1.5, "1.5"),
        ("obs/image", 300, "300"),
        ("obs/image", -1, "-1"),
        ("action", "one", "one"),
        ("action", None, "action"),
        ("reward", [1, 2], "reward"),
        ("action", True, "action"),
        ("action", {}, "action"),
    ],
)
def test_json_numbers_that_their_dtype_cannot_hold_are_refused(
    api: Api, filled: str, leaf: str, value: object, word: str
) -> None:
    """1.5, 300 or -1 for uint8 and texts for numbers are 422 naming the leaf."""
    given = {name: x.tolist() for name, x in steps(2, 3).items()}
    if leaf == "obs/image":
        given[leaf][0][0][0][0] = value
    else:
        given[leaf][0][0] = value

    answer = api.post(f"{filled}/experience", json=given)
    assert answer.status_code == 422, answer.text
    assert leaf in answer.json()["detail"] and word in answer.json()["detail"]
    assert size(api, filled) == 40


def test_nested_json_is_the_same_as_flat(api: Api, empty: str) -> None:
    """`{"obs": {"image": …}}` is `obs/image`."""
    given = {name: x.tolist() for name, x in steps(2, 8).items()}
    given["obs"] = {"image": given.pop("obs/image"), "vector": given.pop("obs/vector")}

    assert api.post(f"{empty}/experience", json=given).status_code == 201


@pytest.mark.parametrize("format", FORMATS)
def test_a_body_cut_short_anywhere_is_refused(api: Api, filled: str, format: str) -> None:
    """Every tenth prefix of a body is 422 and adds nothing, in every format."""
    whole = wire.encode(steps(2, 2), format)[0]

    for end in range(0, len(whole), max(1, len(whole) // 10)):
        answer = api.post(
            f"{filled}/experience", content=whole[:end], headers={"content-type": wire.FORMATS[format]}
        )
        assert answer.status_code == 422, (end, answer.text)
        assert answer.json()["code"] in ("malformed_body", "structure_mismatch")
    assert size(api, filled) == 40


@pytest.mark.parametrize("format", FORMATS)
def test_bodies_that_are_nothing_are_refused(api: Api, filled: str, format: str) -> None:
    """Empty, random and foreign bytes are 422."""
    rng = np.random.default_rng(0)

    for body in (b"", b"\0" * 100, rng.bytes(1000), b"\x80\x04N.", b"[]", b"1", b'{"action": '):
        answer = api.post(
            f"{filled}/experience", content=body, headers={"content-type": wire.FORMATS[format]}
        )
        assert answer.status_code == 422, answer.text


def test_fewer_bytes_than_announced_are_refused(api: Api, filled: str) -> None:
    """A Content-Length that the body does not reach is 400, and nothing is added."""
    body = wire.encode(steps(2, 2), "safetensors")[0]
    headers = {"content-type": wire.FORMATS["safetensors"], "content-length": str(len(body) + 10)}

    assert_refused(
        api.post(f"{filled}/experience", content=body, headers=headers), 400, "incomplete_body", "`body`"
    )
    assert size(api, filled) == 40


def test_media_types_that_are_not_read_are_listed(api: Api, filled: str) -> None:
    """No or another `Content-Type` is 415 with those there are; pickle is none of them."""
    for headers in (
        {},
        {"content-type": "application/octet-stream"},
        {"content-type": "application/x-pickle"},
    ):
        answer = api.post(f"{filled}/experience", content=b"x", headers=headers)
        assert_refused(answer, 415, "unsupported_media_type", "application/x-safetensors")


def test_cast_converts_same_kinds_and_says_so(api: Api, empty: str) -> None:
    """float64 to float32 with `cast=same_kind` is 201 with `X-Converted`; float to int is refused anyway."""
    given = steps(2, 3)
    given["reward"] = given["reward"].astype(np.float64)

    answer = send(api, f"{empty}/experience?cast=same_kind", given)
    assert answer.status_code == 201
    assert answer.headers["x-converted"] == "reward: float64 -> float32"
    given["action"] = given["action"].astype(np.float32)
    assert_refused(
        send(api, f"{empty}/experience?cast=same_kind", given), 422, "structure_mismatch", "`action`"
    )
    assert_refused(
        send(api, f"{empty}/experience?cast=unsafe", steps(2, 3)), 422, "invalid_argument", "`cast`"
    )
    assert size(api, empty) == 6


def test_a_cast_that_would_change_values_is_refused(api: Api, empty: str) -> None:
    """2**40 does not fit int32, and 1e300 no float32: 422, nothing added."""
    given = steps(2, 3)
    assert_refused(
        send(
            api,
            f"{empty}/experience?cast=same_kind",
            given | {"action": given["action"].astype(np.int64) + 2**40},
        ),
        422,
        "structure_mismatch",
        "`action`",
    )
    assert_refused(
        send(api, f"{empty}/experience?cast=same_kind", given | {"reward": np.full((2, 3), 1e300)}),
        422,
        "structure_mismatch",
        "`reward`",
    )
    assert size(api, empty) == 0


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_compressed_bodies_are_read(api: Api, empty: str, encoding: str) -> None:
    """`Content-Encoding` of gzip and zstd is undone."""
    body = wire.encode(steps(2, 8), "safetensors")[0]
    packed = gzip.compress(body) if encoding == "gzip" else zstandard.compress(body)
    headers = {"content-type": wire.FORMATS["safetensors"], "content-encoding": encoding}

    assert api.post(f"{empty}/experience", content=packed, headers=headers).status_code == 201
    for wrong in (packed[: len(packed) // 2], b"junk", b""):
        assert_refused(api.post(f"{empty}/experience", content=wrong, headers=headers), 422, "malformed_body")
    headers["content-encoding"] = "br"
    assert_refused(
        api.post(f"{empty}/experience", content=packed, headers=headers),
        415,
        "unsupported_media_type",
        "gzip",
    )
    assert size(api, empty) == 16


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_refused_at_the_bound(tmp_path, encoding: str) -> None:
    """64 MiB of zeros in a small body are 413 once the bound of 1 MiB is passed."""
    zeros = bytes(64 << 20)
    packed = zlib.compress(zeros, wbits=31) if encoding == "gzip" else zstandard.compress(zeros)
    with serve(tmp_path / "data", max_decoded_bytes=1 << 20, max_body_bytes=1 << 20) as api:
        api.put(f"{URL}/bomb", json=buffer_body("bomb"))
        headers = {"content-type": wire.FORMATS["safetensors"], "content-encoding": encoding}

        assert_refused(
            api.post(f"{URL}/bomb/experience", content=packed, headers=headers), 413, "body_too_large"
        )


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_json_over_its_own_limit_is_refused(tmp_path, encoding: str) -> None:
    """413 before it is parsed, compressed or not; other formats have no such limit."""
    with serve(tmp_path / "data", max_json_bytes=1 << 12) as api:
        api.put(f"{URL}/large", json=buffer_body("large"))
        body = wire.encode(steps(2, 500), "json")[0]
        headers = {"content-type": "application/json", "content-encoding": encoding}
        body = zlib.compress(body, wbits=31) if encoding == "gzip" else body
        answer = api.post(f"{URL}/large/experience", content=body, headers=headers)

        assert_refused(answer, 413, "body_too_large", "4096", "send safetensors or npz")
        assert send(api, f"{URL}/large/experience", steps(2, 8)).status_code == 201
        assert send(api, f"{URL}/large/experience", steps(2, 8), format="json").status_code == 201
        assert api.get("/api/v1/capabilities").json()["limits"]["json_bytes"] == 1 << 12


def test_a_body_over_the_limit_is_refused_with_and_without_its_length(tmp_path) -> None:
    """2 MiB against a limit of 1 MiB are 413, WB-03, announced or in pieces."""
    with serve(tmp_path / "data", max_body_bytes=1 << 20) as api:
        api.put(f"{URL}/large", json=buffer_body("large"))
        headers = {"content-type": wire.FORMATS["safetensors"]}

        for body in (bytes(2 << 20), (bytes(1 << 16) for _ in range(32))):
            answer = api.post(f"{URL}/large/experience", content=body, headers=headers)
            assert_refused(answer, 413, "body_too_large", "`body`", "1048576")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_an_answer_is_compressed_for_who_asks_for_that_alone(api: Api, filled: str, encoding: str) -> None:
    """`Accept-Encoding: zstd` gets zstd; a list of all a client knows gets plain bytes."""
    url = f"{filled}/sample?seed=1&peek=true&batch_size=500&format=safetensors"
    plain = api.get(url, headers={"accept-encoding": "gzip, deflate, zstd"})
    with api.stream("GET", url, headers={"accept-encoding": encoding}) as answer:
        raw = b"".join(answer.iter_raw())

    assert "content-encoding" not in plain.headers
    assert answer.headers["content-encoding"] == encoding
    undo = gzip.decompress if encoding == "gzip" else zstandard.decompress
    assert undo(raw) == plain.content


def test_a_key_used_again_adds_nothing_and_gets_the_first_answer(api: Api, empty: str) -> None:
    """Five times the same key, three of them at once, is one add, WB-06; another body is 409."""
    headers = {"idempotency-key": "k1"}
    answers = [send(api, f"{empty}/experience", steps(2, 4), headers=headers)]
    threads = [
        threading.Thread(
            target=lambda: answers.append(send(api, f"{empty}/experience", steps(2, 4), headers=headers))
        )
        for _ in range(3)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    answers.append(send(api, f"{empty}/experience", steps(2, 4), headers=headers))

    assert [answer.status_code for answer in answers] == [201] * 5
    assert [answer.json()["duplicate"] for answer in answers] == [False] + [True] * 4
    assert len({json.dumps(answer.json() | {"duplicate": None}) for answer in answers}) == 1
    assert size(api, empty) == 8
    other = send(api, f"{empty}/experience", steps(2, 4, start=1), headers=headers)
    assert_refused(other, 409, "idempotency_conflict", "'k1'")


def test_a_writers_sequence_must_grow(api: Api, empty: str) -> None:
    """1 and 5 are taken (gaps are allowed), 5 and 3 again are duplicates that add nothing."""
    url = f"{empty}/experience?writer=actor-1&sequence="

    taken = [send(api, f"{url}{n}", steps(2, 2)).json() for n in (1, 5, 5, 3, 6)]
    assert [answer["duplicate"] for answer in taken] == [False, False, True, True, False]
    assert [answer["position"] for answer in taken] == [2, 4, 4, 4, 6]
    assert size(api, empty) == 12


@pytest.mark.parametrize(
    ("query", "headers", "field"),
    [
        ("?writer=a", {}, "sequence"),
        ("?sequence=1", {}, "writer"),
        ("?writer=&sequence=1", {}, "writer"),
        ("?writer=a&sequence=-1", {}, "sequence"),
        ("?writer=a&sequence=x", {}, "sequence"),
        ("", {"idempotency-key": "k" * 256}, "Idempotency-Key"),
        ("?end=terminated", {}, "end"),
    ],
)
def test_wrong_identities_are_refused(api: Api, filled: str, query: str, headers: dict, field: str) -> None:
    """Half a writer's identity, a key too long and fields of a later day are 422 naming them."""
    answer = send(api, f"{filled}/experience{query}", steps(2, 2), headers=headers)

    assert answer.status_code == 422, answer.text
    assert f"`{field}`" in answer.json()["detail"]
    assert size(api, filled) == 40


def test_a_sample_asked_for_twice_under_one_key_is_drawn_once(api: Api, empty: str) -> None:
    """POST with a key gives the same bytes again and counts once; another question under it is 409."""
    send(api, f"{empty}/experience", steps(2, 10))
    headers = {"idempotency-key": "s1"}

    one, two = (api.post(f"{empty}/sample?batch_size=8", headers=headers) for _ in range(2))
    assert (one.content, one.headers["x-seed"]) == (two.content, two.headers["x-seed"])
    assert api.get(empty).json()["sampled"] == 8
    assert_refused(api.post(f"{empty}/sample?batch_size=9", headers=headers), 409, "idempotency_conflict")
    assert_refused(api.post(f"{empty}/sample", content=b"{}"), 422, "not_supported", "`body`")


def test_not_a_number_survives_and_is_valid_json(api: Api, empty: str) -> None:
    """NaN and infinities come back: as words in JSON, as bits in safetensors, WB-01."""
    given = steps(2, 8)
    given["reward"][:] = np.array([np.nan, np.inf, -np.inf, 1.5] * 2, np.float32)
    assert send(api, f"{empty}/experience", given).status_code == 201

    answer = api.get(f"{empty}/sample?seed=1&batch_size=64&format=json")
    words = set(json.loads(answer.content, parse_constant=pytest.fail)["experience/first/reward"])
    assert words == {"NaN", "Infinity", "-Infinity", 1.5}
    again = api.post(f"{empty}/experience", json={n: x for n, x in json_of(given).items()})
    assert again.status_code == 201, again.text
    exact = arrays_of(api.get(f"{empty}/sample?seed=1&batch_size=64&format=safetensors"))
    assert (
        np.isnan(exact["experience/first/reward"]).any() and np.isinf(exact["experience/first/reward"]).any()
    )
    for path in ("", "/stats", "/histogram?field=priority"):
        json.loads(api.get(f"{empty}{path}").content, parse_constant=pytest.fail)


def json_of(arrays: dict[str, np.ndarray]) -> dict:
    """Return arrays as our JSON has them."""
    return json.loads(wire.encode(arrays, "json")[0])


@pytest.mark.parametrize("format", FORMATS)
def test_priorities_change_what_is_drawn(api: Api, empty: str, format: str) -> None:
    """With all but one priority at zero only that item is drawn; the answer counts what was set."""
    send(api, f"{empty}/experience", steps(2, 10))
    drawn = arrays_of(api.get(f"{empty}/sample?batch_size=1000&seed=0&peek=true"))
    indices, at = np.unique(drawn["indices"], return_index=True)
    priorities = np.zeros(len(indices), np.float32)
    priorities[3] = 2.5
    body = {"indices": indices, "priorities": priorities, "generations": drawn["generations"][at]}

    answer = send(api, f"{empty}/priorities", body, format=format, method="PATCH")
    assert answer.json() == {"updated": 18, "stale": 0}
    again = arrays_of(api.get(f"{empty}/sample?batch_size=50"))
    assert set(again["indices"].tolist()) == {int(indices[3])}
    np.testing.assert_allclose(again["probabilities"], 1.0)


def test_an_item_overwritten_since_is_stale(api: Api, empty: str) -> None:
    """After a whole lap of the ring every old generation is stale and nothing is set."""
    send(api, f"{empty}/experience", steps(2, 10))
    drawn = arrays_of(api.get(f"{empty}/sample?batch_size=8&seed=0"))
    send(api, f"{empty}/experience", steps(2, 40, start=10))

    body = {
        "indices": drawn["indices"],
        "priorities": np.ones(8, np.float32),
        "generations": drawn["generations"],
    }
    answer = send(api, f"{empty}/priorities", body, method="PATCH")
    assert answer.json() == {"updated": 0, "stale": 8}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"priorities": [1.0, float("nan")]}, "position 1"),
        ({"priorities": [float("inf"), 1.0]}, "position 0"),
        ({"priorities": [1.0, -1.0]}, "position 1"),
        ({"priorities": [1.0]}, "`priorities`"),
        ({"indices": [0, 10**6]}, "`indices`"),
        ({"indices": [-1, 0]}, "`indices`"),
        ({"colour": [1, 2]}, "`colour`"),
        ({"generations": None}, "`generations`"),
    ],
)
def test_wrong_priorities_are_refused_and_none_is_applied(
    api: Api, empty: str, change: dict, word: str
) -> None:
    """Not-a-number, infinite and negative priorities name their position; other lengths are refused."""
    send(api, f"{empty}/experience", steps(2, 10))
    before = api.get(f"{empty}/histogram?field=priority").json()
    body = {"indices": [0, 1], "priorities": [1.0, 1.0], "generations": [0, 1]} | change
    dtypes = {"indices": np.int32, "priorities": np.float32, "generations": np.int64}
    arrays = {n: np.asarray(v, dtypes.get(n, np.int32)) for n, v in body.items() if v is not None}

    answer = send(api, f"{empty}/priorities", arrays, method="PATCH")
    assert answer.status_code == 422, answer.text
    assert word in answer.json()["detail"]
    assert api.get(f"{empty}/histogram?field=priority").json() == before


@pytest.mark.parametrize(
    ("kind", "arguments", "given", "leading"),
    [
        ("flat", {"add_batch_size": 2}, (2, 10), (4,)),
        ("item", {"add_batch_size": None}, (1, 20), (4,)),
        (
            "trajectory",
            {"sample_sequence_length": 3, "period": 1, "min_length_time_axis": 4, "max_length_time_axis": 32},
            (2, 10),
            (4, 3),
        ),
    ],
)
def test_uniform_kinds_are_served_too(
    api: Api, kind: str, arguments: dict, given: tuple, leading: tuple
) -> None:
    """Items are given as `[N, ...]`; sequences come as `[N, L, ...]`; uniform kinds carry no priorities."""
    body = buffer_body(f"kind-{kind}", kind=kind, **arguments)
    if kind == "trajectory":
        body = {n: v for n, v in body.items() if n not in ("max_length", "min_length")}
    body = {n: v for n, v in body.items() if v is not None}
    assert api.post(URL, json=body).status_code == 201
    experience = steps(*given)
    if kind == "item":
        experience = {name: x[0] for name, x in experience.items()}

    assert send(api, f"{URL}/kind-{kind}/experience", experience).status_code == 201
    drawn = arrays_of(api.get(f"{URL}/kind-{kind}/sample?seed=1"))
    leaf = "experience/first/action" if kind == "flat" else "experience/action"
    assert drawn[leaf].shape == leading
    assert not {"indices", "probabilities"} & set(drawn)
    assert_refused(api.get(f"{URL}/kind-{kind}/sample?beta=0.5"), 422, "invalid_argument", "`beta`")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_buffers_are_not_found(api: Api, method: str) -> None:
    """Every hot path says which buffers there are."""
    assert_refused(api.request(method, f"{URL}/nobody/sample"), 404, "not_found", "'nobody'")
    assert_refused(send(api, f"{URL}/nobody/experience", steps(2, 2)), 404, "not_found", "'nobody'")
    assert_refused(api.patch(f"{URL}/nobody/priorities", json={}), 404, "not_found", "'nobody'")


def test_all_batch_lengths_are_taken(api: Api, empty: str) -> None:
    """Adds of 1 to 40 steps in odd order keep position and size right, WB-08."""
    for number, length in enumerate([1, 40, 7, 33, 2, 31, 32]):
        answer = send(api, f"{empty}/experience", steps(2, length, start=number))
        assert answer.status_code == 201

    assert (answer.json()["position"], answer.json()["size"]) == (146, 64)
