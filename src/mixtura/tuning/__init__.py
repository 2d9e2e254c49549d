"""Search for an estimator's parameters by cross-validation, with Optuna."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.metrics import check_scoring
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, check_random_state, column_or_1d, get_tags
from sklearn.utils.validation import _num_samples, check_consistent_length

from mixtura.data.given import ArrayLike, Fittable, Parameters, RandomState, Setting
from mixtura.data.labels import find_labeled, read_labels, resolve_unlabeled
from mixtura.estimators.reading import check_weight
from mixtura.exceptions import InvalidInputError

try:
    import optuna
except ImportError:
    raise ImportError("The search needs Optuna: pip install 'mixtura[tune]'.") from None

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from mixtura.tuning.spaces import SPACES, Trial, classifier_space, plain

__all__ = ["SPACES", "TuningResult", "classifier_space", "tune"]


class Splitter(Protocol):
    """What scikit-learn calls a cross-validator."""

    @property
    def split(self) -> Callable[..., Iterable[tuple[np.ndarray, np.ndarray]]]: ...


Value = TypeVar("Value", int, str)
AnyEstimator = TypeVar("AnyEstimator", bound=Fittable)
Space = Mapping[str, BaseDistribution] | Callable[[Trial], Parameters] | None
Scoring = str | Callable[..., float] | None
Storage = str | os.PathLike[str] | BaseStorage | None
Folds = list[tuple[np.ndarray, np.ndarray]]
Splits = int | Splitter | Iterable[tuple[np.ndarray, np.ndarray]]

#: A pruned trial counts, a failed one does not: that is one which was interrupted.
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)
#: NumPy's LinAlgError is a ValueError, PyTorch's is not.
_FIT_ERRORS = (ValueError, torch.linalg.LinAlgError)
_AS_GIVEN, _ERROR = "as given", "error"


class TuningResult(NamedTuple, Generic[AnyEstimator]):
    """The best estimator, fitted on all rows, and the study that found it."""

    estimator: AnyEstimator
    study: optuna.Study


def tune(
    estimator: AnyEstimator,
    X: ArrayLike,
    y: ArrayLike = None,
    *,
    n_trials: int = 50,
    space: Space = None,
    cv: Splits = 5,
    scoring: Scoring = None,
    timeout: float | None = None,
    n_jobs: int = 1,
    storage: Storage = None,
    study_name: str | None = None,
    sample_weight: ArrayLike = None,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    random_state: RandomState = None,
    verbose: int = 0,
) -> TuningResult[AnyEstimator]:
    """Search for the parameters that do best in cross-validation.

    The first trial is the estimator as it was given, so that the result scores no worse than it.
    A trial that falls behind the others after a few folds is given up. One whose fit fails counts
    as given up too, and keeps the message in its user attribute "error".

    Parameters
    ----------
    estimator : estimator of a type in `SPACES`, or a scikit-learn Pipeline that ends in one
        Any other estimator needs `space`. It is left as it is.
    X, y, sample_weight
        As in the estimator's `fit`; weights count in fitting, not in scoring. Unlabeled rows
        belong to every training part and are never scored.
    n_trials : int
        Trials wanted in all, together with those that `storage` already holds.
    space : None, dict or callable
        Names of parameters with Optuna distributions, or a function of a trial that returns
        parameters. None is the space that `SPACES` has for the estimator.
    cv : int, scikit-learn splitter, or pairs of training and test rows
        A number shuffles the rows, and gives every part its share of each class.
    scoring : None, name or callable
        A scikit-learn scorer; large is good. None is "neg_log_loss" for classifiers, which also
        judges the probabilities ("accuracy" judges the decisions alone), and the estimator's own
        `score` for others: for `MixtureDensity` the mean log density of held-out rows.
    timeout : float
        No trial begins after so many seconds.
    n_jobs : int
        Trials at a time, in threads; -1 is one per core. Only one at a time is repeatable.
    storage : None, path, Optuna URL or Optuna storage
        Where trials are kept. Call again with the same storage and `study_name` to continue after
        an interruption, or call from several processes, each with a `random_state` of its own, to
        share the work. A path that ends in .db is an SQLite database, any other an Optuna journal.
    study_name : str
        By default the name of the estimator's type.
    sampler, pruner
        By default Optuna's TPESampler and MedianPruner.
    random_state : as in scikit-learn
        Seeds the sampler, the folds, and the estimator where its own `random_state` is None. A
        search that is continued keeps the folds it began with.
    verbose : int
        Log every trial.

    Returns
    -------
    TuningResult
        The best estimator, fitted on all rows, and the Optuna study.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from mixtura import MixtureDensity
    >>> from mixtura.tuning import tune
    >>> best, study = tune(MixtureDensity(), load_iris().data, n_trials=3, random_state=0)
    >>> bool(study.best_value >= study.trials[0].value)
    True
    """
    _check_counts(n_trials, n_jobs)
    rows = _Rows.read(estimator, X, y, sample_weight)
    scoring, scorer = _resolve_scoring(estimator, scoring)
    with _logging(verbose):
        name = study_name or type(_last_step(estimator)[1]).__name__
        study, seed = _open_study(storage, name, sampler, pruner, random_state)
        folds = rows.folds(cv, seed, stratify=is_classifier(estimator))
        settled = _free_seeds(estimator, seed) | _marker(estimator, rows.y)
        start = clone(estimator).set_params(**settled)
        search = _Search(start, rows, folds, scorer, _resolve_space(space, start, rows, folds))
        search.rehearse()
        _refuse_other_task(study, f"{scoring} over {len(folds)} folds of {len(rows)} rows")
        _enqueue_start(study)
        study.optimize(
            search,
            n_trials=max(0, n_trials - len(study.get_trials(states=_DONE))),
            timeout=timeout,
            n_jobs=n_jobs,
            callbacks=[optuna.study.MaxTrialsCallback(n_trials, states=_DONE)],
        )
    best = search.model(_best_trial(study))
    return TuningResult(search.fit(best, np.arange(len(rows))), study)


def _resolve_space(
    space: Space, estimator: Fittable, rows: _Rows, folds: Folds
) -> Callable[[Trial], Parameters]:
    if callable(space):
        return space
    if isinstance(space, Mapping):
        return lambda trial: {name: _suggest(trial, name, space[name]) for name in space}
    if space is not None:
        raise InvalidInputError(f"space={space!r}: give a dict, a function of a trial, or None.")
    prefix, last = _last_step(estimator)
    known = next((SPACES[kind] for kind in type(last).__mro__ if kind in SPACES), None)
    if known is None:
        raise InvalidInputError(
            f"no space is known for {type(last).__name__}: pass space=, a dict of Optuna "
            "distributions or a function of a trial, or add the type to SPACES."
        )
    X, y = rows.take(folds[0][0])
    if isinstance(estimator, Pipeline) and len(estimator) > 1:
        X = clone(estimator[:-1]).fit_transform(X, y)
    return lambda trial: {prefix + key: value for key, value in known(trial, last, X, y).items()}


def _suggest(trial: Trial, name: str, choice: BaseDistribution) -> Setting:
    match choice:
        case FloatDistribution():
            return trial.suggest_float(
                name, choice.low, choice.high, step=choice.step, log=choice.log
            )
        case IntDistribution():
            return trial.suggest_int(
                name, choice.low, choice.high, step=choice.step, log=choice.log
            )
        case CategoricalDistribution():
            return trial.suggest_categorical(name, choice.choices)
    raise InvalidInputError(f"space[{name!r}] is {choice!r}: give an Optuna distribution.")


# -- trials ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    X: ArrayLike
    y: np.ndarray | None
    weight: np.ndarray | None
    labeled: np.ndarray

    def __len__(self) -> int:
        return len(self.labeled)

    @classmethod
    def read(
        cls, estimator: Fittable, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike
    ) -> _Rows:
        of_sequences = get_tags(_last_step(estimator)[1]).input_tags.three_d_array
        X = X if hasattr(X, "shape") or of_sequences else np.asarray(X)
        labeled = np.ones(_num_samples(X), dtype=bool)
        if is_classifier(estimator):
            if y is None:
                raise InvalidInputError("a classifier needs y.")
            y = read_labels(y)
            labeled = find_labeled(y, getattr(_last_step(estimator)[1], "unlabeled", None))
            if not labeled.any():
                raise InvalidInputError("y has no labeled row: there is nothing to score.")
        check_consistent_length(X, y)
        weight = None if sample_weight is None else check_weight(sample_weight, len(labeled))
        return cls(X, None if y is None else column_or_1d(y), weight, labeled)

    def take(self, index: np.ndarray) -> tuple[ArrayLike, np.ndarray | None]:
        return _safe_indexing(self.X, index), None if self.y is None else self.y[index]

    def folds(self, cv: Splits, seed: int, *, stratify: bool) -> Folds:
        """Training and test rows; the unlabeled ones always train."""
        # Splitters see labeled rows alone, for a marker is not a class to share out.
        by_splitter = isinstance(cv, Integral) or hasattr(cv, "split")
        rows = np.flatnonzero(self.labeled) if by_splitter else np.arange(len(self))
        X, y = self.take(rows)
        y = None if y is None or not by_splitter else plain(y)
        if isinstance(cv, Integral):
            if stratify and y is not None:
                _refuse_small_classes(y, int(cv))
            kind = StratifiedKFold if stratify else KFold
            cv = kind(int(cv), shuffle=True, random_state=seed)
        pairs = [(rows[train], rows[test]) for train, test in check_cv(cv).split(X, y)]
        apart = np.flatnonzero(~self.labeled)
        return [
            (np.append(train[self.labeled[train]], apart), test[self.labeled[test]])
            for train, test in pairs
        ]


@dataclass(frozen=True)
class _Search(Generic[AnyEstimator]):
    """The objective that Optuna maximizes."""

    start: AnyEstimator
    rows: _Rows
    folds: Folds
    scorer: Callable[..., float]
    space: Callable[[Trial], Parameters]

    def __call__(self, trial: optuna.Trial) -> float:
        model, scores = self.model(trial), []
        for step, (train, test) in enumerate(self.folds):
            try:
                scores.append(self._score(self.fit(clone(model), train), test))
            except _FIT_ERRORS as error:
                trial.set_user_attr(_ERROR, str(error))
                raise optuna.TrialPruned(str(error)) from error
            trial.report(float(np.mean(scores)), step)
            if _AS_GIVEN not in trial.user_attrs and trial.should_prune():
                raise optuna.TrialPruned(f"behind after {step + 1} folds")
        return float(np.mean(scores))

    def model(self, trial: Trial) -> AnyEstimator:
        parameters = {} if _AS_GIVEN in trial.user_attrs else self.space(trial)
        return clone(self.start).set_params(**parameters)

    def fit(self, model: AnyEstimator, index: np.ndarray) -> AnyEstimator:
        X, y = self.rows.take(index)
        weight = self.rows.weight
        extra = {} if weight is None else {_last_step(model)[0] + "sample_weight": weight[index]}
        return model.fit(X, y, **extra)

    def _score(self, model: AnyEstimator, index: np.ndarray) -> float:
        X, y = self.rows.take(index)
        score = self.scorer(model, X) if y is None else self.scorer(model, X, plain(y))
        if not np.isfinite(score):
            raise ValueError(f"the score is {score}")
        return float(score)

    def rehearse(self) -> None:
        """Names that the estimator does not know come to light before any work is done."""
        self.model(optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask())


def _last_step(estimator: Fittable) -> tuple[str, Fittable]:
    """The estimator that classifies, and what its parameters begin with."""
    if not isinstance(estimator, Pipeline):
        return "", estimator
    name, last = estimator.steps[-1]
    return f"{name}__", last


def _free_seeds(estimator: Fittable, seed: int) -> Parameters:
    """The random states nobody has set: with one seed for all, trials differ by parameters only."""
    given = estimator.get_params().items()
    return {key: seed for key, value in given if key.endswith("random_state") and value is None}


def _marker(estimator: Fittable, y: np.ndarray | None) -> Parameters:
    """What marks unlabeled rows: the same for every fold, whatever labels it happens to hold."""
    prefix, last = _last_step(estimator)
    if y is None or not hasattr(last, "unlabeled"):
        return {}
    return {f"{prefix}unlabeled": resolve_unlabeled(y, last.unlabeled)}


# -- the study -------------------------------------------------------------------------------


def _resolve_scoring(estimator: Fittable, scoring: Scoring) -> tuple[str, Callable[..., float]]:
    """A measure's name and its scorer."""
    if scoring is None and is_classifier(estimator):
        scoring = "neg_log_loss"
    if not (scoring is None or isinstance(scoring, str) or callable(scoring)):
        raise InvalidInputError(f"scoring={scoring!r}: give one name or one callable.")
    name = scoring if isinstance(scoring, str) else getattr(scoring, "__name__", "score")
    return name, check_scoring(estimator, scoring)


def _open_study(
    storage: Storage,
    name: str,
    sampler: optuna.samplers.BaseSampler | None,
    pruner: optuna.pruners.BasePruner | None,
    random_state: RandomState,
) -> tuple[optuna.Study, int]:
    """The study, new or begun before, and the seed of its folds and fits."""
    study = optuna.create_study(
        storage=_resolve_storage(storage),
        study_name=name,
        pruner=pruner,
        direction="maximize",
        load_if_exists=True,
    )
    drawn = int(check_random_state(random_state).randint(2**31 - 1))
    # A sampler that began again with the same seed would repeat the trials that are there.
    study.sampler = sampler or optuna.samplers.TPESampler(seed=drawn + len(study.trials))
    return study, _recall(study, "seed", drawn)


def _resolve_storage(storage: Storage) -> str | BaseStorage | None:
    path = os.fspath(storage) if isinstance(storage, os.PathLike) else storage
    if not isinstance(path, str) or "://" in path:
        return path
    if path.endswith(".db"):
        return f"sqlite:///{path}"
    return optuna.storages.JournalStorage(JournalFileBackend(path))


def _recall(study: optuna.Study, key: str, value: Value) -> Value:
    """What the first call on this study noted; this value, if it is the first."""
    if key not in study.user_attrs:
        study.set_user_attr(key, value)
    return study.user_attrs[key]


def _enqueue_start(study: optuna.Study) -> None:
    there = study.get_trials(deepcopy=False, states=(*_DONE, TrialState.WAITING))
    if not any(_AS_GIVEN in trial.user_attrs for trial in there):
        study.enqueue_trial({}, user_attrs={_AS_GIVEN: True})


def _best_trial(study: optuna.Study) -> optuna.trial.FrozenTrial:
    if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        return study.best_trial
    errors = [trial.user_attrs[_ERROR] for trial in study.trials if _ERROR in trial.user_attrs]
    if errors:
        raise ValueError(f"each of the {len(errors)} trials failed, the last with: {errors[-1]}")
    raise ValueError("the time was up before a trial was done: raise timeout.")


@contextmanager
def _logging(verbose: int) -> Iterator[None]:
    """Optuna's verbosity belongs to the whole process: it is put back."""
    before = optuna.logging.get_verbosity()
    quiet = max(before, optuna.logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.INFO if verbose else quiet)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _check_counts(n_trials: object, n_jobs: object) -> None:
    if not isinstance(n_trials, Integral) or n_trials < 1:
        raise InvalidInputError(f"n_trials={n_trials!r}: give a whole number, 1 or more.")
    if not isinstance(n_jobs, Integral) or (n_jobs < 1 and n_jobs != -1):
        raise InvalidInputError(f"n_jobs={n_jobs!r}: give a whole number, 1 or more, or -1.")


def _refuse_small_classes(y: np.ndarray, n_folds: int) -> None:
    classes, counts = np.unique(y, return_counts=True)
    if counts.min() < n_folds:
        raise InvalidInputError(
            f"the class {classes[counts.argmin()].item()!r} has {counts.min()} labeled rows, too "
            f"few for cv={n_folds}: lower cv, drop the class, or pass a splitter."
        )


def _refuse_other_task(study: optuna.Study, task: str) -> None:
    before = _recall(study, "task", task)
    if before != task:
        raise InvalidInputError(
            f"the study {study.study_name!r} in this storage measures {before}, not {task}: choose "
            "another study_name."
        )
