"""What a classifier answers: its score; with class densities probabilities, margins, draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor

from mixtura.data import encode_labels, labeled_mask, read_labels
from mixtura.estimators.base import check_count, check_weight
from mixtura.exceptions import InvalidInputError
from mixtura.objectives import log_margin
from mixtura.selection.calibration import Calibration


class LabeledScore(ClassifierMixin):
    """A classifier that is scored by the rows that have labels."""

    @property
    def _marker(self) -> Any:
        """What marks unlabeled rows beside None and NaN."""
        return self.unlabeled

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the labeled rows, by weight, whose class is predicted.

        Unlabeled rows are told as in `fit`.
        """
        predicted, labels = self.predict(X), read_labels(y)
        check_consistent_length(predicted, labels)
        weight = check_weight(sample_weight, len(labels))
        known = labeled_mask(labels, self._marker, self.classes_) & (weight > 0)
        if not known.any():
            raise InvalidInputError(
                "no row has a label and a weight above zero: a score needs labeled rows."
            )
        given = np.array(labels[known].tolist())
        return accuracy_score(given, predicted[known], sample_weight=weight[known])


class DensityClassifier(LabeledScore):
    """Answers of a fitted classifier; `MixtureEstimator` has those of its density."""

    def _class_log_joint(self, rows: Any) -> np.ndarray:
        """log p(x, c) of checked rows in the model's units, (n, C)."""
        return self._evaluate(lambda m, b: m.class_log_joint(b), rows)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(class | x), (n, C); a row with nothing observed gets the class prior."""
        check_is_fitted(self)
        rows = self._check_X(X, reset=False)
        log_joint, missing = self._class_log_joint(rows), self._missing_share(rows)
        calibration = Calibration(self.temperature_, self.doubt_, self.fade_)
        calibrated = calibration.log_proba(log_joint, missing)
        plain = Calibration().log_proba(log_joint, missing)
        return np.where(missing[:, None] == 1.0, plain, calibrated)

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(class | x), (n, C), classes in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        check_is_fitted(self)
        rows = self._check_X(X, reset=False)
        return self.classes_[self._class_log_joint(rows).argmax(1)]

    def class_log_density(self, X: Any) -> np.ndarray:
        """log p(x | class) over the observed features of each row, (n, C), in the units of X."""
        log_prior = self._density_model().log_prior.numpy()
        rows = self._check_X(X, reset=False)
        return self._class_log_joint(rows) - log_prior - self._log_jacobian(rows)[:, None]

    def log_margin(self, X: Any, y: Any) -> np.ndarray:
        """log p(x, y) minus the largest log p(x, c) of another class: positive where right."""
        check_is_fitted(self)
        if len(self.classes_) == 1:
            raise InvalidInputError("a margin needs two classes; the model was fitted on one.")
        class_log_joint = self._class_log_joint(self._check_X(X, reset=False))
        labels = self._labels_for(y, len(class_log_joint))
        if labels is None or (labels < 0).any():
            raise InvalidInputError("log_margin needs a label for every row.")
        return log_margin(torch.from_numpy(class_log_joint), torch.from_numpy(labels)).numpy()

    def _labels_for(self, y: Any, n_rows: int) -> np.ndarray | None:
        if y is None:
            return None
        labels = read_labels(y)
        if len(labels) != n_rows:
            raise InvalidInputError(f"y has {len(labels)} entries, but X has {n_rows} rows.")
        return encode_labels(labels, self.classes_, self.unlabeled)

    def sample(
        self, n_samples: int = 1, y: Any = None, *, random_state: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the model.

        Parameters
        ----------
        n_samples : number of rows.
        y : a class label, or one label a row; None draws them from the class prior.

        Returns
        -------
        X (n_samples, D) and y (n_samples,).
        """
        self._density_model()
        generator = self._generator(random_state)
        labels = self._labels_to_draw(check_count(n_samples), y, generator)
        rows = self._drawn(self.mixture_.sample(labels, generator))
        return rows, self.classes_[labels.numpy()]

    def _labels_to_draw(self, n_samples: int, y: Any, generator: torch.Generator) -> Tensor:
        """Class indices of draws: as asked for, or from the class prior."""
        log_prior = self._density_model().log_prior
        if y is None:
            prior = log_prior.exp()
            return torch.multinomial(prior, n_samples, replacement=True, generator=generator)
        wanted = np.asarray(y)
        if wanted.shape not in ((), (n_samples,)):
            raise InvalidInputError(
                f"y has shape {wanted.shape}: give one label, or one for each of the {n_samples} "
                "rows."
            )
        labels = encode_labels(np.broadcast_to(wanted, n_samples), self.classes_, None)
        if (labels < 0).any():
            raise InvalidInputError(
                "y has None or NaN among the labels to draw rows of: leave them out, or y "
                "altogether."
            )
        return torch.from_numpy(labels)
