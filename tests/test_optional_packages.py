"""Where optional packages are absent, the tests that need them are skipped."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Packages that run the tests; all others of the extras may be absent.
NEEDED = {"mixtura", "pytest", "pytest-xdist", "editables", "hatchling"}

IMPORT = """
import sys
from importlib import import_module
from pathlib import Path

import pytest

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Absent)
sys.path.insert(0, {tests!r})
for path in sorted(Path({tests!r}).glob("*.py")):
    try:
        import_module(path.stem)
        print("imported", path.stem)
    except pytest.skip.Exception:
        print("skipped", path.stem)
"""


def optional_packages():
    """Names of all packages of the extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [line for extra in extras["optional-dependencies"].values() for line in extra]
    return {re.split(r"[\[<>=; ]", line)[0] for line in listed} - NEEDED


def test_files_of_tests_need_no_optional_package():
    """With every optional package hidden, they are imported or skip themselves."""
    absent = {name.replace("-", "_") for name in optional_packages()}
    assert {"pandas", "polars", "optuna", "hmmlearn", "typer", "rich", "matplotlib"} <= absent
    script = IMPORT.format(absent=absent, tests=str(ROOT / "tests"))
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = ended.stdout.split()
    assert told.count("imported") > told.count("skipped") > 0
