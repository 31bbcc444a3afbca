"""The wheel carries what a plain install needs to serve, and the bare install is the thin client."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def test_the_wheel_carries_pages_and_migrations(wheel):
    """Every template, static file and migration of the repository is in it."""
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"app/_data/{path.relative_to(ROOT).as_posix()}"
        for folder in ("templates", "static", "migrations")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }

    assert len(wanted) > 10
    assert wanted - names == set()


def test_the_wheel_carries_the_code_and_nothing_else(wheel):
    """Two packages and their metadata; no tests, no benchmarks, no caches."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"app", "fbxcore"}
    assert {"fbxcore/py.typed", "fbxcore/client/client.py", "app/cli.py"} <= set(names)
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)


def test_the_pages_are_found_from_a_wheel(wheel, tmp_path):
    """Unpacked as an install does, the app finds its folders beside its code, not in the repository."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import app.paths as p; "
        "print(p.__file__, p.TEMPLATES, p.STATIC, p.MIGRATIONS, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(tmp_path)) for line in done.stdout.split())
    assert all(Path(line).exists() for line in done.stdout.split())


def test_the_bare_install_needs_numpy_alone():
    """`pip install flashdeck` is the client."""
    assert [name.split(">")[0] for name in PROJECT["dependencies"]] == ["numpy"]


def test_the_command_is_installed():
    """`flashdeck` runs `app.cli.main`."""
    from app.cli import main

    assert PROJECT["scripts"] == {"flashdeck": "app.cli:main"}
    assert callable(main)


def test_every_package_is_pinned():
    """The lock has names and versions only, and all that `make` installs is in it."""
    lines = (ROOT / "requirements.lock").read_text().split()
    locked = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    asked = {
        requirement.split("[")[0].split(">")[0].split("=")[0].lower().replace("_", "-")
        for extra in ("server", "postgres", "demo", "dev")
        for requirement in PROJECT["optional-dependencies"][extra]
    }

    assert all("==" in line and "/" not in line and "@" not in line for line in lines)
    assert asked - locked - {"flashdeck", "pytest-xdist", "uvicorn"} == set()
