"""What a fitted estimator is, in a few lines: for notebooks, and for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sklearn.base import BaseEstimator

from mixtura.data.schema import Schema
from mixtura.densities import Gaussian
from mixtura.models.calibration import Calibration
from mixtura.models.fitted import Fitted
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.models.regression import Regression
from mixtura.plotting.base import class_names
from mixtura.plotting.training import Candidate, candidates
from mixtura.report.html import Html, joined, listed, table, tag

#: Names that are listed.
_SHOWN = 8
#: Variances up to so many floors are held by it; the share of them that is worth a word, and the
#: most numbers that are looked at for it.
_HELD, _NOTABLE, _LOOKED_AT = 1.01, 0.1, 2**24
#: It takes the colors of the page around it, light or dark.
_STYLE = Html(
    "<style>.mixtura{font:inherit;max-width:60em}"
    ".mixtura table{border-collapse:collapse;margin:.4em 0;background:none}"
    ".mixtura table{color:inherit;font:inherit}"
    ".mixtura :is(th,td){padding:.15em .8em .15em 0;text-align:left;vertical-align:top;"
    "background:none;border-bottom:1px solid rgba(128,128,128,.35)}"
    ".mixtura :is(th,td,summary,strong,code){color:inherit;font-weight:normal}"
    ".mixtura :is(strong,thead th){font-weight:bold}.mixtura tbody th{white-space:nowrap}"
    ".mixtura code{white-space:pre-wrap;background:none}</style>"
)
#: What stands for what in the attributes of estimators.
_CHOICES = {
    "representation_": "representation",
    "density_": "density of numbers",
    "method_": "method",
    "n_states_": "states",
    "n_stages_": "stages",
    "embedding_": "embedding",
    "tradeoff_": "share of the likelihood",
    "missingness_": "missingness",
    "unlabeled_weight_": "weight of unlabeled rows",
    "n_coef_": "weights that are left",
    "evidence_": "log evidence",
}


def facts(estimator: BaseEstimator) -> Iterator[tuple[str, str]]:
    """What a fitted estimator is: names and descriptions."""
    state = vars(estimator)
    if isinstance(state.get("estimator_"), BaseEstimator):
        yield from facts(state["estimator_"])
    pairs = vars(state.get("pairwise_", estimator)).get("estimators_")
    if pairs is not None:
        yield "classes", listed(class_names(getattr(estimator, "classes_", None)), _SHOWN)
        yield "classifiers of pairs of classes", str(len(pairs))
    model = state.get("model_")
    if isinstance(model, Fitted):
        yield from _classes(model)
        yield "columns", _columns(model.schema, len(model.scaling.location))
    if isinstance(model, Regression):
        yield "columns", _columns(model.schema, model.n_columns)
        yield "targets", str(model.n_targets)
        yield "average of models", ", ".join(f"{100 * each:.0f} %" for each in model.weights)
    counts = getattr(estimator, "class_count_", None)
    if counts is not None:
        yield "training rows", f"{counts.sum():.6g}"
    if isinstance(model, Fitted) and isinstance(model.model, Mixture | Network):
        yield "components", _components(model)
    for name, shown in _CHOICES.items():
        value = getattr(estimator, name, None)
        if value is not None:
            yield shown, f"{value:.4g}" if isinstance(value, float) else str(value)
    if isinstance(model, Fitted):
        yield from _averages_and_calibration(model, getattr(estimator, "marginals_", ()))
    records = getattr(estimator, "history_", None)
    if records:
        ended = "" if getattr(estimator, "converged_", True) else ", stopped before it settled"
        yield "training", f"{len(records)} iterations, {records[-1]['seconds']:.1f} s{ended}"


def _classes(model: Fitted) -> Iterator[tuple[str, str]]:
    if model.classes is not None and len(model.classes):
        names, prior = class_names(model.classes), model.class_prior
        if prior is not None:
            names = [f"{name} ({share:.2f})" for name, share in zip(names, prior, strict=True)]
        yield "classes" + ("" if prior is None else " (prior)"), listed(names, _SHOWN)


def _columns(schema: Schema, n_columns: int) -> str:
    words = int((schema.levels(n_columns) > 0).sum())
    kinds = f"{n_columns - words} of numbers" + (f", {words} of categories" if words else "")
    names = [str(name) for name in schema.names or ()]
    return kinds + (f": {listed(names, _SHOWN)}" if names else "")


def _averages_and_calibration(model: Fitted, kinds: Sequence[str]) -> Iterator[tuple[str, str]]:
    if model.blend is not None:
        shares = [f"{100 * weight:.0f} %" for weight in model.blend.weights]
        if len(kinds) == len(shares):
            shares = [f"{share} {kind}" for kind, share in zip(kinds, shares, strict=True)]
        yield f"average of {len(shares)} models", ", ".join(shares)
    if model.classes is not None and len(model.classes) > 1:
        yield "calibration", _calibration(model)
    if model.held_back is not None:
        yield "prediction sets", f"by {len(model.held_back.y)} held-back rows"


def _components(model: Fitted) -> str:
    counts = model.mixture.layout.counts
    each = f"{counts[0]} per class" if len(set(counts)) == 1 else listed(counts, _SHOWN)
    return f"{sum(counts)}" + (f" ({each})" if len(counts) > 1 else "") + _held(model.mixture)


def _held(mixture: Mixture) -> str:
    """That many components would be narrower without the floor of their variances, if so."""
    for part in getattr(mixture.density, "parts", (mixture.density,)):
        if isinstance(part, Gaussian) and part.mean.numel() * part.n_features <= _LOOKED_AT:
            held = part.covariances().diagonal(dim1=1, dim2=2) <= _HELD * part.floor
            held &= part.mean.amax(0) > part.mean.amin(0)  # a constant column has no variance
            if (share := float(held.double().mean())) >= _NOTABLE:
                return (
                    f"; {share:.0%} of their variances are held at the floor, {part.floor:g} of "
                    "those of columns: with a lower one, the density would be narrower"
                )
    return ""


def _calibration(model: Fitted) -> str:
    found = model.calibration if model.blend is None else model.blend.calibration
    if found == Calibration(fade=found.fade):
        return "none: probabilities are the model's own"
    return (
        f"log probabilities divided by {found.temperature:.3g}, and {100 * found.doubt:.2g} % of a "
        "plain guess"
    )


def choice_table(found: list[Candidate], caption: str | None = None) -> Html:
    """What was compared on held-out rows."""
    rows = [
        (
            each.question,
            each.settings,
            each.rows,
            "not tried" if each.loss is None else f"{each.loss:.4f}",
            tag("strong", "chosen") if each.chosen else "",
        )
        for each in found
    ]
    return table(("question", "candidate", "rows", "loss", ""), rows, caption)


def notebook(estimator: BaseEstimator) -> str:
    """A fitted estimator as HTML."""
    parts: list[Html] = [tag("strong", type(estimator).__name__)]
    parts.append(table((), facts(estimator)))
    compared = candidates(getattr(estimator, "choice_", None) or [])
    if any(each.loss is not None for each in compared):
        title = tag("summary", f"{len(compared)} candidate(s) compared on held-out rows")
        parts.append(tag("details", title, choice_table(compared)))
    parts.append(tag("details", tag("summary", "parameters"), tag("code", repr(estimator))))
    return _STYLE + tag("div", joined(parts), class_="mixtura")
