"""A type checker sees scikit-learn's bases: `make lint` finds calls that cannot be right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: A user's module; a line that must be refused ends in the code of the error.
SAMPLE = """
import numpy as np

from mixtura import MixtureClassifier, SequenceMixtureClassifier
from mixtura.objectives import Margin

X, y = np.eye(2), [0, 1]
model = MixtureClassifier(n_components=1).set_params(solver="em").fit(X, y)
model.predict_proba(X)
model.predict_probability(X)  # attr-defined
model.predict_log_proba(X, y)  # call-arg
SequenceMixtureClassifier().fit([X], y).impute([X], n_draws="one")  # arg-type


class Own(MixtureClassifier):
    def outliers(self) -> np.ndarray:
        return X[self.is_outlier(X, share=0.1) | self.is_outlying(X)]  # attr-defined


class Narrow(Margin):
    def check(self) -> None:
        self._validate_params()
        self._validate_params(deep=True)  # call-arg
        self._check_params()  # attr-defined
"""


def test_wrong_calls_of_estimators_and_parts_are_type_errors(tmp_path):
    pytest.importorskip("mypy")
    # A second or two with the cache that `make lint` leaves, half a minute without it.
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", sample]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    found = re.findall(r"sample\.py:(\d+): error: .*\[(.+)\]", printed)
    marked = enumerate(SAMPLE.splitlines(), start=1)
    wanted = [(str(line), text.split("  # ")[1]) for line, text in marked if "  # " in text]
    assert found == wanted, printed
