"""Commands that ask a model: predict, evaluate, report, explain, impute, sample."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixtura.cli.options import AsJson, Data, Kept, Missing, Model, Seed, TableOut, Truth
from mixtura.cli.output import show, working


def predict(
    model: Model,
    data: Data,
    out: TableOut = Path("predictions.csv"),
    id: Kept = None,
    coverage: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="add sets, or intervals, that hold the truth"),
    ] = None,
    outliers: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="mark this share of usual rows as odd")
    ] = None,
    missing: Missing = None,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a file; classes come with their probabilities."""
    from mixtura.asking import load_model, predictions
    from mixtura.cli.asking import Asked
    from mixtura.cli.large import Large

    if large := Large.find(data):
        with working(f"predicting {large.n_rows:,} rows"):
            found = load_model(model, "predict")
            facts = large.predict(found, out, id, coverage, outliers, missing or ())
        show({**facts, "wrote": out}, as_json)
        return
    asked = Asked.read(model, data, missing, "predict", out, id)
    with working(f"predicting {len(asked.X):,} rows"):
        found = predictions(asked.model, asked.X, coverage, outliers)
    asked.write_beside(found, out)
    show({"rows": len(asked.X), **asked.summary(found), "wrote": out}, as_json)


def evaluate(
    model: Model, data: Data, target: Truth = None, missing: Missing = None, as_json: AsJson = False
) -> None:
    """Compare with the truth: error, log-loss, calibration error, confusion."""
    from mixtura.cli.asking import Asked
    from mixtura.cli.scores import scores

    asked = Asked.read(model, data, missing, given=target)
    truth = asked.truth(target)
    with working(f"predicting {len(asked.X):,} rows"):
        found = scores(asked.model, asked.X, truth)
    show({"rows": len(asked.X), **found}, as_json)


def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="an HTML file; .md for the model card alone")] = Path(
        "report.html"
    ),
    target: Truth = None,
    time: Annotated[float, typer.Option(min=0.0, help="seconds it may take, about")] = 60.0,
    missing: Missing = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a report on a model as one HTML file, or its card, from rows that it has not seen."""
    from mixtura.cli.asking import Asked
    from mixtura.files import check_place

    check_place(out, model, data)
    asked = Asked.read(model, data, missing, "report", given=target)
    truth = asked.truth(target)
    with working(f"reporting on {len(asked.X):,} rows"):
        asked.model.report(out, asked.X, truth, max_time=time, random_state=seed)
    show({"rows": len(asked.X), "wrote": out}, as_json)


def explain(
    model: Model,
    data: Data,
    out: TableOut = Path("explanations.csv"),
    id: Kept = None,
    output: Annotated[
        str | None, typer.Option(help="probability, log_odds, log_density or mean")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="so many rows at most, the first ones")] = 1000,
    time: Annotated[
        float, typer.Option(min=0.0, help="seconds it may take where it has to draw")
    ] = 60.0,
    missing: Missing = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Say why: what each column adds to the answer for each row (Shapley values)."""
    from mixtura.asking import is_density
    from mixtura.cli.asking import Asked

    asked = Asked.read(model, data, missing, "explain", out, id).first(rows)
    with working(f"explaining {len(asked.X):,} rows"):
        found, importance = asked.explanations(output, time, seed)
    asked.write_beside(found, out)
    usual = "log_density" if is_density(asked.model) else "mean"
    what = output or ("probability" if "prediction" in found else usual)
    show(
        {"rows": len(asked.X), "explained": what, "importance": importance, "wrote": out},
        as_json,
    )


def impute(
    model: Model,
    data: Data,
    out: TableOut = Path("imputed.csv"),
    draw: Annotated[
        bool, typer.Option("--draw", help="random draws instead of conditional means")
    ] = False,
    missing: Missing = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fill what is missing from what is there."""
    from mixtura.cli.asking import Asked

    asked = Asked.read(model, data, missing, "impute", out)
    with working(f"filling {len(asked.X):,} rows"):
        filled = asked.filled(draw, seed)
    asked.write(filled, out)
    holes = {str(name): int(n) for name, n in asked.X.isna().sum().items() if n}
    show({"rows": len(asked.X), "filled": holes, "wrote": out}, as_json)


def sample(
    model: Model,
    n: Annotated[int, typer.Option("--rows", "-n", min=1, help="how many rows")] = 100,
    out: TableOut = Path("sample.csv"),
    label: Annotated[
        str | None, typer.Option("--class", help="draw rows of this class alone")
    ] = None,
    given: Annotated[
        list[str] | None, typer.Option(help="COLUMN=VALUE that all rows have; may be repeated")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Draw rows from a model."""
    from mixtura.asking import load_model
    from mixtura.cli.asking import draw
    from mixtura.files import check_table_place, write_frame

    check_table_place(out, model)
    # a regressor draws the targets of rows
    drawn = draw(load_model(model, "responsibilities"), n, label, given or [], seed)
    write_frame(drawn, out)
    show({"rows": n, "columns": drawn.shape[1], "wrote": out}, as_json)
