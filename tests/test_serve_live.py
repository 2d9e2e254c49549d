"""The server on a socket of its own: a real browser, slow clients, and how it ends."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from test_command import table
from test_serve import fit_flowers

pd = pytest.importorskip("pandas")
for package in ("starlette", "uvicorn"):
    pytest.importorskip(package)


@contextmanager
def serving(model):
    """A server on a free port of the loopback, and its address."""
    import uvicorn

    from mixtura.serve import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(model), log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def model():
    return fit_flowers()


@pytest.fixture(scope="module")
def address(model):
    with serving(model) as (_, found):
        yield found


def fetch(url, body=None):
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return answer.read()


def test_a_slow_client_does_not_hold_others_up(address):
    """One that never ends its request keeps its connection, and nothing else."""
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert fetch(f"{address}/healthz") == b'{"status":"ok"}'


def test_requests_that_wait_are_answered_together_and_apart(model, monkeypatch):
    """One call of the model answers them; what is to be said of one row, others do not hear."""
    from mixtura.serve.questions import Questions

    proba_of, rows_of = type(model).predict_proba, Questions.rows
    sizes, arrived, began, go_on = [], [], threading.Event(), threading.Event()
    found = {}

    def counted(self, X):  # the first call waits until all requests have arrived
        sizes.append(len(X))
        began.set()
        assert go_on.wait(20)
        return proba_of(self, X)

    def received(self, *given):
        arrived.append(1)
        return rows_of(self, *given)

    def ask(address, number):
        row = {"length": number / 10, **({"color": "green"} if number == 7 else {})}
        body = json.dumps({"rows": [row]}).encode()
        found[number] = json.loads(fetch(f"{address}/predict", body))

    monkeypatch.setattr(type(model), "predict_proba", counted)
    monkeypatch.setattr(Questions, "rows", received)
    with serving(model) as (_, address):
        threads = [threading.Thread(target=ask, args=(address, number)) for number in range(9)]
        threads[0].start()
        assert began.wait(20)
        for thread in threads[1:]:
            thread.start()
        while len(arrived) < len(threads):
            time.sleep(0.01)
        go_on.set()
        for thread in threads:
            thread.join()
    assert sizes == [1, 8, *[1] * 8]  # the eight together, and then apart, since one is green
    assert [n for n in found if "green" in str(found[n]["notes"])] == [7]
    for number, answer in found.items():
        X = pd.DataFrame({"length": [number / 10], "width": None, "color": None, "wild": None})
        proba = dict(zip(model.classes_, proba_of(model, X)[0], strict=True))
        assert answer["rows"][0]["probabilities"] == pytest.approx(proba, abs=1e-12)


def test_what_is_under_way_ends_when_the_server_does(model, monkeypatch):
    began, answers = threading.Event(), []

    def slowly(self, X):
        began.set()
        time.sleep(0.3)
        return np.array([[0.5, 0.3, 0.2]])

    monkeypatch.setattr(type(model), "predict_proba", slowly)
    with serving(model) as (server, address):
        asked = threading.Thread(
            target=lambda: answers.append(fetch(f"{address}/predict", b'{"rows": [{}]}'))
        )
        asked.start()
        assert began.wait(20)
        server.should_exit = True
        asked.join()
    assert b'"prediction":"iris"' in answers[0]


def test_several_workers_come_up_and_end(model, tmp_path):
    """In time, however long each takes to import what it needs."""
    model.save(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    command = [sys.executable, "-c", "from mixtura.cli import main; main()"]
    asked = ["serve", str(tmp_path / "model"), "--workers", "2", "--port", str(port)]
    with subprocess.Popen([*command, *asked], stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(3000):
                time.sleep(0.1)
                with suppress(OSError):
                    found = fetch(f"http://127.0.0.1:{port}/predict", b'{"rows": [{}]}')
                    break
            assert b'"prediction"' in found
        finally:
            server.terminate()
    assert server.returncode == 0


def test_the_page(address, browser, tmp_path):
    """By keyboard alone; and the browser has nothing to complain about."""
    page, said = browser.new_page(viewport={"width": 380, "height": 700}), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    page.wait_for_selector("#prediction table")
    assert page.inner_text("#title") == "What is “flower”?"
    before = page.inner_text("#prediction")
    length = page.get_by_label("length", exact=True)

    page.keyboard.press("Tab")  # the first field
    assert page.evaluate("document.activeElement.labels[0].textContent") == "length"
    page.keyboard.type("1.95")
    page.wait_for_selector("#why svg")
    assert page.inner_text("#prediction") != before
    assert page.inner_text("#prediction tr.best th") == "rose"
    assert "width" in page.inner_text("#next")
    assert "width" in page.inner_text("#impute")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("red")  # a list is chosen from by typing
    page.wait_for_selector("#why svg >> text=color")

    length.fill("1e6")
    page.wait_for_selector("#odd")
    length.fill("long")
    page.wait_for_selector("#status.error")
    assert length.get_attribute("aria-invalid") == "true"
    page.get_by_role("button", name="Clear").press("Enter")
    page.wait_for_selector("#prediction table")
    assert page.inner_text("#prediction") == before

    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    table(5).to_csv(good, index=False)
    bad.write_text("<b>a</b>,b\n1,2\n")
    send = page.get_by_role("button", name="Predict the table")
    page.set_input_files("#file", bad)
    send.press("Enter")
    page.wait_for_selector("#table-status.error")
    page.set_input_files("#file", good)
    send.press("Enter")
    page.wait_for_selector("#download")
    with page.expect_download() as caught:
        page.get_by_role("link", name="predictions.csv").press("Enter")
    content = caught.value.path().read_text().splitlines()
    page.evaluate("showPrediction({prediction: 1, probabilities: {'1': 0.9, '0': 0.1}}, false)")
    assert page.inner_text("#prediction tr.best th") == "1"  # classes may be whole numbers
    page.evaluate("showWhy({base: 0.5, adds: {'2': -0.4, 'a': 0.3, '1': 0.1}, answer: 0.5})")
    assert re.search(r"2 −.*a \+.*1 \+", page.get_attribute("#why svg", "aria-label"))
    assert content[0].endswith("prediction,p(iris),p(lily),p(rose)")
    assert len(content) == 6

    assert page.evaluate("document.documentElement.scrollWidth") <= 380  # as wide as a phone
    inputs = "[...document.querySelectorAll('input,select,textarea')]"
    assert page.evaluate(f"{inputs}.every(each => each.labels.length === 1)")
    assert [text for text in said if "status of 422" not in text] == []  # that is the wrong file
