"""Code a page offers: it runs as copied, against the address the page was opened at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from app.contexts.shell import Snippet
from fbxcore.spec import nest
from fbxcore.types import LeafSpec, Spec

INLINE_JSON = 1500  # characters of a JSON body still pleasant to paste
AUTH = ' -H "Authorization: Bearer $FLASHDECK_TOKEN"'


def _python(base: str, *lines: str, imports: tuple[str, ...] = (), has_token: bool) -> str:
    """A script with a client; the client itself reads FLASHDECK_TOKEN."""
    token = ["# reads the token from the environment variable FLASHDECK_TOKEN"] if has_token else []
    head = [*imports, "from fbxcore.client import Client", "", *token, f'client = Client("{base}")']
    return "\n".join([*head, *lines]) + "\n"


def _path(leaf: str) -> str:
    """A leaf in nested arrays: `["obs"]["image"]`."""
    return "".join(f'["{part}"]' for part in leaf.split("/"))


def spec_of(nested: Mapping[str, Any]) -> Spec:
    """The flat spec of an answer's nested one; what was answered needs no check."""
    return {
        name: LeafSpec(tuple(leaf["shape"]), leaf["dtype"], leaf.get("role"))
        for name, leaf in _leaves(nested).items()
    }


def _leaves(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for name, value in nested.items():
        if isinstance(value.get("dtype"), str):
            found[f"{prefix}{name}"] = value
        else:
            found.update(_leaves(value, f"{prefix}{name}/"))
    return dict(sorted(found.items()))


def sample_python(base: str, name: str, spec: Spec, *, flat: bool, has_token: bool) -> Snippet:
    """Sample once and show what came."""
    leaf = ('["first"]' if flat else "") + _path(next(iter(spec)))
    code = _python(
        base,
        f'batch = client.buffer("{name}").sample()',
        f"print(batch.experience{leaf}.shape)",
        has_token=has_token,
    )
    return Snippet("sample-python", "Sample in Python", "python", code)


def sample_curl(base: str, name: str, *, has_token: bool) -> Snippet:
    """Sample two items as JSON."""
    auth = AUTH if has_token else ""
    url = f"{base}/api/v1/buffers/{name}/sample?batch_size=2&format=json"
    return Snippet("sample-curl", "Sample with curl", "sh", f'curl -s{auth} \\\n  "{url}"\n')


def take_python(base: str, name: str, spec: Spec, *, has_token: bool) -> Snippet:
    """Take once and show what came."""
    code = _python(
        base,
        f'taken = client.buffer("{name}").take(timeout_ms=1000)',
        f"print(taken.experience{_path(next(iter(spec)))}.shape)",
        has_token=has_token,
    )
    return Snippet("take-python", "Take in Python; nobody else gets these", "python", code)


def take_curl(base: str, name: str, *, has_token: bool) -> Snippet:
    """Take one sequence of each row as JSON."""
    auth = AUTH if has_token else ""
    url = f"{base}/api/v1/buffers/{name}/take?format=json"
    return Snippet("take-curl", "Take with curl", "sh", f'curl -s{auth} -X POST \\\n  "{url}"\n')


def add_python(base: str, name: str, spec: Spec, rows: int, *, as_what: str, has_token: bool) -> Snippet:
    """Add one timestep of zeros per row, with the shapes the buffer asks for."""
    leading = (rows, 1) if as_what == "timesteps" else (1,)
    lines = [
        f'    "{leaf}": np.zeros({_tuple((*leading, *s.shape))}, {_dtype(s.dtype)}),'
        for leaf, s in spec.items()
    ]
    imports = ("import ml_dtypes",) if any(s.dtype == "bfloat16" for s in spec.values()) else ()
    sent = [f'print(client.buffer("{name}").add(experience))']
    if as_what == "run":
        sent = [f'with client.buffer("{name}").writer("me") as writer:', "    writer.add(experience)"]
    code = _python(
        base, "experience = {", *lines, "}", *sent,
        imports=(*imports, "import numpy as np"), has_token=has_token,
    )  # fmt: skip
    return Snippet("add-python", "Add zeros in Python", "python", code)


def add_curl(base: str, name: str, spec: Spec, rows: int, *, as_what: str, has_token: bool) -> Snippet | None:
    """Add the same zeros as JSON, where that is short enough to read."""
    leading = (rows, 1) if as_what == "timesteps" else (1,)
    if sum(int(np.prod((*leading, *s.shape))) for s in spec.values()) > INLINE_JSON // 2:
        return None
    zeros = nest({leaf: _zeros((*leading, *s.shape), s.dtype) for leaf, s in spec.items()})
    body = json.dumps(zeros, separators=(",", ":"))
    if len(body) > INLINE_JSON:
        return None
    auth = AUTH if has_token else ""
    url = f"{base}/api/v1/buffers/{name}/experience"
    url = f"'{url}?writer=me&end=cut'" if as_what == "run" else url
    code = f"curl -s{auth} -X POST {url} \\\n  -H 'Content-Type: application/json' -d '{body}'\n"
    return Snippet("add-curl", "Add zeros with curl", "sh", code)


def create_curl(base: str, *, has_token: bool) -> Snippet:
    """Create a small buffer; a second run changes nothing."""
    auth = AUTH if has_token else ""
    code = (
        f"curl -s{auth} -X PUT {base}/api/v1/buffers/first \\\n"
        "  -H 'Content-Type: application/json' -d '{\n"
        '    "kind": "flat",\n'
        '    "spec": {\n'
        '      "obs": {"shape": [4], "dtype": "float32"},\n'
        '      "action": {"shape": [], "dtype": "int32"},\n'
        '      "reward": {"shape": [], "dtype": "float32"}\n'
        "    },\n"
        '    "max_length": 10000, "min_length": 100, "sample_batch_size": 32, "add_batch_size": 4,\n'
        '    "persist_to": "first/run1"\n'
        "  }'\n"
    )
    return Snippet("create-curl", "Create a buffer", "sh", code)


def demo_shell() -> Snippet:
    """Fill a running server with real experience."""
    return Snippet("demo", "Or let the demo do it", "sh", "flashdeck demo\n")


def slice_python(
    base: str, vault: str, ref: str, start: int, stop: int, spec: Spec, *, has_token: bool
) -> Snippet:
    """Read the shown slice."""
    of = "" if ref == "head" else f'"{ref}", '
    code = _python(
        base, f'arrays = client.vault("{vault}").slice({of}start={start}, stop={stop})',
        f"print(arrays{_path(next(iter(spec)))}.shape)", has_token=has_token,
    )  # fmt: skip
    return Snippet("slice-python", "Read these steps in Python", "python", code)


def slice_curl(url: str, *, has_token: bool) -> Snippet:
    """Save the shown slice under the name the server gives it."""
    auth = AUTH if has_token else ""
    return Snippet("slice-curl", "Download with curl", "sh", f'curl -OJ{auth} \\\n  "{url}"\n')


def version_curl(base: str, vault: str, *, has_token: bool) -> Snippet:
    """Make a version of all that was acknowledged so far."""
    auth = AUTH if has_token else ""
    body = json.dumps({"message": "first look", "tags": ["first"]})
    code = (
        f"curl -s{auth} -X POST {base}/api/v1/vaults/{vault}/versions \\\n"
        f"  -H 'Content-Type: application/json' -d '{body}'\n"
    )
    return Snippet("version-curl", "Make a version", "sh", code)


def sweep_curl(base: str, vault: str, *, has_token: bool) -> Snippet:
    """Give back the bytes of a vault that nothing needs."""
    auth = AUTH if has_token else ""
    code = f"curl -s{auth} -X POST {base}/api/v1/vaults/{vault}/gc\n"
    return Snippet("sweep-curl", "Give it back", "sh", code)


def _tuple(shape: tuple[int, ...]) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


def _dtype(name: str) -> str:
    return "ml_dtypes.bfloat16" if name == "bfloat16" else f'"{name}"'


def _zeros(shape: tuple[int, ...], dtype: str) -> Any:
    zero: Any = False if dtype == "bool" else 0 if "int" in dtype else 0.0
    for length in reversed(shape):
        zero = [zero] * length
    return zero
