"""Processes that hold some of the rows each: one model, that of one process with all rows."""

import os
import re
from functools import partial
from importlib.util import find_spec
from multiprocessing import set_forkserver_preload

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from mixtura import MixtureClassifier, MixtureDensity
from mixtura.data import sharded
from mixtura.distributed import Shard
from mixtura.engines import Engine, table
from mixtura.exceptions import InvalidInputError, UnsupportedError
from mixtura.solvers import EBW, EM, LBFGS, Adam

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="PyTorch without gloo"
)

SETTINGS = {
    "em": {"objective": "likelihood", "solver": EM(3)},
    "lbfgs": {"tradeoff": 0.5, "solver": LBFGS(3)},
    "ebw": {"tradeoff": 0.5, "solver": EBW(3)},
    "adam": {"tradeoff": 0.5, "solver": Adam(3, batch_size=8, early_stopping=False)},
}


def make_rows():
    """Numbers and words with holes; the class "z" and the word "c" are in the last rows alone."""
    rng = np.random.default_rng(0)
    y = np.sort(rng.integers(3, size=90))
    X = rng.normal(size=(90, 2)) + y[:, None] * [2.0, -1.0]
    X[rng.random(X.shape) < 0.1] = np.nan
    word = np.where(y == 2, "c", np.where(rng.random(90) < 0.5, "a", "b"))
    return pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "word": word}), np.array(["x", "y", "z"])[y]


def make_model(name):
    model = MixtureClassifier(
        2, density="diag", init=EM(2), missingness="ignore", calibrate=False, random_state=0
    )
    return model.set_params(**SETTINGS[name])


def parameters(model):
    found = {"means": model.means_, "covariances": model.covariances_, "weights": model.weights_}
    return found | {"typical": model.score_quantiles_}


def refusals(rank, X, y):
    """Messages of what is refused, in all processes."""
    wrong = {
        "columns": (Shard(X.rename(columns={"u": f"u{rank}"})), {}),
        "type": (Shard(X.assign(u=X["u"].astype(str)) if rank else X), {}),
        "infinity": (Shard(X.assign(u=np.inf) if rank else X), {}),
        "settings": (Shard(X), {"n_components": 1 + rank}),
        "seed": (Shard(X), {"random_state": None}),
        "clock": (Shard(X), {"max_time": 1.0}),
        "nothing": (Shard(X[:0]), {}),
    }
    found = {}
    for name, (given, settings) in wrong.items():
        with pytest.raises((InvalidInputError, UnsupportedError)) as error:
            make_model("em").set_params(**settings).fit(given, y[: len(given.X)])
        found[name] = str(error.value)
    return found


def work(rank, folder, stop):
    """What one of two processes does: it holds the rows up to `stop`, or those from there on."""
    torch.set_num_threads(1)
    sharded._FEW_ROWS, table._WORTH = 20, 0
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    X, y = make_rows()
    mine = slice(0, stop) if rank == 0 else slice(stop, None)
    found = {}
    for name in SETTINGS:
        found[name] = parameters(make_model(name).fit(Shard(X[mine]), y[mine]))
    density = MixtureDensity(2, density="diag", solver=EM(3), random_state=0)
    found["density"] = parameters(density.fit(Shard(X[["u", "v"]].to_numpy()[mine])))
    if find_spec("pyarrow"):
        path = f"{folder}/{rank}.parquet"
        X[mine].assign(label=y[mine]).to_parquet(path)
        found["files"] = parameters(make_model("em").fit(Shard(path), "label"))
        rows = Shard(path).opened("label", None, None).rows
        places = torch.cat([*rows.own_minibatches(7, torch.Generator().manual_seed(0))])
        found["places"] = places.tolist()
        found["adam of files"] = parameters(make_model("adam").fit(Shard(path), "label"))
    alone = slice(0, 0) if rank == 0 else slice(None)
    found["alone"] = parameters(make_model("em").fit(Shard(X[alone]), y[alone]))
    found["refused"] = refusals(rank, X[mine], y[mine])
    if rank == 1:
        torch.save(found, f"{folder}/{rank}")
    dying = make_model("em").set_callbacks(partial(die, rank))
    with pytest.raises(ConnectionError) as error:
        dying.fit(Shard(X[mine]), y[mine], checkpoint=f"{folder}/run.ckpt")
    found["lost"] = str(error.value)
    torch.save(found, f"{folder}/{rank}")
    dist.destroy_process_group()


def die(rank, record):
    """Process 1 ends without a word."""
    if rank == 1 and record["iteration"] == 2:
        os._exit(0)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the two processes have found, and what they have refused."""
    folder = tmp_path_factory.mktemp("processes")
    set_forkserver_preload(["mixtura.estimators", "pandas"])  # imported once, not by both
    start_processes(work, (str(folder), 35), nprocs=2, start_method="forkserver")
    found = [torch.load(folder / str(rank), weights_only=False) for rank in range(2)]
    return [{**each, "checkpoint": folder / "run.ckpt"} for each in found]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*SETTINGS, "density", "alone", "files"])
def test_many_processes_and_one_give_the_same_model(name, found):
    """Also where a class or a category is in one process alone, and where one has no rows."""
    X, y = make_rows()
    if name == "density":
        model = MixtureDensity(2, density="diag", solver=EM(3), random_state=0)
        expected = parameters(model.fit(X[["u", "v"]].to_numpy()))
    else:
        expected = parameters(make_model(name if name in SETTINGS else "em").fit(X, y))
    for answers in found:
        if name == "files" and name not in answers:
            pytest.skip("pyarrow is not installed")
        for key, value in expected.items():
            np.testing.assert_allclose(answers[name][key], value, 1e-9, 1e-9)


def test_adam_reads_files_in_an_order_of_their_own(found):
    """Every row once per epoch: other minibatches, and much the same model in all processes."""
    if "adam of files" not in found[0]:
        pytest.skip("pyarrow is not installed")
    assert all(sorted(each["places"]) == list(range(90)) for each in found)
    assert found[0]["places"] != found[1]["places"]
    first, second = (each["adam of files"] for each in found)
    for key, value in first.items():
        np.testing.assert_allclose(second[key], value, 1e-9, 1e-9)
        np.testing.assert_allclose(found[0]["adam"][key], value, 0.1, 0.1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("columns", "rank 1 has the columns .'u1', 'v', 'word'., and rank 0"),
        ("type", "column 'u' holds text at rank . and numbers at rank ."),
        ("infinity", "rank 1: Input X contains infinity"),
        ("settings", "n_components must be the same in all processes: it is 1 in rank 0, and 2 in"),
        ("seed", "random_state must be an int"),
        ("clock", "max_time"),
        ("nothing", "no process has rows"),
    ],
)
def test_what_is_refused_names_the_rank(name, message, found):
    for answers in found:
        refused = answers["refused"][name]
        assert re.search(message, refused), refused


@pytest.mark.filterwarnings("ignore")
def test_a_process_that_dies_is_an_error_at_the_others_and_its_fit_goes_on(
    found, monkeypatch, tmp_path
):
    """With another number of processes: here with one, from the checkpoint of two."""
    assert "rank 0 has lost the other processes" in found[0]["lost"]
    computed, summed = [], Engine._summed
    monkeypatch.setattr(table, "_WORTH", 0)
    monkeypatch.setattr(Engine, "_summed", lambda *a: computed.append(1) or summed(*a))
    X, y = make_rows()
    expected = parameters(make_model("em").fit(X, y, checkpoint=tmp_path / "run.ckpt"))
    n_sums = len(computed)
    computed.clear()
    resumed = parameters(make_model("em").fit(X, y, checkpoint=found[0]["checkpoint"]))
    assert 0 < len(computed) < n_sums
    for key, value in expected.items():
        np.testing.assert_allclose(resumed[key], value, 1e-9, 1e-9)


@pytest.mark.filterwarnings("ignore")
def test_row_groups_are_shared_out_in_their_order(tmp_path):
    pytest.importorskip("pyarrow")
    from mixtura.parquet import Source

    X, _ = make_rows()
    X[:50].to_parquet(tmp_path / "a.parquet", row_group_size=10)
    X[50:50].to_parquet(tmp_path / "b.parquet")
    X[50:].to_parquet(tmp_path / "c.parquet", row_group_size=40)
    source = Source(str(tmp_path / "*.parquet"), columns=["u", "v", "word"])
    opened = [source.share(rank, 8).opened(None, None, None).rows for rank in range(8)]
    assert [len(rows) for rows in opened] == [10, 10, 10, 10, 10, 0, 40, 0]
    held = np.concatenate([rows[:] for rows in opened if len(rows)])
    assert np.array_equal(held[:, :2], X[["u", "v"]], equal_nan=True)
    with pytest.raises(InvalidInputError, match="each its own"):
        Source([X]).share(0, 2).opened(None, None, None)


def test_the_command_shares_out_tables():
    """What torchrun's processes do, but for their group."""
    pytest.importorskip("pyarrow")
    from mixtura.cli.processes import Processes

    X, y = make_rows()
    parts = [Processes(rank, 4).share(X, y) for rank in range(4)]
    assert pd.concat([shard.X for shard, _ in parts]).equals(X)
    assert np.concatenate([labels for _, labels in parts]).tolist() == y.tolist()
    assert Processes().share(X, y)[0] is X
    with Processes.of_torchrun() as alone:
        assert alone == Processes()


def test_a_shard_needs_a_group():
    with pytest.raises(InvalidInputError, match="init_process_group"):
        MixtureDensity(1, random_state=0).fit(Shard(np.zeros((3, 1))))
