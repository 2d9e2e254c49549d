"""The description of the JSON interface, made from the columns of the model (OpenAPI 3.1)."""

from __future__ import annotations

from mixtura.serve.questions import Facts, Questions
from mixtura.version import version

_SUMMARIES = {
    "predict": "The prediction; of classes also probabilities, sets and oddity where asked for",
    "explain": "What columns add to the probability of a class, to a number, or to the log density",
    "next": "What each missing entry is expected to tell: nats, or shares of a variance",
    "impute": "What the missing entries probably are",
}
_SHARE: Facts = {"type": "number", "minimum": 0, "maximum": 1}
_OPTIONS: dict[str, Facts] = {
    "predict": {"coverage": _SHARE, "outliers": _SHARE},
    "explain": {"class": {"type": ["string", "number", "boolean"]}},
}
_REFUSALS = {
    "400": "the body is no JSON",
    "413": "the body is too large",
    "415": "the body is of another type",
    "422": "the rows or options are wrong; the message says which",
    "503": "too busy: try again",
}


def options_of(question: str) -> Facts:
    """What a request may hold beside its rows."""
    return _OPTIONS.get(question, {})


def describe(questions: Questions, most: dict[str, int]) -> Facts:
    """The description; `most` has the number of rows that each question takes at a time."""
    properties: Facts = {}
    for column in questions.columns:
        kind = {"text": "string"}.get(column.kind, column.kind)
        facts: Facts = {"type": [kind, "null"]}
        if column.categories is not None:
            facts["examples"] = list(column.categories[:5])
        properties[column.name] = facts
    row: Facts = {"type": "object", "properties": properties, "additionalProperties": False}
    paths: Facts = {f"/{name}": {"post": _post(name, most[name])} for name in questions.names}
    for path, summary in {"/schema": "Columns and classes", "/healthz": "Whether it runs"}.items():
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "JSON"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mixtura", "version": version()},
        "paths": paths,
        "components": {"schemas": {"Row": row}},
    }


def _post(name: str, most: int) -> Facts:
    rows: Facts = {
        "type": "array",
        "items": {"$ref": "#/components/schemas/Row"},
        "minItems": 1,
        "maxItems": most,
    }
    content: Facts = {
        "type": "object",
        "properties": {"rows": rows, **options_of(name)},
        "required": ["rows"],
        "additionalProperties": False,
    }
    answers = {"200": "one answer per row, and notes"} | _REFUSALS
    return {
        "summary": _SUMMARIES[name],
        "requestBody": {"required": True, "content": {"application/json": {"schema": content}}},
        "responses": {status: {"description": text} for status, text in answers.items()},
    }
