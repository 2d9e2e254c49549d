"""What the README and the docstrings show runs as it stands."""

import doctest
import re
from pathlib import Path

import pytest

from mixtura.estimators import boosted, classifier, density, fisher, sequence, sparse

README = Path(__file__).parents[1] / "README.md"


def test_readme_snippets(tmp_path, monkeypatch):
    """Every Python block, in order, in one session."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    session: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), session)
    assert session["model"].score(session["X_test"], session["y_test"]) > 0.8
    assert (tmp_path / "wine.safetensors").exists()


@pytest.mark.parametrize("module", [boosted, classifier, density, fisher, sequence, sparse])
def test_docstring_examples(module):
    """The examples of the estimators."""
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
