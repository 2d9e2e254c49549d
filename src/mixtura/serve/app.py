"""The web application: addresses, limits, headers, metrics."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

try:
    import anyio
    import pandas  # noqa: F401
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import MutableHeaders
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError:
    raise ImportError(
        "The server needs Starlette, uvicorn and pandas: pip install 'mixtura[serve]'."
    ) from None

from mixtura.asking import load_model
from mixtura.data.given import ArrayLike, Loaded
from mixtura.exceptions import InvalidInputError
from mixtura.serve.openapi import describe, options_of
from mixtura.serve.questions import MOST_EXPLAINED, Facts, Questions, Rows, read_json

#: Where worker processes find the model file, and who may call them (all, if that is empty).
_MODEL, _HOSTS = "MIXTURA_SERVED_MODEL", "MIXTURA_SERVED_HOSTS"
_LOCAL = {"127.0.0.1", "localhost", "::1"}
#: Seconds in which requests that are under way may end when the server is told to stop.
_FAREWELL = 10
#: Seconds in which a worker has to show that it is alive: it first imports PyTorch, which takes
#: longer than the five that uvicorn gives it where a machine is slow or busy.
_ALIVE = 120
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Files of the page by address, and their types.
_PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
#: Questions whose answer to a row does not depend on the rows beside it, to the last bits.
_TOGETHER = {"predict", "impute"}


@dataclass(frozen=True)
class Limits:
    """What a request may ask for.

    Attributes
    ----------
    body, table : bytes of a JSON request, and of a table.
    rows, table_rows : rows of these.
    seconds : that a client may take to send its request; that a request may wait for others; and
        that explanations may take where they have to draw.
    """

    body: int = 2**20
    table: int = 10 * 2**20
    rows: int = 1000
    table_rows: int = 20_000
    seconds: float = 10.0

    def rows_of(self, question: str) -> int:
        """Rows that a question takes at a time."""
        return min(self.rows, MOST_EXPLAINED) if question == "explain" else self.rows


@dataclass(frozen=True)
class _Metrics:
    """Counts and seconds of requests."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def add(self, path: str, status: int, seconds: float) -> None:
        self.counts[path, status] += 1
        self.seconds[path] += seconds  # type: ignore[assignment]

    def text(self) -> str:
        """The format of Prometheus."""
        lines = ["# TYPE mixtura_requests_total counter"]
        for (path, status), count in sorted(self.counts.items()):
            lines.append(f'mixtura_requests_total{{path="{path}",status="{status}"}} {count}')
        lines.append("# TYPE mixtura_request_seconds_total counter")
        for path, seconds in sorted(self.seconds.items()):
            lines.append(f'mixtura_request_seconds_total{{path="{path}"}} {seconds:.6f}')
        return "\n".join(lines) + "\n"


class _Around:
    """Adds safe headers to every answer, and counts it."""

    def __init__(self, app: ASGIApp, metrics: _Metrics, paths: frozenset[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        path = scope["path"] if scope["path"] in self.paths else "other"

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            self.metrics.add(path, status, time.perf_counter() - began)


@dataclass(eq=False)
class _Asked:
    """A request that has been checked; `answer` is an error where the model refuses it."""

    name: str
    rows: Rows
    shares: tuple[float | None, ...]
    label: object
    answer: Facts | Exception | None = None


class _Server:
    """Addresses and what they answer. One question is computed at a time per process."""

    def __init__(self, model: Loaded, limits: Limits) -> None:
        self.questions, self.limits, self.metrics = Questions.of(model), limits, _Metrics()
        self.schema = self.questions.schema()
        most = {name: limits.rows_of(name) for name in self.questions.names}
        self.openapi = describe(self.questions, most)
        self.turn, self.waiting = anyio.Lock(), list[_Asked]()

    def routes(self) -> list[Route]:
        """All addresses."""
        return [
            *(Route(path, _file(*file)) for path, file in _PAGE.items()),
            *(
                Route(f"/{name}", self._question(name), methods=["POST"])
                for name in self.questions.names
            ),
            Route("/table", self._table, methods=["POST"]),
            Route("/schema", _fixed(self.schema)),
            Route("/openapi.json", _fixed(self.openapi)),
            Route("/healthz", _fixed({"status": "ok"})),
            Route("/metrics", self._metrics),
        ]

    def _question(self, name: str) -> Callable[[Request], object]:
        async def answer(request: Request) -> Response:
            _check_type(request, "application/json")
            body = await self._body(request, self.limits.body)
            try:
                given = read_json(body)
            except InvalidInputError as error:
                raise HTTPException(400, str(error)) from None
            try:
                asked = self._read(name, given)
            except InvalidInputError as error:
                raise HTTPException(422, str(error)) from None
            return JSONResponse(await self._answer(asked))

        return answer

    def _read(self, name: str, given: object) -> _Asked:
        allowed = {"rows": None, **options_of(name)}
        if not isinstance(given, dict) or "rows" not in given or given.keys() - allowed:
            raise InvalidInputError(
                f"the body must be an object with rows, and nothing else but {list(allowed)[1:]}."
            )
        rows = self.questions.rows(given["rows"], self.limits.rows_of(name))
        shares = tuple(_share(given, option) for option in ("coverage", "outliers"))
        return _Asked(name, rows, shares, given.get("class"))

    async def _answer(self, asked: _Asked) -> Facts:
        """The answer to a request; those that wait for the same meanwhile are answered with it."""
        self.waiting.append(asked)
        try:
            async with self._turn():
                if asked.answer is None:
                    together = self._alike(asked)
                    await anyio.to_thread.run_sync(self._compute, together)
        finally:
            if asked in self.waiting:
                self.waiting.remove(asked)
        if isinstance(asked.answer, Exception):
            raise HTTPException(422, " ".join(str(asked.answer).split()))
        assert asked.answer is not None
        return asked.answer

    def _alike(self, asked: _Asked) -> list[_Asked]:
        """The request, and others that wait and ask the same of other rows, in bounded number."""
        found, size = [asked], len(asked.rows)
        for other in self.waiting if asked.name in _TOGETHER else ():
            same = (other.name, other.shares) == (asked.name, asked.shares)
            if same and other is not asked and size + len(other.rows) <= self.limits.rows:
                found.append(other)
                size += len(other.rows)
        self.waiting = [each for each in self.waiting if each not in found]
        return found

    def _compute(self, together: list[_Asked]) -> None:
        """Answer requests by one call of the model; one by one, if there is something to say."""
        first, rows = together[0], [row for each in together for row in each.rows]
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = self._found(first, self.questions.table_of(rows))
        except (ValueError, TypeError) as error:
            first.answer = error
        else:
            notes = [" ".join(str(each.message).split()) for each in said]
            first.answer = {"rows": found[: len(first.rows)], "notes": notes}
            if not notes:
                at = 0
                for each in together:
                    each.answer = {"rows": found[at : at + len(each.rows)], "notes": []}
                    at += len(each.rows)
                return
        if len(together) > 1:
            for each in together:
                self._compute([each])

    def _found(self, asked: _Asked, X: ArrayLike) -> list[Facts]:
        if asked.name == "predict":
            return self.questions.predict(X, *asked.shares)
        if asked.name == "explain":
            return self.questions.explain(X, asked.label, self.limits.seconds)
        return self.questions.next(X) if asked.name == "next" else self.questions.impute(X)

    async def _table(self, request: Request) -> Response:
        _check_type(request, "text/csv")
        body = await self._body(request, self.limits.table)
        most = self.limits.table_rows

        def answer() -> bytes:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.questions.table(body, most)

        async with self._turn():
            try:
                found = await anyio.to_thread.run_sync(answer)
            except (ValueError, TypeError) as error:
                raise HTTPException(422, " ".join(str(error).split())) from None
        name = {"Content-Disposition": 'attachment; filename="predictions.csv"'}
        return Response(found, media_type="text/csv", headers=name)

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics.text())

    async def _body(self, request: Request, most: int) -> bytes:
        """The body of a request, which must be small, and come soon."""
        parts, size = [], 0
        try:
            with anyio.fail_after(self.limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise HTTPException(413, f"the body is larger than {most} bytes.")
                    parts.append(part)
        except TimeoutError:
            raise HTTPException(408, "the request took too long to arrive.") from None
        return b"".join(parts)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """The right to compute, which one request has at a time."""
        try:
            with anyio.fail_after(self.limits.seconds):
                await self.turn.acquire()
        except TimeoutError:
            raise HTTPException(503, "too busy: try again.", {"Retry-After": "1"}) from None
        try:
            yield
        finally:
            self.turn.release()


def _fixed(facts: Facts) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        return JSONResponse(facts)

    return answer


def _file(name: str, kind: str) -> Callable[[Request], object]:
    content = files("mixtura.serve").joinpath(name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind)

    return answer


def _check_type(request: Request, wanted: str) -> None:
    """Also what keeps pages of other sites from asking: they may not send these types."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        raise HTTPException(415, f"send {wanted}.")


def _share(given: Facts, name: str) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0.0 <= value <= 1.0:  # type: ignore[operator]
        raise InvalidInputError(f"{name} must be a number from 0 to 1.")
    return float(value)  # type: ignore[arg-type]


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server failed; its log says why."}, 500)


def create_app(model: Loaded, limits: Limits | None = None, hosts: tuple[str, ...] = ()) -> ASGIApp:
    """The application for a fitted model; `hosts` are the names it may be called by (all: none)."""
    server = _Server(model, limits or Limits())
    routes = server.routes()
    paths = frozenset(route.path for route in routes)
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts or "*"))
    handlers = {HTTPException: _refusal, Exception: _failure}
    app = Starlette(routes=routes, middleware=[trusted], exception_handlers=handlers)
    return _Around(app, server.metrics, paths)


def from_environment() -> ASGIApp:
    """The application of a worker process."""
    hosts = tuple(filter(None, os.environ.get(_HOSTS, "").split(",")))
    return create_app(load_model(Path(os.environ[_MODEL]), "predict"), hosts=hosts)


def check_port(host: str, port: int) -> None:
    """Refuse an address at which nobody can listen."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise InvalidInputError(
            f"nothing can listen at {host}:{port} ({error.strerror}): choose another --port."
        ) from None


def run(model: Path, host: str, port: int, workers: int) -> None:
    """Serve a model file until told to stop; what is under way then ends first."""
    os.environ[_MODEL] = str(model.resolve())
    os.environ[_HOSTS] = ",".join(_LOCAL) if host in _LOCAL else ""
    uvicorn.run(
        "mixtura.serve.app:from_environment",
        factory=True,
        host=host,
        port=port,
        workers=workers,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=_FAREWELL,
        timeout_worker_healthcheck=_ALIVE,
    )
