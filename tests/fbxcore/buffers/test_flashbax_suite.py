"""Flashbax's own tests, run against this library.

The wheel carries them. They are copied from the installed package into a temporary directory, pointed at
`fbxcore` and run there; nothing of them is kept. What Flashbax itself passes here must pass, save what is
listed below with its reason.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

# Each asserts something private, or a fault; by the end of its name, with the reason.
DIFFERENT: dict[str, str] = {
    "prioritised_flat_buffer_test.py::test_adjust_priorities": "sets priorities before there is an item",
    "prioritised_trajectory_buffer_test.py::test_human_case_1": "asks a private function",
    "prioritised_trajectory_buffer_test.py::test_human_case_2": "asks a private function",
    "prioritised_trajectory_buffer_test.py::test_human_case_3": "asks a private function",
    "sum_tree_test.py::test_set_non_batched[7]": "sets leaf 7 of a tree of 7 leaves, 0 to 6",
}

OUTCOME = re.compile(r"^(\S+::\S+(?: \S+)*?) (PASSED|FAILED|ERROR)\b", re.MULTILINE)


def copied(package: Path, target: Path, *, ours: bool) -> Path:
    """Copy Flashbax's tests; where `ours`, let them test fbxcore."""
    for path in [*package.rglob("*_test.py"), *package.rglob("conftest.py")]:
        if "vault" in path.parts:
            continue
        text = path.read_text()
        text = text.replace("flashbax.buffers.conftest", "suite.buffers.conftest")
        text = text.replace("flashbax.conftest", "suite.conftest")
        if ours:
            text = re.sub(r"\bfrom flashbax\b", "from fbxcore", text)
            text = re.sub(r"\bimport flashbax\b", "import fbxcore", text)
        place = target / "suite" / path.relative_to(package)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        (place.parent / "__init__.py").touch()
    (target / "pytest.ini").write_text("[pytest]\npython_files = *_test.py\n")
    return target


def chosen(directory: Path) -> list[str]:
    """Return the tests to run: all, but of sweeps over hundreds of arguments every 24th."""
    listed = pytest_in(directory, "--collect-only", "-q", "suite")
    names = [line for line in listed.splitlines() if "::" in line]
    sweeps = {base for base, count in Counter(name.split("[")[0] for name in names).items() if count > 50}
    kept = [name for name in names if name.split("[")[0] not in sweeps]
    return kept + [name for name in names if name.split("[")[0] in sweeps][::24]


def outcomes(directory: Path) -> dict[str, str]:
    """Run the tests in processes of their own and return how each ended."""
    found = dict(OUTCOME.findall(pytest_in(directory, "-v", "-n", "0", "--tb=line", *chosen(directory))))
    assert found
    return found


def pytest_in(directory: Path, *arguments: str) -> str:
    """Return what pytest prints there."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", *arguments]
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=1800
    ).stdout


@pytest.mark.long
def test_it_passes_what_flashbax_passes(flashbax, tmp_path):
    """Every test of the suite that Flashbax passes in this environment passes here too."""
    package = Path(flashbax.__file__).parent
    theirs = outcomes(copied(package, tmp_path / "theirs", ours=False))
    ours = outcomes(copied(package, tmp_path / "ours", ours=True))
    passed = [name for name, outcome in theirs.items() if outcome == "PASSED"]
    missing = [name for name in passed if ours.get(name) != "PASSED"]
    print(f"\nFlashbax passes {len(passed)} of {len(theirs)}, fbxcore {len(passed) - len(missing)} of those.")

    assert [name for name in missing if not name.endswith(tuple(DIFFERENT))] == []
