"""A network with a mixture of Gaussians at its end, as a scikit-learn estimator.

skorch wraps a PyTorch module as an estimator; all that a sparse head adds is one term of the loss.

    pip install skorch
    python examples/last_layer_skorch.py
"""

import sys
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from torch import nn

from mixtura.nn import MixtureHead, kl_weight

try:
    from skorch import NeuralNetClassifier
except ImportError:
    sys.exit("This example needs skorch: pip install skorch.")


class Network(nn.Sequential):
    """A hidden layer, a norm that keeps features of the order of one, and the head."""

    def __init__(self, n_features: int = 32, n_components: int = 2) -> None:
        super().__init__(
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, n_features),
            nn.BatchNorm1d(n_features),
            MixtureHead(n_features, 10, n_components, "diag"),
        )


class SparseNetClassifier(NeuralNetClassifier):
    """Cross-entropy plus the divergence of the head's weights from their prior."""

    def get_loss(self, y_pred: torch.Tensor, y_true: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().get_loss(y_pred, y_true, *args, **kwargs)
        if not self.module_.training:
            return loss
        epoch = len(self.history) - 1
        return loss + kl_weight(epoch, self.max_epochs) * self.module_[-1].kl() / self.n_rows_

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Any:
        self.n_rows_ = len(X)
        return super().fit(X, y, **fit_params)


def main() -> None:
    """Fit the whole pipeline and score it, as any scikit-learn estimator."""
    torch.manual_seed(0)
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X.astype("float32"), y, stratify=y, random_state=0)
    net = SparseNetClassifier(
        Network,
        criterion=nn.CrossEntropyLoss,  # the head gives logits
        optimizer=torch.optim.Adam,
        lr=1e-2,
        batch_size=128,
        max_epochs=40,
        train_split=None,
        verbose=0,
    )
    model = make_pipeline(MinMaxScaler(), net).fit(X, y)
    print(f"accuracy {model.score(X_test, y_test):.3f}, log-loss", end=" ")
    print(f"{log_loss(y_test, model.predict_proba(X_test)):.3f},", end=" ")
    print(f"zero weights {model[-1].module_[-1].sparsity():.0%}")


if __name__ == "__main__":
    main()
