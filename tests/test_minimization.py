"""L-BFGS on several functions side by side: against scipy's, and known minima."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar, rosen, rosen_der

from mixtura.solvers.lbfgs import Minimization

pytestmark = pytest.mark.filterwarnings("error")
#: Curvatures of a quadratic, its minimum, and the weight of the absolute values beside it.
CURVATURE, CENTER, KINK = np.array([1.0, 1e2, 1e3, 1e4]), np.array([3.0, -2.0, 0.1, 0.5]), 0.7


def quadratic(x):
    """Curvatures from one to ten thousand."""
    return 0.5 * CURVATURE @ (x - CENTER) ** 2, CURVATURE * (x - CENTER)


def kinked(x):
    """A lasso: the minimum has zeros, where there is no slope."""
    value = 0.5 * np.sum((x - CENTER) ** 2) + KINK * np.abs(x).sum()
    return value, x - CENTER + KINK * np.sign(x)


def barrier(x):
    """Not a number where any entry is negative; the minimum is at one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sum(x - np.log(x)), 1.0 - 1.0 / x


def cliff(x):
    """Infinite outside a ball, steep towards its rim."""
    room = 25.0 - x @ x
    if room <= 0.0:
        return np.inf, np.full_like(x, np.nan)
    return x.sum() + 1.0 / room, 1.0 + 2.0 * x / room**2


FUNCTIONS = {
    "rosenbrock": (lambda x: (rosen(x), rosen_der(x)), [-1.2, 1.0, -0.5, 2.0]),
    "quadratic": (quadratic, [0.0, 0.0, 0.0, 0.0]),
    "kinked": (kinked, [5.0, 5.0, 5.0, 5.0]),
    "barrier": (barrier, [0.01, 5.0, 0.3, 40.0]),
    "cliff": (cliff, [0.1, 0.2, 0.3, 0.4]),
    "at its minimum": (quadratic, CENTER),
    "nowhere defined": (lambda x: (np.nan, np.full_like(x, np.nan)), [0.0, 0.0, 0.0, 0.0]),
}
DEFINED = [name for name in FUNCTIONS if name != "nowhere defined"]


def side_by_side(names, max_iter=500, tol=0.0):
    """The search, after it has ended; and the losses of its points, one after another."""

    def function(points):
        found = [FUNCTIONS[name][0](point) for name, point in zip(names, points, strict=True)]
        return np.array([loss for loss, _ in found]), np.array([slope for _, slope in found])

    start = np.array([FUNCTIONS[name][1] for name in names])
    search, course = Minimization(function, start, max_iter, tol), []
    for _ in range(30 * max_iter):
        course.append(search.loss)
        if search.settled.all():
            break
        search.advance()
    assert search.settled.all()
    return search, np.array(course)


@pytest.fixture(scope="module")
def together():
    """All functions, each to its end."""
    return side_by_side(list(FUNCTIONS))


@pytest.mark.parametrize("name", DEFINED)
def test_no_worse_than_scipy(name, together):
    """L-BFGS-B with as much memory, which is told the bounds that we have to find."""
    search, place = together[0], list(FUNCTIONS).index(name)
    function, start = FUNCTIONS[name]
    settings = {"bounds": [(1e-6, None)] * 4} if name == "barrier" else {}
    options = {"maxcor": 20, "ftol": 0.0, "gtol": 1e-8, "maxiter": 500}
    theirs = minimize(function, start, jac=True, method="L-BFGS-B", options=options, **settings)
    assert search.loss[place] <= theirs.fun + 1e-9
    assert search.loss[place] == pytest.approx(function(search.point[place])[0], rel=1e-12)
    if name in ("rosenbrock", "quadratic"):
        assert search.n_iter[place] <= 1.3 * theirs.nit


def test_known_minima(together):
    """Of the lasso, at walls, and what was there from the start."""
    points = dict(zip(FUNCTIONS, together[0].point, strict=True))
    lasso = np.sign(CENTER) * np.maximum(np.abs(CENTER) - KINK, 0.0)
    np.testing.assert_allclose(points["kinked"], lasso, 0.0, 1e-4)
    np.testing.assert_allclose(points["barrier"], 1.0, 1e-6)
    along = minimize_scalar(
        lambda t: cliff(np.full(4, -t))[0], bounds=(0.0, 2.5), options={"xatol": 1e-9}
    )
    np.testing.assert_allclose(points["cliff"], -along.x, 1e-5)
    np.testing.assert_allclose(points["rosenbrock"], 1.0, 1e-5)
    np.testing.assert_array_equal(points["at its minimum"], CENTER)
    n_iter = dict(zip(FUNCTIONS, together[0].n_iter, strict=True))
    assert n_iter["at its minimum"] == n_iter["nowhere defined"] == 0


def test_losses_never_rise(together):
    """A point is taken only where the loss is lower, and once settled it stays."""
    course = together[1][:, : len(DEFINED)]
    assert (np.diff(course, axis=0) <= 0.0).all()


@pytest.mark.parametrize("name", DEFINED)
def test_problems_do_not_influence_each_other(name):
    """Beside others, a function takes the steps that it takes alone."""
    place = list(FUNCTIONS).index(name)
    alone, course = side_by_side([name], 12)
    beside, courses = side_by_side(list(FUNCTIONS), 12)
    assert alone.n_iter[0] == beside.n_iter[place]
    np.testing.assert_allclose(beside.point[place], alone.point[0], 1e-9, 1e-9)
    np.testing.assert_allclose(courses[: len(course), place], course[:, 0], 1e-9, 1e-9)


def test_it_ends_where_asked():
    """After so many steps, or with a gain that is a small share of the loss."""
    names = ["rosenbrock", "quadratic"]
    assert (side_by_side(names, 3)[0].n_iter == 3).all()
    loose, tight = (side_by_side(names, tol=tol)[0] for tol in (1e-2, 1e-9))
    assert (loose.n_iter < tight.n_iter).all()
    assert (loose.loss > tight.loss).all()
