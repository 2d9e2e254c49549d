"""Small data sets and generators that the tests share."""

import os
import shutil

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, load_wine

import mixtura
from mixtura import progress
from mixtura.data import lazy
from mixtura.densities import full_covariance, low_rank_covariance, patterns
from mixtura.engines import Engine
from mixtura.solvers import small

#: Rows of the files, and of their row groups.
FILES = {"p0": (70, 33), "p1": (1, 1), "p2": (100, 37), "p3": (49, 49)}

torch.set_num_threads(1)  # the tensors are small: a second thread costs more than it gives


@pytest.fixture
def generator():
    """A fresh stream of random numbers."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def rng():
    """A fresh stream of random numbers, NumPy's."""
    return np.random.default_rng(0)


@pytest.fixture
def large(monkeypatch):
    """Small tables go the way of large ones."""
    for module in (full_covariance, low_rank_covariance, patterns):
        monkeypatch.setattr(module, "_FEW", 0)
    monkeypatch.setattr(small, "_SMALL", {False: 0, True: 0})


class Clock:
    """A clock that work moves on: each reading is a tick after the one before it."""

    def __init__(self, tick=0.01):
        self.now, self.tick = 0.0, tick

    def perf_counter(self):
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """What a fit takes for the time: as much of it passes as there are iterations."""
    ticking = Clock()
    monkeypatch.setattr(progress, "time", ticking)
    return ticking


@pytest.fixture
def _command():
    """Skips what runs the command `mixtura` where its packages are absent."""
    for package in ("typer", "matplotlib"):
        pytest.importorskip(package)


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, or none."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("MIXTURA_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium here: install Debian's package chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def iris():
    """150 flowers of three kinds."""
    X, y = load_iris(return_X_y=True)
    X.flags.writeable = False
    return X, y


@pytest.fixture(scope="session")
def flowers(iris):
    """Every second flower."""
    return iris[0][::2], iris[1][::2]


@pytest.fixture(scope="session")
def wine():
    """178 wines of three cultivars, features of very different scale."""
    X, y = load_wine(return_X_y=True)
    X.flags.writeable = False
    return X, y


@pytest.fixture
def holey_iris(iris, rng):
    """Iris with a fifth of its entries missing."""
    X, y = iris
    return np.where(rng.random(X.shape) < 0.2, np.nan, X), y


@pytest.fixture
def holey_wine(wine, rng):
    """Wine with a tenth of its entries missing."""
    X, y = wine
    return np.where(rng.random(X.shape) < 0.1, np.nan, X), y


@pytest.fixture(scope="session")
def several(iris):
    """A generative model with several components a class, unequal in number."""
    return mixtura.MixtureClassifier([2, 1, 3], objective="likelihood", random_state=0).fit(*iris)


@pytest.fixture(scope="module")
def frame():
    """Numbers, text and booleans with holes; labels, of which some are missing, and weights."""
    pd, rng = pytest.importorskip("pandas"), np.random.default_rng(0)
    n = sum(rows for rows, _ in FILES.values())
    y = rng.integers(3, size=n)
    X = rng.normal(size=(n, 3)) + y[:, None] * [2.0, 0.0, -1.0]
    X[rng.random(X.shape) < 0.1] = np.nan
    kind = np.array(["red", "green", "blue"], dtype=object)[(y + rng.integers(2, size=n)) % 3]
    kind[rng.random(n) < 0.1] = None
    return pd.DataFrame(
        {
            **dict(zip("abc", X.T, strict=True)),
            "kind": kind,
            "flag": rng.random(n) < 0.2 + 0.3 * y,
            "label": np.array(["x", "y", "z"], dtype=object)[y],
            "weight": rng.integers(1, 4, size=n).astype(float),
        }
    )


@pytest.fixture(scope="module")
def files(frame, tmp_path_factory):
    """The rows of `frame`, in files and row groups of odd sizes."""
    pytest.importorskip("pyarrow")
    folder, start = tmp_path_factory.mktemp("rows"), 0
    for name, (rows, group) in FILES.items():
        part = frame[start : start + rows]
        part.to_parquet(folder / f"{name}.parquet", row_group_size=group, index=False)
        start += rows
    return folder


@pytest.fixture
def streaming(monkeypatch):
    """Less than a quarter of the rows comes into memory for good, and chunks are short."""
    streamed = pytest.importorskip("mixtura.data.streamed")
    monkeypatch.setattr(lazy, "_FEW", 250)
    monkeypatch.setattr(Engine, "most_rows", {"cpu": 64, "cuda": 64})
    monkeypatch.setattr(streamed, "_WINDOW", 400)
