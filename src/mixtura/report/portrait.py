"""What a model has learned: columns that matter, classes and their components, rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy.special import xlogy

from mixtura.answers.explain import Explanation, explain
from mixtura.answers.next_feature import next_feature
from mixtura.answers.question import ClassQuestion
from mixtura.data.matrix import Matrix
from mixtura.densities import Product
from mixtura.densities.product import numeric_part
from mixtura.exceptions import DegenerateDataWarning
from mixtura.models.fitted import Fitted, Observations
from mixtura.plotting import ComponentsDisplay, ExplanationDisplay, MarginalsDisplay
from mixtura.plotting.components import component_log_joint
from mixtura.progress import Progress
from mixtura.report.html import Html, listed, table, tag
from mixtura.report.page import bar, bullets, paragraph, picture, scrolling, titled
from mixtura.report.quality import percent
from mixtura.report.subject import Subject, in_time

#: Columns, classes, components of a class, words for one and rows that are shown.
_COLUMNS, _CLASSES, _COMPONENTS, _WORDS, _ROWS = 12, 12, 4, 4, 5
#: Rows that are explained, incomplete rows that are asked about, and points that are drawn.
_EXPLAINED, _ASKED, _POINTS = 200, 50, 300
#: Deviations from the mean of all rows from which a component is described by a column.
_NOTABLE, _STRONG = 0.4, 1.5
#: Times that rows are explained, each more of them, before their time is up.
_CALLS = 8
#: Categories of columns that are looked at.
_CATEGORIES = 2_000


# -- columns -----------------------------------------------------------------------------------


def features(subject: Subject) -> Iterator[Html]:
    """Shapley values of some rows, in a bounded time."""
    some = subject.rows.take(np.arange(min(_EXPLAINED, len(subject.labels))))
    found = _explained(subject, some, "probability", subject.max_time / 6.0)
    n_rows, error = len(found.values), float(np.mean(found.error_std))
    told = f"estimated from random orders, with standard errors of {error:.2g}"
    yield paragraph(
        f"Shapley values of {n_rows} rows: what the value of a column adds to the probability of "
        "the class that is predicted, averaged over all orders in which columns may become known; "
        f"the others are integrated out by the model. They are {told if error else 'exact'}. They "
        "say what the model uses, not what causes what."
    )
    first = np.argsort(-np.abs(found.values).mean((0, 2)))[:3]
    yield picture(
        lambda ax: ExplanationDisplay.from_explanation(found, max_features=_COLUMNS, ax=ax),
        (6.5, 1.4 + 0.3 * min(_COLUMNS, len(subject.columns))),
        f"Shapley values; the largest: {', '.join(subject.columns[at] for at in first)}.",
        f"How much each column moves the probability of the predicted class, over {n_rows} rows.",
        3,
    )


def _explained(subject: Subject, rows: Observations, output: str, seconds: float) -> Explanation:
    """Of rows, of as many as time allows."""
    generator = torch.Generator().manual_seed(subject.seed)
    parts: list[Explanation] = []

    def answer(some: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings(), Progress((), 0, seconds / _CALLS) as progress:
            warnings.simplefilter("ignore", DegenerateDataWarning)  # the report tells the errors
            question = ClassQuestion(subject.model, output, subject.estimator.device)
            found = explain(
                *(question, rows.take(some), "auto", None), generator=generator, progress=progress
            )
        parts.append(found)
        return some

    in_time(len(rows), seconds, answer, first=2)
    return _joined(parts)


def _joined(parts: list[Explanation]) -> Explanation:
    return replace(
        parts[0],
        values=np.concatenate([part.values for part in parts]),
        base_values=np.concatenate([part.base_values for part in parts]),
        error_std=np.concatenate([part.error_std for part in parts]),
        data=None,
        display_data=None,
    )


def measurements(subject: Subject) -> Iterator[Html]:
    """What to measure first, and next."""
    prior = subject.model.class_prior
    total = 0.0 if prior is None else -float(xlogy(prior, prior).sum())
    top = [at for at in subject.telling[:_COLUMNS] if subject.nats[at] > 0.0]
    lines = [
        (subject.columns[at], f"{subject.nats[at]:.3f}", bar(subject.nats[at] / max(total, 1e-9)))
        for at in top
    ]
    yield paragraph(
        f"Of a row of which nothing is known, the class is uncertain by {total:.3f} nats. This is "
        "what one measurement alone is expected to tell of them."
    )
    head = "column", "nats", "of the uncertainty"
    yield titled(head, lines, "Which measurement to take first")
    yield from _next_of_incomplete(subject)


def _next_of_incomplete(subject: Subject) -> Iterator[Html]:
    """What to measure next of rows that lack something."""
    missing = np.isnan(subject.rows.values)
    holed = np.flatnonzero(missing.any(1))[:_ASKED]
    if not len(holed):
        return
    generator = torch.Generator().manual_seed(subject.seed)

    def answer(rows: np.ndarray) -> np.ndarray:
        some = subject.rows.take(holed[rows])
        assert isinstance(some, Matrix)
        return next_feature(subject.model, some, generator, subject.estimator.device)

    found = in_time(len(holed), subject.max_time / 12.0, answer, first=1)
    counts = np.bincount(found.argmax(1), found.max(1) > 0.0, minlength=found.shape[1])
    mean = found.sum(0) / np.maximum(missing[holed[: len(found)]].sum(0), 1)
    lines = [
        (subject.columns[at], int(counts[at]), f"{mean[at]:.3f}")
        for at in np.argsort(-counts, kind="stable")[:_COLUMNS]
        if counts[at]
    ]
    about = f"What to measure next, of {len(found)} rows that lack something"
    head = "column", "rows where it tells most", "mean nats where it is missing"
    yield titled(head, lines, about)


# -- classes -----------------------------------------------------------------------------------


def classes(subject: Subject) -> Iterator[Html]:
    """Components in pictures and in words."""
    model, estimator = subject.model, subject.estimator
    levels = model.schema.levels(len(subject.columns))
    pair = [int(at) for at in subject.telling if not levels[at]][:2]
    some = np.arange(min(_POINTS, len(subject.labels)))
    if len(pair) == 2:
        labels = np.asarray(model.classes)[subject.labels[some]]
        names = " and ".join(subject.columns[at] for at in pair)
        yield picture(
            lambda ax: ComponentsDisplay.from_estimator(
                estimator, subject.take(some), labels, features=pair, ax=ax
            ),
            (6.8, 5.2),
            f"Outlines of the components of each class over {names}.",
            f"Components over {names}: the inner line holds half of the rows of a component, the "
            "outer one 90 %.",
            4,
        )
    shown = [int(at) for at in subject.telling[:6]]
    yield picture(
        lambda ax: MarginalsDisplay.from_estimator(estimator, features=shown, ax=ax),
        (3.0 * min(3, len(shown)) + 1.2, 2.4 * -(-len(shown) // 3)),
        "Densities of single columns given the class: "
        f"{', '.join(subject.columns[at] for at in shown)}.",
        "The columns that tell most on their own, given the class.",
        5,
    )
    yield from _in_words(subject)


def _in_words(subject: Subject) -> Iterator[Html]:
    model = subject.model
    mixture = model.mixture
    owner, weights = mixture.owner.numpy(), mixture.log_weight.exp().numpy()
    descriptions = describe(model, subject.columns)
    for number, name in enumerate(subject.classes[:_CLASSES]):
        own = np.flatnonzero(owner == number)
        own = own[np.argsort(-weights[own], kind="stable")]
        prior = float(mixture.log_prior[number].exp())
        yield tag("h3", name)
        if len(own) == 1:
            yield paragraph(f"{percent(prior)} of all rows, one component: {descriptions[own[0]]}.")
            continue
        yield paragraph(f"{percent(prior)} of all rows, {len(own)} components:")
        yield bullets(
            [f"{percent(weights[k])} of the class: {descriptions[k]}." for k in own[:_COMPONENTS]]
        )
    if len(subject.classes) > _CLASSES:
        yield paragraph(f"The first {_CLASSES} of {len(subject.classes)} classes are described.")


def describe(model: Fitted, names: list[str]) -> list[str]:
    """Each component in words: how it differs from all rows together."""
    told: list[list[tuple[float, str]]] = [[] for _ in range(model.mixture.n_components)]
    found_in = *_numbers(model, names), *_categories(model, names), *_atoms(model, names)
    for strengths, words in found_in:
        for own, strength, word in zip(told, strengths, words, strict=True):
            own.append((abs(float(strength)), word))
    found = []
    for own in told:
        notable = [word for strength, word in sorted(own, reverse=True) if strength > _NOTABLE]
        found.append("; ".join(notable[:_WORDS]) or "much like all rows together")
    return found


def _numbers(model: Fitted, names: list[str]) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Of each column of numbers: (K,) deviations from the mean of all rows, and words for them."""
    mixture = model.mixture
    density, part = mixture.density, numeric_part(mixture.density)
    columns = density.columns[0] if isinstance(density, Product) else range(len(names))
    share = mixture.log_joint_weight.exp().numpy()
    if not any(model.schema.levels(len(names))[c] == 0 for c in columns):
        return
    location = part.location.numpy()
    variance = part.covariances().diagonal(dim1=1, dim2=2).numpy()
    mean = share @ location
    spread = np.sqrt(share @ (variance + location**2) - mean**2)
    strength = (location - mean) / np.maximum(spread, 1e-12)
    units = np.zeros((len(share) + 1, len(names)))
    units[:, list(columns)] = np.vstack([location, mean])
    values = model.scaling.invert(units)
    for place, column in enumerate(columns):
        words = [
            f"{names[column]} {_degree(strength[k, place])} ({values[k, column]:.4g}; "
            f"all rows {values[-1, column]:.4g})"
            for k in range(len(share))
        ]
        yield strength[:, place], words


def _degree(strength: float) -> str:
    return ("very " if abs(strength) > _STRONG else "") + ("high" if strength > 0.0 else "low")


def _categories(model: Fitted, names: list[str]) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Of each column of categories: the one that sets each component apart most."""
    levels = model.schema.levels(len(names))
    words = np.flatnonzero(levels)
    for column in words[np.cumsum(levels[words]) <= _CATEGORIES]:
        labels, joint = component_log_joint(model, int(column), "cpu")
        yield _likeliest(model, names[column], labels.tolist(), joint)


def _atoms(model: Fitted, names: list[str]) -> Iterator[tuple[np.ndarray, list[str]]]:
    """The same of values of numbers that have probabilities."""
    atoms = model.scaling.atoms
    for column, values in zip(atoms.columns, atoms.shown, strict=True) if atoms else ():
        alone = np.full((len(values), len(names)), np.nan)
        alone[:, column] = values
        joint = model.component_log_joint(model.engine(Matrix(alone, np.isnan(alone)), "cpu"))
        yield _likeliest(model, names[column], [f"{value:.4g}" for value in values], joint)


def _likeliest(
    model: Fitted, name: str, labels: list[str], joint: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """(K,) by how much one of several values, of log joints (G, K), sets components apart most."""
    share = model.mixture.log_joint_weight.exp().numpy()
    chance = np.exp(joint) / share
    overall = chance @ share
    spread = np.sqrt(np.maximum(overall * (1.0 - overall), 1e-4))
    strength = (chance - overall[:, None]) / spread[:, None]
    best = strength.argmax(0)
    words = [
        f"{name} = {labels[at]} in {percent(chance[at, k])} (all rows {percent(overall[at])})"
        for k, at in enumerate(best)
    ]
    return strength[best, np.arange(len(share))], words


# -- rows --------------------------------------------------------------------------------------


def examples(subject: Subject) -> Iterator[Html]:
    """Typical rows, strange rows, and mistakes of which the model is sure."""
    yield paragraph("Rows go by their place in what was given, from 0.")
    proba = subject.proba[0.0]
    count = len(proba)
    typicality = subject.model.typicality(subject.engine())[:count]
    labels, guess = subject.labels[:count], proba.argmax(1)
    own = [np.flatnonzero(labels == number) for number in range(len(subject.classes))]
    best = [int(rows[typicality[rows].argmax()]) for rows in own[:_CLASSES] if len(rows)]
    yield scrolling(_rows(subject, best, "The likeliest row of each class"), "Typical rows")
    strange = np.argsort(typicality, kind="stable")[:_ROWS]
    yield scrolling(
        _rows(subject, strange.tolist(), "The least likely rows", _reasons(subject, strange)),
        "Strange rows",
    )
    wrong = np.flatnonzero(guess != labels)
    sure = wrong[np.argsort(-proba[wrong].max(1), kind="stable")][:_ROWS]
    if len(sure):
        about = "Mistakes of which the model is surest"
        yield scrolling(_rows(subject, sure.tolist(), about), about)


def _reasons(subject: Subject, rows: np.ndarray) -> list[str]:
    """Of each row, the columns that make it unlikely."""
    own = subject.rows.take(rows)
    found = _explained(subject, own, "log_density", subject.max_time / 12.0).values
    found = np.vstack([found, np.zeros((len(rows) - len(found), found.shape[1]))])
    return [
        listed([subject.columns[at] for at in np.argsort(each)[:3] if each[at] < 0.0], 3)
        for each in found
    ]


def _rows(subject: Subject, rows: list[int], about: str, reasons: list[str] | None = None) -> Html:
    """Rows by their place in what was given, what is said of them, and their telling columns."""
    proba, shown = subject.proba[0.0], subject.telling[:_ROWS]
    values = subject.model.schema.decode(subject.rows.values[rows]).astype(object)
    lines = [
        (
            int(subject.places[row]),
            subject.classes[subject.labels[row]],
            subject.classes[proba[row].argmax()],
            f"{proba[row].max():.3f}",
            *([reasons[place]] if reasons is not None else []),
            *(_entry(values[place, column]) for column in shown),
        )
        for place, row in enumerate(rows)
    ]
    why = ["unlikely by"] if reasons is not None else []
    names = [subject.columns[column] for column in shown]
    return table(("row", "class", "predicted", "probability", *why, *names), lines, about)


def _entry(value: object) -> str:
    if value is None or value != value:
        return "missing"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
