"""Values that many rows share: against sums over components by hand, and SciPy's densities."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from scipy.special import logsumexp

from mixtura import MixtureClassifier, load
from mixtura.data.atoms import n_patterns, shared_values
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.densities import Diagonal, Full
from mixtura.engines import engine_of
from mixtura.estimators.blending import curved
from mixtura.exceptions import UnsupportedError
from mixtura.nn import MixtureHead
from mixtura.report.portrait import describe
from mixtura.report.quality import percent
from mixtura.solvers import EM, LBFGS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
BRIEF = {"solver": EM(max_iter=5), "objective": "likelihood", "random_state": 0}
ATOMS = {0: (0.1,), 2: (-0.5, 1.5)}


def draw(n=240, seed=0):
    """Rows of three numbers, some of which are 0.1, or are cut off at -0.5 and 1.5."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    X = rng.normal(size=(n, 3)) @ [[1, 0.5, 0.2], [0, 1, 0.8], [0, 0, 1]] + y[:, None] * [1, 0, 0.5]
    X[:, 0] = np.where(rng.random(n) < np.where(y == 1, 0.2, 0.5), 0.1, X[:, 0])
    X[:, 2] = X[:, 2].clip(-0.5, 1.5)
    return X, y


@pytest.fixture(scope="module")
def rows():
    return draw()


@pytest.fixture(scope="module")
def model(rows):
    return MixtureClassifier(2, density="full", marginals="linear+atoms", **BRIEF).fit(*rows)


@pytest.fixture(scope="module")
def holed(rows):
    """Every combination of values: an atom, another number, nothing."""
    combined = product((0.1, 0.7, np.nan), (0.3, np.nan), (-0.5, 1.5, 0.4, np.nan))
    return np.array(list(combined))


def chances(model):
    """(K, 1 + number of atoms) of each of the columns that have atoms; first, of no atom."""
    part = model.mixture_.density.parts[1]
    return dict(zip(ATOMS, (each.numpy() for each in part.by_column(part.spread)), strict=True))


def by_hand(model, X):
    """(n, K) log densities of the components, row by row, by SciPy."""
    found = np.zeros((len(X), len(model.weights_)))
    for (i, row), (k, mean) in product(enumerate(X), enumerate(model.means_)):
        numbers = []
        for column, value in enumerate(row):
            if np.isnan(value):
                continue
            shared = ATOMS.get(column, ())
            if value not in shared:
                numbers.append(column)
            if shared:
                code = 1 + shared.index(value) if value in shared else 0
                found[i, k] += np.log(chances(model)[column][k, code])
        if numbers:
            spread = model.covariances_[k][np.ix_(numbers, numbers)]
            found[i, k] += stats.multivariate_normal(mean[numbers], spread).logpdf(row[numbers])
    return found


def weights(model):
    return np.repeat(model.class_prior_, model.n_components_) * model.weights_


# -- which values they are -----------------------------------------------------------------------


def column(*counts, rest=0):
    """Values 0, 1, ... so many times, and so many different others."""
    return np.concatenate([np.repeat(np.arange(len(counts)), counts), 100.0 + np.arange(rest)])


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (column(30, rest=70), (0.0,)),
        (column(30, 40, rest=30), (0.0, 1.0)),
        (column(19, rest=40), ()),  # few rows
        (column(30, rest=400), ()),  # a small share
        (column(30, 20, 15, 10), ()),  # levels, all of which are common
        (column(30, 9, 8, 7), (0.0,)),
        (column(90, 9, 1), ()),  # two others: a category
        (np.append(column(30, rest=70), [np.nan] * 300), (0.0,)),
    ],
)
def test_a_value_that_stands_out(values, wanted):
    found = shared_values(values[:, None], np.ones(len(values)), np.array([0]))
    assert found == ({0: wanted} if wanted else {})
    assert shared_values(values[:, None], np.ones(len(values)), np.array([4])) == {}


def test_weights_are_repetitions():
    values = column(3, rest=7)[:, None]
    assert shared_values(values, np.full(10, 9.0), np.array([0])) == {0: (0.0,)}
    assert shared_values(values, np.ones(10), np.array([0])) == {}


# -- what they are worth -------------------------------------------------------------------------


def test_atoms_are_found_again_to_the_digit(model):
    assert dict(zip(model.scaling_.atoms.columns, model.scaling_.atoms.shown, strict=True)) == ATOMS


def test_log_densities_are_those_by_hand(model, holed):
    """Of whole rows and of rows with holes; an atom has a probability, whatever the units."""
    wanted = by_hand(model, holed) + np.log(weights(model))
    total = logsumexp(wanted, axis=1)  # zero but for rounding, where nothing is observed
    np.testing.assert_allclose(model.score_samples(holed), total, rtol=1e-8, atol=1e-12)
    share = np.exp(wanted - logsumexp(wanted, axis=1, keepdims=True))
    np.testing.assert_allclose(model.responsibilities(holed), share, atol=1e-9)


@pytest.mark.parametrize("kind", ["linear", "power", "ranks"])
def test_atoms_and_the_rest_make_one(kind, rows):
    """In the units of X, for each of the columns, whatever curves there are."""
    named = MixtureClassifier(1, density=Diagonal(), marginals=f"{kind}+atoms", **BRIEF).fit(*rows)
    grid = np.linspace(-25.0, 25.0, 40_001) + 1e-4
    for column, atoms in ATOMS.items():
        asked = np.full((len(grid), 3), np.nan)
        asked[: len(atoms), column] = atoms
        mass = np.exp(named.score_samples(asked[: len(atoms)])).sum()
        share = np.isin(rows[0][:, column], atoms).mean()
        assert mass == pytest.approx(share, abs=0.02)
        asked[:, column] = grid
        rest = integrate.trapezoid(np.exp(named.score_samples(asked)), grid)
        assert mass + rest == pytest.approx(1.0, abs=2e-3)


def test_slopes_are_those_of_autograd(model, rows):
    density, batch = model.mixture_.density, model._engine(rows[0][:50]).all_rows()
    occupancy = torch.rand(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    free = {name: value.clone().requires_grad_() for name, value in density.free().items()}
    (density.from_free(free).log_prob(batch) * occupancy).sum().backward()
    found = density.slope(density.statistics(batch, occupancy))
    for name, value in free.items():
        torch.testing.assert_close(found[name], value.grad, rtol=1e-6, atol=1e-8)


# -- what is drawn and filled in -----------------------------------------------------------------


def test_draws_have_the_atoms(model):
    drawn = model.sample(4000, random_state=0)[0]
    for column, atoms in ATOMS.items():
        wanted = weights(model) @ chances(model)[column][:, 1:]
        found = [(drawn[:, column] == atom).mean() for atom in atoms]
        np.testing.assert_allclose(found, wanted, atol=0.03)


def test_means_of_what_is_missing(model, holed):
    """Given the component, atoms by their chances and the regression on the numbers by hand."""
    filled = model.impute(holed)
    share, mean, spread = model.responsibilities(holed), model.means_, model.covariances_
    for i, row in enumerate(holed):
        known = [c for c, v in enumerate(row) if v == v and v not in ATOMS.get(c, ())]
        for column in np.flatnonzero(np.isnan(row)):
            total = 0.0
            for k in range(len(mean)):
                gain = spread[k][column, known] @ np.linalg.pinv(spread[k][np.ix_(known, known)])
                number = mean[k, column] + gain @ (row[known] - mean[k, known])
                own = chances(model)[column][k] if column in ATOMS else [1.0]
                total += share[i, k] * np.dot(own, [number, *ATOMS.get(column, ())])
            assert filled[i, column] == pytest.approx(total, abs=1e-8)
    np.testing.assert_array_equal(filled[~np.isnan(holed)], holed[~np.isnan(holed)])


def test_draws_of_what_is_missing_average_to_the_means(model, holed):
    many = np.tile(holed, (400, 1))
    drawn = model.impute(many, n_draws=1, random_state=0).reshape(400, *holed.shape)
    assert np.abs(drawn.mean(0) - model.impute(holed)).max() < 0.2
    hidden = np.isnan(holed[:, 2])
    assert 0.05 < (drawn[:, hidden, 2] == 1.5).mean() < 0.5
    np.testing.assert_array_equal(drawn[0][~np.isnan(holed)], holed[~np.isnan(holed)])


# -- other answers -------------------------------------------------------------------------------


def test_shapley_values_are_those_of_all_subsets(model, holed):
    """Of rows with different atoms and holes, against answers to rows with further holes."""
    asked = holed[[0, 2, 6, 11, 19]]
    for output in ("probability", "log_density"):
        found = model.explain(asked, output)
        for i, row in enumerate(asked):
            wanted = _enumerated(model, row, output)
            np.testing.assert_allclose(np.array(found.values[i])[..., :], wanted, atol=1e-8)


def _enumerated(model, row, output):
    """(3, ...) Shapley values by the six orders of three columns."""

    def answer(kept):
        X = np.where(np.isin(np.arange(3), list(kept)), row, np.nan)[None]
        if output == "probability":
            return model.predict_proba(X)[0]
        lines = np.log(model.scaling_.scale)
        numbers = [c for c in kept if row[c] == row[c] and row[c] not in ATOMS.get(c, ())]
        return model.score_samples(X)[0] + lines[numbers].sum()  # in units in which columns compare

    total = [0.0, 0.0, 0.0]
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        for place, column in enumerate(order):
            total[column] += (answer(order[: place + 1]) - answer(order[:place])) / 6
    return np.array(total)


def test_orders_of_columns_agree_with_all_subsets(model, rows):
    exact = model.explain(rows[0][:6], method="exact").values
    drawn = model.explain(rows[0][:6], method="permutation", random_state=0).values
    np.testing.assert_allclose(drawn, exact, atol=0.02)


@pytest.mark.parametrize("kind", ["full", "student"])
def test_information_counts_atoms_and_the_rest(kind, rows):
    """Of the first column alone: a sum over atoms and an integral, by SciPy."""
    model = MixtureClassifier(1, density=kind, marginals="linear+atoms", **BRIEF).fit(*rows)
    prior, mean = model.class_prior_, model.means_[:, 0]
    deviation, own = np.sqrt(model.covariances_[:, 0, 0]), chances(model)[0]
    density = stats.norm(mean, deviation).pdf
    if kind == "student":
        dof = model.mixture_.density.parts[0].dof.numpy()
        density = stats.t(dof, mean, deviation * np.sqrt((dof - 2) / dof)).pdf

    def gain(density):
        return np.sum(prior * density * np.log(density / (prior @ density)))

    rest = integrate.quad(lambda value: gain(own[:, 0] * density(value)), -8, 9)[0]
    X = np.array([[np.nan] * 3, [0.1, np.nan, -0.5]])
    found = model.next_feature(X)
    assert found[0, 0] == pytest.approx(gain(own[:, 1]) + rest, rel=0.02)
    assert (found[1, [0, 2]] == 0.0).all()
    assert found[1, 1] > 0.0


def test_conditions_are_quotients(model, rows):
    given = model.condition({0: 0.1})
    asked = rows[0][:5].copy()
    asked[:, 0] = 0.1
    blank = np.array([[0.1, np.nan, np.nan]])
    wanted = model.score_samples(asked) - model.score_samples(blank)
    np.testing.assert_allclose(given.score_samples(asked), wanted, atol=1e-9)
    assert (given.sample(50, random_state=0)[:, 0] == 0.1).all()


def test_reports_name_them(model):
    own = weights(model) @ chances(model)[0][:, 1]
    told = [line for line in describe(model.model_, ["one", "two", "three"]) if "one = " in line]
    assert told
    assert all("one = 0.1 in" in line and f"(all rows {percent(own)})" in line for line in told)


def test_files_keep_them(model, holed, tmp_path):
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(holed), model.score_samples(holed))


def test_a_head_has_none(rows):
    settings = {"density": Full(), **BRIEF}
    with pytest.raises(UnsupportedError, match="marginals='linear'"):
        MixtureHead.from_mixture(
            MixtureClassifier(1, marginals="linear+atoms", **settings).fit(*rows)
        )


# -- the default ---------------------------------------------------------------------------------


def test_the_default_has_them_where_rows_do(rows):
    X, y = rows
    model = MixtureClassifier(solver=LBFGS(max_iter=3), random_state=0).fit(X[:120], y[:120])
    assert any(kind.endswith("+atoms") for kind in model.marginals_)
    assert model.marginals_[0] == "linear"
    assert model.score(X[120:], y[120:]) > 0.65


def test_atoms_stand_beside_curves(rows):
    """Of either kind."""
    X, y = rows
    engine = engine_of(Matrix(X), y, np.ones(len(y)), Scaling.measure(X, np.ones(len(y))), "cpu")
    power, ranks = (curved(engine, kind) for kind in ("power+atoms", "ranks+atoms"))
    assert power.atoms.columns == ranks.atoms.columns != ()
    assert not np.array_equal(power.curves.to, ranks.curves.to)


def test_the_default_has_none_where_rows_have_them_in_many_ways(rng):
    """Each set of columns takes a factorization: rows of counts would take minutes."""
    X = np.where(rng.random((300, 12)) < 0.5, 0.0, rng.lognormal(size=(300, 12)))
    shared = shared_values(X, np.ones(300), np.zeros(12, int))
    assert len(shared) == 12
    assert n_patterns(X, shared) == len(np.unique(X == 0.0, axis=0)) > 128
    model = MixtureClassifier(1, solver=LBFGS(2), random_state=0).fit(X, X[:, 0] > 0)
    assert not any(kind.endswith("+atoms") for kind in model.marginals_)
    assert len(model.marginals_) > 1


def test_categories_and_holes_that_tell_beside_them(rows):
    """Rows of text and numbers; what is missing tells the class."""
    pandas = pytest.importorskip("pandas")
    X, y = rows
    frame = pandas.DataFrame(X, columns=list("abc"))
    frame["kind"] = np.where((y == 1) ^ (np.arange(len(y)) % 4 == 0), "u", "v")
    frame.loc[(y == 1) & (np.arange(len(y)) % 2 == 0), "b"] = np.nan
    settings = {"marginals": "power+atoms", "missingness": "informative", **BRIEF}
    model = MixtureClassifier(1, density="diag", **settings).fit(frame, y)
    assert model.score(frame, y) > 0.8
    drawn = model.sample(200, random_state=0)[0]
    assert set(drawn["kind"]) == {"u", "v"}
    assert (drawn["a"] == 0.1).any()
    filled = model.impute(frame.iloc[:20])
    assert not filled.isna().any().any()
