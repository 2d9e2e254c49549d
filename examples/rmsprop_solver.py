"""A solver of one's own, in one file: RMSprop on minibatches, by PyTorch's own optimizer.

All it asks of rows are minibatches, and of a model its free parameters, so that it trains every
density on every objective: `MixtureClassifier(solver=RMSprop(learning_rate=0.003))`, searched as
`solver__learning_rate`, and stored in model files by the path of its import.
"""

from dataclasses import dataclass

import torch

from mixtura.solvers import Best, FitResult, Solver


@dataclass
class RMSprop(Solver):
    """So many epochs; with early stopping, the best one on held-out rows is kept."""

    max_iter: int = 30
    learning_rate: float = 0.01
    batch_size: int = 50
    early_stopping: bool = False
    validation_fraction: float = 0.1

    def run(self, model, objective, engine, progress, *, generator=None, held_out=None, prior=None):
        """A better model: that of the last epoch, or of the best one on `held_out`."""
        generator = generator or torch.Generator()
        free = {k: v.detach().clone().requires_grad_() for k, v in model.free().items()}
        optimizer = torch.optim.RMSprop(free.values(), self.learning_rate)
        best, weight = Best(model, objective, held_out), engine.total_weight
        progress.start("RMSprop", self.max_iter)
        for epoch in range(1, self.max_iter + 1):
            total = 0.0
            for index in engine.minibatch_indices(self.batch_size, generator):
                batch, current = engine.batch(index), model.from_free(free)
                share = len(index) / len(engine)
                loss = objective.total(current.outputs(batch), batch.y, batch.weight / share)
                loss = loss if prior is None else loss + prior.penalty(current)
                optimizer.zero_grad()
                (loss / weight).backward()
                optimizer.step()
                total += share * float(loss.detach()) / weight
            record = {"stage": "RMSprop", "iteration": epoch, "objective": total}
            now = {name: value.detach().clone() for name, value in free.items()}
            best.offer(model.from_free(now), total, record)
            if progress.step(record):
                break
        return FitResult(best.model, best.score[1], epoch, False)


if __name__ == "__main__":
    from sklearn.datasets import load_wine
    from sklearn.model_selection import GridSearchCV

    from mixtura import MixtureClassifier

    X, y = load_wine(return_X_y=True)
    model = MixtureClassifier(1, density="diag", solver=RMSprop(), random_state=0)
    search = GridSearchCV(model, {"solver__learning_rate": [0.001, 0.01, 0.1]}, cv=3).fit(X, y)
    rate = search.best_params_["solver__learning_rate"]
    print(f"learning rate {rate}: {search.best_score_:.3f} right")
