"""The page and its JSON interface: answers, limits, refusals, headers."""

import io
import json
import re
import socket

import numpy as np
import pytest
from test_command import error, run, table

from mixtura import MixtureClassifier, MixtureDensity, MixtureRegressor

pd = pytest.importorskip("pandas")
for package in ("starlette", "uvicorn", "httpx2"):
    pytest.importorskip(package)
QUICK = {"density": "diag", "missingness": "ignore", "random_state": 0}


def fit_flowers():
    """A classifier of flowers, as the command fits it."""
    frame = table(90)
    fitted = MixtureClassifier(1, objective="likelihood", unexpected="ignore", **QUICK)
    fitted.fit(frame.drop(columns="flower"), frame["flower"])
    fitted.target_name_ = "flower"
    return fitted


@pytest.fixture(scope="module")
def model():
    return fit_flowers()


def connect(model, **limits):
    """A client of a server of its own."""
    from starlette.testclient import TestClient

    from mixtura.serve import Limits, create_app

    return TestClient(create_app(model, Limits(**limits)), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(model):
    return connect(model)


ROW = {"length": 1.9, "color": "red", "wild": True}


def ask(client, question, *rows, **options):
    """Answers to rows."""
    answer = client.post(f"/{question}", json={"rows": list(rows), **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"]


# -- answers -----------------------------------------------------------------------------------


def test_answers_are_those_of_the_model(client, model):
    """What a row lacks is missing, wherever it is not given or null."""
    X = table(90).drop(columns="flower").iloc[:1].assign(**ROW, width=np.nan)
    (found,) = ask(client, "predict", {**ROW, "width": None}, coverage=0.8, outliers=0.05)
    proba = dict(zip(model.classes_, model.predict_proba(X)[0], strict=True))
    assert found["probabilities"] == pytest.approx(proba, abs=1e-12)
    assert list(found["probabilities"].values()) == sorted(proba.values(), reverse=True)
    assert found["prediction"] == model.predict(X)[0]
    assert found["set"] == model.classes_[model.predict_set(X, 0.8)[0]].tolist()
    assert found["unlike_training"] == model.is_outlier(X, 0.05)[0]
    (why,) = ask(client, "explain", ROW)
    assert why["class"] == found["prediction"]
    assert why["answer"] == pytest.approx(max(proba.values()))
    assert why["base"] + sum(why["adds"].values()) == pytest.approx(why["answer"])
    sizes = list(map(abs, why["adds"].values()))
    assert sizes == sorted(sizes, reverse=True)
    (other,) = ask(client, "explain", ROW, **{"class": "iris"})
    assert other["answer"] == pytest.approx(proba["iris"], abs=1e-9)
    (following,) = ask(client, "next", ROW)
    assert following["nats"] == pytest.approx(
        {"width": model.next_feature(X, random_state=0)[0, 1]}
    )
    (filled,) = ask(client, "impute", ROW)
    assert filled["filled"] == {"width": model.impute(X)["width"].iloc[0]}


def test_many_rows_and_unseen_categories(client):
    rows = [{"length": float(n)} for n in range(30)]
    assert len(ask(client, "predict", *rows)) == 30
    answer = client.post("/predict", json={"rows": [{"color": "green"}]}).json()
    assert "'green'" in answer["notes"][0]
    again = client.post("/predict", json={"rows": [{"color": "green"}]}).json()
    assert again == answer  # said every time, not once per process


def test_the_schema_has_what_a_form_needs(client, model):
    found = client.get("/schema").json()
    assert (found["target"], found["classes"]) == ("flower", ["iris", "lily", "rose"])
    columns = {column["name"]: column for column in found["columns"]}
    assert columns["color"]["categories"] == ["blue", "red", "white"]
    assert columns["wild"]["kind"] == "boolean"
    assert columns["length"]["typical"] == pytest.approx(table(90)["length"].mean(), abs=0.01)


def test_a_table_comes_back_with_predictions(client, model):
    text = table(12).to_csv(index=False)
    answer = client.post("/table", content=text, headers={"Content-Type": "text/csv"})
    assert answer.status_code == 200
    assert "predictions.csv" in answer.headers["content-disposition"]
    found = pd.read_csv(io.BytesIO(answer.content))
    X = table(12).drop(columns="flower")
    np.testing.assert_allclose(found["p(rose)"], model.predict_proba(X)[:, 2], atol=1e-12)
    assert list(found)[:5] == list(table(12))


def test_a_density_of_an_array_is_served_too():
    """Columns without names are counted; questions that it has no answer to are not there."""
    rows = np.random.default_rng(0).normal(size=(50, 2))
    client = connect(MixtureDensity(1, **QUICK).fit(rows))
    assert client.get("/schema").json()["questions"] == ["predict", "explain", "impute"]
    (found,) = ask(client, "predict", {"column 1": 0.0}, outliers=0.01)
    assert not found["unlike_training"]
    (why,) = ask(client, "explain", {"column 1": 0.0})
    assert why["answer"] == pytest.approx(found["log_density"])
    assert client.post("/next", json={"rows": [{}]}).status_code == 404


def test_numbers_come_with_intervals():
    frame = table(60)
    regressor = MixtureRegressor(1, density="full", marginals="linear", random_state=0)
    X = frame.drop(columns=["length", "wild"])
    regressor.fit(X, frame["length"])
    client = connect(regressor)
    row = {"width": -1.0, "color": None, "flower": "lily"}
    (found,) = ask(client, "predict", row, coverage=0.8)
    given = X.iloc[:1].assign(**row)
    assert found["prediction"] == pytest.approx(regressor.predict(given)[0])
    assert found["interval"] == pytest.approx(regressor.predict_interval(given, 0.8)[0].tolist())
    (wide,) = ask(client, "predict", row, coverage=1.0)
    assert wide["interval"] == [None, None]
    (why,) = ask(client, "explain", row)
    assert why["answer"] == pytest.approx(found["prediction"])
    assert why["target"] is None
    (next_one,) = ask(client, "next", row)
    assert 0.0 < next_one["shares"]["color"] < 1.0
    assert set(ask(client, "impute", row)[0]["filled"]) == {"color"}


# -- refusals ----------------------------------------------------------------------------------

REFUSED = {
    "not json": (400, b"{"),
    "NaN": (400, b'{"rows": [{"length": NaN}]}'),
    "Infinity": (400, b'{"rows": [{"length": -Infinity}]}'),
    "nested": (400, b"[" * 100_000),
    "twice": (400, b'{"rows": [], "rows": []}'),
    "other encoding": (400, b"\xff\xff"),
    "overflow": (422, b'{"rows": [{"length": 1e999}]}'),
    "long number": (400, b'{"rows": [{"length": ' + b"9" * 5000 + b"}]}"),
    "large number": (422, b'{"rows": [{"length": ' + b"9" * 400 + b"}]}"),
    "a list": (422, b"[]"),
    "no rows": (422, b'{"rows": []}'),
    "rows are none": (422, b'{"rows": 3}'),
    "a row is none": (422, b'{"rows": [1]}'),
    "unknown column": (422, b'{"rows": [{"lenght": 1}]}'),
    "unknown option": (422, b'{"rows": [{}], "coverge": 0.9}'),
    "text for a number": (422, b'{"rows": [{"length": "1"}]}'),
    "boolean for a number": (422, b'{"rows": [{"length": true}]}'),
    "number for text": (422, b'{"rows": [{"color": 1}]}'),
    "number for a boolean": (422, b'{"rows": [{"wild": 1}]}'),
    "object for a number": (422, b'{"rows": [{"length": {"a": 1}}]}'),
    "coverage": (422, b'{"rows": [{}], "coverage": 2}'),
    "coverage as text": (422, b'{"rows": [{}], "coverage": "all"}'),
    "huge": (413, b'{"rows": [{}], "x": "' + b"x" * 2**20 + b'"}'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_requests_are_refused(client, case):
    status, body = REFUSED[case]
    answer = client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, len(answer.json()["error"]) > 5) == (status, True)
    assert "Traceback" not in answer.text


def test_messages_say_where_and_what(client):
    def message(row):
        return client.post("/predict", json={"rows": [{}, row]}).json()["error"]

    assert message({"length": "x"}) == (
        "row 1, 'length': x is no number; null is for what is missing."
    )
    assert message({"lenght": 1}) == "row 1: there is no column 'lenght'; /schema lists them."
    answer = client.post("/explain", json={"rows": [{}], "class": "tulip"})
    assert "there is no class tulip" in answer.json()["error"]


def test_other_types_methods_and_addresses(client):
    """A page of another site can send none of the types that are taken."""
    plain = {"Content-Type": "text/plain"}
    assert client.post("/predict", content=b"{}", headers=plain).status_code == 415
    assert client.post("/table", content=b"a\n1", headers=plain).status_code == 415
    assert client.get("/predict").status_code == 405
    for path in ("/nothing", "/../pyproject.toml", "/page.js/../app.py", "/%2e%2e/app.py"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})


@pytest.mark.parametrize(
    "text", [b"", b"a,b\n", b"x,y\n1,2", b"length,length\n1,2", b"\0\1\2", b"length\nlong"]
)
def test_wrong_tables_are_refused(client, text):
    answer = client.post("/table", content=text, headers={"Content-Type": "text/csv"})
    assert answer.status_code == 422
    assert answer.json()["error"]


def test_limits(model):
    wide = ",".join(f"c{n}" for n in range(1005)) + "\n1"
    kind = {"Content-Type": "text/csv"}
    message = connect(model).post("/table", content=wide, headers=kind).json()["error"]
    assert "1005 columns, more than 1004" in message
    client = connect(model, rows=2, table_rows=2, table=200)
    assert client.post("/predict", json={"rows": [{}] * 3}).status_code == 422
    assert client.post("/table", content="length\n1\n2\n3", headers=kind).status_code == 422
    assert client.post("/table", content="length\n" + "1\n" * 200, headers=kind).status_code == 413
    impatient = connect(model, seconds=0.0)
    assert impatient.post("/predict", json={"rows": [{}]}).status_code in (408, 503)


def test_other_names_of_the_host_are_refused(model):
    """What a name of another site that points here would ask is not answered."""
    from starlette.testclient import TestClient

    from mixtura.serve import create_app

    app = create_app(model, hosts=("localhost",))
    assert TestClient(app, "http://localhost:8000").get("/healthz").status_code == 200
    assert TestClient(app, "http://evil.example").get("/healthz").status_code == 400


# -- around ------------------------------------------------------------------------------------


def test_safe_headers_on_every_answer(client):
    for path in ("/", "/page.js", "/page.css", "/schema", "/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == (
            "DENY",
            "nosniff",
        )
        assert headers["referrer-policy"] == "no-referrer"
    page = client.get("/").text
    assert not re.search(r"<script(?! src)|<style|\son\w+=|style=", page)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) <= {
        *("/page.js", "/page.css", "/openapi.json", "/schema", "data:,")
    }


def test_labels_of_all_inputs(client):
    page = client.get("/").text
    inputs = re.findall(r'<(?:input|textarea|select)[^>]*id="([\w-]+)"', page)
    assert inputs
    assert all(f'<label for="{name}"' in page for name in inputs)


def test_openapi_describes_the_rows(client):
    found = client.get("/openapi.json").json()
    assert found["openapi"].startswith("3.")
    assert set(found["paths"]) == {
        "/predict",
        "/explain",
        "/next",
        "/impute",
        "/schema",
        "/healthz",
    }
    row = found["components"]["schemas"]["Row"]
    assert row["properties"]["length"]["type"] == ["number", "null"]
    assert row["additionalProperties"] is False
    json.dumps(found, allow_nan=False)


def test_health_and_metrics(model):
    client = connect(model)
    assert client.get("/healthz").json() == {"status": "ok"}
    ask(client, "predict", ROW)
    client.get("/any/secret")
    shown = client.get("/metrics").text
    assert 'mixtura_requests_total{path="/predict",status="200"} 1' in shown
    assert 'mixtura_requests_total{path="other",status="404"} 1' in shown
    assert re.search(r'mixtura_request_seconds_total\{path="/predict"\} \d+\.\d+', shown)


def test_a_failure_is_no_traceback(model, monkeypatch):
    client = connect(model)
    monkeypatch.setattr(type(model), "predict_proba", lambda self, X: 1 / 0)
    answer = client.post("/predict", json={"rows": [{}]})
    assert (answer.status_code, answer.json()) == (
        500,
        {"error": "the server failed; its log says why."},
    )
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_command_serves_a_file(model, tmp_path, monkeypatch):
    """It says where, and its workers find the model; a port that is taken is refused."""
    import uvicorn
    from starlette.testclient import TestClient

    from mixtura.serve.app import from_environment

    asked = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: asked.append((app, options)))
    monkeypatch.setenv("MIXTURA_SERVED_MODEL", "")
    monkeypatch.setenv("MIXTURA_SERVED_HOSTS", "")
    model.save(tmp_path / "model.safetensors")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = error("serve", tmp_path / "model.safetensors", "--port", port)
        assert "choose another --port" in message
    said = run("serve", tmp_path / "model.safetensors", "--port", port, "--workers", 2).stdout
    assert f"http://127.0.0.1:{port}" in said
    ((name, options),) = asked
    assert name == f"{from_environment.__module__}:{from_environment.__name__}"
    assert (options["workers"], options["host"], options["factory"]) == (2, "127.0.0.1", True)
    client = TestClient(from_environment(), "http://localhost")
    assert client.get("/schema").json()["target"] == "flower"
    assert "no model file" in error("serve", tmp_path / "nothing.safetensors")
