"""What goes over the line: requests built and answers read, without any I/O."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from fbxcore.client.errors import error_of
from fbxcore.errors import InvalidArgumentError
from fbxcore.spec import flatten, nest
from fbxcore.wire import FORMATS, decode, encode, format_for

API = "/api/v1"
_PREFIX = "experience/"


@dataclass(frozen=True)
class Request:
    """One request; `can_repeat` says that sending it twice does what sending it once does."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    can_repeat: bool = True
    wait_s: float = 0.0  # how long the server may hold it back on purpose


@dataclass(frozen=True)
class Answer:
    """One answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Added:
    """What an add to a buffer did; `duplicate` if it had been done before."""

    added: int
    size: int
    position: int
    sequence: int
    duplicate: bool
    durable: bool
    row: int | None = None  # of an independent writer, as are the next two
    episode: int | None = None
    steps: int | None = None  # of the episode so far


@dataclass(frozen=True)
class Appended:
    """What an append to a vault did; `duplicate` if it had been done before."""

    added: int
    length: int
    duplicate: bool = False
    vault_uid: str | None = None  # where it lies: a full vault goes on in another one


@dataclass(frozen=True)
class Updated:
    """How many priorities were set, and how many items had been overwritten since they were sampled."""

    updated: int
    stale: int


@dataclass(frozen=True)
class Sample:
    """A sampled batch; what only prioritised kinds have is None elsewhere."""

    experience: dict[str, Any]  # nested; [N, L, ...], transitions [N, ...] under "first" and "second"
    indices: np.ndarray | None = None  # [N]
    generations: np.ndarray | None = None  # [N]
    probabilities: np.ndarray | None = None  # [N]
    weights: np.ndarray | None = None  # [N]
    clusters: np.ndarray | None = None  # [N], of a clustered buffer
    seed: int | None = None
    position: int | None = None


@dataclass(frozen=True)
class Taken:
    """What a queue handed out, once; `duplicate` if the same key was given it before."""

    experience: dict[str, Any]  # nested; [k·B, L, ...]
    position: int  # of the first timestep, per row since the last reset
    sequence: int  # of the queue's log
    duplicate: bool = False


def get(*path: str, query: Mapping[str, Any] | None = None, **options: Any) -> Request:
    """Return a GET of JSON."""
    return Request("GET", url_of(*path, query=query), {"Accept": "application/json"}, **options)


def send_json(
    method: str, *path: str, content: Any = None, query: Mapping[str, Any] | None = None
) -> Request:
    """Return a request with a JSON body; a POST is sent once only."""
    body = None if content is None else json.dumps(content).encode()
    headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
    return Request(method, url_of(*path, query=query), headers, body, can_repeat=method != "POST")


def send_arrays(
    method: str,
    *path: str,
    arrays: Mapping[str, np.ndarray],
    format: str,
    query: Mapping[str, Any] | None = None,
    key: str | None = None,
    wait_s: float = 0.0,
) -> Request:
    """Return a request with arrays as its body, under an idempotency key where one is given."""
    headers = {"Accept": "application/json", "Content-Type": FORMATS[format]}
    if key is not None:
        headers["Idempotency-Key"] = key
    body, _ = encode(arrays, format)
    return Request(method, url_of(*path, query=query), headers, body, wait_s=wait_s)


def get_arrays(
    *path: str, format: str, query: Mapping[str, Any] | None = None, wait_s: float = 0.0
) -> Request:
    """Return a GET of arrays."""
    return Request("GET", url_of(*path, query=query), {"Accept": FORMATS[format]}, wait_s=wait_s)


def take(name: str, *, format: str, query: Mapping[str, Any], key: str, wait_s: float) -> Request:
    """Return a take from a queue; sent again under its key, it gets the same."""
    url = url_of("buffers", name, "take", query=query)
    return Request("POST", url, {"Accept": FORMATS[format], "Idempotency-Key": key}, wait_s=wait_s)


def url_of(*path: str, query: Mapping[str, Any] | None = None) -> str:
    """Return the path of a resource, each part quoted; parameters that are None are left out."""
    text = "/".join([API, *[quote(part, safe="~") for part in path]])
    given = {name: _query_value(value) for name, value in (query or {}).items() if value is not None}
    return f"{text}?{urlencode(given)}" if given else text


def _query_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(str(entry) for entry in value)
    return str(value)


def vault_path(name: str, vault_uid: str | None = None) -> tuple[str, str]:
    """Return the two parts of a vault's name as they stand in addresses: `/` inside a name is `~`."""
    if vault_uid is None:
        name, _, vault_uid = name.rpartition("/")
    if not name or not vault_uid:
        raise InvalidArgumentError(
            f"`name` must be `vault_name/vault_uid`, got {name or vault_uid!r}.", loc=("name",)
        )
    return name.replace("/", "~"), vault_uid


def new_key() -> str:
    """Return an idempotency key nobody else has."""
    return uuid.uuid4().hex


def leaves_of(experience: Any) -> dict[str, np.ndarray]:
    """Return experience, nested or flat, as arrays by name joined with `/`."""
    return {name: np.asarray(value) for name, value in flatten(_plain(experience)).items()}


def spec_of(nested: Any) -> Any:
    """Return a spec as JSON; an array stands for its own shape and dtype."""
    nested = _plain(nested)
    if isinstance(nested, Mapping):
        return {
            name: value if name in ("shape", "names") else spec_of(value) for name, value in nested.items()
        }
    if isinstance(nested, str) or nested is None or not hasattr(nested, "dtype"):
        return nested
    return {"shape": list(nested.shape), "dtype": np.dtype(nested.dtype).name}


def _plain(nested: Any) -> Any:
    """Return mappings for named tuples, which is how JAX programs often write a timestep."""
    if hasattr(nested, "_asdict"):
        nested = nested._asdict()
    if isinstance(nested, Mapping):
        return {name: _plain(value) for name, value in nested.items()}
    return nested


def read(answer: Answer) -> Answer:
    """Return an answer that says yes; raise the error that another one means."""
    if answer.status >= 400:
        raise error_of(answer.status, answer.body, answer.headers)
    return answer


def read_json(answer: Answer) -> Any:
    """Return the JSON of an answer; None where it has no body."""
    body = read(answer).body
    return json.loads(body) if body else None


def read_arrays(answer: Answer) -> dict[str, np.ndarray]:
    """Return the arrays of an answer by flat name."""
    format = format_for(read(answer).headers.get("Content-Type", ""))
    if format is None:
        got = answer.headers.get("Content-Type")
        raise InvalidArgumentError(f"`Content-Type` of the answer must be a known format, got {got!r}.")
    return decode(answer.body, format, max_bytes=max(len(answer.body) * 8, 1 << 30))


def read_sample(answer: Answer) -> Sample:
    """Return the batch of an answer, its experience nested."""
    arrays = read_arrays(answer)
    experience = {name[len(_PREFIX) :]: x for name, x in arrays.items() if name.startswith(_PREFIX)}
    rest = {name: x for name, x in arrays.items() if not name.startswith(_PREFIX)}
    return Sample(
        nest(experience),
        **rest,
        seed=_number(answer.headers.get("X-Seed")),
        position=_number(answer.headers.get("X-Position")),
    )


def read_taken(answer: Answer) -> Taken:
    """Return what an answer handed out, its experience nested."""
    arrays = read_arrays(answer)
    experience = nest({name.removeprefix(_PREFIX): x for name, x in arrays.items()})
    position, sequence = (int(answer.headers[name]) for name in ("X-Position", "X-Sequence"))
    return Taken(experience, position, sequence, answer.headers.get("X-Duplicate") == "true")


def pages(transport: Any, *path: str, query: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the items of a list, page after page; `transport` sends."""
    token = None
    while True:
        asked = {**(query or {}), "limit": 500, "next": token}
        page = read_json(transport.send(get(*path, query=asked)))
        yield from page["items"]
        if (token := page.get("next")) is None:
            return


def read_fields(kind: type, answer: Answer) -> Any:
    """Return the members of a JSON answer that a data class has."""
    found = read_json(answer)
    return kind(**{name: value for name, value in found.items() if name in kind.__dataclass_fields__})


def _number(text: str | None) -> int | None:
    return int(text) if text else None
