"""A fitted estimator as HTML: in notebooks, and as a file."""

from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.pipeline import make_pipeline

from mixtura import (
    MixtureClassifier,
    MixtureDensity,
    MixtureImputer,
    PairwiseClassifier,
    SparseMixtureClassifier,
)

X, Y = load_iris(return_X_y=True)
HOSTILE = "<script>alert('x')</script>"
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """What a page consists of; elements that are not closed, or wrongly, are an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def check_safe(page):
    """No scripts, no handlers of events, nothing from elsewhere."""
    assert not {"script", "iframe", "object", "embed", "link", "form"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href"):
            assert value.startswith("#")


# -- notebooks ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, 1:], columns=[HOSTILE, "b & c", '"quoted"'])
    frame["word"] = np.where(X[:, 3] > 1, HOSTILE, "plain")
    labels = np.array([HOSTILE, "<b>bold", "c"])[Y]
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    return model.fit(frame, labels), frame, labels


def test_a_notebook_shows_what_a_model_is(hostile):
    shown = hostile[0]._repr_html_()
    assert shown == hostile[0]._repr_mimebundle_()["text/html"]
    assert len(shown) < 8_000
    page = Page(shown)
    check_safe(page)
    assert HOSTILE in page.words
    assert "<b>bold (0.33)" in page.words
    for what in ("MixtureClassifier", "training rows", "150", "3 of numbers, 1 of categories"):
        assert what in page.words


def test_a_notebook_shows_what_was_compared():
    page = Page(MixtureDensity(1, random_state=0).fit(X)._repr_html_())
    assert "4 candidates compared on held-out rows" in page.words
    assert page.words.count("chosen") == 1
    assert "Diagonal(floor=0.01)" in page.words


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (SparseMixtureClassifier(1, random_state=0), "weights that are left"),
        (PairwiseClassifier(MixtureClassifier(1, objective="likelihood")), "pairs of classes 3"),
        (MixtureImputer(1, random_state=0), "components 1"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_estimator_has_something_to_show(model, told):
    plain = Page(model.fit(X, Y)._repr_html_())
    check_safe(plain)
    assert told in plain.words


def test_what_is_not_fitted_keeps_the_diagram_of_scikit_learn(hostile):
    model = hostile[0]
    assert "sk-top-container" in clone(model)._repr_html_()
    assert "sk-top-container" in make_pipeline(model)._repr_html_()
    with config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert set(model._repr_mimebundle_()) == {"text/plain"}
