"""The demonstration and the command that runs it."""

import builtins
import re
import sys

import pytest
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from mixtura import MixtureClassifier, cli, demo
from mixtura.estimators import classifying

FAST = {
    demo.HYBRID: MixtureClassifier(1, density="diag", objective="likelihood", random_state=0),
    "rival": make_pipeline(SimpleImputer(), LogisticRegression(max_iter=50)),
}


@pytest.mark.usefixtures("_command")
def test_demo_prints_a_table_and_saves_pictures_and_a_report(tmp_path, capsys, monkeypatch):
    """Errors grow with the share of missing pixels, less for the mixture."""
    reported = []
    monkeypatch.setattr(demo, "contestants", lambda seed: FAST)
    monkeypatch.setattr(demo, "patients_model", lambda seed: clone(FAST[demo.HYBRID]))
    monkeypatch.setattr(classifying, "write_report", lambda *given, **_: reported.append(given))
    monkeypatch.setattr(sys, "argv", ["mixtura", "demo", "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as finished:
        cli.main()
    assert finished.value.code in (0, None)
    shown = capsys.readouterr().out
    rows = {name: line for line in shown.splitlines() for name in FAST if line.startswith(name)}
    errors = {name: [float(cell) for cell in line[38:].split()[:8]] for name, line in rows.items()}
    assert errors["rival"][-1] > errors[demo.HYBRID][-1] > errors[demo.HYBRID][0]
    for picture in ("missing-pixels.png", "digits-drawn-from-the-model.png"):
        assert (tmp_path / "out" / picture).stat().st_size > 10_000
    ((model, path, X, y),) = reported
    assert path == tmp_path / "out" / "report.html"
    assert model.schema_.names[1] == "sex"
    assert set(X["sex"].dropna()) == {"1", "2"}
    assert X.isna().to_numpy().any()
    assert model.score(X, y) > 0.65


def test_no_warning_stands_in_the_table(monkeypatch, recwarn):
    """Pixels that are black in all images for training are not in some of those for testing."""
    monkeypatch.setattr(demo, "contestants", lambda seed: {demo.HYBRID: FAST[demo.HYBRID]})
    assert [name for name, *_ in demo.compare(0)] == [demo.HYBRID]
    assert not recwarn.list


@pytest.mark.usefixtures("_command")
def test_demo_refuses_a_folder_before_any_work(tmp_path, monkeypatch, capsys):
    """One line, no traceback, and no training for nothing."""
    taken = tmp_path / "taken"
    taken.write_text("not a folder")
    monkeypatch.setattr(demo, "compare", lambda seed: pytest.fail("training began"))
    monkeypatch.setattr(sys, "argv", ["mixtura", "demo", "--output", str(taken)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert re.match(r"error: .*taken.*Choose another folder", line)


def test_command_names_what_is_missing(monkeypatch):
    """Without the optional packages the command says how to get them."""
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "typer":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SystemExit, match=r"mixtura\[cli\]"):
        cli.main()
