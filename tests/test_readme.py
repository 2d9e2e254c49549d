"""What the README and the docstrings show runs as it stands."""

import doctest
import re
from pathlib import Path

import pytest

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.estimators import (
    boosted,
    classifier,
    density,
    fisher,
    network_classifier,
    network_regressor,
    sequence,
    sparse,
)

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


ESTIMATORS = [
    *(MixtureClassifier, MixtureDensity, BoostedMixtureClassifier, SparseMixtureClassifier),
    *(SequenceMixtureClassifier, MixtureNetworkClassifier, MixtureNetworkRegressor),
]
SHOWN = [
    *(boosted, classifier, density, fisher),
    *(network_classifier, network_regressor, sequence, sparse),
]


@pytest.mark.parametrize("module", SHOWN)
def test_docstring_examples(module):
    """The examples of the estimators."""
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: each.__name__)
def test_every_parameter_is_described(estimator):
    """In the docstring, or by the estimator that it points to."""
    pages = [estimator.__doc__]
    if "As in `MixtureClassifier`" in pages[0] or "Regressor" in estimator.__name__:
        pages += [MixtureClassifier.__doc__, MixtureNetworkClassifier.__doc__]
    names = set(re.findall(r"\w+", " ".join(pages)))
    assert set(estimator().get_params()) <= names
