"""Commands that learn from a file: fit, tune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixtura.cli.options import (
    AsJson,
    Categorical,
    Data,
    Drop,
    Id,
    Missing,
    ModelOut,
    Regression,
    Seed,
    Settings,
    Target,
    TestSize,
)
from mixtura.cli.output import show, working


def fit(
    data: Data,
    target: Target = None,
    out: ModelOut = Path("model.safetensors"),
    drop: Drop = None,
    id: Id = None,
    categorical: Categorical = None,
    missing: Missing = None,
    regression: Regression = False,
    test_size: TestSize = 0.0,
    time: Annotated[
        float | None, typer.Option(min=0.0, help="seconds that training may take")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="a file by which a fit that was killed goes on")
    ] = None,
    settings: Settings = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fit a model to a file, and save it; by torchrun, in many processes."""
    from mixtura.cli.processes import Processes
    from mixtura.cli.tasks import Source, Task

    with Processes.of_torchrun() as processes:
        source = Source(data, target, drop, id, categorical, missing, regression)
        task = Task.read(source, out, test_size, settings, seed)
        with working(f"fitting {task.name} to {task.n_rows:,} rows") as step:
            task.fit(time, step, checkpoint, processes)
        if processes.rank == 0:
            found = {**task.facts(), **task.chosen(), **task.tested()}
            show({**found, "wrote": task.save()}, as_json)


def tune(
    data: Data,
    target: Target = None,
    out: ModelOut = Path("model.safetensors"),
    trials: Annotated[int, typer.Option(min=1, help="how many settings to try")] = 50,
    folds: Annotated[int, typer.Option(min=2, help="parts of the cross-validation")] = 5,
    storage: Annotated[
        Path | None, typer.Option(help="a file that keeps the trials, to go on later")
    ] = None,
    drop: Drop = None,
    id: Id = None,
    categorical: Categorical = None,
    missing: Missing = None,
    regression: Regression = False,
    test_size: TestSize = 0.0,
    time: Annotated[
        float | None, typer.Option(min=0.0, help="seconds after which no trial begins")
    ] = None,
    settings: Settings = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Search for the settings that do best in cross-validation, and save the best model."""
    from mixtura.cli.tasks import Source, Task

    source = Source(data, target, drop, id, categorical, missing, regression)
    task = Task.read(source, out, test_size, settings, seed)
    with working(f"trying {trials} settings on {task.n_rows:,} rows"):
        found = task.tune(trials, folds, time, storage)
    show({**task.facts(), **found, **task.tested(), "wrote": task.save()}, as_json)
