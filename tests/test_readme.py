"""What the README and the docstrings show runs as it stands."""

import doctest
import inspect
import re
from pathlib import Path

import pytest

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    FisherScores,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    PairwiseClassifier,
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
    for package in ("pandas", "optuna"):
        pytest.importorskip(package)
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
    *(PairwiseClassifier, FisherScores),
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


def described(estimator):
    """What the section on parameters says of each, by name."""
    pattern = r"^Parameters\n-+\n(.*?)(?=\n\n\w+\n---|\Z)"
    (section,) = re.findall(pattern, inspect.cleandoc(estimator.__doc__), re.DOTALL | re.MULTILINE)
    texts, names, goes_on = {}, [], False
    for line in section.splitlines():
        if line.startswith(" "):
            texts |= {name: texts[name] + line for name in names}
        else:
            heading, _, kind = line.partition(" : ")
            names = (names if goes_on else []) + re.findall(r"\w+", heading)
            texts |= dict.fromkeys(names, kind)
            goes_on = line.endswith(",")
    return texts


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: each.__name__)
def test_every_parameter_is_described(estimator):
    """Under its own name, with words, or by the estimator that it points to; and no others."""
    texts = described(estimator)
    assert set(texts) == set(inspect.signature(estimator).parameters)
    for name, text in texts.items():
        assert text.strip(), name
        for other in re.findall(r"As in `(\w+)`", text):
            assert described(getattr(mixtura, other))[name].strip(), (name, other)


def test_a_parameter_that_is_only_mentioned_is_not_described():
    """The test above tells an entry of its own from a word in passing."""

    class Stub:
        """Something.

        Parameters
        ----------
        first, second,
        third : float
            Unlike fourth, and as sixth.
        fifth
            As in `MixtureClassifier`.

        Attributes
        ----------
        sixth_ : seventh
        """

    assert described(Stub) == {
        **dict.fromkeys(["first", "second", "third"], "float    Unlike fourth, and as sixth."),
        "fifth": "    As in `MixtureClassifier`.",
    }
