"""Where optional packages are absent, the tests that need them are skipped."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Packages that run the tests; all others of the extras may be absent.
NEEDED = {"mixtura", "pytest", "pytest-xdist", "editables", "hatchling"}

COLLECT = """
import sys

import pytest

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

    @staticmethod
    def pytest_sessionstart(session):
        sys.meta_path.insert(0, Absent)  # before the finder by which pytest rewrites assertions

sys.exit(pytest.main({arguments!r}, plugins=[Absent]))
"""


def optional_packages():
    """Names of all packages of the extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [line for extra in extras["optional-dependencies"].values() for line in extra]
    return {re.split(r"[\[<>=; ]", line)[0] for line in listed} - NEEDED


def test_collection_needs_no_optional_package():
    """With every optional package hidden, pytest finds tests and no error."""
    absent = {name.replace("-", "_") for name in optional_packages()}
    assert {"pandas", "polars", "optuna", "hmmlearn", "typer", "rich", "matplotlib"} <= absent
    plugins = [f"-pno:{name}" for name in ("cacheprovider", "xdist", "hypothesispytest")]
    arguments = ["--collect-only", *plugins, str(ROOT / "tests")]
    script = COLLECT.format(absent=absent, arguments=arguments)
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert "::test_" in ended.stdout
