"""What docs/deploy.md shows runs as it stands, and the container is what it says."""

import importlib.util
import io
import json
import re
import subprocess
import sys
import types
from pathlib import Path
from wsgiref.util import setup_testing_defaults

import numpy as np
import pytest

from mixtura import MixtureClassifier

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/deploy.md").read_text(), re.DOTALL)


def stand_in():
    """As much of MLflow as the recipe calls: what is saved is loaded and asked once."""

    def save_model(path, *, python_model, artifacts):
        context = types.SimpleNamespace(artifacts=artifacts)
        python_model.load_context(context)
        mlflow.saved = python_model, context

    pyfunc = types.SimpleNamespace(PythonModel=object, save_model=save_model)
    mlflow = types.ModuleType("mlflow")
    mlflow.pyfunc = pyfunc
    return mlflow


@pytest.mark.filterwarnings("ignore:X lacks 10 column")
def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    for package in ("pandas", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", stand_in())
    session: dict = {}
    for block in BLOCKS:
        exec(compile(block, "deploy.md", "exec"), session)
    served, context = session["mlflow"].saved
    found = served.predict(context, session["X"])
    np.testing.assert_allclose(found, session["model"].predict_proba(session["X"]), rtol=1e-9)
    assert list(found.columns) == ["class_0", "class_1", "class_2"]


# -- the service -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """The service of a model with a number and a category."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    frame = pandas.DataFrame({"size": rng.normal(size=40) + y, "color": np.array(["a", "b"])[y]})
    path = tmp_path_factory.mktemp("service") / "model.safetensors"
    model = MixtureClassifier(1, density="diag", objective="likelihood").fit(frame, y)
    model.save(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL", str(path))
        spec = importlib.util.spec_from_file_location("app", DEPLOY / "app.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module, model, frame


def request(app, body, path="/predict", method="POST", **environ):
    """Status and content of the answer to a request."""
    setup_testing_defaults(environ)
    environ |= {"PATH_INFO": path, "REQUEST_METHOD": method, "wsgi.input": io.BytesIO(body)}
    environ.setdefault("CONTENT_LENGTH", str(len(body)))
    told = []
    content = b"".join(app.application(environ, lambda *given: told.append(given)))
    (status, headers), *_ = told
    assert dict(headers)["Content-Length"] == str(len(content))
    return int(status.split()[0]), json.loads(content)


def test_the_service_answers(app):
    module, model, frame = app
    columns = {name: frame[name].tolist() for name in frame}
    status, found = request(module, json.dumps(columns).encode())
    assert status == 200
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(frame), rtol=1e-9)
    assert found["label"] == model.predict(frame).tolist()
    status, found = request(module, b'{"size": 0.5, "color": null}')
    assert (status, len(found["label"])) == (200, 1)
    assert request(module, b'{"color": "a"}')[0] == 200
    assert request(module, b"", "/healthz", "GET") == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[1, 2]", 400),
        (b"{}", 400),
        (b"not JSON", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"size": Infinity}', 400),
        (b'{"size": {"a": 1}}', 400),
        (b'{"size": [1, [2]]}', 400),
        (b'{"size": "large"}', 400),
        (b'{"size": [1, 2], "color": ["a"]}', 400),
        (b'{"weight": 1}', 400),
        (b'{"size": 1' + b"0" * 5_000 + b"}", 400),
        (b'{"size": [' + b"1," * 2**20 + b"1]}", 413),
    ],
    ids=lambda given: str(given)[:20],
)
def test_what_the_service_refuses(app, body, status):
    found, content = request(app[0], body)
    assert found == status
    assert content["error"]


def test_what_else_the_service_refuses(app):
    assert request(app[0], b"", "/etc/passwd", "GET")[0] == 404
    assert request(app[0], b"", "/predict", "GET")[0] == 405
    assert request(app[0], b"{}", CONTENT_LENGTH="")[0] == 411
    assert request(app[0], b"{}", CONTENT_LENGTH="-1")[0] == 411


def instructions():
    """The lines of the Dockerfile: instruction and arguments."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    return [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]


def test_the_container():
    """Every line is an instruction, what it copies is there or made first, and it runs the app."""
    found = instructions()
    assert {name for name, _ in found} == {
        *("FROM", "COPY", "RUN", "WORKDIR", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "CMD")
    }
    assert found[0][0] == "FROM"
    made = {"mixtura-*.whl", "model.safetensors"}  # by the commands at its top
    sources = {source for name, rest in found if name == "COPY" for source in rest.split()[:-1]}
    assert made < sources
    assert all((DEPLOY / source).is_file() for source in sources - made)
    (install,) = (rest for name, rest in found if name == "RUN")
    assert "--no-deps /wheels/*.whl" in install
    assert not {"torch", "scikit-learn", "mixtura"} & set(install.split())
    by_name = dict(found)
    (probe,) = (json.loads(rest.partition(" ")[2]) for name, rest in found if name == "HEALTHCHECK")
    port = by_name["EXPOSE"]
    assert f":{port}/healthz" in probe[-1]
    compile(probe[-1], "HEALTHCHECK", "exec")
    command = json.loads(by_name["CMD"])
    assert command[0] == "gunicorn"
    assert f"0.0.0.0:{port}" in command
    module, _, name = command[-1].partition(":")
    assert f"def {name}(" in (DEPLOY / f"{module}.py").read_text()


def test_the_service_needs_numpy_alone(app, tmp_path):
    app[1].save(tmp_path / "model.safetensors")
    script = "import sys, app; print(*{name.partition('.')[0] for name in sys.modules})"
    path = {"PYTHONPATH": f"{DEPLOY}:{ROOT / 'src'}"}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**path, "MODEL": str(tmp_path / "model.safetensors")},
    )
    assert not {"torch", "sklearn", "scipy", "pandas"} & set(ended.stdout.split())
