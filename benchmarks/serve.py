"""How fast `mixtura serve` answers 200 clients at once, on the loopback.

    python -m benchmarks.serve [clients] [requests of each] [a Python that has MLflow]

Every client keeps its connection and asks again as soon as it has its answer. Where a Python is
named, MLflow's server there answers for the same file, by `mixtura.runtime`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

from mixtura import MixtureClassifier

MODELS = {
    "one model (marginals='linear')": {"marginals": "linear"},
    "the default, up to five models": {},
}


#: The recipe of docs/deploy.md.
RECIPE = """
import sys
import mlflow.pyfunc
import pandas

class Served(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        from mixtura import runtime
        self.model = runtime.load(context.artifacts["model"])

    def predict(self, context, model_input, params=None):
        return pandas.DataFrame(self.model.predict_proba(model_input))

mlflow.pyfunc.save_model(sys.argv[2], python_model=Served(), artifacts={"model": sys.argv[1]})
"""


def requests(question: str, rows: np.ndarray, names: list[str], field: str = "rows") -> list[bytes]:
    """One request per row, of which a third is missing."""
    holes = np.random.default_rng(0).random(rows.shape) < 1 / 3
    found = []
    for row, missing in zip(rows, holes, strict=True):
        cells = {n: None if m else v for n, v, m in zip(names, row, missing, strict=True)}
        body = json.dumps({field: [cells]}).encode()
        head = f"POST /{question} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        found.append(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    return found


async def ask(port: int, asked: list[bytes], count: int, taken: list[float]) -> int:
    """So many requests, one after the other; how many failed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    failed = 0
    for number in range(count):
        began = time.perf_counter()
        writer.write(asked[number % len(asked)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        await reader.readexactly(length)
        taken.append(time.perf_counter() - began)
        failed += b" 200 " not in head[:20]
    writer.close()
    return failed


async def load(port: int, asked: list[bytes], clients: int, count: int) -> str:
    """A line of the table."""
    taken: list[float] = []
    shifted = [asked[n % len(asked) :] + asked[: n % len(asked)] for n in range(clients)]
    began = time.perf_counter()
    failed = sum(await asyncio.gather(*(ask(port, each, count, taken) for each in shifted)))
    spent = time.perf_counter() - began
    middle, late = np.quantile(taken, [0.5, 0.99])
    total = clients * count
    return f"{total} | {failed} | {total / spent:.0f} | {1e3 * middle:.0f} ms | {1e3 * late:.0f} ms"


def serve(path: Path) -> list[str]:
    """The command of a server of the model, but for its port."""
    return [sys.executable, "-c", "from mixtura.cli import main; main()", "serve", str(path)]


def serve_by_mlflow(python: str, path: Path) -> list[str]:
    """The same of MLflow's server, with one worker."""
    folder = path.with_suffix(".mlflow")
    subprocess.run([python, "-c", RECIPE, str(path), str(folder)], check=True)
    options = ["--env-manager", "local", "--workers", "1"]
    return [python, "-m", "mlflow", "models", "serve", "-m", str(folder), *options]


def started(command: list[str]) -> tuple[subprocess.Popen, int]:
    """A server, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"  # MLflow calls uvicorn
    server = subprocess.Popen(
        [*command, "--port", str(port)],
        env={**os.environ, "PATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(1200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, port
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server did not start")


def main(clients: int = 200, count: int = 20, python: str | None = None) -> None:
    """Print the table."""
    bunch = load_wine(as_frame=True)
    names = list(bunch.data.columns)
    print("| model | question | requests | failed | per second | median | 99 % within |")
    print("|---|---|---|---|---|---|---|")
    for title, settings in MODELS.items():
        model = MixtureClassifier(random_state=0, **settings).fit(bunch.data, bunch.target)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            model.save(path)
            rows = bunch.data.to_numpy()
            jobs = [("mixtura serve", serve(path), ("predict", "impute"), "rows")]
            if python:
                command = serve_by_mlflow(python, path)
                jobs.append(("MLflow", command, ("invocations",), "dataframe_records"))
            for name, command, questions, field in jobs:
                server, port = started(command)
                try:
                    for question in questions:
                        asked = requests(question, rows, names, field)
                        asyncio.run(load(port, asked, 2, 5))  # the first ones warm it up
                        line = asyncio.run(load(port, asked, clients, count))
                        print(f"| {title} | {name}, `/{question}` | {line} |", flush=True)
                finally:
                    server.terminate()
                    server.wait()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
