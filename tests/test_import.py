"""Names of the package are imported when they are used, and the command imports what it runs."""

import pickle
import subprocess
import sys

import pytest

import mixtura
from mixtura.densities import LowRank
from mixtura.solvers import EM, LBFGS, LinkedEM
from mixtura.training import networks

HEAVY = {"torch", "sklearn", "scipy", "matplotlib"}
LIGHT = """
import sys

import mixtura

assert {*mixtura.__all__, "densities", "__version__"} <= set(dir(mixtura))
assert not hasattr(mixtura, "MixtureRegresor")
sys.argv = ["mixtura", "--help"]
from mixtura import cli

try:
    cli.main()
finally:
    print("loaded:", *{name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.usefixtures("_command")
def test_neither_the_import_nor_the_help_of_the_command_loads_what_is_heavy():
    ended = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    shown, _, loaded = ended.stdout.partition("loaded:")
    assert "reproduce" in shown
    assert "typer" in loaded.split()
    assert not HEAVY & set(loaded.split())


def test_lazy_names_are_those_of_their_modules():
    """Star imports, attributes without an import of their own, and pickles."""
    found = {}
    exec("from mixtura import *", found)
    assert set(mixtura.__all__) == set(found) - {"__builtins__"}
    assert found["MixtureClassifier"] is mixtura.estimators.MixtureClassifier
    assert all(getattr(mixtura, name).__name__ == f"mixtura.{name}" for name in mixtura._MODULES)
    assert mixtura.solvers.EM is type(mixtura.solvers.SOLVERS["em"]())
    assert pickle.loads(pickle.dumps(mixtura.MixtureDensity)) is mixtura.MixtureDensity
    with pytest.raises(AttributeError, match="'mixtura' has no attribute 'MixtureRegresor'"):
        mixtura.MixtureRegresor  # noqa: B018
    with pytest.raises(ImportError, match="MixtureRegresor"):
        exec("from mixtura import MixtureRegresor")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fits_do_not_load_sympy(monkeypatch, holey_iris):
    """PyTorch loads it to check slopes that it is given, which takes longer than a small fit."""
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)
    monkeypatch.setattr(networks, "_ITERATIONS", (5, 5))
    X, y = (each[::5] for each in holey_iris)
    precision = {"density": LowRank(1, parameterization="precision"), "solver": LBFGS(2)}
    linked = {"init": EM(2), "solver": LinkedEM(2), "embedding": "log_density"}
    fitted = [
        mixtura.MixtureClassifier(1, **precision).fit(X, y),
        mixtura.MixtureNetworkClassifier(1, calibrate=False, **linked).fit(X, y),
    ]
    assert all(model.score(X, y) > 0.5 for model in fitted)  # of three classes
