"""The page about the command: its shell blocks run, in order, in one folder."""

import re
import shlex
from pathlib import Path

import pytest
from test_command import PLAIN, run

from mixtura.estimators import classifying

for package in ("matplotlib", "onnx", "optuna", "pandas", "pyarrow", "rich", "typer"):
    pytest.importorskip(package)
PAGE = Path(__file__).parents[1] / "docs" / "command.md"


def write_less(model, path, X, y, *, max_time, seed):
    """What is asked of a report, instead of one, which takes seconds."""
    path.write_text(f"{model.score(X, y)} {max_time}")


def test_shell_blocks(tmp_path, monkeypatch):
    """Models are those that train fastest, and reports short; all else is as it stands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(classifying, "write_report", write_less)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    for program, *arguments in lines:
        if program == "python":
            exec(arguments[1])
            continue
        assert program == "mixtura"
        plain = PLAIN[:2] + PLAIN[4:] if "density.safetensors" in arguments else PLAIN
        run(*arguments, *(plain if arguments[0] in ("fit", "tune") else ()))
    written = {path.name for path in tmp_path.iterdir()}
    assert {"model.safetensors", "predictions.parquet", "wine.onnx", "report.html"} < written
    score, max_time = map(float, Path("report.html").read_text().split())
    assert score > 0.9
    assert max_time == 30.0


def test_every_command_has_its_line():
    from mixtura.cli.app import app

    named = set(re.findall(r"^\| `(\w+)", PAGE.read_text(), flags=re.MULTILINE))
    commands = {command.callback.__name__ for command in app.registered_commands}
    assert commands - {"demo", "reproduce"} == named
