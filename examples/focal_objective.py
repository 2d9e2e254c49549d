"""An objective of one's own, in one file: rows that are right already count for less.

The focal loss of Lin et al. (2017), -(1 - p)^gamma log p of the own class. Its field is a parameter
like any other: `MixtureClassifier(objective=Focal(gamma=1.0))`, searched as `objective__gamma`, and
stored in model files by the path of its import.
"""

from dataclasses import dataclass

from torch import Tensor

from mixtura.objectives import Conditional, Objective


@dataclass
class Focal(Objective):
    """The conditional likelihood, weighted by what is left of the probability."""

    gamma: float = 2.0

    def loss(self, class_log_joint: Tensor, y: Tensor) -> Tensor:
        """(n,) losses from class log-joints (n, C) and labels (n,)."""
        loss = Conditional().loss(class_log_joint, y)
        return (1.0 - (-loss).exp()).clamp_min(1e-12) ** self.gamma * loss


if __name__ == "__main__":
    from sklearn.datasets import load_wine
    from sklearn.model_selection import GridSearchCV

    from mixtura import MixtureClassifier

    X, y = load_wine(return_X_y=True)
    model = MixtureClassifier(1, density="diag", objective=Focal(), tradeoff=0.0, random_state=0)
    search = GridSearchCV(model, {"objective__gamma": [0.0, 1.0, 2.0]}, cv=3).fit(X, y)
    print(f"gamma {search.best_params_['objective__gamma']}: {search.best_score_:.3f} right")
