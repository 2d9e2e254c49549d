"""Commands that put a model to work: serve, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixtura.cli.options import AsJson, Model
from mixtura.cli.output import show


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="the address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="processes, each with the model")] = 1,
) -> None:
    """Serve a page where people ask the model, and the same as JSON; until it is stopped."""
    from mixtura.asking import load_model
    from mixtura.serve import check_port, run

    load_model(Path(model), "predict")
    check_port(host, port)
    typer.echo(f"serving {model} at http://{host}:{port} (Ctrl+C stops it)")
    run(Path(model), host, port, workers)


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="the graph to write; ends in .onnx")] = Path(
        "model.onnx"
    ),
    as_json: AsJson = False,
) -> None:
    """Write a classifier as an ONNX graph, for onnxruntime and others."""
    from mixtura.asking import load_model
    from mixtura.files import check_place

    check_place(out, model)
    load_model(model, "predict").export(out)
    show({"bytes": out.stat().st_size, "wrote": out}, as_json)
