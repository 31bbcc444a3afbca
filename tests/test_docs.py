"""README and docs tell the truth: their snippets run, their links lead somewhere, their commands exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.served import environment, serve

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RUN = [page for page in PAGES if re.search(r"^```(sh|python)$", page.read_text(), re.MULTILINE)]
# Runs each snippet that comes in as a line of JSON, all in one namespace.
_READER = """
import json, sys
space = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "<snippet>", "exec"), space)
    print("\\0", flush=True)
"""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _name(page):
    return page.relative_to(ROOT).as_posix()


def _blocks(page):
    return _BLOCK.findall(page.read_text())


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One server for all pages, as whoever reads them has."""
    with serve(tmp_path_factory.mktemp("docs")) as server:
        yield server


@pytest.mark.parametrize("document", RUN, ids=_name)
def test_the_snippets_of_a_page_run_in_order(document, served, tmp_path):
    """Each snippet runs as copied, and a comment behind a `print` is what it prints."""
    (tmp_path / ".curlrc").write_text("fail-with-body\n")
    python = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _READER], cwd=tmp_path, env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with python:
        for language, text in _blocks(document):
            text = text.replace("http://127.0.0.1:8000", served.url)
            if language == "sh":
                _run(["bash", "-euo", "pipefail", "-c", text], tmp_path)
            elif language == "python":
                expected = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
                assert _ask(python, text).splitlines() == expected
        python.stdin.close()


def _ask(python, text):
    """Run a snippet where the one before it ended, and return what it printed."""
    python.stdin.write(json.dumps(text) + "\n")
    python.stdin.flush()
    printed = ""
    while not printed.endswith("\0\n"):
        line = python.stdout.readline()
        assert line, f"{text}\n{printed}"
        printed += line
    return printed.removesuffix("\0\n")


def _run(command, folder):
    done = subprocess.run(
        command, cwd=folder, env=environment(CURL_HOME=str(folder), HOME=str(folder)), capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("document", PAGES, ids=_name)
def test_links_lead_somewhere(document):
    """Files and pictures that are linked are in the repository."""
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]

    assert missing == []


def test_the_readme_names_commands_that_exist():
    """Every `make` and `flashdeck` word in the README is one."""
    from typer.main import get_command

    from app.cli import app

    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = set(get_command(app).commands)

    assert set(re.findall(r"`?\bmake ([a-z-]+)(?=[`\n])", text)) <= targets
    assert set(re.findall(r"\bflashdeck ([a-z]+)(?=[` ])", text)) <= commands
    assert {"serve", "test"} <= set(re.findall(r"^make (\w+)$", text, re.MULTILINE))


def test_the_glossary_has_every_letter_of_the_types():
    """The letters in the docstring of `fbxcore.types` are those of the glossary."""
    from fbxcore import types

    letters = re.findall(r"\b([A-Z]) [a-z]", types.__doc__.split("Letters:")[1].split(".")[0])
    glossary = (ROOT / "docs" / "glossary.md").read_text()

    assert len(letters) >= 6
    assert all(f"| **{letter}** |" in glossary for letter in letters)
