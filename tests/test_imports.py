"""Who may import whom: asked of fresh interpreters, and read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Part of the library -> the public parts it may import. Parts whose names begin with an underscore are
# for all to use, save the client, and stand on `errors`, `types` and `spec` alone.
GROUND = {"errors", "types", "spec"}
ALLOWED = {
    "errors": set(),
    "types": set(),
    "spec": {"errors", "types"},
    "utils": GROUND,
    "buffers": GROUND | {"utils"},
    "snapshot": GROUND | {"wire"},
    "wire": GROUND,
    "client": GROUND | {"wire"},
    "vault": GROUND | {"snapshot", "buffers", "utils"},
    "live": GROUND | {"snapshot", "buffers", "vault", "wire"},
}
PARTS = {path.stem for path in (ROOT / "fbxcore").iterdir() if path.suffix == ".py" or path.is_dir()}
PRIVATE = {part for part in PARTS if part.startswith("_") and not part.startswith("__")}
ALLOWED |= {part: GROUND | PRIVATE for part in PRIVATE}
ROOMS_ABOVE = {  # a room of `fbxcore.live` -> what it must not import
    "durable": ("rings", "calls", "restart", "live_buffer"),
    "rings": ("calls", "restart", "live_buffer"),
    "calls": ("restart", "live_buffer"),
    "restart": ("calls", "live_buffer"),
}
HTTP = ("fastapi", "starlette", "uvicorn", "httpx2", "http.client", "urllib.request")


def _modules(package):
    return sorted((ROOT / package).rglob("*.py"))


def _imports(path):
    """Yield the full names of all modules that a file imports, anywhere in it."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _starts(name, modules):
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _loaded(code, modules):
    """Return which of the modules a fresh interpreter has loaded after the code."""
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*[m for m in {modules!r} if m in sys.modules])"],
        capture_output=True, text=True, timeout=60, cwd="/", check=True,
    )  # fmt: skip
    return found.stdout.split()


def test_the_library_loads_neither_ray_nor_tensorstore():
    """`import fbxcore` is quick, and works without the packages of the vault and of the service."""
    assert _loaded("import fbxcore", ["ray", "tensorstore", "fastapi", "sqlalchemy", "jax"]) == []


def test_the_client_loads_no_jax():
    """An actor that only POSTs pays for NumPy alone."""
    heavy = ["jax", "jaxlib", "ml_dtypes", "tensorstore", "msgspec", "fastapi", "sqlalchemy", "pydantic"]

    assert _loaded("import fbxcore.client", heavy) == []


def test_the_client_works_with_numpy_alone():
    """With everything but NumPy and the standard library blocked, the client still packs and reads."""
    code = """
import sys
allowed = set(sys.stdlib_module_names) | {"numpy", "fbxcore", "_virtualenv", "__editable__"}
class OnlyNumPy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, OnlyNumPy())
import numpy as np
from fbxcore.client import Client
from fbxcore import wire
Client("http://127.0.0.1:1")
for format in ("safetensors", "npz", "json"):
    body, _ = wire.encode({"x": np.arange(3)}, format)
    assert wire.decode(body, format)["x"].tolist() == [0, 1, 2]
"""
    assert _loaded(code, ["orjson", "msgspec", "jax"]) == []


def test_the_command_line_starts_without_the_service():
    """`flashdeck ls` does not wait for JAX and SQLAlchemy."""
    assert _loaded("import app.cli", ["jax", "tensorstore", "fastapi", "sqlalchemy", "gymnasium"]) == []


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_in_the_library_point_one_way(part):
    """Each part of `fbxcore` imports only parts below it."""
    home = ROOT / "fbxcore"
    shared = PRIVATE if part not in GROUND | {"wire", "client"} else set()
    forbidden = set(ALLOWED) - ALLOWED[part] - shared - {part}
    files = _modules(f"fbxcore/{part}") if (home / part).is_dir() else [home / f"{part}.py"]
    wrong = {
        (str(path.relative_to(ROOT)), name)
        for path in files
        if path.exists()
        for name in _imports(path)
        if name.startswith("fbxcore.") and name.split(".")[1] in forbidden
    }

    assert wrong == set()


@pytest.mark.parametrize(("room", "above"), sorted(ROOMS_ABOVE.items()))
def test_imports_between_the_rooms_of_live_point_one_way(room, above):
    """What lies on disk knows no ring, a ring knows no caller, and no room knows the live buffer itself."""
    wrong = {
        (path.name, name)
        for path in _modules(f"fbxcore/live/{room}")
        for name in _imports(path)
        if _starts(name, [f"fbxcore.live.{part}" for part in above])
    }

    assert wrong == set()


def test_every_part_of_the_library_has_its_rule():
    """A new part says here what it may import."""
    assert PARTS - set(ALLOWED) <= {"__init__", "__pycache__", "testing"}


def test_the_library_knows_no_service():
    """No HTTP server, no SQL, no app in `fbxcore`; HTTP only in the client."""
    wrong = {
        (str(path.relative_to(ROOT)), name)
        for path in _modules("fbxcore")
        for name in _imports(path)
        if _starts(name, ("app", "sqlalchemy", "alembic", "pydantic"))
        or (_starts(name, HTTP) and "client" not in path.parts)
    }

    assert wrong == set()


def test_tensorstore_is_imported_in_one_place():
    """Swapping the store touches `vault/store` alone."""
    found = {
        str(path.relative_to(ROOT))
        for package in ("fbxcore", "app")
        for path in _modules(package)
        if any(_starts(name, ("tensorstore",)) for name in _imports(path))
    }

    assert all(name.startswith("fbxcore/vault/store") for name in found)


def test_services_know_no_http():
    """Services take and return plain values; routes and the error table speak HTTP."""
    wrong = {
        (str(path.relative_to(ROOT)), name)
        for path in _modules("app/services")
        for name in _imports(path)
        if _starts(name, (*HTTP, "app.routes", "app.contexts", "app.templating"))
    }

    assert wrong == set()


@pytest.mark.parametrize("part", ["schemas", "tables.py"])
def test_schemas_and_tables_import_nobody(part):
    """What describes bodies and rows stands below everything in `app`."""
    path = ROOT / "app" / part
    files = _modules(f"app/{part}") if path.is_dir() else [path]
    own = f"app.{part.removesuffix('.py')}"
    wrong = {
        (file.name, name)
        for file in files
        for name in _imports(file)
        if name.startswith("app.") and not _starts(name, (own,))
    }

    assert wrong == set()


def test_the_app_uses_public_modules_of_the_library():
    """Nothing whose name begins with an underscore, and no SQL in routes."""
    private = {
        (str(path.relative_to(ROOT)), name)
        for path in _modules("app")
        for name in _imports(path)
        if name.startswith("fbxcore.") and any(part.startswith("_") for part in name.split("."))
    }
    sql = {
        (path.name, name)
        for path in _modules("app/routes")
        for name in _imports(path)
        if _starts(name, ("sqlalchemy", "app.tables", "app.db"))
    }

    assert private == set()
    assert sql == set()
