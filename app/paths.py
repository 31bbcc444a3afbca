"""Where the files beside the code lie: templates, static files and migrations."""

from importlib.resources import files
from pathlib import Path

PROBLEMS = "/problems"  # the address of an error's kind is this plus its code


def _find(name: str) -> Path:
    """In a wheel the folder lies inside the package, in a checkout beside it."""
    inside = Path(str(files("app"))) / "_data" / name
    return inside if inside.is_dir() else Path(__file__).resolve().parent.parent / name


TEMPLATES = _find("templates")
STATIC = _find("static")
MIGRATIONS = _find("migrations")
