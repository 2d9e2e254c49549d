"""Networks of mixtures: a start by EM, linked EM, and gradients through the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mixtura.engines import Engine, PreparedEngine
from mixtura.exceptions import DegenerateDataWarning, warn
from mixtura.models.mixture import Mixture
from mixtura.models.network import N_DRAWS, RELATIVE, Network, RegressionNetwork
from mixtura.objectives import Objective, Regression, beside_likelihood, likelihood_share
from mixtura.progress import Progress
from mixtura.solvers import LBFGS, Adam, LinkedEM, Solver, SpreadPrior
from mixtura.solvers.linked import ElasticNet, LinkedResult, NetworkPrior, with_class_shares
from mixtura.training.groups import Folds, Groups, Recipe, effective_rows, fit_groups

#: Up to so many rows L-BFGS trains end to end, with an iteration for every twenty of them; few rows
#: would be learned by heart, and many need the time to find what tells rare classes.
_SMALL, _ROWS_EACH, _ITERATIONS = 6_000, 20, (40, 150)
#: Chances of categories that all components may have together, where their number is open.
_MOST_CHANCES = 40_000
#: Draws of what is missing in a row: in training, and of rows that are held out; and how often
#: those of training are made anew.
_TRAINING_DRAWS, _TRIAL_DRAWS, _ROUNDS = 8, 32, 4
#: Penalties of the read-out are lessened so far at most where classes are rare.
_LEAST_RARITY = 0.1


@dataclass(frozen=True)
class NetworkPlan:
    """How a network is trained: nothing is left open.

    Attributes
    ----------
    n_classes : 0 where the network predicts a number, or nothing.
    counts : components of each mixture, or of all; None leaves them to the rows.
    specialize : how much less the rows of other classes count for the mixture of a class.
    recipe : of the start, by EM.
    term : discriminative term of the objective; None is the squared error of a number.
    tradeoff : share of the likelihood per observed value beside it.
    unlabeled_weight : of unlabeled rows in the likelihood, where they take part; 0 sets them aside.
    """

    n_classes: int
    counts: np.ndarray | None
    embedding: str
    specialize: float
    recipe: Recipe
    linked: LinkedEM
    term: Objective | None
    tradeoff: float
    unlabeled_weight: float = 0.5

    @property
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""
        return {
            "embedding": self.embedding,
            "missingness": self.recipe.missingness,
            "unlabeled_weight": self.unlabeled_weight,
        }

    def informative(self) -> NetworkPlan:
        """The same, with components that also differ in which entries are absent."""
        return replace(self, recipe=replace(self.recipe, informative=True))

    def stages(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> list[Network]:
        """The network of a trial."""
        return [self.for_trials(self.train(engine, generator, progress).network)]

    @staticmethod
    def for_trials(network: Network) -> Network:
        """The network with fewer draws of what is missing."""
        return replace(network, n_draws=_TRIAL_DRAWS)

    def train(self, engine: Engine, generator: torch.Generator, progress: Progress) -> LinkedResult:
        """A network of the rows."""
        if self.unlabeled_weight == 0.0:
            engine = engine.only(engine.labeled)
        mixture, prior = self._start(engine, generator, progress)
        rarity = self._rarity(engine)
        net = ElasticNet(self.linked.l1 * rarity, self.linked.l2 * rarity)
        kind = RegressionNetwork if self.term is None else Network
        found = self.linked.run(
            replace(kind.blank(mixture, self.embedding), n_draws=_TRAINING_DRAWS),
            engine,
            progress,
            specialize=self.specialize,
            net=net,
            prior=prior,
        )
        network = found.network
        if self.follows_gradients(network, engine):
            penalties = NetworkPrior(net, self.supervision(engine), prior)
            for solver in _gradient_solvers(engine):
                if progress.stopped:
                    break
                stay = engine.may_have_missing and isinstance(solver, LBFGS)
                rows = PreparedEngine(engine, network.completed) if stay else engine
                network = solver.run(
                    network,
                    self.objective(engine),
                    rows,
                    progress,
                    generator=generator,
                    prior=penalties,
                ).model
        network = replace(network, n_draws=N_DRAWS)
        if self.n_classes > 1 and self.linked.end_to_end:
            network = with_class_shares(network, self._shares(engine), progress)
        return replace(found, network=network)

    def objective(self, engine: Engine) -> Objective:
        """What gradients minimize over the rows."""
        if self.term is None:
            return Regression(likelihood_share(self.tradeoff, engine.values_per_row))
        all_labeled = bool(engine.labeled.all())
        return beside_likelihood(
            self.term,
            self.tradeoff,
            unlabeled_weight=None if all_labeled else self.unlabeled_weight,
            n_values=engine.values_per_row,
        )

    def supervision(self, engine: Engine) -> float:
        """How many rows' losses of the read-out the objective of the gradients holds."""
        if self.n_classes < 2 and self.term is not None:
            return 0.0
        generative = likelihood_share(self.tradeoff, engine.values_per_row)
        labeled = engine.labeled
        if self.term is not None:  # the likelihood holds labels too, where it looks at them
            generative *= 0.0 if bool(labeled.all()) else self.unlabeled_weight
        return (1.0 - generative) * float(engine.weight[labeled].sum())

    def follows_gradients(self, network: Network, engine: Engine) -> bool:
        """Whether mixtures and read-out are trained together, after linked EM."""
        taught = self.supervision(engine) > 0 and bool(network.weight.any())
        return self.linked.end_to_end and taught

    def _shares(self, engine: Engine) -> np.ndarray:
        """(C,) shares of the classes in the weight of the labeled rows."""
        y, weight = engine.y.cpu().numpy(), engine.weight.double().cpu().numpy()
        mass = np.bincount(y[y >= 0], weight[y >= 0], minlength=self.n_classes)
        return mass / max(mass.sum(), 1e-300)

    def _rarity(self, engine: Engine) -> float:
        """What penalties of the read-out are multiplied by: as much say has the rarest class.

        Its share, of an even one; penalties never vanish.
        """
        if self.n_classes < 1 or self.term is None:
            return 1.0
        shares = self._shares(engine)
        found = shares[shares > 0]
        return max(_LEAST_RARITY, self.n_classes * float(found.min())) if len(found) else 1.0

    def _start(
        self, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> tuple[Mixture, SpreadPrior | None]:
        """EM on all rows, once for all classes; or on the rows of each, where that is its share."""
        n_mixtures, everyone = max(1, self.n_classes), engine.single_class()
        own = self.specialize > 0.5 and n_mixtures > 1
        engines: list[Engine] = [everyone] * n_mixtures
        if own:
            parts = (engine.labeled_as(label) for label in range(n_mixtures))
            engines = [rows.single_class() if len(rows) else everyone for rows in parts]
        counts = self._components(engines)
        alike = not own and len(set(counts or [0])) == 1
        fitted = 1 if alike else n_mixtures
        counts = None if counts is None else counts[:fitted]
        groups = (
            Groups.by_class(engine, fitted, Folds.none(engine))
            if own
            else Groups.everyone(engine, fitted)
        )
        start = fit_groups(groups, counts, self.recipe, generator, progress)
        found = [result.model for result in start.results[0]]
        mixtures = found * (n_mixtures if alike else 1)
        even = mixtures[0].log_weight.new_full((n_mixtures,), 1.0 / n_mixtures).log()
        return Mixture.join(mixtures, even, learn_prior=True), start.prior()

    def _components(self, engines: Sequence[Engine]) -> list[int] | None:
        """Components of each mixture, no more than its rows; None lets a criterion decide.

        A read-out of posteriors wants more components than the density of the rows does; columns
        of thousands of categories, each with its chance in every component, have fewer.
        """
        most = np.array([len(engine) for engine in engines])
        if self.counts is None:
            if self.specialize > 0.5:
                return None
            rows = np.array([effective_rows(engine) for engine in engines])
            chances = sum(sum(engine.levels) for engine in engines)
            most = np.minimum(most, max(2, _MOST_CHANCES // max(1, chances)))
            return np.clip(np.rint(2.0 * np.cbrt(rows)).astype(int), 1, most).tolist()
        wanted = np.broadcast_to(self.counts, len(engines))
        if (wanted > most).any():
            warn(
                "more components than rows: there is one per row then. Remedy: a smaller "
                "n_components, or 'auto'.",
                DegenerateDataWarning,
            )
        counts = np.minimum(wanted, most)
        if self.embedding in RELATIVE and (counts == 1).any():
            warn(
                f"a component alone has the {self.embedding} one, whatever the row, and tells "
                "nothing. Remedy: n_components=2 or more, or embedding='log_density'.",
                DegenerateDataWarning,
            )
        return counts.tolist()


def _gradient_solvers(engine: Engine) -> list[Solver]:
    """One after the other.

    Draws of what is missing stay the same within a run of L-BFGS, or every step would be one of
    another function; several runs keep them from being learned by heart.
    """
    if len(engine) > _SMALL:
        return [Adam()]
    rounds = _ROUNDS if engine.may_have_missing else 1
    iterations = int(np.clip(len(engine) / _ROWS_EACH, *_ITERATIONS))
    return [LBFGS(iterations // rounds)] * rounds
