"""Flashbax's own tests, run against this library.

The wheel carries them. They are copied from the installed package into a temporary directory, pointed at
`fbxcore` and run there; nothing of them is kept. What Flashbax itself passes here must pass, save what is
listed below with its reason.

Two of its sweeps, 720 of its tests, look at 24,576 sequences one by one with JAX, which takes an hour on two
cores. The copies ask the same of the same samples with NumPy.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

# Each asserts something private, or a fault; by the end of its name, with the reason.
DIFFERENT: dict[str, str] = {
    "prioritised_flat_buffer_test.py::test_adjust_priorities": "sets priorities before there is an item",
    "prioritised_trajectory_buffer_test.py::test_human_case_1": "asks a private function",
    "prioritised_trajectory_buffer_test.py::test_human_case_2": "asks a private function",
    "prioritised_trajectory_buffer_test.py::test_human_case_3": "asks a private function",
    "sum_tree_test.py::test_set_non_batched[7]": "sets leaf 7 of a tree of 7 leaves, 0 to 6",
}

WORKERS = os.environ.get("WORKERS", "2")


def copied(package: Path, target: Path, *, ours: bool) -> Path:
    """Copy Flashbax's tests; where `ours`, let them test fbxcore."""
    for path in [*package.rglob("*_test.py"), *package.rglob("conftest.py")]:
        text = path.read_text()
        text = re.sub(r"\bflashbax((?:\.\w+)*\.conftest)\b", r"suite\1", text)
        text = re.sub(r"\b(sampled_r) = (.+)", r"\1 = __import__('numpy').asarray(\2)", text)
        text = re.sub(r"\bjnp\.all\((arr.+)\)", r"(\1).all()", text)
        if ours:
            text = re.sub(r"\b(from|import) flashbax\b", r"\1 fbxcore", text)
        place = target / "suite" / path.relative_to(package)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        (place.parent / "__init__.py").touch()
    (target / "pytest.ini").write_text("[pytest]\npython_files = *_test.py\n")
    return target


def outcomes(directory: Path) -> dict[str, bool]:
    """Run the tests in processes of their own and return which pass."""
    report = directory / "report.xml"
    options = ["-p", "no:cacheprovider", "-W", "ignore", "-n", WORKERS, f"--junit-xml={report}", "suite"]
    command = [sys.executable, "-m", "pytest", *options]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=3600)
    assert report.exists(), ran.stdout + ran.stderr
    return {_name_of(case): len(case) == 0 for case in ElementTree.parse(report).iter("testcase")}


def _name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"


@pytest.mark.long
def test_it_passes_what_flashbax_passes(flashbax, tmp_path, capsys):
    """Every test of the suite that Flashbax passes in this environment passes here too."""
    package = Path(flashbax.__file__).parent
    theirs = outcomes(copied(package, tmp_path / "theirs", ours=False))
    ours = outcomes(copied(package, tmp_path / "ours", ours=True))
    missing = [name for name, passes in theirs.items() if passes and not ours.get(name)]
    with capsys.disabled():
        passed = [sum(side.values()) for side in (theirs, ours)]
        print(f"\nOf {len(theirs)} tests Flashbax passes {passed[0]}, fbxcore {passed[1]}.")
        print("\n".join(f"  passed by Flashbax only: {name}" for name in missing))

    assert theirs.keys() == ours.keys() and len(theirs) > 800
    assert [name for name in missing if not name.endswith(tuple(DIFFERENT))] == []
