"""A model of the rows of a Dask cluster: that of one process with all rows."""

import logging
import os

import numpy as np
import pytest
import torch.distributed as dist
from sklearn.base import clone

from mixtura import MixtureClassifier
from mixtura.exceptions import InvalidInputError
from mixtura.solvers import EM

dask = pytest.importorskip("dask", reason="Dask is not installed: pip install 'mixtura[dask]'")
distributed = pytest.importorskip("distributed", reason="pip install 'mixtura[dask]'")
pd = pytest.importorskip("pandas")
dd = pytest.importorskip("dask.dataframe", reason="Dask without data frames")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

MODEL = MixtureClassifier(
    2, density="diag", objective="likelihood", solver=EM(3), init=EM(2), random_state=0
)


@pytest.fixture(scope="module")
def frame():
    """The last class, and the last word, are in the last partition alone."""
    rng = np.random.default_rng(0)
    y = np.sort(rng.integers(3, size=120))
    X = rng.normal(size=(120, 2)) + y[:, None]
    word = np.where(y == 2, "c", np.where(rng.random(120) < 0.5, "a", "b"))
    weight = rng.integers(1, 3, size=120)
    return pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "word": word, "y": y, "weight": weight})


@pytest.fixture(scope="module")
def client():
    """Four processes, forked: what is imported here is not imported again.

    Nothing is logged: a thread that does so while another one forks leaves a lock in the new
    process that nobody opens.
    """
    options = {"distributed.worker.multiprocessing-method": "fork", "logging.distributed": "fatal"}
    logging.disable()
    try:
        with (
            dask.config.set(options),
            distributed.LocalCluster(4, threads_per_worker=1, dashboard_address=":0") as cluster,
            distributed.Client(cluster) as connected,
        ):
            yield connected
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_and_one_process_give_the_same_model(frame, client):
    from mixtura.dask import fit

    parts = dd.from_pandas(frame, npartitions=5)
    found = fit(client, MODEL, parts, "y", "weight")
    X, y, weight = frame[["u", "v", "word"]], frame["y"], frame["weight"]
    expected = clone(MODEL).fit(X, y, weight)
    assert found.classes_.tolist() == [0, 1, 2]
    assert not hasattr(MODEL, "model_")
    np.testing.assert_allclose(found.weights_, expected.weights_, 1e-9)
    np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(X), 1e-7, 1e-9)


def test_columns_that_are_not_there_are_named(frame, client):
    from mixtura.dask import fit

    with pytest.raises(InvalidInputError, match="no column 'label' for y"):
        fit(client, MODEL, dd.from_pandas(frame, npartitions=2), "label")


def die_in_rank_1(record):
    if dist.get_rank() == 1:
        os._exit(1)


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_dies_is_an_error_at_once(frame, client):
    from mixtura.dask import fit

    parts = dd.from_pandas(frame.drop(columns="weight"), npartitions=2)
    with pytest.raises(ConnectionError, match="checkpoint="):
        fit(client, clone(MODEL).set_callbacks(die_in_rank_1), parts, "y")


def test_what_a_cluster_cannot_fit_is_refused(frame):
    from mixtura.dask import fit

    with (
        distributed.LocalCluster(2, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        with pytest.raises(InvalidInputError, match="processes=True"):
            fit(client, MODEL, dd.from_pandas(frame, npartitions=2), "y")
        with pytest.raises(InvalidInputError, match="data frame of Dask"):
            fit(client, MODEL, frame, "y")
