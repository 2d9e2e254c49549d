"""What the README, the pages and the docstrings show runs as it stands."""

import doctest
import inspect
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    FisherScores,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    MixtureRegressor,
    PairwiseClassifier,
    SequenceDensity,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.estimators import (
    boosted,
    classifier,
    density,
    fisher,
    imputer,
    network_classifier,
    network_regressor,
    regressor,
    sequence,
    sequence_density,
    sparse,
)
from mixtura.exceptions import DegenerateDataWarning, InvalidInputError
from mixtura.solvers import EM, LinkedEM

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide.md"
SHOWING = [
    *(ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("index", "start", "coming"))),
    *sorted(ROOT.glob("docs/guide/*.md")),
]
#: Libraries that pages compare with.
PEERS = ("hmmlearn", "lightgbm", "pomegranate", "tabpfn")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.stem)
def test_snippets(page, tmp_path, monkeypatch):
    """Every Python block, in order, in one session, but for those of libraries that are absent."""
    for package in ("matplotlib", "pandas", "optuna"):
        pytest.importorskip(package)
    monkeypatch.setenv("MPLBACKEND", "agg")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    session: dict = {}
    for block in blocks:
        try:
            exec(compile(block, page.name, "exec"), session)
        except ModuleNotFoundError as error:
            if error.name not in PEERS:
                raise
    if {"model", "X_test", "y_test"} <= session.keys():
        assert session["model"].score(session["X_test"], session["y_test"]) > 0.8


def test_every_page_with_python_is_run():
    """By the test above, or by those of the parts that a page is about."""
    elsewhere = {"deploy.md", "large_data.md", "looking.md"}
    showing = {page for page in PAGES if "```python" in page.read_text()}
    assert {page.name for page in showing - set(SHOWING)} == elsewhere


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    """What pages point to in this project is there."""
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    for target in targets:
        assert "://" in target or (page.parent / target).exists(), target


# -- what the guide says each estimator takes --------------------------------------------------

LABELS = np.arange(60) % 2
ROWS = 2.0 * LABELS[:, None] + np.random.default_rng(0).normal(size=(60, 2))
HOLED = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.2, np.nan, ROWS)
MIXED = np.column_stack([ROWS[:, 0].astype(object), np.array(["x", "y"], dtype=object)[LABELS]])
FEW = np.where(np.arange(60) < 30, LABELS, np.nan)
NETWORK = {
    **{"n_components": 2, "embedding": "posterior", "init": EM(max_iter=5, tol=0.01)},
    "solver": LinkedEM(max_iter=5, end_to_end=False),
}
QUICK = {
    "MixtureClassifier": {
        **{"n_components": 1, "objective": "likelihood", "density": "diag"},
        "unlabeled_weight": 0.5,
    },
    "MixtureNetworkClassifier": {
        **NETWORK,
        "solver": LinkedEM(max_iter=5, specialize=0.5, end_to_end=False),
        **{"unlabeled_weight": 0.5, "calibrate": False},
    },
    "MixtureNetworkRegressor": NETWORK,
    "MixtureRegressor": {"n_components": 1, "density": "full", "marginals": "linear"},
    "BoostedMixtureClassifier": {"n_stages": 1, "calibrate": False},
    "SequenceDensity": {"n_components": 1, "n_states": 1},
    "SequenceMixtureClassifier": {"n_states": 1, "method": "ml", "calibrate": False},
}


def claims():
    """Estimator, columns, missing values, unlabeled rows, density: the cells of the table."""
    (table,) = re.findall(r"\| estimator \| columns .*?\n\n", GUIDE.read_text(), re.DOTALL)
    for line in table.strip().splitlines()[2:]:
        names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        yield from ((name, *cells) for name in re.findall(r"`(\w+)`", names))


def fit_claimed(name, rows, labels):
    """The estimator, fitted to rows, each a sequence of its own where sequences are asked for."""
    settings = QUICK.get(name, {})
    if "missingness" in inspect.signature(getattr(mixtura, name)).parameters:
        settings = {**settings, "missingness": "ignore"}
    model = getattr(mixtura, name)(random_state=0, **settings)
    if name.startswith("Sequence"):
        rows = [np.stack([row, row]) for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows, labels)


@pytest.mark.parametrize("claim", list(claims()), ids=lambda claim: claim[0])
def test_what_the_guide_says_of_each_estimator(claim):
    """Kinds of columns, missing values, unlabeled rows and a density, or not."""
    name, columns, missing, unlabeled, density = claim
    attempts = {
        "categories": (MIXED, "categories" in columns),
        "holes": (HOLED, "refused" not in missing),
    }
    for rows, taken in attempts.values():
        if taken:
            fit_claimed(name, rows, LABELS)
        else:
            with pytest.raises((InvalidInputError, ValueError)):
                fit_claimed(name, rows, LABELS)
    assert hasattr(fit_claimed(name, ROWS, LABELS), "score_samples") == density.startswith("yes")
    if "left out" in unlabeled:
        with pytest.warns(DegenerateDataWarning, match="left out"):
            fit_claimed(name, ROWS, FEW)
    elif "take part" in unlabeled:
        known = ~np.isnan(FEW)
        alone, helped = fit_claimed(name, ROWS[known], FEW[known]), fit_claimed(name, ROWS, FEW)
        assert not np.allclose(np.sort(alone.means_, 0), np.sort(helped.means_, 0))


# -- what the docstrings say -------------------------------------------------------------------

ESTIMATORS = [
    *(MixtureClassifier, MixtureDensity, BoostedMixtureClassifier, SparseMixtureClassifier),
    *(SequenceMixtureClassifier, MixtureNetworkClassifier, MixtureNetworkRegressor),
    *(PairwiseClassifier, FisherScores, MixtureRegressor, SequenceDensity),
]
SHOWN = [
    *(boosted, classifier, density, fisher, imputer),
    *(network_classifier, network_regressor, regressor, sequence, sequence_density, sparse),
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
