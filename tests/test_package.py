"""What is released: the wheel, and what other files say of the package."""

import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name):
    """Versions by package that a lock names."""
    lines = (ROOT / name).read_text().lower().replace("_", "-").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def floors(requirements):
    """Lowest versions by package, but for other extras of our own."""
    found = (re.match(r"([\w-]+)>=([\d.]+)", each) for each in requirements)
    return dict(each.groups() for each in found if each)


def test_the_wheel_has_the_package_and_nothing_else(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    kept = (path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert names == {path.relative_to(source).as_posix() for path in kept}
    suffixes = {Path(name).suffix for name in names}
    assert suffixes == {".py", ".typed", ".html", ".css", ".js", ".jsonl"}
    assert wheel.stat().st_size < 1_000_000


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text()
    recipe = (ROOT / "packaging" / "conda" / "meta.yaml").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [PROJECT["version"]]
    assert re.findall(r'set version = "(.*)"', recipe) == [PROJECT["version"]]
    run = recipe.partition("  run:")[2].partition("test:")[0].replace("pytorch", "torch")
    needed = dict(re.findall(r"- ([\w-]+) >=([\d.]+)", run))
    python = PROJECT["requires-python"].removeprefix(">=")
    assert needed == {"python": python, **floors(PROJECT["dependencies"])}


def test_the_lowest_versions_are_those_of_the_project():
    extras = PROJECT["optional-dependencies"]
    named = floors([*PROJECT["dependencies"], *extras["plot"], *extras["cli"]])
    lowest = pins("requirements-lowest.lock")
    for package, version in named.items():
        assert lowest[package] == version + ".0" * (2 - version.count(".")), package


def test_locks_agree():
    """One environment holds them all."""
    locks = [pins(f"requirements-{name}.lock") for name in ("dev", "docs", "release")]
    for one, other in itertools.combinations(locks, 2):
        assert {name: one[name] for name in one.keys() & other} == {
            name: other[name] for name in one.keys() & other
        }
