"""Requests say what the contract says, and answers are read into plain values; nothing is sent."""

import json
from collections import namedtuple

import numpy as np
import pytest

from fbxcore.client import _requests as requests
from fbxcore.client import errors
from fbxcore.errors import InvalidArgumentError
from fbxcore.wire import decode, encode


def _answer(arrays, format="safetensors", **headers):
    media = {"safetensors": "application/x-safetensors", "npz": "application/x-npz"}[format]
    return requests.Answer(200, {"Content-Type": media, **headers}, encode(arrays, format)[0])


def test_parts_of_a_path_are_quoted():
    """A name cannot leave its place in the address."""
    assert requests.url_of("buffers", "a/../b", "stats") == "/api/v1/buffers/a%2F..%2Fb/stats"


def test_parameters_that_are_none_are_left_out():
    """Lists are comma-separated, booleans are words."""
    url = requests.url_of("x", query={"a": None, "b": [1, 2], "c": True, "d": 0})

    assert url == "/api/v1/x?b=1%2C2&c=true&d=0"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (("cartpole/run1",), ("cartpole", "run1")),
        (("a/b/run1",), ("a~b", "run1")),
        (("a/b", "run1"), ("a~b", "run1")),
    ],
)
def test_a_slash_in_a_vaults_name_is_a_tilde(given, path):
    """The last part is the uid; slashes before it are written `~`."""
    assert requests.vault_path(*given) == path


def test_a_vault_needs_both_names():
    """One word is no vault."""
    with pytest.raises(InvalidArgumentError, match="`name` must be `vault_name/vault_uid`, got 'cartpole'"):
        requests.vault_path("cartpole")


def test_nested_experience_becomes_flat_leaves():
    """Mappings and named tuples are joined with slashes."""
    step = namedtuple("step", "obs reward")({"image": np.zeros((1, 2), np.uint8)}, [1.0])

    leaves = requests.leaves_of(step)
    assert {name: x.shape for name, x in leaves.items()} == {"obs/image": (1, 2), "reward": (1,)}


def test_an_array_stands_for_its_spec():
    """A leaf may be given as one timestep's array."""
    spec = requests.spec_of(
        {"obs": {"a": np.zeros((3, 2), np.uint8)}, "r": {"shape": [], "dtype": "float32"}}
    )

    assert spec == {"obs": {"a": {"shape": [3, 2], "dtype": "uint8"}}, "r": {"shape": [], "dtype": "float32"}}


def test_arrays_go_out_in_the_format_with_the_key():
    """The body is the format's, its media type and the key are headers."""
    request = requests.send_arrays(
        "POST", "buffers", "b", "experience", arrays={"x": np.arange(3)}, format="npz", key="k1"
    )

    assert request.headers["Content-Type"] == "application/x-npz"
    assert request.headers["Idempotency-Key"] == "k1"
    np.testing.assert_array_equal(decode(request.body, "npz")["x"], [0, 1, 2])


def test_only_requests_that_may_be_repeated_say_so():
    """A JSON POST makes something new each time; everything else can be sent again."""
    assert not requests.send_json("POST", "vaults", content={}).can_repeat
    assert requests.send_json("PUT", "buffers", "b", content={}).can_repeat
    assert requests.get("buffers").can_repeat


def test_a_sample_is_nested_and_keeps_its_seed():
    """Names below `experience/` are nested, the rest are fields, seed and position are headers."""
    arrays = {
        "experience/first/obs": np.zeros((2, 4), np.float32),
        "experience/second/obs": np.ones((2, 4), np.float32),
        "indices": np.arange(2, dtype=np.int32),
    }
    sample = requests.read_sample(_answer(arrays, **{"X-Seed": "5", "X-Position": "70"}))

    assert sample.experience["second"]["obs"].sum() == 8
    assert (sample.seed, sample.position, sample.weights) == (5, 70, None)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (422, "structure_mismatch", errors.StructureError),
        (422, "not_supported", errors.NotSupportedError),
        (422, "invalid_argument", errors.InvalidArgumentError),
        (413, "body_too_large", errors.InvalidArgumentError),
        (401, "unauthorized", errors.RefusedError),
        (404, "not_found", errors.NotFoundError),
        (410, "reclaimed", errors.ReclaimedError),
        (409, "not_enough_data", errors.NotEnoughDataError),
        (409, "config_differs", errors.ConflictError),
        (503, "starting", errors.UnavailableError),
        (507, "disk_full", errors.StorageError),
        (500, "internal", errors.StorageError),
    ],
)
def test_a_problem_becomes_its_error(status, code, kind):
    """Class, code, status and details of the error are those of the answer."""
    problem = {
        "type": "x", "title": "x", "status": status, "detail": "It must.", "code": code, "request_id": "r1",
        "hint": "Do it.", "needed": 3, "errors": [{"loc": ["obs"], "msg": "m", "type": "t"}],
    }  # fmt: skip
    with pytest.raises(kind, match="It must") as caught:
        requests.read(requests.Answer(status, {"Retry-After": "2"}, json.dumps(problem).encode()))

    error = caught.value
    assert type(error) is kind
    assert (error.code, error.status, error.hint, error.loc) == (code, status, "Do it.", ("obs",))
    assert error.details["needed"] == 3
    assert error.details["retry_after_s"] == 2.0
    assert error.request_id == "r1"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\xff"])
def test_an_answer_that_is_no_problem_is_an_error_still(body):
    """A proxy's page is reported by its status."""
    with pytest.raises(errors.StorageError, match="status 502") as caught:
        requests.read(requests.Answer(502, {}, body))

    assert caught.value.code == "http_502"


def test_errors_are_those_of_the_library_too():
    """One `except fbxcore.errors.X` serves the library and the client."""
    from fbxcore import errors as fbx

    for name in set(errors.__all__) & set(dir(fbx)):
        assert issubclass(getattr(errors, name), getattr(fbx, name)), name
        assert issubclass(getattr(errors, name), errors.ClientError), name


def test_lists_are_read_page_after_page():
    """`next` is passed on until there is none."""
    asked = []

    class Fake:
        def send(self, request):
            asked.append(request.path)
            page = {"items": [{"n": len(asked)}], "next": "abc" if len(asked) == 1 else None}
            return requests.Answer(200, {}, json.dumps(page).encode())

    assert [item["n"] for item in requests.pages(Fake(), "buffers")] == [1, 2]
    assert asked == ["/api/v1/buffers?limit=500", "/api/v1/buffers?limit=500&next=abc"]


def test_an_answer_in_an_unknown_format_is_refused():
    """What is not one of our formats is not guessed at."""
    with pytest.raises(InvalidArgumentError, match="got 'text/html'"):
        requests.read_arrays(requests.Answer(200, {"Content-Type": "text/html"}, b"x"))
