"""A saved classifier behind HTTP, with NumPy alone: columns as JSON in, probabilities out.

    MODEL=model.safetensors gunicorn app:application

POST /predict {"age": 41, "color": ["red"], "weight": null} answers for one row, or for as many as
the columns have; null is missing, and so are columns that are left out. GET /healthz says whether
the model is there. Any WSGI server will do, such as `wsgiref` of the standard library.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable
from http import HTTPStatus

from mixtura import runtime
from mixtura.exceptions import DegenerateDataWarning

MOST_BYTES = 2**20
MODEL = runtime.load(os.environ.get("MODEL", "model.safetensors"))


def predicted(body: bytes) -> dict[str, object]:
    """Labels, classes and probabilities of the rows that JSON holds."""
    columns = json.loads(body)
    if not isinstance(columns, dict):
        raise ValueError("send one JSON object, with a value or a list of values per column.")
    with warnings.catch_warnings():  # columns that are left out are missing, as they should be
        warnings.simplefilter("ignore", DegenerateDataWarning)
        proba = MODEL.predict_proba(columns)
    return {
        "label": MODEL.classes_[proba.argmax(1)].tolist(),
        "classes": MODEL.classes_.tolist(),
        "probabilities": proba.tolist(),
    }


def answered(environ: dict) -> tuple[HTTPStatus, dict[str, object]]:
    """Status and content of the answer to a request."""
    method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
    if path == "/healthz":
        return HTTPStatus.OK, {"status": "ok"}
    if path != "/predict":
        return HTTPStatus.NOT_FOUND, {"error": "there is /predict and /healthz."}
    if method != "POST":
        return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "POST one JSON object."}
    size = environ.get("CONTENT_LENGTH") or ""
    if not size.isdecimal():
        return HTTPStatus.LENGTH_REQUIRED, {"error": "say how long the content is."}
    if int(size) > MOST_BYTES:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"{MOST_BYTES} bytes at most."}
    try:
        return HTTPStatus.OK, predicted(environ["wsgi.input"].read(int(size)))
    except (ValueError, TypeError, RecursionError) as error:
        return HTTPStatus.BAD_REQUEST, {"error": str(error)}


def application(environ: dict, start_response: Callable) -> Iterable[bytes]:
    """What a WSGI server calls."""
    status, content = answered(environ)
    body = json.dumps(content).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response(f"{status.value} {status.phrase}", headers)
    return [body]
