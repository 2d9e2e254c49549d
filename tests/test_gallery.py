"""The scripts of the gallery, which `make docs` runs: short, and by public names alone."""

import ast
import importlib
from pathlib import Path

import pytest

import mixtura

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*/*.py"))


def test_there_are_scripts():
    assert len(SCRIPTS) >= 20
    assert {path.parent / "GALLERY_HEADER.rst" for path in SCRIPTS} == set(
        GALLERY.glob("*/GALLERY_HEADER.rst")
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path):
    """It compiles, has a title, at most 40 lines, and imports what is public."""
    tree = ast.parse(path.read_text())
    title, rule, *_ = ast.get_docstring(tree).splitlines()
    assert rule == "=" * len(title)
    assert 4 <= sum(bool(line.strip()) for line in path.read_text().splitlines()) <= 40
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("mixtura"):
            public = getattr(importlib.import_module(node.module), "__all__", ())
            if node.module == "mixtura":
                public = [*public, *mixtura._MODULES]
            assert {alias.name for alias in node.names} <= set(public)
        assert not (isinstance(node, ast.Attribute) and node.attr.startswith("_")), node.attr
