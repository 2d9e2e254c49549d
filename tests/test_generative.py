"""What a generative model can do: outliers, imputing, draws, an embedding."""

import numpy as np
import pytest
from small import PLAIN

from mixtura import MixtureClassifier


def test_outliers(several, iris):
    """Far rows are, no more than a share of the training rows is, and others are not."""
    X, _ = iris
    assert several.is_outlier(X + 100.0).all()
    assert several.is_outlier(X).sum() <= 2
    assert 5 <= several.is_outlier(X, share=0.1).sum() <= 15
    assert not several.is_outlier(X, share=0.0).any()
    assert not several.is_outlier(np.full((1, 4), np.nan)).any()


def test_imputing_the_mean(several, iris, holey_iris):
    """Holes are filled, near the truth, and observed entries come back to the bit."""
    X, holey = iris[0], holey_iris[0]
    filled = several.impute(holey)
    missing = np.isnan(holey)
    assert filled.shape == X.shape
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~missing], holey[~missing])
    naive = np.where(missing, np.nanmean(holey, axis=0), holey)
    assert ((filled - X) ** 2).sum() < 0.5 * ((naive - X) ** 2).sum()
    np.testing.assert_array_equal(several.impute(X), X)


def test_imputing_draws(several, holey_iris):
    """Draws differ where entries are missing, agree where not, and average to the mean."""
    holey = holey_iris[0][:20]
    missing = np.isnan(holey)
    draws = several.impute(holey, n_draws=100, random_state=0)
    assert draws.shape == (100, 20, 4)
    np.testing.assert_array_equal(draws[:, ~missing], np.tile(holey[~missing], (100, 1)))
    error = np.abs(draws.mean(0) - several.impute(holey))[missing]
    assert (error < 5 * draws.std(0)[missing] / 10).all()
    again = several.impute(holey, n_draws=100, random_state=0)
    np.testing.assert_array_equal(draws, again)


def test_imputing_with_labels(iris):
    """Given the class of a row of holes, its mean is the mean of the class."""
    model = MixtureClassifier(**PLAIN).fit(*iris)
    nothing = np.full((4, 4), np.nan)
    filled = model.impute(nothing, [0, 1, 2, -1])
    np.testing.assert_allclose(filled[:3], model.means_, 1e-9)
    np.testing.assert_allclose(filled[3], model.class_prior_ @ model.means_, 1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_imputing_keeps_the_type(several, holey_iris, dtype):
    """Float32 in, float32 out, observed entries to the bit."""
    holey = holey_iris[0].astype(dtype)
    filled = several.impute(holey)
    assert filled.dtype == dtype
    seen = ~np.isnan(holey)
    np.testing.assert_array_equal(filled[seen], holey[seen])


def test_sampling(iris):
    """Labels from the prior, or as asked; rows from the class."""
    X, y = iris
    model = MixtureClassifier(**PLAIN, class_prior=[0.6, 0.3, 0.1]).fit(X, y)
    rows, labels = model.sample(5000, random_state=0)
    assert rows.shape == (5000, 4)
    np.testing.assert_allclose(np.bincount(labels) / 5000, [0.6, 0.3, 0.1], atol=0.03)
    rows, labels = model.sample(2000, y=1, random_state=0)
    assert set(labels) == {1}
    np.testing.assert_allclose(rows.mean(0), X[y == 1].mean(0), atol=0.1)
    assert model.sample(3, y=[2, 0, 2], random_state=0)[1].tolist() == [2, 0, 2]
    again = model.sample(2000, y=1, random_state=0)[0]
    np.testing.assert_array_equal(rows, again)


def test_embedding(several, iris):
    """Component posteriors, named, summing to one."""
    embedded = several.transform(iris[0])
    assert embedded.shape == (150, 6)
    np.testing.assert_allclose(embedded.sum(1), 1.0, 1e-9)
    np.testing.assert_array_equal(embedded, several.responsibilities(iris[0]))
    names = several.get_feature_names_out()
    assert names.tolist() == [f"mixtureclassifier{i}" for i in range(6)]
