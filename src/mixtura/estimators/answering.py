"""What estimators answer whose fitted model has a density."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sklearn.base import TransformerMixin

from mixtura.answers.cells import Cells, Intervals
from mixtura.answers.condition import Condition, Given
from mixtura.answers.explain import NUMBERS, OUTPUTS, Groups
from mixtura.answers.question import ClassQuestion
from mixtura.data.failures import are_stuck
from mixtura.data.given import ArrayLike, RandomState
from mixtura.data.labels import encode_labels, read_labels_of
from mixtura.data.matrix import Matrix
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.data.sequence_input import Sequences
from mixtura.densities import HiddenMarkov
from mixtura.estimators.base import ModelEstimator
from mixtura.estimators.conditioned import ConditionedModel
from mixtura.estimators.reading import check_count, learn_table, read_table
from mixtura.exceptions import InvalidInputError, UnsupportedError, check_share
from mixtura.models.fitted import Observations
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network, RegressionNetwork

#: Deviations from zero from which on an offset would eat digits of variances.
_FAR_OFF = 100.0


@dataclass(kw_only=True, eq=False, repr=False)
class DensityEstimator(TransformerMixin, ModelEstimator):
    """Answers of an estimator whose fitted model, `model_`, has a density; subclasses train it.

    They read what a user passes by `_read`, which learns the columns where there is no schema yet.
    """

    categorical_features: ArrayLike = None
    unexpected: str = "missing"

    # -- reading -------------------------------------------------------------------------------

    def _read(self, X: ArrayLike, schema: Schema | None = None) -> tuple[Observations, Schema]:
        """Checked rows, and what their columns are; they are learned if that is not known."""
        if schema is not None:
            return read_table(self, X, schema, self.unexpected, reset=False), schema
        return learn_table(self, X, self.categorical_features, self.unexpected)

    def _rows(self, X: ArrayLike) -> Observations:
        return self._read(X, self._fitted.schema)[0]

    @property
    def _keeps_units(self) -> bool:
        """Whether features are left in the units of X, instead of those of variance one."""
        return not getattr(self, "standardize", True)

    def _scaled(self, rows: Observations, weight: np.ndarray, schema: Schema) -> Scaling:
        """The units to work in."""
        values = rows.values
        if isinstance(rows, Sequences):
            weight = np.repeat(weight, rows.lengths)
        names = getattr(self, "feature_names_in_", None)
        scaling = Scaling.measure(values, weight, names)
        if self._keeps_units:
            far = np.abs(scaling.location) > _FAR_OFF * scaling.scale
            scaling = Scaling(np.where(far, scaling.location, 0.0), np.ones(values.shape[1]))
        return scaling.sparing(schema.levels(values.shape[1]))

    # -- attributes ----------------------------------------------------------------------------

    @property
    def mixture_(self) -> Mixture:
        """The density of rows, in the model's units."""
        return self._fitted.mixture

    @property
    def weights_(self) -> np.ndarray:
        """(K,) weights of the components within their class."""
        return self.mixture_.log_weight.exp().numpy()

    @property
    def means_(self) -> np.ndarray:
        """Locations of the components (and states) in the user's units, (K, ..., D).

        Of columns with atoms they are those of the other values, as are covariances.
        """
        return self.scaling_.invert(self.mixture_.density.location.numpy())

    @property
    def covariances_(self) -> np.ndarray:
        """Dense covariances of the components (and states) in the user's units, (K, ..., D, D).

        Where columns are mapped by curves, they are those of straight lines through the means.
        """
        density = self.mixture_.density
        scale = np.exp(self.scaling_.log_scale(density.location.numpy()))
        return density.covariances().numpy() * scale[..., :, None] * scale[..., None, :]

    @property
    def missingness_(self) -> str:
        """Whether components also differ in which entries are absent."""
        informative = getattr(self.mixture_.density, "informative", False)
        return "informative" if informative else "ignore"

    @property
    def score_quantiles_(self) -> np.ndarray:
        """(1001,) quantiles of what `is_outlier` judges by, over rows like those of training."""
        found = self._fitted.typical
        if found is None:
            raise AttributeError("a model without a density has no typical rows.")
        return found

    # -- answers -------------------------------------------------------------------------------

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Log density log p(x) of each row over its observed features.

        Where `missingness_` is "informative" it also counts which entries are absent. Of categories
        and atoms (see `marginals`) it has the probability, which no units change: a row of nothing
        else scores its log probability.

        Returns
        -------
        (n,) array, in the units of X.
        """
        return self._fitted.log_density(self._engine(X))

    def responsibilities(self, X: ArrayLike) -> np.ndarray:
        """p(component | x), (n, K), components in the order of `weights_`."""
        return self._fitted.responsibilities(self._engine(X))

    def transform(self, X: ArrayLike) -> np.ndarray:
        """The embedding of each row, (n, K): its component posteriors, or what a read-out reads."""
        return self._fitted.embed(self._engine(X))

    def get_feature_names_out(self, input_features: ArrayLike = None) -> np.ndarray:
        """Names of the columns that `transform` gives, (K,)."""
        prefix = type(self).__name__.lower()
        count = self._fitted.mixture.n_components
        return np.array([f"{prefix}{place}" for place in range(count)], dtype=object)

    def impute(
        self,
        X: ArrayLike,
        y: ArrayLike = None,
        *,
        n_draws: int | None = None,
        random_state: RandomState = None,
    ) -> ArrayLike:
        """Fill missing entries from what is observed.

        Parameters
        ----------
        X : (n, D), NaN where missing.
        y : labels to condition on, where they are known and classes have densities.
        n_draws : None fills in the conditional mean (of mapped values, where curves map columns: in
            the units of X that is nearer to a median); a number gives so many random completions.

        Returns
        -------
        (n, D), or (n_draws, n, D); a data frame for a data frame, with the columns of the training
        rows in their order; of sequences what they came as; or n_draws of these. Observed entries
        come back to the bit; of categories, the likeliest is filled in. Means are those of the
        model: a discriminative objective may have moved them far from the data, and structures that
        predict classes well may take columns for independent that determine each other. To fill in
        well, take `MixtureImputer`, or a likelihood of full covariances.
        """
        rows = self._rows(X)
        codes = self._codes(self._by_row(y, X), len(rows))
        return self._filled(rows, X, codes, n_draws, random_state)

    def _filled(
        self,
        rows: Observations,
        X: ArrayLike,
        y: np.ndarray | None,
        n_draws: int | None,
        random_state: RandomState,
    ) -> ArrayLike:
        """Checked rows with their holes filled, given class indices (n,), in the form of X."""
        model = self._fitted
        if y is not None and isinstance(model.model, Network):
            raise InvalidInputError("a network has no density per class: leave y out.")
        if n_draws is None:
            engine = model.engine(rows, self.device, y)
            return self._like(model.imputed(engine, rows.values), rows, X)

        def draw(
            many: Observations, y: np.ndarray | None, generator: torch.Generator
        ) -> np.ndarray:
            return model.drawn(model.engine(many, self.device, y), many.values, generator)

        like = partial(self._like, rows=rows, X=X)
        return self._draws(rows, y, draw, like, n_draws, random_state)

    def _codes(self, y: ArrayLike, n_rows: int) -> np.ndarray | None:
        """Class indices of labels, -1 for those that mark unlabeled rows; None for none."""
        if y is None:
            return None
        classes = self._fitted.classes
        if classes is None:
            raise InvalidInputError("this model knows no classes: leave y out.")
        return encode_labels(read_labels_of(y, n_rows), classes, getattr(self, "unlabeled", None))

    def _like(self, values: np.ndarray, rows: Observations, X: ArrayLike) -> ArrayLike:
        """Values of checked rows in the form of what was given."""
        if isinstance(rows, Sequences):
            return rows.like(values, X)
        return self.schema_.like(values, X, rows.untold)

    def category_proba(self, X: ArrayLike, column: int | str) -> np.ndarray:
        """p(category | what is observed) of a categorical column.

        Parameters
        ----------
        X : rows, as for `impute`.
        column : its position, or its name in a data frame.

        Returns
        -------
        (n, number of categories), in the order of `schema_.categories`; one for what is observed.
        """
        return self._fitted.category_proba(self._engine(X), column)

    def is_outlier(self, X: ArrayLike, share: float = 0.01) -> np.ndarray:
        """Rows less likely than all but a `share` of rows like those of training would be.

        Training rows count by what a model without them makes of them (those of a stream by what
        the model made of them before it learned from them), so about that `share` of new rows is
        flagged where nothing has changed. Where densities have no closed-form updates they count as
        they are, and more is flagged; so they do where `max_time` leaves no time for more.

        Sequences that choices were made on count by models that were fitted without them.

        Rows and sequences with holes are judged in their favor: the holes are filled by their
        conditional means. Sequences go by log densities per value, in deviations for their length;
        those in which a channel is stuck at one value, as none of training was, are outliers too.
        """
        model = self._fitted
        check_share("share", share)
        rows = self._rows(X)
        found = model.is_outlier(model.engine(rows, self.device), share)
        return found | are_stuck(rows, model.limits) if isinstance(rows, Sequences) else found

    def condition(self, given: Given) -> ConditionedModel:
        """The model given some columns: it scores, samples, imputes and predicts.

        Parameters
        ----------
        given : values by column, which goes by its name or position.
        """
        return ConditionedModel(self, self._condition(given))

    def _condition(self, given: Given) -> Condition:
        if isinstance(self._fitted.mixture.density, HiddenMarkov):
            raise UnsupportedError("conditions are for tables: frames of sequences have none.")
        return Condition.of(self._fitted, self.n_features_in_, given, self.device)

    def _draw_given(
        self, condition: Condition, n_samples: int, random_state: RandomState
    ) -> ArrayLike:
        """(n_samples, D) rows, in the form of those of training."""
        drawn = condition.draw(check_count(n_samples), None, self._generator(random_state))
        return self.schema_.table(drawn.values)

    def _table(self, X: ArrayLike) -> Matrix:
        """Checked rows of a table; sequences are refused."""
        rows = self._rows(X)
        if not isinstance(rows, Matrix):
            raise UnsupportedError("this is an answer for tables, and X holds sequences.")
        return rows

    def explain(
        self,
        X: ArrayLike,
        output: str | None = None,
        *,
        method: str = "auto",
        groups: Groups = None,
        max_time: float | None = 60.0,
        random_state: RandomState = None,
    ) -> ArrayLike:
        """Why the model answers as it does: Shapley values of the columns of each row.

        The value of some columns is the model's answer to the row with the others missing, that is,
        integrated out. So the values of a row sum to its answer less the answer to a row with
        nothing observed, columns that say the same share what they say, and missing entries get
        zero. Probabilities are those of `predict_proba`, whose calibration depends on how much is
        missing. Where `missingness_` is "informative", what the row lacks is part of what is known
        from the start: its evidence stands in the base value.

        Parameters
        ----------
        X : rows, as for `predict`.
        output : "probability", "log_odds" (of each class against the others) or "log_density", by
            which the most negative values say why a row is an outlier; they are in units in which
            columns compare, and the base values make the sum `score_samples`. Of numbers, "mean" or
            "log_density". None is what `predict` goes by, and "log_density" where it knows nothing.
        method : "exact" looks at all subsets of at most 20 columns that a row has, "permutation" at
            64 random orders; "auto" is "exact" for up to 13 columns, and wherever one order tells
            all: where columns are independent given one component per class, for the log odds of
            two classes (that have not been calibrated) and for the log density.
        groups : columns that come and go together, by name or position: a list of lists, or a dict
            of lists by the names of the groups. Other columns stand alone.
        max_time : seconds after which no more orders are drawn, with a warning; each takes the time
            of a factorization per component, and there are four at least. `verbose` of the
            estimator shows how far it is.

        Returns
        -------
        A `shap.Explanation` where shap is installed, which its plots take; else an object with the
        same fields: `values` (n, P, C), or (n, P) of a log density, for P columns and groups,
        `base_values`, `data`, `display_data`, `feature_names`, `output_names`, and `error_std`,
        standard errors that are zero where values are exact.
        """
        return self._explained(X, output, method, groups, None, max_time, random_state)

    def _explained(
        self,
        X: ArrayLike,
        output: str | None,
        method: str,
        groups: Groups,
        intervals: Intervals,
        max_time: float | None,
        random_state: RandomState,
    ) -> ArrayLike:
        rows, model = self._rows(X), self._fitted
        known = () if model.classes is None else model.classes
        outputs = NUMBERS if isinstance(model.model, RegressionNetwork) else OUTPUTS
        output = output or outputs[0 if len(known) or outputs is NUMBERS else -1]
        if output not in outputs:
            raise InvalidInputError(f"output={output!r}: output is one of {outputs}.")
        if output in OUTPUTS[:2] and len(known) < 1 + (output == "log_odds"):
            raise InvalidInputError(
                f"output={output!r} needs classes, and the model knows {len(known)}: use "
                "output='log_density'."
            )
        if output != OUTPUTS[-1]:
            rows = model.checked(rows)
        question = ClassQuestion(model, output, self.device, Cells.of(intervals))
        return self._shapley(question, rows, method, groups, max_time, random_state)
