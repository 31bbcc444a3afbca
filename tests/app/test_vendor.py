"""What is vendored is what was published, says under which licence, and fits the budget."""

import gzip
import hashlib
import json
import re

import pytest

from app.paths import STATIC, TEMPLATES

VENDOR = STATIC / "vendor"
ENTRIES = json.loads((VENDOR / "VENDOR.json").read_text())
BUDGET = 120_000  # bytes of JS and CSS, gzipped


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_file_has_the_hash_it_was_vendored_with(entry):
    """A vendored file differs from VENDOR.json in no byte."""
    digest = hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest()

    assert digest == entry["sha256"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_file_names_its_version_and_comes_with_its_licence(entry):
    """Each vendored file carries its version in its name and its licence beside it."""
    assert entry["version"] in entry["file"]
    assert entry["licence"]
    assert (VENDOR / entry["licence_file"]).stat().st_size > 100


def test_every_vendored_file_is_listed():
    """No script, sheet or font lies in the vendor folder without an entry."""
    lying = {f.name for f in VENDOR.iterdir() if f.suffix in {".js", ".css", ".woff2"}}

    assert lying == {entry["file"] for entry in ENTRIES}


def test_scripts_and_sheets_of_a_page_fit_the_budget():
    """All JS and CSS that the pages load together stays below 120 kB gzipped, the API reference apart."""
    files = [f for f in STATIC.rglob("*") if f.suffix in {".js", ".css"} and "swagger" not in f.name]

    assert sum(len(gzip.compress(f.read_bytes(), 9)) for f in files) <= BUDGET


def test_nothing_is_loaded_from_another_host():
    """No template and no sheet or script of ours names an address outside."""
    ours = [*TEMPLATES.rglob("*.html"), *STATIC.glob("*.css"), *STATIC.glob("*.js")]
    outside = [f.name for f in ours if re.search(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", f.read_text())]

    assert outside == []


def test_no_template_needs_eval_or_inline_code():
    """Nothing in a template would break under `default-src 'self'`."""
    risky = re.compile(
        r"<script(?![^>]*\bsrc=)|\shx-on[:=]|\bjs:|javascript:|\sstyle=|\son[a-z]+=", re.IGNORECASE
    )
    broken = [f.name for f in TEMPLATES.rglob("*.html") if risky.search(f.read_text())]

    assert broken == []
